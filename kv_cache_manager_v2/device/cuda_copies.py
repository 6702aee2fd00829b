"""Copies between GPU and pinned host memory, passed to the driver as one batch if it can, else one by one.

No copy may cross the border of two separate allocations: they may be adjacent, but CUDA does not treat them as one.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.errors import CudaError, PartlyCopiedError
from ..base.ids import CacheTier
from ..base.package_log import PackageLog
from .copy_runs import CopyRuns
from .cuda_batch_copy import CopyArrays, CudaBatchCopy, find_batch_copy
from .cuda_driver import NOT_SUPPORTED, SUCCESS, CudaDriver
from .cuda_host_memory import CudaHostMemory
from .port import CopyBatch
from .range_table import RangeTable

_logger: Final = PackageLog(__name__)

_LAST_LEGACY_STREAM: Final = 1


@final
class CudaCopies:
    """Enqueues copies. The caller has made the GPU's context current."""

    __slots__ = ("_driver", "_gpu_ranges", "_host_memory", "_arrays", "_batch_copy")

    def __init__(self, driver: CudaDriver, gpu_ranges: RangeTable, host_memory: CudaHostMemory) -> None:
        self._driver: Final = driver
        self._gpu_ranges: Final = gpu_ranges
        self._host_memory: Final = host_memory
        self._arrays = CopyArrays(vec[i64](), vec[i64](), vec[i64]())
        """The copies that are being enqueued, none across the border of two allocations, and behind them what is left of others. Made anew
        only to grow."""
        self._batch_copy: CudaBatchCopy | None = find_batch_copy(driver)

    def enqueue_batch(self, stream: int, batch: CopyBatch) -> None:
        """Enqueue all copies of the batch, at least one; neither tier is DISK."""
        runs = CopyRuns(batch)
        self._enqueue_copies(stream, batch.dst_tier, batch.src_tier, runs.dst_addresses, runs.src_addresses, runs.sizes, runs.count)

    def enqueue(
        self, stream: int, dst_tier: CacheTier, src_tier: CacheTier, dst_addresses: list[int], src_addresses: list[int], sizes: list[int]
    ) -> None:
        """Enqueue ``dst_addresses[i] <- src_addresses[i]``, ``sizes[i]`` bytes each; at least one."""
        self._enqueue_copies(stream, dst_tier, src_tier, vec[i64](dst_addresses), vec[i64](src_addresses), vec[i64](sizes), len(sizes))

    def _enqueue_copies(
        self, stream: int, dst_tier: CacheTier, src_tier: CacheTier, dsts: vec[i64], srcs: vec[i64], sizes: vec[i64], count: i64
    ) -> None:
        """Enqueue these copies, cut at the borders of allocations. The last copy's allocation is tried first."""
        cut_dsts = self._arrays.dsts
        cut_srcs = self._arrays.srcs
        cut_sizes = self._arrays.sizes
        num_cut: i64 = 0
        dst_beg: i64 = 0
        dst_end: i64 = 0
        src_beg: i64 = 0
        src_end: i64 = 0
        for index in range(count):
            dst = dsts[index]
            src = srcs[index]
            left = sizes[index]
            while left > 0:
                if dst < dst_beg or dst >= dst_end:
                    dst_beg, dst_end = self._piece_around(dst_tier, dst)
                if src < src_beg or src >= src_end:
                    src_beg, src_end = self._piece_around(src_tier, src)
                num_bytes = left if left < dst_end - dst else dst_end - dst
                if num_bytes > src_end - src:
                    num_bytes = src_end - src
                if num_cut == len(cut_dsts):
                    cut_dsts = append(cut_dsts, 0)
                    cut_srcs = append(cut_srcs, 0)
                    cut_sizes = append(cut_sizes, 0)
                cut_dsts[num_cut] = dst
                cut_srcs[num_cut] = src
                cut_sizes[num_cut] = num_bytes
                num_cut += 1
                dst += num_bytes
                src += num_bytes
                left -= num_bytes
        if len(cut_dsts) > len(self._arrays.dsts):
            self._arrays = CopyArrays(cut_dsts, cut_srcs, cut_sizes)
        self._enqueue_pieces(stream, int(num_cut))

    def _enqueue_pieces(self, stream: int, count: int) -> None:
        arrays = self._arrays
        # The driver accepts no batch on the legacy default stream.
        if count > 1 and self._batch_copy is not None and stream > _LAST_LEGACY_STREAM:
            number = self._batch_copy.enqueue(stream, arrays, count)
            if number == SUCCESS:
                return
            if number != NOT_SUPPORTED:
                raise self._driver.make_error_of_number("cuMemcpyBatchAsync", number)
            _logger.inform("the CUDA driver has no batch copies; they are enqueued one by one")
            self._batch_copy = None
        for index in range(count):
            try:
                self._driver.call("cuMemcpyAsync", int(arrays.dsts[index]), int(arrays.srcs[index]), int(arrays.sizes[index]), stream)
            except CudaError as error:
                if index == 0:
                    raise
                raise PartlyCopiedError(f"of {count} copies {index} were enqueued, then {error}") from error

    def _piece_around(self, tier: CacheTier, address: i64) -> tuple[i64, i64]:
        return self._gpu_ranges.mapped_interval(address) if tier == CacheTier.GPU_MEM else self._host_memory.registration(address)
