"""Host functions on CUDA streams: each gives a `Wakeup` when its stream gets there, on a thread of the driver's.

One function of C serves the process, for good: a driver that calls it late finds it. Its argument is the number of the wakeup.
"""

import ctypes
from typing import Any, Final

from .cuda_driver import CudaDriver
from .wakeup import Wakeup

_wakeups: Final[dict[int, Wakeup]] = {}
_functions: Final[list[Any]] = []
"""At most one: made with the first call."""
_last_number: Final[list[int]] = [0]


def enqueue_wakeup(driver: CudaDriver, stream: int, wakeup: Wakeup) -> None:
    """In the context of the stream."""
    driver.call("cuLaunchHostFunc", stream, _address_of_function(), _number_of(wakeup))


def forget_wakeup(wakeup: Wakeup) -> None:
    """Calls that are still enqueued do nothing."""
    for number, known in list(_wakeups.items()):
        if known is wakeup:
            del _wakeups[number]


def _number_of(wakeup: Wakeup) -> int:
    for number, known in _wakeups.items():
        if known is wakeup:
            return number
    _last_number[0] += 1
    _wakeups[_last_number[0]] = wakeup
    return _last_number[0]


def _address_of_function() -> int:
    if len(_functions) == 0:
        _functions.append(ctypes.CFUNCTYPE(None, ctypes.c_void_p)(_give))
    address: int = ctypes.cast(_functions[0], ctypes.c_void_p).value or 0
    return address


def _give(number: Any) -> None:
    wakeup = _wakeups.get(number)
    if wakeup is not None:
        wakeup.give()
