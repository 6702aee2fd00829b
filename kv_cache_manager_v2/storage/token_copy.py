"""Copies of single tokens between pages on level 0: all buffers of a layer group, on one stream.

What a token owns of a buffer's page is the user's kernels' business; two layouts are known. With ``num_heads`` 1 its bytes lie
together (NHD: token, head, dimension); with more the page is cut into that many equal runs, and each holds a piece of every token
(HND: head, token, dimension). A buffer with a smaller block of its own (`tokens_per_block_override`) is laid out per such block.
"""

from math import gcd
from typing import Final, final

from mypy_extensions import i64

from ..base.ids import CacheTier
from ..device.port import CopyBatch
from ..layout.buffer_placement import BufferPlacement
from .page_storage import PageStorage


@final
class TokenCopies:
    """Copies to be enqueued together: none may depend on another."""

    __slots__ = ("_storage", "_tokens_per_block", "_num_heads", "_placements", "_batches")

    def __init__(self, storage: PageStorage, tokens_per_block: i64, num_heads: i64) -> None:
        """`ValueError` if some buffer's bytes cannot be shared out evenly."""
        self._storage: Final = storage
        self._tokens_per_block: Final = tokens_per_block
        self._num_heads: Final = num_heads
        layout = storage.layout
        self._placements: Final[list[list[BufferPlacement]]] = [[] for _ in range(layout.num_life_cycles)]
        """By life cycle; none for recurrent state, which has no tokens."""
        self._batches: Final[dict[int, CopyBatch]] = {}
        """By bytes of a piece, in the order of the configuration's buffers."""
        for buffer_id in layout.buffer_ids:
            placement = layout.buffer_placement(buffer_id)
            if not layout.life_cycles[placement.life_cycle_id].has_page_per_block:
                continue
            if placement.num_bytes % (tokens_per_block * num_heads) != 0:
                raise ValueError(
                    f"layer {buffer_id.layer_id}, role {buffer_id.role!r}: {placement.num_bytes} bytes per block of "
                    f"{tokens_per_block} tokens cannot be shared out to tokens and num_heads={num_heads} evenly"
                )
            self._placements[placement.life_cycle_id].append(placement)

    def add(self, life_cycle: i64, source_slot: i64, source_token: i64, target_slot: i64, target_token: i64) -> None:
        """Tokens are counted in their block."""
        for placement in self._placements[life_cycle]:
            pool_group = self._storage.pool_groups[placement.pool_group_index]
            pool: i64 = placement.pool_index
            slot_bytes: i64 = pool_group.slot_bytes[pool]
            base: i64 = pool_group.base_addresses[pool] + placement.offset_bytes
            source = base + source_slot * slot_bytes
            target = base + target_slot * slot_bytes
            tokens_per_page = self._tokens_per_block // placement.expansion
            page_bytes: i64 = placement.page_bytes
            run_bytes = page_bytes // self._num_heads
            piece_bytes = run_bytes // tokens_per_page
            batch = self._batches.get(int(piece_bytes))
            if batch is None:
                batch = CopyBatch(CacheTier.GPU_MEM, CacheTier.GPU_MEM, piece_bytes)
                self._batches[int(piece_bytes)] = batch
            source += source_token // tokens_per_page * page_bytes + source_token % tokens_per_page * piece_bytes
            target += target_token // tokens_per_page * page_bytes + target_token % tokens_per_page * piece_bytes
            for head in range(self._num_heads):
                batch.add(target + head * run_bytes, source + head * run_bytes)

    def enqueue(self, stream: int) -> None:
        """In stream order after everything before; the next ones may depend on these. One batch, which is refused as a whole: its
        size is the largest that all pieces are multiples of. Refused, nothing is left to be enqueued."""
        batches = [batch for batch in self._batches.values() if batch.count > 0]
        if len(batches) == 0:
            return
        try:
            self._storage.device.copy_batch(stream, batches[0] if len(batches) == 1 else _join(batches))
        finally:
            for batch in batches:
                batch.clear()


def _join(batches: list[CopyBatch]) -> CopyBatch:
    piece_bytes: i64 = gcd(*[int(batch.num_bytes) for batch in batches])
    joined = CopyBatch(CacheTier.GPU_MEM, CacheTier.GPU_MEM, piece_bytes)
    for batch in batches:
        for index in range(batch.count):
            for offset in range(0, batch.num_bytes, piece_bytes):
                joined.add(batch.dst_addresses[index] + offset, batch.src_addresses[index] + offset)
    return joined
