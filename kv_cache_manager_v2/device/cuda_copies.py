"""Copies among GPU and pinned host memory, given to the driver as one batch where driver and cuda-python can, else one by one.

No copy may cross from one piece of memory that was made apart into the next: pieces may be neighbours, but are no unit.
"""

import logging
from typing import Any, Final, final

from mypy_extensions import mypyc_attr

from ..base.errors import CudaError, PartlyCopiedError
from ..base.ids import CacheTier
from .cuda_driver import NOT_SUPPORTED, SUCCESS, CudaDriver
from .cuda_host_memory import CudaHostMemory
from .range_table import RangeTable

_logger: Final = logging.getLogger(__name__)

_LAST_LEGACY_STREAM: Final = 1


@final
@mypyc_attr(native_class=True)
class CudaCopies:
    """The caller has made the GPU's context current."""

    __slots__ = ("_driver", "_gpu_ranges", "_host_memory", "_attributes", "_has_batches")

    _driver: Final[CudaDriver]
    _gpu_ranges: Final[RangeTable]
    _host_memory: Final[CudaHostMemory]
    _attributes: Final[list[Any]]
    _has_batches: bool

    def __init__(self, driver: CudaDriver, gpu_ranges: RangeTable, host_memory: CudaHostMemory) -> None:
        self._driver = driver
        self._gpu_ranges = gpu_ranges
        self._host_memory = host_memory
        self._attributes = [_make_attributes(driver.module)]
        self._has_batches = _has_batches(driver)

    def enqueue(
        self,
        stream: int,
        dst_tier: CacheTier,
        src_tier: CacheTier,
        dst_addresses: list[int],
        src_addresses: list[int],
        sizes: list[int],
    ) -> None:
        """``dst_addresses[i] <- src_addresses[i]``, ``sizes[i]`` bytes; at least one."""
        pointer = self._driver.module.CUdeviceptr
        dsts: list[Any] = []
        srcs: list[Any] = []
        piece_sizes: list[int] = []
        for index in range(len(sizes)):
            dst = dst_addresses[index]
            src = src_addresses[index]
            left = sizes[index]
            while left > 0:
                num_bytes = min(left, self._piece_end(dst_tier, dst) - dst, self._piece_end(src_tier, src) - src)
                dsts.append(pointer(dst))
                srcs.append(pointer(src))
                piece_sizes.append(num_bytes)
                dst += num_bytes
                src += num_bytes
                left -= num_bytes
        self._enqueue_pieces(stream, dsts, srcs, piece_sizes)

    def _enqueue_pieces(self, stream: int, dsts: list[Any], srcs: list[Any], sizes: list[int]) -> None:
        count = len(sizes)
        # The driver takes no batch on the legacy default stream.
        if count > 1 and self._has_batches and stream > _LAST_LEGACY_STREAM:
            status = self._driver.status_of(
                "cuMemcpyBatchAsync", dsts, srcs, sizes, count, self._attributes, [0], 1, stream
            )
            number = int(status)
            if number == SUCCESS:
                return
            if number != NOT_SUPPORTED:
                raise self._driver.make_error("cuMemcpyBatchAsync", status)
            _logger.info("the CUDA driver takes no batches of copies; they are enqueued one by one")
            self._has_batches = False
        for index in range(count):
            try:
                self._driver.call("cuMemcpyAsync", dsts[index], srcs[index], sizes[index], stream)
            except CudaError as error:
                if index == 0:
                    raise
                raise PartlyCopiedError(f"of {count} copies {index} were enqueued, then {error}") from error

    def _piece_end(self, tier: CacheTier, address: int) -> int:
        if tier == CacheTier.GPU_MEM:
            return self._gpu_ranges.mapped_end(address)
        return self._host_memory.registration_end(address)


def _make_attributes(module: Any) -> Any:
    """Sources are read in stream order; None where this cuda-python has no batches."""
    if not hasattr(module, "CUmemcpyAttributes"):
        return None
    attributes = module.CUmemcpyAttributes()
    attributes.srcAccessOrder = module.CUmemcpySrcAccessOrder.CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
    return attributes


def _has_batches(driver: CudaDriver) -> bool:
    """Whether cuda-python and the driver both have `cuMemcpyBatchAsync`, and the same form of it.

    CUDA 12.8 brought it and 13.0 changed its form. cuda-python hides the difference, but not from an older driver.
    """
    if not hasattr(driver.module, "cuMemcpyBatchAsync"):
        return False
    driver_version: int = driver.call("cuDriverGetVersion")
    bindings_version: int = driver.module.CUDA_VERSION
    return driver_version >= (13000 if bindings_version >= 13000 else 12080)
