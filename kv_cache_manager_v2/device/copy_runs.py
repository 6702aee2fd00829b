"""Runs of a copy batch: copies whose sources and destinations are both adjacent are merged into one.

Pages that were allocated together are often adjacent, and one large copy costs less than many small ones, on a GPU's
copy engine as in `memcpy`. Pure arithmetic; the order is kept.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from .port import CopyBatch


@final
class CopyRuns:
    """``dst_addresses[i] <- src_addresses[i]``, ``sizes[i]`` bytes, for ``i < count``; and each side's span."""

    __slots__ = ("count", "dst_addresses", "src_addresses", "sizes", "dst_beg", "dst_end", "src_beg", "src_end")

    def __init__(self, batch: CopyBatch) -> None:
        """``batch`` has at least one copy."""
        num_bytes = batch.num_bytes
        batch_dst = batch.dst_addresses
        batch_src = batch.src_addresses
        dsts = vec[i64]()
        srcs = vec[i64]()
        sizes = vec[i64]()
        run_dst = batch_dst[0]
        run_src = batch_src[0]
        run_bytes = num_bytes
        dst_beg = run_dst
        dst_last = run_dst
        src_beg = run_src
        src_last = run_src
        count = batch.count
        for index in range(1, count):
            dst = batch_dst[index]
            src = batch_src[index]
            if dst < dst_beg:
                dst_beg = dst
            elif dst > dst_last:
                dst_last = dst
            if src < src_beg:
                src_beg = src
            elif src > src_last:
                src_last = src
            if dst == run_dst + run_bytes and src == run_src + run_bytes:
                run_bytes += num_bytes
            else:
                dsts = append(dsts, run_dst)
                srcs = append(srcs, run_src)
                sizes = append(sizes, run_bytes)
                run_dst = dst
                run_src = src
                run_bytes = num_bytes
        dsts = append(dsts, run_dst)
        srcs = append(srcs, run_src)
        sizes = append(sizes, run_bytes)
        self.count: Final[i64] = len(sizes)
        self.dst_addresses: Final[vec[i64]] = dsts
        self.src_addresses: Final[vec[i64]] = srcs
        self.sizes: Final[vec[i64]] = sizes
        self.dst_beg: Final[i64] = dst_beg
        self.dst_end: Final[i64] = dst_last + num_bytes
        self.src_beg: Final[i64] = src_beg
        self.src_end: Final[i64] = src_last + num_bytes
