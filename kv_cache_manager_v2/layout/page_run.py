"""Page runs: the longest contiguous byte ranges that a set of buffers occupies in a slot.

Both sides of a transfer compute the same runs from the same configuration; only `PageRun.at_address` needs addresses.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from ..base.ids import LayerGroupId, MemAddress, PoolGroupIndex, PoolIndex
from ..base.value import Value
from .buffer_id import BufferId
from .buffer_placement import BufferPlacement
from .pool_desc import AggregatedPageDesc, ExpandedBuffer
from .slot_layout import SlotLayout


@dataclass(frozen=True)
class PageRun(Value):
    """``[offset_bytes, offset_bytes + num_bytes)`` of each slot of a layer group in one pool."""

    layer_group_id: LayerGroupId
    pool_group_index: PoolGroupIndex
    pool_index: PoolIndex
    offset_bytes: int
    num_bytes: int
    slot_bytes: int
    buffers: tuple[ExpandedBuffer, ...]

    def at_address(self, pool_address: int) -> AggregatedPageDesc:
        """The run in a pool that begins at ``pool_address``."""
        base = MemAddress(pool_address + self.offset_bytes)
        return AggregatedPageDesc(base, self.num_bytes, self.slot_bytes, self.layer_group_id, self.buffers)


def compute_page_runs(layout: SlotLayout, buffer_ids: Iterable[BufferId]) -> list[PageRun]:
    """By layer group, pool, offset. A buffer named twice counts once; an unknown one is a `ValueError`."""
    by_place: dict[tuple[int, int, int], BufferPlacement] = {}
    for buffer_id in buffer_ids:
        placement = layout.buffer_placement(buffer_id)
        by_place[(placement.life_cycle_id, placement.pool_index, placement.layer_offset)] = placement
    runs: list[PageRun] = []
    members: list[BufferPlacement] = []
    for place in sorted(by_place):
        placement = by_place[place]
        if members and not _is_next(members[-1], placement):
            runs.append(_to_run(layout, members))
            members = []
        members.append(placement)
    if members:
        runs.append(_to_run(layout, members))
    return runs


def _is_next(previous: BufferPlacement, placement: BufferPlacement) -> bool:
    return (
        previous.life_cycle_id == placement.life_cycle_id
        and previous.pool_index == placement.pool_index
        and previous.layer_offset + 1 == placement.layer_offset
    )


def _to_run(layout: SlotLayout, members: list[BufferPlacement]) -> PageRun:
    first = members[0]
    return PageRun(
        first.life_cycle_id,
        first.pool_group_index,
        first.pool_index,
        first.offset_bytes,
        len(members) * first.num_bytes,
        layout.slot_bytes(first.pool_group_index)[first.pool_index],
        tuple([ExpandedBuffer(member.buffer_id, member.expansion) for member in members]),
    )
