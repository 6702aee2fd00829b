"""DLPack tensors of memory: the C structures of the protocol, filled in by hand.

The managed tensor, its shape and its strides are in one block of ``malloc``, and the deleter is libc's ``free``: a
consumer may drop its tensor at any time, in any thread and while the interpreter is shutting down, when a Python
callback would crash. The price: the exporter does not learn when a tensor is dropped, so it keeps the memory, see
`PoolView`. A capsule that is never consumed leaks its block of about a hundred bytes.

The structures of ``dlpack.h``, with the byte at which each field begins where pointers have 64 bits::

    DLTensor                  0 void* data          8 int32 device_type    12 int32 device_id    16 int32 ndim
                             20 uint8 code         21 uint8 bits           22 uint16 lanes
                             24 int64* shape       32 int64* strides       40 uint64 byte_offset         (48 bytes)
    DLManagedTensor           0 DLTensor           48 void* manager_ctx    56 deleter                    (64 bytes)
    DLManagedTensorVersioned  0 uint32 major        4 uint32 minor          8 void* manager_ctx
                             16 deleter            24 uint64 flags         32 DLTensor                   (80 bytes)

Every consumer accepts the unversioned one; the versioned one, from DLPack 1.0 on, also says that the memory is writable.
"""

import ctypes
import struct
from typing import Any, Final

CPU: Final = 1
CUDA: Final = 2

_MAJOR_VERSION: Final = 1
_FLOAT8_MINOR_VERSION: Final = 1
"""DLPack 1.1 added the type codes of 8-bit floats; all others are in 1.0."""
_LANES: Final = 1

# name: (type code of dlpack.h, bits)
DTYPES: Final = {
    "uint8": (1, 8),
    "int8": (0, 8),
    "uint16": (1, 16),
    "int16": (0, 16),
    "uint32": (1, 32),
    "int32": (0, 32),
    "int64": (0, 64),
    "float16": (2, 16),
    "float32": (2, 32),
    "float64": (2, 64),
    "bfloat16": (4, 16),
    "float8_e4m3fn": (10, 8),
    "float8_e5m2": (12, 8),
}

_libc: Final = ctypes.CDLL(None)
_malloc: Final = _libc.malloc
_malloc.restype = ctypes.c_void_p
_malloc.argtypes = (ctypes.c_size_t,)
_free_address: Final = ctypes.cast(_libc.free, ctypes.c_void_p).value
_new_capsule: Final = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

# A capsule keeps the address of its name only.
_NAME: Final = b"dltensor"
_VERSIONED_NAME: Final = b"dltensor_versioned"

_TENSOR_FORMAT: Final = "PiiiBBHPPQ"
# "@": the alignment of the C compiler. P is a pointer, i an int32, I an uint32, B an uint8, H an uint16, Q an uint64.
_MANAGED: Final = struct.Struct("@" + _TENSOR_FORMAT + "PP")
_VERSIONED: Final = struct.Struct("@IIPPQ" + _TENSOR_FORMAT)
assert _MANAGED.size == 64 and _VERSIONED.size == 80

_EXTENT_BYTES: Final = 8
"""Bytes of an item of shape or strides."""


def make_capsule(
    address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str, device: tuple[int, int], is_versioned: bool
) -> Any:
    """A capsule for one consumer; ``strides`` in items. The memory must outlive every tensor made from it."""
    code, bits = DTYPES[dtype]
    num_dimensions = len(shape)
    header_bytes = _VERSIONED.size if is_versioned else _MANAGED.size
    num_bytes = header_bytes + 2 * _EXTENT_BYTES * num_dimensions
    block: int | None = _malloc(num_bytes)
    if block is None:
        raise MemoryError("no memory for a DLPack tensor's header")
    shape_address = block + header_bytes
    strides_address = shape_address + _EXTENT_BYTES * num_dimensions
    tensor = (address, *device, num_dimensions, code, bits, _LANES, shape_address, strides_address, 0)
    memory: Any = (ctypes.c_char * num_bytes).from_address(block)
    if is_versioned:
        minor_version = _FLOAT8_MINOR_VERSION if dtype.startswith("float8") else 0
        _VERSIONED.pack_into(memory, 0, _MAJOR_VERSION, minor_version, 0, _free_address, 0, *tensor)
    else:
        _MANAGED.pack_into(memory, 0, *tensor, 0, _free_address)
    struct.pack_into(f"@{2 * num_dimensions}q", memory, header_bytes, *shape, *strides)
    return _new_capsule(block, _VERSIONED_NAME if is_versioned else _NAME, None)
