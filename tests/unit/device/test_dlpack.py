"""DLPack capsules as a consumer written in C takes them: every field where ``dlpack.h`` has it, and the deleter called.

The structures are written down here once more, from the header and for ctypes, so that a mistake in the layout under test is not
repeated by its test.
"""

import ctypes
import gc
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kv_cache_manager_v2.device.dlpack import CPU, CUDA, DTYPES, make_capsule

NUM_CAPSULES = 10_000


class DLDevice(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    _fields_ = [("dl_tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", DLTensor),
    ]


capsule_pointer: Any = ctypes.pythonapi.PyCapsule_GetPointer
capsule_pointer.restype = ctypes.c_void_p
capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
rename_capsule: Any = ctypes.pythonapi.PyCapsule_SetName
rename_capsule.argtypes = (ctypes.py_object, ctypes.c_char_p)
Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

NAMES = {False: b"dltensor", True: b"dltensor_versioned"}
USED_NAMES = {False: b"used_dltensor", True: b"used_dltensor_versioned"}
KINDS: dict[bool, Any] = {False: DLManagedTensor, True: DLManagedTensorVersioned}


def take(capsule: object, is_versioned: bool) -> Any:
    """The managed tensor, which belongs to the taker from now on."""
    address = capsule_pointer(capsule, NAMES[is_versioned])
    rename_capsule(capsule, USED_NAMES[is_versioned])
    return KINDS[is_versioned].from_address(address)


def drop(managed: Any) -> None:
    assert managed.deleter, "a tensor without a deleter is never freed, and some consumers call NULL"
    Deleter(managed.deleter)(ctypes.addressof(managed))


def bytes_in_use() -> Callable[[], int]:
    """How many bytes the C library has given out, as it says."""

    class Numbers(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in ("arena", "o", "s", "hblks", "hblkhd", "us", "fs", "used", "f", "k")]

    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        pytest.skip("this C library does not say how much it has given out")
    mallinfo2.restype = Numbers
    return lambda: int(mallinfo2().used)


SHAPES = [((5,), (1,)), ((127, 32), (48, 1)), ((3, 4, 5, 6), (120, 30, 6, 1))]


@pytest.mark.parametrize("is_versioned", [False, True])
@pytest.mark.parametrize(("shape", "strides"), SHAPES)
@pytest.mark.parametrize("device", [(CPU, 0), (CUDA, 3)])
def test_every_field_is_where_the_header_has_it(
    is_versioned: bool, shape: tuple[int, ...], strides: tuple[int, ...], device: tuple[int, int]
) -> None:
    address = 0x7F12_3456_7000
    for dtype, (code, bits) in DTYPES.items():
        managed = take(make_capsule(address, shape, strides, dtype, device, is_versioned), is_versioned)
        tensor = managed.dl_tensor
        assert tensor.data == address and tensor.byte_offset == 0
        assert (tensor.device.device_type, tensor.device.device_id) == device
        assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (code, bits, 1)
        assert tensor.ndim == len(shape)
        assert tuple(tensor.shape[: len(shape)]) == shape
        assert tuple(tensor.strides[: len(shape)]) == strides
        assert managed.manager_ctx is None
        if is_versioned:
            # The header's version 1.1 brought the 8-bit floats.
            assert (managed.major, managed.minor) == (1, 1 if dtype.startswith("float8") else 0)
            assert managed.flags == 0, "writable, and not a copy"
        drop(managed)


def test_type_codes_are_the_headers() -> None:
    # DLDataTypeCode: kDLInt 0, kDLUInt 1, kDLFloat 2, kDLBfloat 4, kDLFloat8_e4m3fn 10, kDLFloat8_e5m2 12.
    codes = {"int": 0, "uint": 1, "float": 2, "bfloat": 4, "float8_e4m3fn": 10, "float8_e5m2": 12}
    for dtype, (code, bits) in DTYPES.items():
        kind = dtype if dtype in codes else dtype.rstrip("0123456789")
        assert code == codes[kind]
        assert dtype.startswith("float8") or dtype == f"{kind}{bits}"


@pytest.mark.parametrize("is_versioned", [False, True])
def test_ten_thousand_tensors_leave_nothing_behind(is_versioned: bool) -> None:
    used = bytes_in_use()

    def go_through(count: int) -> None:
        for _ in range(count):
            drop(take(make_capsule(0x1000, (127, 32), (32, 1), "float16", (CPU, 0), is_versioned), is_versioned))

    go_through(100)
    gc.collect()
    before = used()
    go_through(NUM_CAPSULES)
    gc.collect()
    # A tensor's block is about a hundred bytes: were each of them left, this would be a megabyte.
    assert used() - before < 4 * NUM_CAPSULES


class Exporter:
    """As a library that predates versions asks, or one that knows them."""

    def __init__(self, array: Any, is_versioned: bool) -> None:
        self.array = array
        self.is_versioned = is_versioned

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CPU, 0)

    def __dlpack__(self, **arguments: object) -> Any:
        strides = tuple(stride // self.array.itemsize for stride in self.array.strides)
        shape = self.array.shape
        return make_capsule(self.array.ctypes.data, shape, strides, str(self.array.dtype), (CPU, 0), self.is_versioned)


def importers() -> list[Any]:
    found: list[Any] = [np.from_dlpack]
    try:
        import torch
    except ImportError:
        return found
    return [*found, torch.from_dlpack]


@pytest.mark.parametrize("is_versioned", [False, True])
def test_libraries_take_tensors_and_free_them(is_versioned: bool) -> None:
    used = bytes_in_use()
    array = np.arange(60, dtype=np.int32).reshape(3, 4, 5)[:, ::2]
    for make in importers():
        for dtype, value in itertools.product((np.int32, np.float16, np.uint8), (3, 77)):
            typed = array.astype(dtype)
            tensor = make(Exporter(typed, is_versioned))
            assert np.asarray(tensor).ctypes.data == typed.ctypes.data
            assert (np.asarray(tensor) == typed).all()
            typed[1, 1, 1] = value
            assert int(tensor[1, 1, 1]) == value
        exporter = Exporter(array, is_versioned)
        for _ in range(100):
            make(exporter)
        gc.collect()
        before = used()
        for _ in range(NUM_CAPSULES):
            make(exporter)
        gc.collect()
        assert used() - before < 4 * NUM_CAPSULES, make
