"""Which endpoint has a block: the blocks of a *segment* of a path lie together, as a prefix ends at the first missing one.

Segments of a path are its first `FIRST_SEGMENT` blocks, the next as many, and from there on each is as long as all before it. So a path of
n blocks has about log2(n / 64) of them, and with one of N endpoints away its prefix ends at the first of these that was there: of 300
blocks 52, 84 and 94 % are left of 3, 10 and 30 endpoints; were each block on its own, 1, 3 and 10 %.

Each segment has a first and a second choice among the endpoints, by the highest of their hashes (rendezvous hashing): what is stored while
the first is away is on the second, where also everything is whose first choice is an endpoint that was added. Look-ups ask both, and where
several endpoints were added or taken away those of before.
"""

from hashlib import sha256
from typing import Final

FIRST_SEGMENT: Final = 128
"""Blocks. More would have all prompts that begin alike on one endpoint."""

_MOST_CHOSEN: Final = 4096
"""Segments whose choices are kept, as each block of theirs asks for them."""


def segment_begin(block: int) -> int:
    """The first block of the segment that the block is in."""
    return 0 if block < FIRST_SEGMENT else FIRST_SEGMENT << ((block // FIRST_SEGMENT).bit_length() - 1)


class Placement:
    """The choices among all endpoints, in whatever order they are listed. ``before``: the endpoints of the time before these."""

    def __init__(self, endpoints: tuple[str, ...], before: tuple[str, ...] = ()) -> None:
        self.endpoints: Final = endpoints
        self._before: Final = before
        self._chosen: Final[dict[bytes, list[str]]] = {}

    def choices(self, digest: bytes) -> list[str]:
        """The first choice for what is named by the digest, the second if there are two endpoints, and what these were before."""
        chosen = self._chosen.get(digest)
        if chosen is None:
            now = _best_two(self.endpoints, digest)
            chosen = now + [place for place in _best_two(self._before, digest) if place in self.endpoints and place not in now]
            if len(self._chosen) >= _MOST_CHOSEN:
                self._chosen.clear()
            self._chosen[digest] = chosen
        return chosen


def _best_two(endpoints: tuple[str, ...], digest: bytes) -> list[str]:
    return sorted(endpoints, key=lambda endpoint: sha256(endpoint.encode() + digest).digest(), reverse=True)[:2]
