"""Memory of a GPU, mapped chunk by chunk into reserved addresses (CUDA's virtual memory management).

Ranges are mapped and unmapped in granules; physical memory comes in *chunks*, one handle each, of one granule or a power of
two of them. Large chunks make mapping fast: 80 GB in granules of 2 MiB are 40,960 handles. But a chunk is freed only as a
whole: if it is unmapped in part, it stays allocated until the rest is unmapped too, or the part is mapped again. So a chunk is
at most 1/32 of what is mapped in one call, with smaller chunks at its end.

Order of the driver's calls: reserve; then per chunk create and map, then one set-access over each run of new chunks. In reverse:
one unmapping for each run of chunks, then their release. A handle is released only when its chunk is unmapped, so a failure
in the middle can be undone with contents kept.

`RangeTable` has the reserved and mapped granules. None of these calls needs a current context.
"""

import os
from bisect import bisect_right
from typing import Any, Final, final


from ..base.errors import KVCacheManagerError, OutOfMemoryError
from ..base.package_log import PackageLog
from .cuda_allocator import CudaAllocator
from .cuda_driver import INVALID_VALUE, SUCCESS, CudaDriver

_logger: Final = PackageLog(__name__)

_CHUNKS_PER_CALL: Final = 32
"""A call that maps at least so many granules makes at least so many chunks."""


@final
class CudaChunk:
    """Physical memory behind ``[address, end)``; ``used_bytes`` of it, never 0, are mapped by ranges."""

    __slots__ = ("address", "num_bytes", "handle", "used_bytes")

    def __init__(self, address: int, num_bytes: int, handle: Any) -> None:
        self.address: Final = address
        self.num_bytes: Final = num_bytes
        self.handle: Final = handle
        self.used_bytes = 0

    @property
    def end(self) -> int:
        return self.address + self.num_bytes

    def overlap_bytes(self, address: int, num_bytes: int) -> int:
        return min(self.end, address + num_bytes) - max(self.address, address)


@final
class CudaMemory:
    """The mapped chunks. Law: a chunk is in ``_chunks`` while mapped; its handle is in ``_unreleased`` if releasing it failed;
    chunks are disjoint."""

    __slots__ = ("granularity_bytes", "_driver", "_allocator", "_max_chunk_bytes", "_addresses", "_chunks", "_unreleased")

    def __init__(self, driver: CudaDriver, allocator: CudaAllocator, min_granularity_bytes: int, max_chunk_bytes: int) -> None:
        """``min_granularity_bytes`` and ``max_chunk_bytes`` are powers of two."""
        self._driver: Final = driver
        self._allocator: Final = allocator
        self.granularity_bytes: Final[int] = max(allocator.granularity_bytes, min_granularity_bytes)
        self._max_chunk_bytes: Final[int] = max(self.granularity_bytes, max_chunk_bytes)
        self._addresses: Final[list[int]] = []  # of the chunks, sorted
        self._chunks: Final[dict[int, CudaChunk]] = {}  # by address
        self._unreleased: Final[list[Any]] = []

    def reserve(self, num_bytes: int) -> int:
        try:
            address = self._driver.call("cuMemAddressReserve", num_bytes, self.granularity_bytes, 0, 0)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(f"cannot reserve {num_bytes} bytes of GPU addresses: {error}") from error
        return int(address)

    def release(self, address: int, num_bytes: int) -> None:
        self._driver.call("cuMemAddressFree", address, num_bytes)

    def idle_bytes(self) -> int:
        """Bytes allocated but not mapped: parts of chunks whose rest is in use."""
        return sum([chunk.num_bytes - chunk.used_bytes for chunk in self._chunks.values()])

    def map(self, address: int, num_bytes: int) -> None:
        """Map all of it or nothing."""
        handles: list[Any] = []
        added: list[CudaChunk] = []
        try:
            for chunk_address, chunk_bytes in self._plan(address, num_bytes):
                handle = self._allocator.create(chunk_bytes)
                handles.append(handle)
                self._driver.call("cuMemMap", chunk_address, chunk_bytes, 0, handle, 0)
                added.append(CudaChunk(chunk_address, chunk_bytes, handle))
            for run in _split_into_runs(added):
                self._allocator.allow_access(run[0].address, run[-1].end - run[0].address)
        except KVCacheManagerError as error:
            for run in _split_into_runs(added):
                self._try_unmap(run)
            self._release_handles(handles)
            if isinstance(error, OutOfMemoryError):
                raise self._explain(error, num_bytes, sum([chunk.num_bytes for chunk in added])) from error
            raise
        for chunk in added:
            self._addresses.insert(bisect_right(self._addresses, chunk.address), chunk.address)
            self._chunks[chunk.address] = chunk
        for chunk in self._chunks_within(address, num_bytes):
            chunk.used_bytes += chunk.overlap_bytes(address, num_bytes)

    def unmap(self, address: int, num_bytes: int) -> None:
        """Unmap all of it or nothing. Memory that the driver then refuses to release is tried again later."""
        touched = self._chunks_within(address, num_bytes)
        leaving = [chunk for chunk in touched if chunk.used_bytes == chunk.overlap_bytes(address, num_bytes)]
        unmapped: list[CudaChunk] = []
        try:
            for run in _split_into_runs(leaving):
                self._unmap_run(run, unmapped)
        except KVCacheManagerError:
            self._map_again(unmapped)
            raise
        for chunk in touched:
            chunk.used_bytes -= chunk.overlap_bytes(address, num_bytes)
        for chunk in leaving:
            self._addresses.pop(bisect_right(self._addresses, chunk.address) - 1)
            del self._chunks[chunk.address]
        self._release_handles([chunk.handle for chunk in leaving])

    def export(self, address: int, num_bytes: int) -> list[tuple[int, int, int | bytes]]:
        """Address, size and exported handle of each chunk behind these mapped bytes. All or none."""
        exported: list[tuple[int, int, int | bytes]] = []
        try:
            for chunk in self._chunks_within(address, num_bytes):
                exported.append((chunk.address, chunk.num_bytes, self._allocator.export(chunk.handle)))
        except KVCacheManagerError:
            for _, _, handle in exported:
                if isinstance(handle, int):
                    os.close(handle)
            raise
        return exported

    def close(self) -> None:
        """Release the rest; nothing is mapped any more. Raises if the driver still refuses; may be called again."""
        assert len(self._chunks) == 0
        while self._unreleased:
            self._driver.call("cuMemRelease", self._unreleased[-1])
            self._unreleased.pop()

    # -- chunks -------------------------------------------------------------------------------------------------------

    def _plan(self, address: int, num_bytes: int) -> list[tuple[int, int]]:
        """Addresses and sizes of the chunks to create, so that each of these bytes has one."""
        largest = self.granularity_bytes
        while 2 * largest <= min(self._max_chunk_bytes, num_bytes // _CHUNKS_PER_CALL):
            largest *= 2
        plan: list[tuple[int, int]] = []
        position = address
        end = address + num_bytes
        while position < end:
            index = bisect_right(self._addresses, position)
            if index > 0 and position < self._chunks[self._addresses[index - 1]].end:
                # The rest of a chunk that was unmapped in part.
                position = self._chunks[self._addresses[index - 1]].end
                continue
            gap_end = min(end, self._addresses[index]) if index < len(self._addresses) else end
            while position < gap_end:
                size = largest
                while size > gap_end - position:
                    size //= 2
                plan.append((position, size))
                position += size
        return plan

    def _chunks_within(self, address: int, num_bytes: int) -> list[CudaChunk]:
        """The chunks that overlap these bytes, in order."""
        index = max(0, bisect_right(self._addresses, address) - 1)
        found: list[CudaChunk] = []
        while index < len(self._addresses) and self._addresses[index] < address + num_bytes:
            chunk = self._chunks[self._addresses[index]]
            if chunk.end > address:
                found.append(chunk)
            index += 1
        return found

    def _unmap_run(self, run: list[CudaChunk], unmapped: list[CudaChunk]) -> None:
        """Unmap adjacent chunks with one call. If it raises, those in ``unmapped`` are unmapped."""
        num_bytes = run[-1].end - run[0].address
        status = self._driver.status_of("cuMemUnmap", run[0].address, num_bytes)
        number = int(status)
        if number == SUCCESS:
            unmapped.extend(run)
            return
        if number != INVALID_VALUE or len(run) == 1:
            raise self._driver.make_error("cuMemUnmap", status)
        # Drivers accept several mappings at a time, but the documentation promises it for one only.
        for chunk in run:
            self._driver.call("cuMemUnmap", chunk.address, chunk.num_bytes)
            unmapped.append(chunk)

    def _map_again(self, chunks: list[CudaChunk]) -> None:
        for chunk in chunks:
            self._try_call("cuMemMap", chunk.address, chunk.num_bytes, 0, chunk.handle, 0)
        for run in _split_into_runs(chunks):
            try:
                self._allocator.allow_access(run[0].address, run[-1].end - run[0].address)
            except KVCacheManagerError as error:
                _logger.error("GPU memory may be lost until the process ends: %s", error)

    def _try_unmap(self, run: list[CudaChunk]) -> None:
        try:
            self._unmap_run(run, [])
        except KVCacheManagerError as error:
            _logger.error("GPU memory may be lost until the process ends: %s", error)

    def _release_handles(self, handles: list[Any]) -> None:
        handles = self._unreleased + handles
        self._unreleased.clear()
        for handle in handles:
            if not self._try_call("cuMemRelease", handle):
                self._unreleased.append(handle)

    def _explain(self, error: OutOfMemoryError, num_bytes: int, had_bytes: int) -> OutOfMemoryError:
        idle_bytes = self.idle_bytes()
        text = f"no room for {num_bytes} bytes of GPU memory: {error}, after {had_bytes} bytes; lower the quota of the GPU tier"
        if idle_bytes > 0:
            text += (
                f", or make the device with smaller chunk_bytes: {idle_bytes} bytes are left of chunks of up to"
                f" {self._max_chunk_bytes} bytes that were released in part"
            )
        return OutOfMemoryError(text)

    def _try_call(self, name: str, *args: Any) -> bool:
        """Make a call that undoes or releases something: its failure can only be logged."""
        try:
            self._driver.call(name, *args)
        except KVCacheManagerError as error:
            _logger.error("GPU memory may be lost until the process ends: %s", error)
            return False
        return True


def _split_into_runs(chunks: list[CudaChunk]) -> list[list[CudaChunk]]:
    """The chunks in order, as lists of adjacent ones."""
    runs: list[list[CudaChunk]] = []
    for chunk in chunks:
        if not runs or runs[-1][-1].end != chunk.address:
            runs.append([])
        runs[-1].append(chunk)
    return runs
