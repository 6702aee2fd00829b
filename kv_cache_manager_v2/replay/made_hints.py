"""What an engine could have said of each request's future: for `compare-policies`, from the future itself, or from recorded stop reasons.

A request continues if a later prompt begins with all of its whole blocks. A hint of accuracy 0.8 says so of four requests in five, and the
opposite of the others, which a generator with a seed picks.
"""

from random import Random
from typing import Final

from ..storage.eviction.segment_traits import CONTINUES, ENDS, NO_HINT
from .block_requests import BlockRequests

RECORDED: Final = "recorded"


def find_continued(blocks: BlockRequests) -> list[bool]:
    """Of each request. Where it has no whole block: whether the same one comes again."""
    later: set[int] = set()
    continued: list[bool] = []
    for request, num_whole in zip(reversed(blocks.requests), reversed(blocks.num_whole), strict=True):
        continued.append(len(request) > 0 and request[max(num_whole, 1) - 1] in later)
        later.update(request)
    continued.reverse()
    return continued


def make_hints(blocks: BlockRequests, hints: str | float | None, seed: int) -> list[int]:
    """``hints``: an accuracy, `RECORDED`, or None for none at all."""
    if hints is None:
        return [NO_HINT] * len(blocks.requests)
    if isinstance(hints, str):
        return [NO_HINT if said is None else CONTINUES if said else ENDS for said in blocks.recorded_hints]
    random = Random(seed)
    return [CONTINUES if continued == (random.random() < hints) else ENDS for continued in find_continued(blocks)]
