"""The errors that the library raises on purpose.

A bad value is a `ValueError`, a wrong type a `TypeError`; the classes here are for everything else. None of them leaves a
change half done, except `CorruptedError`: the manager found its own state inconsistent, and every later call raises it.
"""

from mypy_extensions import mypyc_attr


@mypyc_attr(native_class=False)
class KVCacheManagerError(Exception):
    """Base of the library's own errors."""


@mypyc_attr(native_class=False)
class LogicError(KVCacheManagerError, RuntimeError):
    """A call that the state does not allow. The message names the state and the call that would be valid."""


@mypyc_attr(native_class=False)
class PlannedTokensLost(LogicError):
    """Tokens that the sequence was matched with were taken back before they were computed. ``valid_tokens``: how many it has left.

    Close the sequence and make a new one; every other call but `suspend` and those that only ask raises this.
    """

    def __init__(self, message: str, valid_tokens: int = 0) -> None:
        super().__init__(message)
        self.valid_tokens: int = valid_tokens


@mypyc_attr(native_class=False)
class BusyError(LogicError):
    """A call that only looks was made while another thread's call runs. Nothing has changed; ask again."""


@mypyc_attr(native_class=False)
class CopyListError(LogicError):
    """A list of copies was taken, executed or reported out of order, twice or not at all, or on other slots. ``number``: of that list.

    What was refused has changed nothing. A list that is lost stays so: `KVCacheManager.reset_copies` is the way on.
    """

    def __init__(self, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.number: int = number


@mypyc_attr(native_class=False)
class OutOfMemoryError(KVCacheManagerError, MemoryError):
    """The device or the operating system is out of memory. The message has the bytes asked for."""


@mypyc_attr(native_class=False)
class OutOfPagesError(OutOfMemoryError):
    """Not enough free or evictable slots. Nothing has changed; `KVCacheManager.last_refusal` has the numbers."""


@mypyc_attr(native_class=False)
class UnknownBufferError(ValueError, KeyError):
    """No buffer has this layer and role. Engines that probe for roles catch it as `ValueError` or as `KeyError`."""

    def __str__(self) -> str:
        return "" if len(self.args) == 0 else str(self.args[0])


@mypyc_attr(native_class=False)
class CudaError(KVCacheManagerError):
    """A CUDA call failed. The message has the call's name, the driver's error number and the driver's text."""


@mypyc_attr(native_class=False)
class PartlyCopiedError(CudaError):
    """Some copies of a batch were enqueued before the next one was refused."""


@mypyc_attr(native_class=False)
class StorageIOError(KVCacheManagerError):
    """A file of a disk tier could not be read or written.

    The message has the tier, the folder, the offset in the file and the operating system's reason. ``address`` and
    ``num_bytes`` are the failed part of the disk range, in the device's addresses. ``is_corrupt``: these bytes were read, and are not
    those that were written.
    """

    def __init__(
        self, message: str, path: str = "", address: int = 0, num_bytes: int = 0, is_write: bool = False, is_corrupt: bool = False
    ) -> None:
        super().__init__(message)
        self.is_corrupt: bool = is_corrupt
        self.path: str = path
        self.address: int = address
        self.num_bytes: int = num_bytes
        self.is_write: bool = is_write


@mypyc_attr(native_class=False)
class LoadFailed(StorageIOError):
    """Pages of a sequence could not be read, or are not what was written. ``first_bad_token``: how many of its tokens are there.

    `KVCache.rewind` with that number lets the sequence go on; the tokens from there on are to be computed again.
    """

    def __init__(self, message: str, first_bad_token: int = 0) -> None:
        super().__init__(message)
        self.first_bad_token: int = first_bad_token


CuError = CudaError
"""TensorRT-LLM's name of this error."""


@mypyc_attr(native_class=False)
class PageMoveError(KVCacheManagerError):
    """A copy of pages between cache levels failed. The message names both levels and the device's error. No page is lost."""


@mypyc_attr(native_class=False)
class CorruptedError(KVCacheManagerError):
    """An invariant failed earlier; the manager is broken and this is the first reason."""
