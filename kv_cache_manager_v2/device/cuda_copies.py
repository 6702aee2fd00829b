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
from .cuda_batch_copy import CudaBatchCopy, find_batch_copy
from .cuda_driver import NOT_SUPPORTED, SUCCESS, CudaDriver
from .cuda_host_memory import CudaHostMemory
from .port import CopyBatch
from .range_table import RangeTable

_logger: Final = PackageLog(__name__)

_LAST_LEGACY_STREAM: Final = 1


@final
class CudaCopies:
    """Enqueues copies. The caller has made the GPU's context current."""

    __slots__ = ("_driver", "_gpu_ranges", "_host_memory", "_dsts", "_srcs", "_sizes", "_batch_copy")

    def __init__(self, driver: CudaDriver, gpu_ranges: RangeTable, host_memory: CudaHostMemory) -> None:
        self._driver: Final = driver
        self._gpu_ranges: Final = gpu_ranges
        self._host_memory: Final = host_memory
        self._dsts = vec[i64]()
        """The copies that are being enqueued, none across the border of two allocations."""
        self._srcs = vec[i64]()
        self._sizes = vec[i64]()
        self._batch_copy: CudaBatchCopy | None = find_batch_copy(driver)

    def enqueue_batch(self, stream: int, batch: CopyBatch) -> None:
        """Enqueue all copies of the batch, at least one; neither tier is DISK."""
        runs = CopyRuns(batch)
        self._cut(batch.dst_tier, batch.src_tier, runs.dst_addresses, runs.src_addresses, runs.sizes, runs.count)
        self._enqueue_pieces(stream)

    def enqueue(
        self, stream: int, dst_tier: CacheTier, src_tier: CacheTier, dst_addresses: list[int], src_addresses: list[int], sizes: list[int]
    ) -> None:
        """Enqueue ``dst_addresses[i] <- src_addresses[i]``, ``sizes[i]`` bytes each; at least one."""
        self._cut(dst_tier, src_tier, vec[i64](dst_addresses), vec[i64](src_addresses), vec[i64](sizes), len(sizes))
        self._enqueue_pieces(stream)

    def _cut(self, dst_tier: CacheTier, src_tier: CacheTier, dsts: vec[i64], srcs: vec[i64], sizes: vec[i64], count: i64) -> None:
        """Collect these copies, cut at the borders of allocations. The last copy's allocation is tried first."""
        cut_dsts = vec[i64](capacity=count)
        cut_srcs = vec[i64](capacity=count)
        cut_sizes = vec[i64](capacity=count)
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
                num_bytes = left
                if num_bytes > dst_end - dst:
                    num_bytes = dst_end - dst
                if num_bytes > src_end - src:
                    num_bytes = src_end - src
                cut_dsts = append(cut_dsts, dst)
                cut_srcs = append(cut_srcs, src)
                cut_sizes = append(cut_sizes, num_bytes)
                dst += num_bytes
                src += num_bytes
                left -= num_bytes
        self._dsts = cut_dsts
        self._srcs = cut_srcs
        self._sizes = cut_sizes

    def _enqueue_pieces(self, stream: int) -> None:
        count = len(self._sizes)
        # The driver accepts no batch on the legacy default stream.
        if count > 1 and self._batch_copy is not None and stream > _LAST_LEGACY_STREAM:
            number = self._batch_copy.enqueue(stream, self._dsts, self._srcs, self._sizes)
            if number == SUCCESS:
                return
            if number != NOT_SUPPORTED:
                raise self._driver.make_error_of_number("cuMemcpyBatchAsync", number)
            _logger.inform("the CUDA driver has no batch copies; they are enqueued one by one")
            self._batch_copy = None
        for index in range(count):
            try:
                self._driver.call("cuMemcpyAsync", int(self._dsts[index]), int(self._srcs[index]), int(self._sizes[index]), stream)
            except CudaError as error:
                if index == 0:
                    raise
                raise PartlyCopiedError(f"of {count} copies {index} were enqueued, then {error}") from error

    def _piece_around(self, tier: CacheTier, address: i64) -> tuple[i64, i64]:
        if tier == CacheTier.GPU_MEM:
            return self._gpu_ranges.mapped_interval(address)
        return self._host_memory.registration(address)
