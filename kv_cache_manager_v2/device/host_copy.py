"""Copies in host memory, done at once and at the speed of memory.

Three ways, chosen by the merged copies (`CopyRuns`):
- one run: one `memmove`;
- many small copies: numpy gathers and scatters them, a cache-sized part at a time, some 50 ns a copy rather than the
  several hundred of a call from Python;
- else one slice assignment per run, which the interpreter turns into `memcpy`.

Nothing is checked here: the device has checked that every address is mapped. numpy is imported by the first batch that
needs it.
"""

import ctypes
from typing import Any, Final, final

from mypy_extensions import mypyc_attr

from .copy_runs import CopyRuns
from .port import CopyBatch

_GATHER_MAX_BYTES: Final = 4096
"""Up to this size, gathering copies, which moves every byte twice, is faster than a call per copy (measured)."""

_GATHER_MIN_COPIES: Final = 16
_GATHER_BUFFER_BYTES: Final = 128 << 10
"""The bytes gathered before they are scattered: small enough for a core's cache."""


@final
@mypyc_attr(native_class=False)
class _Span:
    """Memory at a raw address, for `numpy.asarray`."""

    def __init__(self, address: int, shape: int, item_type: str, stride: int) -> None:
        self.__array_interface__ = {"version": 3, "data": (address, False), "shape": (shape,), "typestr": item_type, "strides": (stride,)}


def copy_in_host_memory(batch: CopyBatch) -> None:
    """Carry out a batch whose addresses are all host memory."""
    count = batch.count
    if count == 0:
        return
    runs = CopyRuns(batch)
    if runs.count == 1:
        ctypes.memmove(runs.dst_addresses[0], runs.src_addresses[0], runs.sizes[0])
    elif runs.count >= _GATHER_MIN_COPIES and batch.num_bytes * count <= _GATHER_MAX_BYTES * runs.count:
        _gather_and_scatter(batch, runs)
    else:
        _copy_runs(runs)


def move_runs(runs: CopyRuns) -> None:
    """For a thread beside the caller's: one `memmove` for each run, during which the other threads run."""
    for index in range(runs.count):
        ctypes.memmove(runs.dst_addresses[index], runs.src_addresses[index], runs.sizes[index])


def _gather_and_scatter(batch: CopyBatch, runs: CopyRuns) -> None:
    import numpy

    num_bytes: int = batch.num_bytes
    count: int = batch.count
    # One item per byte address, each as long as a copy: items overlap, and an index is a byte offset.
    item_type = f"|V{num_bytes}"
    dst_beg: int = runs.dst_beg
    src_beg: int = runs.src_beg
    dst_items: Any = numpy.asarray(_Span(dst_beg, runs.dst_end - dst_beg - num_bytes + 1, item_type, 1))
    src_items: Any = numpy.asarray(_Span(src_beg, runs.src_end - src_beg - num_bytes + 1, item_type, 1))
    dst_offsets: Any = numpy.asarray(memoryview(batch.dst_addresses))[:count] - dst_beg
    src_offsets: Any = numpy.asarray(memoryview(batch.src_addresses))[:count] - src_beg
    step = max(1, _GATHER_BUFFER_BYTES // num_bytes)
    for first in range(0, count, step):
        dst_items[dst_offsets[first : first + step]] = src_items[src_offsets[first : first + step]]


def _copy_runs(runs: CopyRuns) -> None:
    import numpy

    dst_beg = runs.dst_beg
    src_beg = runs.src_beg
    dst_array: Any = numpy.asarray(_Span(dst_beg, runs.dst_end - dst_beg, "|u1", 1))
    src_array: Any = numpy.asarray(_Span(src_beg, runs.src_end - src_beg, "|u1", 1))
    # A memoryview assigns a slice in half the time of an array.
    dst_bytes = memoryview(dst_array)
    src_bytes = memoryview(src_array)
    dst_addresses = runs.dst_addresses
    src_addresses = runs.src_addresses
    sizes = runs.sizes
    for index in range(runs.count):
        dst_offset: int = dst_addresses[index] - dst_beg
        src_offset: int = src_addresses[index] - src_beg
        num_bytes: int = sizes[index]
        dst_bytes[dst_offset : dst_offset + num_bytes] = src_bytes[src_offset : src_offset + num_bytes]
