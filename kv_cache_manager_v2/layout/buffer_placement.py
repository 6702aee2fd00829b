"""The place of a buffer: its pool, its offset in a slot, and the scale of its page indices."""

from typing import Final, final


from ..base.ids import LifeCycleId, PoolGroupIndex, PoolIndex
from .buffer_id import BufferId


@final
class BufferPlacement:
    """A value, in bytes of one slot and in sub-pages of the buffer's expanded size. ``scratch_pages_per_block``: the sub-pages of one
    layer, as a block of scratch memory takes only those.

        slot of the pool   | A.k | A.v | B.k | B.v | C.k | C.v |     scale = 6 sub-pages
        B.v                                  ^ layer_offset = 3      scratch_pages_per_block = 2: B has two of them
    """

    __slots__ = (
        "buffer_id",
        "life_cycle_id",
        "pool_group_index",
        "pool_index",
        "num_bytes",
        "page_bytes",
        "expansion",
        "scale",
        "layer_offset",
        "scratch_pages_per_block",
    )

    def __init__(
        self,
        buffer_id: BufferId,
        life_cycle_id: LifeCycleId,
        pool_group_index: PoolGroupIndex,
        pool_index: PoolIndex,
        num_bytes: int,
        expansion: int,
        scale: int,
        layer_offset: int,
        scratch_pages_per_block: int,
    ) -> None:
        self.buffer_id: Final = buffer_id
        self.life_cycle_id: Final = life_cycle_id
        self.pool_group_index: Final = pool_group_index
        self.pool_index: Final = pool_index
        self.num_bytes: Final = num_bytes
        """Expanded size: what one block takes. For recurrent state: what one sequence takes."""
        self.page_bytes: Final[int] = num_bytes // expansion
        """Bytes that one page index stands for, the configured size; ``num_bytes / expansion``."""
        self.expansion: Final = expansion
        """Page indices per block; over 1 where the kernel's blocks are smaller than the manager's."""
        self.scale: Final = scale
        """Sub-pages of this layer group in a slot of this pool."""
        self.layer_offset: Final = layer_offset
        """Ordinal of the buffer's sub-page in the slot."""
        self.scratch_pages_per_block: Final = scratch_pages_per_block
        """How many of the slot's sub-pages belong to the buffer's layer."""

    @property
    def offset_bytes(self) -> int:
        """The buffer's offset in the slot, within its pool."""
        return self.layer_offset * self.num_bytes

    @property
    def scratch_blocks_per_slot(self) -> int:
        """Blocks of the buffer's layer that one scratch slot can hold in this pool."""
        return self.scale // self.scratch_pages_per_block

    def __repr__(self) -> str:
        return (
            f"BufferPlacement({self.buffer_id}, life_cycle_id={self.life_cycle_id},"
            f" pool_group_index={self.pool_group_index}, pool_index={self.pool_index}, num_bytes={self.num_bytes},"
            f" expansion={self.expansion}, scale={self.scale}, layer_offset={self.layer_offset},"
            f" scratch_pages_per_block={self.scratch_pages_per_block})"
        )
