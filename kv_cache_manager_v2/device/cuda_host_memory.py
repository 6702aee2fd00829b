"""Pinned host memory: committed, placed near the GPU (`HostPlacement`), touched by many threads, then registered with CUDA so that
copies run asynchronously.

A *registration* is a piece that was registered in one call, at most ``max_registration_bytes`` long: some kernels fail
to pin more than 2 GiB at a time. CUDA unregisters only whole registrations, so unmapping a part of one waits for the
device, unregisters it and registers the rest again. A copy may not cross from one registration into the next:
`registration`.

Every call runs in the GPU's context, made current by the caller.
"""

from bisect import bisect_right
from typing import Any, Final, final

from mypy_extensions import i64

from ..base.errors import KVCacheManagerError, OutOfMemoryError
from ..base.package_log import PackageLog
from .cuda_driver import OPERATING_SYSTEM, OUT_OF_MEMORY, SUCCESS, CudaDriver
from .host_memory import commit_memory, decommit_memory
from .host_placement import HostPlacement
from .memory_touch import available_host_bytes, touch_memory

_logger: Final = PackageLog(__name__)
_PORTABLE_AND_MAPPED: Final = 1 | 2


@final
class CudaHostMemory:
    """Law: registrations are disjoint, sorted, and cover exactly the mapped bytes."""

    __slots__ = ("_driver", "_placement", "_max_registration_bytes", "_begs", "_ends")

    def __init__(self, driver: CudaDriver, placement: HostPlacement, max_registration_bytes: int) -> None:
        self._driver: Final = driver
        self._placement: Final = placement
        self._max_registration_bytes: Final = max_registration_bytes
        self._begs: Final[list[int]] = []
        self._ends: Final[list[int]] = []

    def map(self, address: int, num_bytes: int) -> None:
        """Map and pin all of it or nothing."""
        available_bytes = available_host_bytes()
        if available_bytes is not None and num_bytes > available_bytes:
            # Raised here, before the kernel's OOM killer acts.
            raise OutOfMemoryError(
                f"{num_bytes} bytes of host memory are to be pinned, and {available_bytes} are available; lower the quota of"
                " the host tier, or give the machine or its control group more memory"
            )
        commit_memory(address, num_bytes)
        try:
            self._placement.prepare(address, num_bytes)
            touch_memory(address, num_bytes)
            self._register(address, address + num_bytes)
        except BaseException:
            decommit_memory(address, num_bytes)
            raise

    def unmap(self, address: int, num_bytes: int) -> None:
        """Unmap all of it or nothing. Waits for the device if a part of a registration stays."""
        end = address + num_bytes
        first = bisect_right(self._begs, address) - 1
        behind_last = bisect_right(self._begs, end - 1)
        outer_beg = self._begs[first]
        outer_end = self._ends[behind_last - 1]
        begs = self._begs[first:behind_last]
        ends = self._ends[first:behind_last]
        if outer_beg < address or outer_end > end:
            # The part that stays may be in use by enqueued copies.
            self._driver.call("cuCtxSynchronize")
        try:
            self._unregister(outer_beg, outer_end)
            self._register(outer_beg, address)
            self._register(end, outer_end)
            decommit_memory(address, num_bytes)
        except (KVCacheManagerError, OSError):
            self._restore(begs, ends)
            raise

    def registration(self, address: i64) -> tuple[i64, i64]:
        """The beginning and end of the registration that contains ``address``."""
        index = bisect_right(self._begs, address) - 1
        return self._begs[index], self._ends[index]

    def _register(self, beg: int, end: int) -> None:
        """Register all of ``[beg, end)`` or nothing."""
        piece = beg
        while piece < end:
            num_bytes = min(self._max_registration_bytes, end - piece)
            status = self._driver.status_of("cuMemHostRegister", piece, num_bytes, _PORTABLE_AND_MAPPED)
            number = int(status)
            if number != SUCCESS:
                self._try_unregister(beg, piece)
                raise self._make_register_error(status, number, num_bytes, end - beg)
            self._add(piece, piece + num_bytes)
            piece += num_bytes

    def _unregister(self, beg: int, end: int) -> None:
        """Unregister every registration in ``[beg, end)``. If it raises, some of them are unregistered."""
        index = bisect_right(self._begs, end - 1) - 1
        while index >= 0 and self._begs[index] >= beg:
            self._driver.call("cuMemHostUnregister", self._begs[index])
            self._begs.pop(index)
            self._ends.pop(index)
            index -= 1

    def _try_unregister(self, beg: int, end: int) -> None:
        if beg >= end:
            return
        try:
            self._unregister(beg, end)
        except KVCacheManagerError as error:
            _logger.error("host memory may stay pinned until the process ends: %s", error)

    def _restore(self, begs: list[int], ends: list[int]) -> None:
        """Restore exactly these registrations in the span that they cover."""
        for index in range(len(begs)):
            beg = begs[index]
            end = ends[index]
            position = bisect_right(self._begs, beg) - 1
            if position >= 0 and self._begs[position] == beg and self._ends[position] == end:
                continue
            self._try_unregister(beg, end)
            try:
                self._register(beg, end)
            except KVCacheManagerError as error:
                # The bytes are still mapped and copies of them work, only slower.
                _logger.error("host memory lost its pinning: %s", error)
                self._add(beg, end)

    def _add(self, beg: int, end: int) -> None:
        index = bisect_right(self._begs, beg)
        self._begs.insert(index, beg)
        self._ends.insert(index, end)

    def _make_register_error(self, status: Any, number: int, num_bytes: int, asked_bytes: int) -> KVCacheManagerError:
        error = self._driver.make_error("cuMemHostRegister", status)
        if number != OUT_OF_MEMORY and number != OPERATING_SYSTEM:
            return error
        return OutOfMemoryError(
            f"cannot pin {num_bytes} bytes, of {asked_bytes} asked for, of host memory: {error};"
            " lower the quota of the host tier, or raise the limit that `ulimit -l` shows"
        )
