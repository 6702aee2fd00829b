"""Scratch blocks and their slots, written from the design: a check on `layout`, so nothing of it is used.

While a step computes tokens ``H .. C-1``, a group's scratch blocks are the input blocks ``[ceil(H/T), ceil(C/T))`` that
are stale at history ``C - max_rewind_len``. One slot has, in each pool, as many sub-pages as the group has buffers of
that size, or as many as the layers that would fill it have; a layer with ``u`` of them fits ``scale // u`` blocks into a slot. The layer
that fits the fewest decides. Where the engine owns the memory, scratch blocks have no slots.
"""

from collections.abc import Sequence
from typing import Any, Final, final


from .reference_tree import GroupRule


@final
class ScratchRule:
    """The scratch rule of one layer group."""

    __slots__ = ("_rule", "_tokens_per_block", "_max_rewind_len", "_blocks_per_slot", "_is_external")

    def __init__(
        self, rule: GroupRule, layers: Sequence[Any], tokens_per_block: int, max_rewind_len: int, is_external: bool,
        slot_bytes: int | None = None,
    ) -> None:  # fmt: skip
        """``slot_bytes``: what the slot is filled up to; None: as many as the layers have."""
        self._rule: Final = rule
        self._tokens_per_block: Final = tokens_per_block
        self._max_rewind_len: Final = max_rewind_len
        self._is_external: Final = is_external  # the memory is the engine's
        counts = [_count_sizes(layer, tokens_per_block) for layer in layers]
        fits: list[int] = []
        used_bytes = sum([size * num_buffers for count in counts for size, num_buffers in count.items()])
        for count in counts:
            for size, num_buffers in count.items():
                scale = sum([other.get(size, 0) for other in counts])
                fits.append(scale * (slot_bytes or used_bytes) // used_bytes // num_buffers)
        self._blocks_per_slot: Final[int] = min(fits)

    def compute_range(self, history: int, capacity: int) -> tuple[int, int]:
        """First and one past the last scratch block; (0, 0) if there is none."""
        if self._rule.is_state:
            return (0, 0)
        size = self._tokens_per_block
        inputs = range(-(-history // size), -(-capacity // size))
        kept = max(capacity - self._max_rewind_len, 0)
        blocks = [ordinal for ordinal in inputs if self._rule.is_stale(ordinal, kept, size)]
        return (blocks[0], blocks[-1] + 1) if blocks else (0, 0)

    def compute_num_slots(self, blocks: tuple[int, int]) -> int:
        return 0 if self._is_external else -(-(blocks[1] - blocks[0]) // self._blocks_per_slot)


def _count_sizes(layer: Any, tokens_per_block: int) -> dict[int, int]:
    """By size, the number of the layer's buffers, per block of the manager."""
    count: dict[int, int] = {}
    for buffer in layer.buffers:
        size: int = buffer.size * (tokens_per_block // (buffer.tokens_per_block_override or tokens_per_block))
        count[size] = count.get(size, 0) + 1
    return count
