"""A pool as a tensor that torch, numpy and CuPy wrap without a copy.

    rows         address of row i                                           indexed by
    pages        base address of the mode + i * page bytes                  page indices of that mode (dense pages)
    by_slot      buffer's place in slot 0 + i * slot bytes                  base page indices (strided view)

The protocols are `__dlpack__` (torch, numpy, CuPy, JAX), `__array_interface__` (numpy; where level 0 is the host's
memory) and `__cuda_array_interface__` (CuPy, torch, Numba; on a GPU). Array interfaces cannot name bf16 and fp8; those
go through DLPack, or through uint16 and uint8.

Order. On a GPU a sequence's pages are touched by work on its stream. In the host's memory numpy and torch touch them at once, as soon
as `resume`, `resize` or `commit` is back: these wait for a disk where they must (not with ``HostDevice(calls_wait_for_disk=False)``,
where `Device.synchronize_stream` of the sequence's stream comes first).

Lifetime. While a view is not released, the manager's memory stays: `shutdown` then ends all calls and forgets
everything, but unmaps only when the last view is released. numpy and CuPy keep the view alive as long as their arrays,
and a view that is dropped releases itself. A tensor made by DLPack keeps nothing, and cannot tell when it is
dropped: so such a view keeps the memory, in doubt until the process ends, unless `release` says that its tensors are
not used any more.

A view has the rows that there were when it was made. Make it anew after `KVCacheManager.resize` of level 0 and after `adjust`: where the
pool has grown, page indices go beyond it. Where the pool has shrunk, its last rows belong to no page: in the
host's memory they read as they were or as zeros, on a GPU touching them is an illegal access.
"""

import sys
from typing import Any, Final, final

from rawref import invalidate

from ..base.checks import to_text
from ..base.errors import LogicError
from ..base.finalizers import report_failure
from ..base.handle import Handle
from ..device.dlpack import CPU, CUDA, DTYPES, make_capsule
from .memory_lease import MemoryLease

# What numpy calls them; the others have no name there.
_TYPE_STRINGS: Final = {
    "uint8": "|u1",
    "int8": "|i1",
    "uint16": "<u2",
    "int16": "<i2",
    "uint32": "<u4",
    "int32": "<i4",
    "int64": "<i8",
    "float16": "<f2",
    "float32": "<f4",
    "float64": "<f8",
}


@final
class PoolView(Handle):
    """``[rows, items per row]`` of `dtype`. Made by `KVCacheManager.pool_view`; writable. See the module for its
    life."""

    __slots__ = ("address", "shape", "strides_bytes", "dtype", "device", "_lease", "_is_released", "_was_exported")

    def __init__(
        self, lease: MemoryLease, address: int, num_rows: int, row_bytes: int, stride_bytes: int, dtype: str, ordinal: int
    ) -> None:
        """``ordinal``: of the GPU; -1 for the host's memory."""
        self._is_released = True
        item_bytes = _item_bytes(dtype)
        if row_bytes % item_bytes != 0 or stride_bytes % item_bytes != 0 or address % item_bytes != 0:
            raise ValueError(f"{dtype} has {item_bytes} bytes; pages of {row_bytes} bytes, {stride_bytes} apart, do not fit")
        self.address: Final[int] = address
        self.shape: Final[tuple[int, int]] = (num_rows, row_bytes // item_bytes)
        self.strides_bytes: Final[tuple[int, int]] = (stride_bytes, item_bytes)
        self.dtype: Final[str] = dtype
        self.device: Final[tuple[int, int]] = (CPU, 0) if ordinal < 0 else (CUDA, ordinal)
        """DLPack's device type (1 host, 2 CUDA) and the ordinal."""
        self._was_exported = False
        """By a protocol that does not keep the view alive."""
        self._lease: Final = lease
        lease.take()
        self._is_released = False

    def __repr__(self) -> str:
        return f"<PoolView {self.shape} {self.dtype} at {self.address:#x}{', released' if self._is_released else ''}>"

    def __del__(self) -> None:
        invalidate(self)
        # Compiled, `__new__` may have been refused before the view had a lease, and only `getattr` notices.
        lease = getattr(self, "_lease", None)
        if not isinstance(lease, MemoryLease) or self._is_released or self._was_exported or sys.is_finalizing():
            # At the interpreter's end the memory goes with the process; other destructors may still come.
            return
        try:
            self._release_memory()
        except BaseException as error:
            report_failure(error, PoolView)

    def release(self) -> None:
        """No array or tensor made from this view is used any more: the memory may go when the manager shuts down, or
        goes now if it has. Using one afterwards reads memory that is not there. Twice is fine."""
        if not self._is_released:
            self._release_memory()

    def _release_memory(self) -> None:
        self._is_released = True
        self._lease.release()

    def _require_usable(self) -> None:
        if self._is_released:
            raise LogicError("this pool view was released; ask the manager for a new one")
        if self._lease.is_closed:
            raise LogicError("the manager is shut down; its pools cannot be viewed any more")

    # -- protocols ----------------------------------------------------------------------------------------------------

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """For one consumer. The order of accesses is the sequences' affair, so ``stream`` is not looked at."""
        self._require_usable()
        if copy is True:
            raise BufferError("a pool view is never copied")
        if dl_device is not None and (int(dl_device[0]), int(dl_device[1])) != self.device:
            raise BufferError(f"the pool is on DLPack device {self.device}, not on {dl_device}")
        self._was_exported = True
        item_bytes = self.strides_bytes[1]
        strides = (self.strides_bytes[0] // item_bytes, 1)
        is_versioned = max_version is not None and max_version[0] >= 1
        return make_capsule(self.address, self.shape, strides, self.dtype, self.device, is_versioned)

    @property
    def __array_interface__(self) -> dict[str, object]:
        """numpy's protocol, version 3. `AttributeError` on a GPU."""
        if self.device[0] != CPU:
            raise AttributeError("the pool is on a GPU; it has a __cuda_array_interface__")
        return self._interface()

    @property
    def __cuda_array_interface__(self) -> dict[str, object]:
        """CUDA array interface, version 3. `AttributeError` in the host's memory."""
        if self.device[0] != CUDA:
            raise AttributeError("the pool is in the host's memory; it has an __array_interface__")
        return self._interface()

    def _interface(self) -> dict[str, object]:
        type_string = _TYPE_STRINGS.get(self.dtype)
        if type_string is None:
            raise AttributeError(f"array interfaces have no {self.dtype}: use DLPack, or a view of uint{8 * self.strides_bytes[1]}")
        self._require_usable()
        return {"version": 3, "shape": self.shape, "typestr": type_string, "data": (self.address, False), "strides": self.strides_bytes}


def to_dtype(dtype: object) -> str:
    """``dtype``, which is a name; torch's and numpy's objects are a `TypeError`."""
    if not isinstance(dtype, str):
        raise TypeError(f"dtype must be a str, the name of a type like 'float16' or 'bfloat16', not {type(dtype).__name__}")
    return to_text(dtype, "dtype")


def _item_bytes(dtype: str) -> int:
    described = DTYPES.get(dtype)
    if described is None:
        raise ValueError(f"dtype is {dtype!r}; there are {', '.join(DTYPES)}")
    return described[1] // 8
