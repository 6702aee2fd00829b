"""Words of pinned memory that a worker thread raises and a stream waits for: so a stream runs on when a disk is done.

A flag is one use of a word: the word's value only grows, and a stream waits until it is at least the flag's. So a word may be
used again as soon as its job is done, even if a stream has yet to look at it.

Where the GPU or its driver lacks `cuStreamWaitValue32`, `can_wait` is False and whoever would make a stream wait has to wait
himself.
"""

import ctypes
import logging
from typing import Any, Final, final

from mypy_extensions import mypyc_attr

from ..base.errors import KVCacheManagerError
from .cuda_driver import CudaDriver
from .job_gate import JobGate, JobSignal

_logger: Final = logging.getLogger(__name__)

_AT_LEAST: Final = 0
_WORD_BYTES: Final = 4
_WORD_MASK: Final = (1 << 32) - 1
_STREAM_NON_BLOCKING: Final = 1


@final
@mypyc_attr(native_class=True)
class CudaFlag(JobSignal):
    """Raised by the job's last worker."""

    __slots__ = ("index", "value", "_address")

    index: Final[int]
    value: Final[int]
    _address: Final[int]

    def __init__(self, index: int, value: int, address: int) -> None:
        self.index = index
        self.value = value
        self._address = address

    def give(self) -> None:
        ctypes.c_uint32.from_address(self._address).value = self.value


@final
@mypyc_attr(native_class=True)
class EventGate(JobGate):
    """Open once the event is done. Seen open, it never looks at the event again, which may serve somebody else by then."""

    __slots__ = ("_driver", "_event", "_is_seen_open")

    _driver: Final[CudaDriver]
    _event: Final[Any]
    _is_seen_open: bool

    def __init__(self, driver: CudaDriver, event: Any) -> None:
        self._driver = driver
        self._event = event
        self._is_seen_open = False

    def is_open(self) -> bool:
        if not self._is_seen_open:
            self._is_seen_open = self._driver.is_event_done(self._event)
        return self._is_seen_open


@final
@mypyc_attr(native_class=True)
class CudaFlags:
    """Conservation: every word is free or belongs to one flag. The memory is the caller's, pinned, and zero at first.

    The caller has made the GPU's context current.
    """

    __slots__ = ("can_wait", "_driver", "_address", "_gpu_address", "_values", "_free")

    can_wait: Final[bool]
    _driver: Final[CudaDriver]
    _address: Final[int]
    _gpu_address: Final[int]
    _values: Final[list[int]]  # by word: of its latest flag
    _free: Final[list[int]]

    def __init__(self, driver: CudaDriver, address: int, num_bytes: int) -> None:
        num_words = num_bytes // _WORD_BYTES
        self._driver = driver
        self._address = address
        self._gpu_address = int(driver.call("cuMemHostGetDevicePointer", address, 0))
        self._values = [0] * num_words
        self._free = list(range(num_words - 1, -1, -1))
        self.can_wait = _can_wait(driver, self._gpu_address)

    def take(self) -> CudaFlag | None:
        """A flag that is not raised; None while all words are in use."""
        if not self._free:
            return None
        index = self._free.pop()
        value = (self._values[index] + 1) & _WORD_MASK
        self._values[index] = value
        return CudaFlag(index, value, self._address + index * _WORD_BYTES)

    def give_back(self, flag: CudaFlag) -> None:
        """It is raised."""
        self._free.append(flag.index)

    def enqueue_wait(self, stream: int, flag: CudaFlag) -> None:
        address = self._driver.module.CUdeviceptr(self._gpu_address + flag.index * _WORD_BYTES)
        self._driver.call("cuStreamWaitValue32", stream, address, flag.value, _AT_LEAST)


def _can_wait(driver: CudaDriver, gpu_address: int) -> bool:
    """Let a stream wait for what is so already, to see whether it can."""
    stream = driver.call("cuStreamCreate", _STREAM_NON_BLOCKING)
    obstacle = ""
    try:
        driver.call("cuStreamWaitValue32", stream, driver.module.CUdeviceptr(gpu_address), 0, _AT_LEAST)
    except KVCacheManagerError as error:
        # A driver or a GPU without it; anything worse shows with the next call.
        obstacle = str(error)
    driver.call("cuStreamDestroy", stream)
    if obstacle:
        _logger.info("copies from and to a disk block the caller, as streams cannot wait for threads: %s", obstacle)
    return not obstacle
