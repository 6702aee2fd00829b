"""The contents of a slot: the coalesced buffers of each layer group that a pool group serves. Plain values.

Sizes are those of one slot, and of a buffer after expansion to the manager's ``tokens_per_block``.
"""

from dataclasses import dataclass

from ..base.ids import LayerGroupId
from ..base.value import Value
from .buffer_id import BufferId


@dataclass(frozen=True)
class CoalescedBuffer(Value):
    """Equal-sized buffers of a layer group, side by side in this order; one pool's share of a slot."""

    single_buffer_size: int
    buffer_ids: tuple[BufferId, ...]
    num_unused: int = 0
    """Places for buffers behind them that no layer uses, so that groups have slots of equal bytes."""

    @property
    def num_buffers(self) -> int:
        """The number of buffers."""
        return len(self.buffer_ids)

    @property
    def size(self) -> int:
        """Bytes of all buffers, and of unused places."""
        return self.single_buffer_size * (len(self.buffer_ids) + self.num_unused)


@dataclass(frozen=True)
class SlotDescVariant(Value):
    """A slot as one layer group uses it: one coalesced buffer per pool."""

    layer_group_id: LayerGroupId
    coalesced_buffers: tuple[CoalescedBuffer, ...]

    @property
    def slot_size_list(self) -> tuple[int, ...]:
        """Bytes of a slot in each pool of the group."""
        return tuple([buffer.size for buffer in self.coalesced_buffers])


@dataclass(frozen=True)
class SlotDesc(Value):
    """A slot of a pool group: all its variants, one per layer group, have the same sizes."""

    variants: tuple[SlotDescVariant, ...]

    @property
    def slot_size_list(self) -> tuple[int, ...]:
        """Bytes of a slot in each pool of the group."""
        return self.variants[0].slot_size_list
