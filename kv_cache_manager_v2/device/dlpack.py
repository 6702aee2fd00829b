"""Memory as a DLPack tensor: the C structures of the protocol, filled in by hand.

The managed tensor, its shape and its strides lie in one block of ``malloc``, and the deleter is libc's ``free``: a
consumer may drop its tensor at any time, in any thread and while the interpreter is shutting down, when a Python
callback would crash. The price: nobody is told when a tensor is dropped, so whoever exports memory keeps it, see
`PoolView`. A capsule that no consumer takes leaks its block of about a hundred bytes.

Layout after ``dlpack.h``: `DLManagedTensor` (unversioned, every consumer) and `DLManagedTensorVersioned` (from 1.0 on,
which also says that the memory may be written).
"""

import ctypes
from typing import Any, Final

CPU: Final = 1
CUDA: Final = 2

_MAJOR_VERSION: Final = 1
_MINOR_VERSION: Final = 0
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

_WORD: Final = 8


def make_capsule(
    address: int,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    dtype: str,
    device: tuple[int, int],
    is_versioned: bool,
) -> Any:
    """A capsule for one consumer; ``strides`` in items. The memory must outlive every tensor made from it."""
    code, bits = DTYPES[dtype]
    num_dimensions = len(shape)
    # {data; device type, id; ndim, dtype; shape; strides; byte offset}
    tensor_words = 7
    # unversioned: {tensor, context, deleter}; versioned: {version, context, deleter, flags, tensor}
    first_tensor_word = 4 if is_versioned else 0
    num_header_words = tensor_words + (4 if is_versioned else 2)
    block: int | None = _malloc(_WORD * (num_header_words + 2 * num_dimensions))
    if block is None:
        raise MemoryError("no memory for a DLPack tensor's header")
    words: Any = (ctypes.c_int64 * (num_header_words + 2 * num_dimensions)).from_address(block)
    if is_versioned:
        words[0] = _MAJOR_VERSION | _MINOR_VERSION << 32
        words[1] = 0
        words[2] = _free_address
        words[3] = 0
    else:
        words[tensor_words] = 0
        words[tensor_words + 1] = _free_address
    tensor = first_tensor_word
    words[tensor] = address
    words[tensor + 1] = device[0] | device[1] << 32
    words[tensor + 2] = num_dimensions | (code | bits << 8 | _LANES << 16) << 32
    words[tensor + 3] = block + _WORD * num_header_words
    words[tensor + 4] = block + _WORD * (num_header_words + num_dimensions)
    words[tensor + 5] = 0
    words[tensor + 6] = 0
    for index in range(num_dimensions):
        words[num_header_words + index] = shape[index]
        words[num_header_words + num_dimensions + index] = strides[index]
    return _new_capsule(block, _VERSIONED_NAME if is_versioned else _NAME, None)
