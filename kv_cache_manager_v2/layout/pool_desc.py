"""Descriptions of pools and of byte ranges in them, for users. Plain values, made anew for each call."""

from dataclasses import dataclass

from ..base.ids import LayerGroupId, MemAddress, PoolGroupIndex, PoolIndex
from ..base.value import Value
from .buffer_id import BufferId
from .slot_desc import SlotDesc


@dataclass(frozen=True)
class PoolDesc(Value):
    """One address range: slot ``i`` is ``base_address + i * slot_bytes + [0, slot_bytes)``; the base is 0 on a device without memory."""

    pool_index: PoolIndex
    base_address: MemAddress
    slot_bytes: int


@dataclass(frozen=True)
class PoolGroupDesc(Value):
    """Pools allocated in lockstep: the number of slots, and what a slot contains."""

    pool_group_index: PoolGroupIndex
    num_slots: int
    slot_desc: SlotDesc
    pools: tuple[PoolDesc, ...]


@dataclass(frozen=True)
class ExpandedBuffer(Value):
    """A buffer, and how many of its kernel's blocks lie in one block of the manager."""

    id: BufferId
    expansion: int


@dataclass(frozen=True)
class AggregatedPageDesc(Value):
    """Bytes of neighbouring buffers: for slot ``i`` of the layer group, ``base + stride * i + [0, size)``."""

    base: MemAddress
    size: int
    stride: int
    layer_group_id: LayerGroupId
    buffers: tuple[ExpandedBuffer, ...]
