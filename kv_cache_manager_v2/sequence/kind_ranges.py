"""Which kind of tokens each block of one sequence has, from its `RetentionConfig`; the learned eviction policy asks when it is closed."""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..config.retention import RetentionConfig
from ..storage.eviction.segment_traits import NO_HINT, RequestFacts, level_of_kind


@final
class KindRanges:
    """Ranges of blocks, those that say most last: by priority, the first given of equal ones last."""

    __slots__ = ("_ranges",)

    def __init__(self, retention: RetentionConfig, prompt_length: int, tokens_per_block: int) -> None:
        self._ranges: Final[list[tuple[int, int, int]]] = []
        """Begin and end, in blocks, and level of the kind."""
        order = sorted([(item.priority, -position) for position, item in enumerate(retention.ranges) if item.kind is not None])
        for _, position in order:
            item = retention.ranges[-position]
            end = prompt_length if item.end is None else item.end
            level = int(level_of_kind(0 if item.kind is None else item.kind))
            self._ranges.append((item.begin // tokens_per_block, (end + tokens_per_block - 1) // tokens_per_block, level))

    def describe(self, facts: RequestFacts) -> None:
        """Tell the kinds of the blocks of the request that has begun there."""
        num_blocks = facts.num_blocks
        facts.kinds = kinds = vec[i64]([NO_HINT] * num_blocks)
        for begin, end, level in self._ranges:
            for block in range(begin, min(end, num_blocks)):
                kinds[num_blocks - 1 - block] = level


def find_kinds(retention: RetentionConfig, prompt_length: int, tokens_per_block: int) -> KindRanges | None:
    """None where no range has a kind."""
    if all([item.kind is None for item in retention.ranges]):
        return None
    return KindRanges(retention, prompt_length, tokens_per_block)
