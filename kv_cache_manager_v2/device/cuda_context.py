"""The primary context of a GPU, which the CUDA runtime and PyTorch use as well.

`create` retains it, `close` releases it. ``with context:`` makes it the calling thread's current context and restores the previous
one, as the thread may be working with another GPU. Calls that name a stream or an event of a context need no current one. Inside,
the thread may make calls that a graph capture would forbid (`RelaxedCaptures`): an engine may capture a graph on one thread while
the manager works on another.
"""

from typing import Any, Final, final


from ..base.errors import KVCacheManagerError
from ..base.package_log import PackageLog
from .cuda_driver import CudaDriver

_logger: Final = PackageLog(__name__)


@final
class RelaxedCaptures:
    """Inside, the thread may make calls that a graph capture in progress would forbid; for calls that need no context."""

    __slots__ = ("_driver", "_modes")

    def __init__(self, driver: CudaDriver) -> None:
        self._driver: Final = driver
        self._modes: Final[list[Any]] = []  # the modes to restore, the innermost last

    def __enter__(self) -> None:
        self._modes.append(self._driver.relax_captures())

    def __exit__(self, error_type: object, error: object, traceback: object) -> None:
        self._driver.restore_captures(self._modes.pop())


@final
class CudaContext:
    """The context, retained from construction until `close`."""

    __slots__ = ("_driver", "_device", "_context", "_captures", "_is_closed")

    def __init__(self, driver: CudaDriver, device: Any) -> None:
        self._driver: Final = driver
        self._device: Final = device
        self._captures: Final = RelaxedCaptures(driver)
        self._is_closed = False
        self._context: Final[Any] = driver.call("cuDevicePrimaryCtxRetain", device)

    def __enter__(self) -> None:
        self._captures.__enter__()
        try:
            self._driver.call("cuCtxPushCurrent", self._context)
        except BaseException:
            self._captures.__exit__(None, None, None)
            raise

    def __exit__(self, error_type: object, error: object, traceback: object) -> None:
        self._captures.__exit__(None, None, None)
        try:
            self._driver.call("cuCtxPopCurrent")
        except KVCacheManagerError as pop_error:
            # The work inside is done: an exception here would say that it was not.
            _logger.error("the thread's CUDA context could not be restored: %s", pop_error)

    def close(self) -> None:
        """Release the context. Idempotent; if it raises, it may be called again."""
        if self._is_closed:
            return
        self._driver.call("cuDevicePrimaryCtxRelease", self._device)
        self._is_closed = True
