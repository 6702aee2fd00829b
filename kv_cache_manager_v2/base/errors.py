"""The errors that the library raises on purpose.

A bad value is a `ValueError`, a wrong type a `TypeError`; the classes here are for everything else. None of them leaves a
change half done, except that `CorruptedError` says that the manager found its own books wrong and serves nobody any more.
"""

from mypy_extensions import mypyc_attr


@mypyc_attr(native_class=False)
class KVCacheManagerError(Exception):
    """Base of the library's own errors."""


@mypyc_attr(native_class=False)
class LogicError(KVCacheManagerError, RuntimeError):
    """A call that does not fit the state: the state is named, and the call that would fit."""


@mypyc_attr(native_class=False)
class OutOfMemoryError(KVCacheManagerError, MemoryError):
    """The device or the operating system has no memory to give; says how much was asked for."""


@mypyc_attr(native_class=False)
class OutOfPagesError(OutOfMemoryError):
    """No room for the pages asked for. Nothing has changed; `KVCacheManager.last_refusal` has the numbers."""


@mypyc_attr(native_class=False)
class UnknownBufferError(ValueError, KeyError):
    """No buffer has that layer and role. Engines ask so which roles a layer has, with a handler for either class."""

    def __str__(self) -> str:
        return "" if len(self.args) == 0 else str(self.args[0])


@mypyc_attr(native_class=False)
class CudaError(KVCacheManagerError):
    """A CUDA call failed: the call's name, the driver's error number and its own text."""


@mypyc_attr(native_class=False)
class PartlyCopiedError(CudaError):
    """Some copies of a batch were enqueued, and the next one was refused."""


@mypyc_attr(native_class=False)
class StorageIOError(KVCacheManagerError):
    """A file of a disk tier could not be read or written.

    The message has the tier, the folder, the offset in the file and the operating system's reason. ``address`` and
    ``num_bytes`` are the part of the disk range that is concerned, as the device numbers it.
    """

    path: str
    address: int
    num_bytes: int
    is_write: bool

    def __init__(
        self, message: str, path: str = "", address: int = 0, num_bytes: int = 0, is_write: bool = False
    ) -> None:
        super().__init__(message)
        self.path = path
        self.address = address
        self.num_bytes = num_bytes
        self.is_write = is_write


CuError = CudaError
"""The name that this error has in TensorRT-LLM."""


@mypyc_attr(native_class=False)
class PageMoveError(KVCacheManagerError):
    """Pages could not be copied from one cache level to another: names both, and what the device said. None is lost."""


@mypyc_attr(native_class=False)
class CorruptedError(KVCacheManagerError):
    """An invariant failed earlier; the manager is broken and this is the first reason."""
