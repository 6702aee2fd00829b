"""Flags in pinned memory: streams and worker threads signal each other through them, without driver calls in a worker.

A flag is one use of a word. The word's value only grows, and a flag is raised once the value is at least the flag's. One side raises
it, a worker (`CudaFlag.give`) or a stream (`enqueue_raise`: `cuStreamWriteValue32`, after all work enqueued before), and the other side
sees it: a stream waits for it (`enqueue_wait`: `cuStreamWaitValue32`), a worker reads the word. A word may be reused as soon as its flag is
raised, even if a stream has yet to look at it.

If the GPU or its driver lacks one of the two calls, `can_raise` or `can_wait` is False, and the caller itself waits instead of
enqueueing it.
"""

import ctypes
from typing import Any, Final, final


from ..base.errors import KVCacheManagerError
from ..base.package_log import PackageLog
from .cuda_driver import CudaDriver
from .job_gate import JobFlag

_logger: Final = PackageLog(__name__)

_AT_LEAST: Final = 0
_BEHIND_EVERYTHING: Final = 0
_WORD_BYTES: Final = 4
_WORD_MASK: Final = (1 << 32) - 1
_HALF: Final = 1 << 31
_STREAM_NON_BLOCKING: Final = 1


@final
class CudaFlag(JobFlag):
    """A flag; a job waits until a stream has raised it, or raises it for a stream."""

    __slots__ = ("index", "value", "_address")

    def __init__(self, index: int, value: int, address: int) -> None:
        self.index: Final = index
        self.value: Final = value
        self._address: Final = address

    def give(self) -> None:
        ctypes.c_uint32.from_address(self._address).value = self.value

    def is_raised(self) -> bool:
        value: int = ctypes.c_uint32.from_address(self._address).value
        return (value - self.value) & _WORD_MASK < _HALF


@final
class CudaFlags:
    """The flags of a device. Conservation: every word is free or belongs to one flag. The caller's memory is pinned and zeroed.

    The caller has made the GPU's context current.
    """

    __slots__ = ("can_raise", "can_wait", "_driver", "_address", "_pointers", "_values", "_free")

    def __init__(self, driver: CudaDriver, address: int, num_bytes: int, streams_may_wait: bool) -> None:
        num_words = num_bytes // _WORD_BYTES
        self._driver: Final = driver
        self._address: Final = address
        gpu_address = int(driver.call("cuMemHostGetDevicePointer", address, 0))
        self._pointers: Final[list[Any]] = [driver.module.CUdeviceptr(gpu_address + index * _WORD_BYTES) for index in range(num_words)]
        """By word: its GPU address."""
        self._values: Final[list[int]] = [0] * num_words  # by word: the value of its latest flag
        self._free: Final[list[int]] = list(range(num_words - 1, -1, -1))
        self.can_raise: Final[bool] = _can_order(driver, self._pointers[0], "cuStreamWriteValue32")
        self.can_wait: Final[bool] = streams_may_wait and self.can_raise and _can_order(driver, self._pointers[0], "cuStreamWaitValue32")

    def take(self) -> CudaFlag | None:
        """A flag that is not raised yet; None if all words are in use."""
        if not self._free:
            return None
        index = self._free.pop()
        value = (self._values[index] + 1) & _WORD_MASK
        self._values[index] = value
        return CudaFlag(index, value, self._address + index * _WORD_BYTES)

    def release(self, flag: CudaFlag) -> None:
        """Free the flag's word: it is raised, or will never be."""
        self._free.append(flag.index)

    def enqueue_wait(self, stream: int, flag: CudaFlag) -> None:
        """Work enqueued on the stream from now on runs after the flag is raised."""
        self._driver.call("cuStreamWaitValue32", stream, self._pointers[flag.index], flag.value, _AT_LEAST)

    def enqueue_raise(self, stream: int, flag: CudaFlag) -> None:
        """Raise the flag, and make the bytes visible to the host, after all work enqueued on the stream."""
        self._driver.call("cuStreamWriteValue32", stream, self._pointers[flag.index], flag.value, _BEHIND_EVERYTHING)


def _can_order(driver: CudaDriver, word: Any, call: str) -> bool:
    """Whether streams can do ``call``: tried on a value that the word already has."""
    stream = driver.call("cuStreamCreate", _STREAM_NON_BLOCKING)
    obstacle = ""
    try:
        driver.call(call, stream, word, 0, _AT_LEAST)
        # Nothing else writes to the word while it is used.
        driver.call("cuStreamSynchronize", stream)
    except KVCacheManagerError as error:
        # The driver or the GPU lacks it; anything worse shows with the next call.
        obstacle = str(error)
    driver.call("cuStreamDestroy", stream)
    if obstacle:
        _logger.inform("copies from and to a disk block the caller, as streams and threads cannot wait for each other: %s", obstacle)
    return not obstacle
