"""The errors that the library raises on purpose.

A bad value is a `ValueError`, a wrong type a `TypeError`; the classes here are for everything else. None of them leaves a
change half done, except that `CorruptedError` says that the manager found its own books wrong and serves nobody any more.
"""

from mypy_extensions import mypyc_attr


@mypyc_attr(native_class=False)
class KVCacheManagerError(Exception):
    """Base of the library's own errors."""


@mypyc_attr(native_class=False)
class LogicError(KVCacheManagerError):
    """A call that does not fit the state: the state is named, and the call that would fit."""


@mypyc_attr(native_class=False)
class OutOfPagesError(KVCacheManagerError):
    """No room for the pages asked for. Nothing has changed; `KVCacheManager.last_refusal` has the numbers."""


@mypyc_attr(native_class=False)
class OutOfMemoryError(KVCacheManagerError, MemoryError):
    """The device or the operating system has no memory to give; says how much was asked for."""


@mypyc_attr(native_class=False)
class CudaError(KVCacheManagerError):
    """A CUDA call failed: the call's name, the driver's error number and its own text."""


CuError = CudaError
"""The name that this error has in TensorRT-LLM."""


@mypyc_attr(native_class=False)
class CorruptedError(KVCacheManagerError):
    """An invariant failed earlier; the manager is broken and this is the first reason."""
