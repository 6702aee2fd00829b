"""A strict stand-in for `cuda.bindings.driver`: it moves no bytes, it checks every call.

A call with an argument of the wrong type, on something that was not made or was given back, or out of order (access before
map, release before unmap) raises `DriverMisuse`. One that the driver refuses by itself returns the driver's status and is in
`refusals`: without a context, with a stream or event of another one, in a capture, after a fault (`fake_cuda_contexts`). What was
made and not released is in `live()`. `fail_call(n)` makes the n-th call from then on fail without effect.
"""

import copy
import ctypes
import os
from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from .fake_cuda_contexts import FIRST_CONTEXT, LAST_SPECIAL_STREAM, FakeCudaContexts, driver_call
from .fake_cuda_types import (
    KINDS,
    CUcontext,
    CUdevice,
    CUdevice_attribute,
    CUdeviceptr,
    CUevent,
    CUfunction,
    CUmemAccess_flags,
    CUmemAccessDesc,
    CUmemAllocationHandleType,
    CUmemAllocationGranularity_flags,
    CUmemAllocationProp,
    CUmemFabricHandle,
    CUmemGenericAllocationHandle,
    CUmodule,
    CUresult,
    CUstream,
    DriverMisuse,
    Refused,
    require,
    require_handle,
    require_int,
)

GRANULARITY_BYTES = 2 << 20
FIRST_VERSION_WITH_WORDS = 11070

_WORDS = ctypes.POINTER(ctypes.c_uint64)
_BATCH = (_WORDS, _WORDS, _WORDS, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int32), _WORDS, ctypes.c_size_t)
BATCH_OF_12 = ctypes.CFUNCTYPE(ctypes.c_int, *_BATCH, _WORDS, ctypes.c_void_p)
BATCH_OF_13 = ctypes.CFUNCTYPE(ctypes.c_int, *_BATCH, ctypes.c_void_p)
"""``cuMemcpyBatchAsync`` in C: the form of CUDA 12.8 also says which copy failed."""


class FakeCudaDriver(FakeCudaContexts):
    """Like the module ``cuda.bindings.driver``, with ``num_devices`` GPUs of ``total_bytes``, one of them in use."""

    def __init__(
        self,
        *,
        total_bytes: int = 1 << 30,
        pinnable_bytes: int = 1 << 30,
        driver_version: int = 13000,
        bindings_version: int = 13000,
        num_devices: int = 1,
        granularity_bytes: int = GRANULARITY_BYTES,
    ) -> None:
        super().__init__()
        self.granularity_bytes = granularity_bytes
        for kind in KINDS:
            setattr(self, kind.__name__, kind)
        self.CUDA_VERSION = bindings_version
        self.total_bytes = total_bytes
        self.pinnable_bytes = pinnable_bytes
        self.driver_version = driver_version
        self.num_devices = num_devices
        # Compute capability 9.0; memory is mapped page by page. What a test adds, the GPU can.
        self.attributes: dict[int, int] = {75: 9, 76: 0, 102: 1}
        self.peers: set[tuple[int, int]] = set()  # who may access whose memory
        self.refuses_rdma = False  # although the attribute says otherwise
        self.is_unmapping_one_by_one = False
        self.takes_batches = True
        self.is_stream_0_renamed = False
        self.are_events_done = True
        self.elapsed_milliseconds = 0.25
        self.can_wait_for_values = True
        self.can_write_values = True
        self.copies: list[tuple[int, int, int]] = []  # destination, source, bytes
        self._next_address = 1 << 40
        self.ordinals: set[int] = set()  # of the GPUs that were asked for
        self.ranges: dict[int, int] = {}  # address -> bytes
        self.allocations: dict[int, int] = {}  # handle -> bytes
        self.mappings: dict[int, int] = {}  # granule address -> handle
        self.spans: dict[int, int] = {}  # address of a whole mapping -> bytes
        self.properties: dict[int, CUmemAllocationProp] = {}  # of allocations, by handle
        self.peer_granules: dict[int, set[int]] = {}  # granule addresses that another GPU may access, by its ordinal
        self.accessible: set[int] = set()  # granule addresses
        self.registrations: dict[int, int] = {}  # address -> bytes
        self.streams: set[int] = set()
        self.events: dict[int, int] = {}  # event -> times recorded
        self.timed_events: set[int] = set()
        self.modules: set[int] = set()
        self.misuses: list[str] = []  # by calls from C, which cannot raise
        self._c_functions: dict[Any, Any] = {}  # kept alive
        self.functions: dict[int, tuple[int, str]] = {}  # function -> module, name

    # -- for tests ----------------------------------------------------------------------------------------------------

    def fail_call(self, nth: int, failure: CUresult = CUresult.CUDA_ERROR_UNKNOWN) -> None:
        """The ``nth`` call from now on (1 is the next) fails; 0 takes a planned failure back."""
        self._calls_until_failure = nth
        self._failure = failure
        self.failed_call = ""

    def live(self) -> dict[str, int]:
        """What was made and not released."""
        require(not self.misuses, f"misused by address: {self.misuses}")
        counts = {
            "contexts": self.num_retained,
            "current contexts": self.num_current(),
            "ranges": len(self.ranges),
            "allocations": len(self.allocations),
            "mappings": len(self.spans),
            "registrations": len(self.registrations),
            "streams": len(self.streams),
            "events": len(self.events),
            "modules": len(self.modules),
        }
        return {what: count for what, count in counts.items() if count != 0}

    def memory(self) -> tuple[object, ...]:
        """Everything about memory, to compare before and after."""
        return (dict(self.ranges), dict(self.allocations), dict(self.mappings), set(self.accessible), dict(self.registrations))

    def _require_context(self) -> None:
        self._current_context()

    def _require_stream(self, stream: object) -> int:
        number = require_handle(stream, CUstream, "stream")
        require(number != 0 or not self.is_stream_0_renamed, "stream 0 is the thread's own; the legacy one is 1")
        if number <= LAST_SPECIAL_STREAM:
            self._require_context()
        else:
            require(number in self.streams, f"stream {number:#x} does not exist")
        return number

    def _require_event(self, event: object) -> int:
        require(type(event) is CUevent, "an event is not a CUevent")
        number = require_handle(event, CUevent, "event")
        require(number in self.events, f"event {number:#x} does not exist")
        return number

    def _is_accessible(self, address: int, num_bytes: int) -> bool:
        """Whether the GPU may touch all of it now."""
        if any(beg <= address and address + num_bytes <= beg + length for beg, length in self.registrations.items()):
            return True
        first = address // self.granularity_bytes * self.granularity_bytes
        return all(granule in self.accessible for granule in range(first, address + num_bytes, self.granularity_bytes))

    def _require_copyable(self, address: int, num_bytes: int) -> None:
        for beg, length in self.registrations.items():
            if beg <= address and address + num_bytes <= beg + length:
                return
        inside = [beg for beg, n in self.ranges.items() if beg <= address and address + num_bytes <= beg + n]
        require(len(inside) == 1, f"{num_bytes} bytes at {address:#x} are not in one registration or range")
        granule = address // self.granularity_bytes * self.granularity_bytes
        while granule < address + num_bytes:
            require(granule in self.accessible, f"granule {granule:#x} is not accessible")
            granule += self.granularity_bytes

    # -- start, errors ------------------------------------------------------------------------------------------------

    @driver_call
    def cuInit(self, flags: int) -> None:
        require(flags == 0, "flags of cuInit")
        self.is_initialised = True

    @driver_call
    def cuDriverGetVersion(self) -> tuple[Any, ...]:
        return (CUresult.CUDA_SUCCESS, self.driver_version)

    @driver_call
    def cuDeviceGetCount(self) -> tuple[Any, ...]:
        return (CUresult.CUDA_SUCCESS, self.num_devices)

    def cuGetErrorName(self, status: CUresult) -> tuple[Any, ...]:
        require(type(status) is CUresult, "status is no CUresult")
        return (CUresult.CUDA_SUCCESS, status.name.encode())

    def cuGetErrorString(self, status: CUresult) -> tuple[Any, ...]:
        require(type(status) is CUresult, "status is no CUresult")
        return (CUresult.CUDA_SUCCESS, b"text of " + str(int(status)).encode())

    @driver_call
    def cuDeviceGet(self, ordinal: int) -> tuple[Any, ...]:
        require(0 <= require_int(ordinal, "ordinal") < self.num_devices, "no such GPU")
        self.ordinals.add(ordinal)
        return (CUresult.CUDA_SUCCESS, CUdevice(ordinal))

    @driver_call
    def cuDeviceGetName(self, length: int, device: CUdevice) -> tuple[Any, ...]:
        require_handle(device, CUdevice, "device")
        return (CUresult.CUDA_SUCCESS, b"Fake".ljust(length, b"\0"))

    @driver_call
    def cuDeviceGetPCIBusId(self, length: int, device: CUdevice) -> tuple[Any, ...]:
        require_handle(device, CUdevice, "device")
        require(length >= 13, "a length that a bus id does not fit in")
        return (CUresult.CUDA_SUCCESS, b"0000:3B:00.0".ljust(length, b"\0"))

    @driver_call
    def cuDeviceGetAttribute(self, attribute: CUdevice_attribute, device: CUdevice) -> tuple[Any, ...]:
        require_handle(device, CUdevice, "device")
        value = self.attributes.get(CUdevice_attribute(attribute))
        # A driver that is too old to know the attribute says that it is no attribute.
        return (CUresult.CUDA_SUCCESS, value) if value is not None else (CUresult.CUDA_ERROR_INVALID_VALUE, None)

    @driver_call
    def cuDeviceCanAccessPeer(self, device: CUdevice, peer: CUdevice) -> tuple[Any, ...]:
        require(int(device) != int(peer), "a GPU is no peer of itself")
        return (CUresult.CUDA_SUCCESS, int((int(device), int(peer)) in self.peers))

    @driver_call
    def cuDeviceTotalMem(self, device: CUdevice) -> tuple[Any, ...]:
        require_handle(device, CUdevice, "device")
        return (CUresult.CUDA_SUCCESS, self.total_bytes)

    # -- context ------------------------------------------------------------------------------------------------------

    @driver_call
    def cuDevicePrimaryCtxRetain(self, device: CUdevice) -> tuple[Any, ...]:
        context = FIRST_CONTEXT + int(device)
        self.retained[context] = self.retained.get(context, 0) + 1
        return (CUresult.CUDA_SUCCESS, CUcontext(context))

    @driver_call
    def cuDevicePrimaryCtxRelease(self, device: CUdevice) -> None:
        context = FIRST_CONTEXT + int(device)
        require(self.retained.get(context, 0) > 0, "the context is not retained")
        is_last = self.retained[context] == 1 and self.failed_call != "cuCtxPopCurrent"
        require(not (self.is_current_anywhere(context) and is_last), "a context is released while current")
        self.retained[context] -= 1
        if self.retained[context] == 0:
            del self.retained[context]
            self.fault = None

    @driver_call
    def cuCtxPushCurrent(self, context: CUcontext) -> None:
        self.context_stack.append(self._require_retained(context))

    @driver_call
    def cuCtxPopCurrent(self) -> tuple[Any, ...]:
        self._require_context()
        return (CUresult.CUDA_SUCCESS, CUcontext(self.context_stack.pop()))

    @driver_call
    def cuCtxSetCurrent(self, context: CUcontext) -> None:
        """In place of the top of the thread's stack; NULL pops it."""
        if self.context_stack:
            self.context_stack.pop()
        if int(context) != 0:
            self.context_stack.append(self._require_retained(context))

    @driver_call
    def cuCtxGetCurrent(self) -> tuple[Any, ...]:
        return (CUresult.CUDA_SUCCESS, CUcontext(self.context_stack[-1] if self.context_stack else 0))

    @driver_call
    def cuCtxGetDevice(self) -> tuple[Any, ...]:
        return (CUresult.CUDA_SUCCESS, CUdevice(self._current_context() - FIRST_CONTEXT))

    @driver_call
    def cuCtxSynchronize(self) -> None:
        self._require_context()

    def _require_retained(self, context: object) -> int:
        number = require_handle(context, CUcontext, "context")
        require(number in self.retained, "the context is not retained")
        return number

    # -- memory -------------------------------------------------------------------------------------------------------

    @driver_call
    def cuMemGetAllocationGranularity(self, prop: CUmemAllocationProp, option: object) -> tuple[Any, ...]:
        prop.check(self.ordinals)
        require(option is CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM, "option")
        return (CUresult.CUDA_SUCCESS, self.granularity_bytes)

    @driver_call
    def cuMemAddressReserve(self, size: int, alignment: int, address: int, flags: int) -> tuple[Any, ...]:
        require(require_int(size, "size") > 0 and size % self.granularity_bytes == 0, "size of a range")
        require(alignment & (alignment - 1) == 0 and address == 0 and flags == 0, "alignment, address or flags")
        if size > 1 << 47:
            return (CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)
        beg = (self._next_address + alignment - 1) // alignment * alignment
        self._next_address = beg + size  # ranges touch, which a copy must not cross
        self.ranges[beg] = size
        return (CUresult.CUDA_SUCCESS, CUdeviceptr(beg))

    @driver_call
    def cuMemAddressFree(self, ptr: object, size: int) -> None:
        beg = require_handle(ptr, CUdeviceptr, "ptr")
        require(self.ranges.get(beg) == size, "not a whole range")
        require(not any(beg <= granule < beg + size for granule in self.mappings), "a range is freed with mappings in it")
        del self.ranges[beg]

    @driver_call
    def cuMemCreate(self, size: int, prop: CUmemAllocationProp, flags: int) -> tuple[Any, ...]:
        prop.check(self.ordinals)
        require(require_int(size, "size") > 0 and size % self.granularity_bytes == 0 and flags == 0, "size or flags")
        if sum(self.allocations.values()) + size > self.total_bytes:
            return (CUresult.CUDA_ERROR_OUT_OF_MEMORY, None)
        if prop.allocFlags.gpuDirectRDMACapable and self.refuses_rdma:
            raise Refused(CUresult.CUDA_ERROR_NOT_SUPPORTED)
        handle = self._make_handle()
        self.allocations[handle] = size
        self.properties[handle] = copy.deepcopy(prop)
        return (CUresult.CUDA_SUCCESS, CUmemGenericAllocationHandle(handle))

    @driver_call
    def cuMemRelease(self, handle: object) -> None:
        number = require_handle(handle, CUmemGenericAllocationHandle, "handle")
        require(number in self.allocations, "an allocation is released twice")
        require(number not in self.mappings.values(), "an allocation is released while mapped")
        del self.allocations[number]

    @driver_call
    def cuMemMap(self, ptr: object, size: int, offset: int, handle: object, flags: int) -> None:
        beg = require_handle(ptr, CUdeviceptr, "ptr")
        number = require_handle(handle, CUmemGenericAllocationHandle, "handle")
        require(offset == 0 and flags == 0 and beg % self.granularity_bytes == 0, "offset, flags or address")
        require(self.allocations.get(number) == size, "size is not the allocation's")
        require(any(r <= beg and beg + size <= r + n for r, n in self.ranges.items()), "not in a reserved range")
        require(not any(beg <= granule < beg + size for granule in self.mappings), "mapped already")
        self.spans[beg] = size
        for granule in range(beg, beg + size, self.granularity_bytes):
            self.mappings[granule] = number

    def _require_whole_mappings(self, beg: int, size: int) -> list[int]:
        """The addresses of the mappings that together are these bytes."""
        addresses: list[int] = []
        position = beg
        while position < beg + size:
            require(position in self.spans, f"{position:#x} is not the beginning of a mapping")
            addresses.append(position)
            position += self.spans[position]
        require(position == beg + size, "a mapping is taken in part")
        return addresses

    @driver_call
    def cuMemExportToShareableHandle(self, handle: object, kind: object, flags: int) -> tuple[Any, ...]:
        number = require_handle(handle, CUmemGenericAllocationHandle, "handle")
        require(number in self.allocations and flags == 0, "no allocation, or flags")
        require(kind is self.properties[number].requestedHandleTypes, "a handle of another type than was asked for")
        if kind is CUmemAllocationHandleType.CU_MEM_HANDLE_TYPE_FABRIC:
            return (CUresult.CUDA_SUCCESS, CUmemFabricHandle(number.to_bytes(64, "little")))
        return (CUresult.CUDA_SUCCESS, os.open(os.devnull, os.O_RDONLY))

    @driver_call
    def cuMemSetAccess(self, ptr: object, size: int, desc: object, count: int) -> None:
        beg = require_handle(ptr, CUdeviceptr, "ptr")
        assert isinstance(desc, (list, tuple))
        require(count == len(desc) > 0, "access descriptions")
        self._require_whole_mappings(beg, size)
        granules = range(beg, beg + size, self.granularity_bytes)
        for access in desc:
            require(type(access) is CUmemAccessDesc, "access description")
            access.location.check(self.ordinals)
            require(access.flags is CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "access flags")
            owner = self.properties[self.mappings[beg]].location.id
            if access.location.id == owner:
                self.accessible.update(granules)
            else:
                require((access.location.id, owner) in self.peers, "access for a GPU that cannot")
                self.peer_granules.setdefault(access.location.id, set()).update(granules)

    @driver_call
    def cuMemUnmap(self, ptr: object, size: int) -> None:
        beg = require_handle(ptr, CUdeviceptr, "ptr")
        addresses = self._require_whole_mappings(beg, size)
        if len(addresses) > 1 and self.is_unmapping_one_by_one:
            raise Refused(CUresult.CUDA_ERROR_INVALID_VALUE)
        for address in addresses:
            del self.spans[address]
        for granule in range(beg, beg + size, self.granularity_bytes):
            del self.mappings[granule]
            self.accessible.discard(granule)
            for granules in self.peer_granules.values():
                granules.discard(granule)

    @driver_call
    def cuMemHostRegister(self, p: int, size: int, flags: int) -> tuple[Any, ...]:
        self._require_context()
        beg = require_int(p, "p")
        require(require_int(size, "size") > 0 and flags == 3, "size or flags")
        if any(beg < r + n and r < beg + size for r, n in self.registrations.items()):
            raise Refused(CUresult.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
        if sum(self.registrations.values()) + size > self.pinnable_bytes:
            return (CUresult.CUDA_ERROR_OUT_OF_MEMORY,)
        self.registrations[beg] = size
        return (CUresult.CUDA_SUCCESS,)

    @driver_call
    def cuMemHostUnregister(self, p: int) -> None:
        self._require_context()
        if require_int(p, "p") not in self.registrations:
            raise Refused(CUresult.CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
        del self.registrations[p]

    @driver_call
    def cuMemHostGetDevicePointer(self, p: int, flags: int) -> tuple[Any, ...]:
        self._require_context()
        beg = require_int(p, "p")
        require(any(r <= beg < r + n for r, n in self.registrations.items()) and flags == 0, "memory is not pinned")
        return (CUresult.CUDA_SUCCESS, CUdeviceptr(beg))

    # -- streams and events -------------------------------------------------------------------------------------------

    @driver_call
    def cuStreamCreate(self, flags: int) -> tuple[Any, ...]:
        context = self._current_context()
        require(flags == 1, "a stream that is not non-blocking")
        handle = self._make_handle()
        self.streams.add(handle)
        self.context_of[handle] = context
        return (CUresult.CUDA_SUCCESS, CUstream(handle))

    @driver_call
    def cuStreamDestroy(self, stream: object) -> None:
        self._require_context()
        number = self._require_stream(stream)
        require(number > LAST_SPECIAL_STREAM, "a default stream is destroyed")
        require(number not in self.captures, "a stream is destroyed while it captures")
        self.streams.remove(number)

    @driver_call
    def cuStreamSynchronize(self, stream: object) -> None:
        self._require_stream_outside(self._require_stream(stream))

    @driver_call
    def cuStreamQuery(self, stream: object) -> tuple[Any, ...]:
        self._require_stream_outside(self._require_stream(stream))
        return (CUresult.CUDA_SUCCESS if self.are_events_done else CUresult.CUDA_ERROR_NOT_READY,)

    @driver_call
    def cuStreamWaitEvent(self, stream: object, event: object, flags: int) -> None:
        number, handle = self._require_stream(stream), self._require_event(event)
        require(self.events[handle] > 0 and flags == 0, "an event that was never recorded")
        self._note_wait(number, handle)

    @driver_call
    def cuEventCreate(self, flags: int) -> tuple[Any, ...]:
        context = self._current_context()
        require(flags in (0, 2), "flags of an event")
        handle = self._make_handle()
        if flags == 0:
            self.timed_events.add(handle)
        self.events[handle] = 0
        self.context_of[handle] = context
        return (CUresult.CUDA_SUCCESS, CUevent(handle))

    @driver_call
    def cuEventDestroy(self, event: object) -> None:
        self._require_context()
        handle = self._require_event(event)
        del self.events[handle]
        self.timed_events.discard(handle)

    @driver_call
    def cuEventRecord(self, event: object, stream: object) -> None:
        number, handle = self._require_stream(stream), self._require_event(event)
        if self._context_of_stream(number) != self.context_of[handle]:
            raise Refused(CUresult.CUDA_ERROR_INVALID_HANDLE)
        self._note_record(number, handle)
        self.events[handle] += 1

    @driver_call
    def cuEventQuery(self, event: object) -> tuple[Any, ...]:
        handle = self._require_event(event)
        require(self.events[handle] > 0, "an event that was never recorded")
        self._require_event_outside(handle)
        return (CUresult.CUDA_SUCCESS if self.are_events_done else CUresult.CUDA_ERROR_NOT_READY,)

    @driver_call
    def cuEventElapsedTime(self, start: object, end: object) -> tuple[Any, ...]:
        handles = [self._require_event(start), self._require_event(end)]
        for handle in handles:
            require(handle in self.timed_events and self.events[handle] > 0, "an event without timing, or never recorded")
            self._require_event_outside(handle)
        if self.context_of[handles[0]] != self.context_of[handles[1]]:
            raise Refused(CUresult.CUDA_ERROR_INVALID_HANDLE)
        if not self.are_events_done:
            return (CUresult.CUDA_ERROR_NOT_READY, 0.0)
        return (CUresult.CUDA_SUCCESS, self.elapsed_milliseconds)

    @driver_call
    def cuEventSynchronize(self, event: object) -> None:
        handle = self._require_event(event)
        require(self.events[handle] > 0, "an event that was never recorded")
        self._require_event_outside(handle)

    @driver_call
    def cuStreamWaitValue32(self, stream: object, addr: object, value: int, flags: int) -> tuple[Any, ...]:
        self._check_word(stream, addr, value, flags)
        return (CUresult.CUDA_SUCCESS if self.can_wait_for_values else CUresult.CUDA_ERROR_NOT_SUPPORTED,)

    @driver_call
    def cuStreamWriteValue32(self, stream: object, addr: object, value: int, flags: int) -> tuple[Any, ...]:
        number, address = self._check_word(stream, addr, value, flags)
        if not self.can_write_values:
            return (CUresult.CUDA_ERROR_NOT_SUPPORTED,)
        self._write_value(number, address, value)
        return (CUresult.CUDA_SUCCESS,)

    def _check_word(self, stream: object, addr: object, value: int, flags: int) -> tuple[int, int]:
        """This form of both came with CUDA 11.7 and has no device attribute; the driver says NOT_SUPPORTED where it cannot."""
        if self.driver_version < FIRST_VERSION_WITH_WORDS:
            raise RuntimeError(f"cuda-python finds no {self.calls[-1]} in this driver")
        number = self._require_stream(stream)
        address = require_handle(addr, CUdeviceptr, "addr")
        require(any(r <= address and address + 4 <= r + n for r, n in self.registrations.items()), "a word that is not pinned")
        require(0 <= require_int(value, "value") < 1 << 32 and flags == 0 and address % 4 == 0, "value, flags or address")
        self._open_capture_of(number)
        return number, address

    def _write_value(self, stream: int, address: int, value: int) -> None:
        """Pinned memory is the host's: this driver, whose streams are always done, writes at once."""
        ctypes.c_uint32.from_address(address).value = value

    # -- work ---------------------------------------------------------------------------------------------------------

    @driver_call
    def cuMemcpyAsync(self, dst: object, src: object, size: int, stream: object) -> None:
        self._require_context()
        self._open_capture_of(self._require_stream(stream))
        self._copy(require_handle(dst, CUdeviceptr, "dst"), require_handle(src, CUdeviceptr, "src"), size)

    @driver_call
    def cuGetProcAddress(self, symbol: object, version: int, flags: int) -> tuple[Any, ...]:
        """The address of a function that C may call; only the batch of copies is to be had that way."""
        require(type(symbol) is bytes and flags == 0, "symbol or flags")
        require(require_int(version, "version") <= self.driver_version, "a form newer than the driver")
        if symbol != b"cuMemcpyBatchAsync" or version < 12080:
            return (CUresult.CUDA_ERROR_NOT_FOUND, 0, 1)
        form = BATCH_OF_12 if version < 13000 else BATCH_OF_13
        if form not in self._c_functions:
            self._c_functions[form] = form(self._batch_of_12 if version < 13000 else self._batch_of_13)
        return (CUresult.CUDA_SUCCESS, ctypes.cast(self._c_functions[form], ctypes.c_void_p).value, 0)

    def _batch_of_12(self, *arguments: Any) -> int:
        # The index of a copy that failed; the driver writes it.
        arguments[7][0] = (1 << 64) - 1
        return self._batch_of_13(*arguments[:7], arguments[8])

    def _batch_of_13(self, *arguments: Any) -> int:
        """Called by address, where an exception would be printed and forgotten."""
        dsts, srcs, sizes, count, attributes, indices, num_attributes, stream = arguments
        try:
            lists = [[int(word) for word in words[:count]] for words in (dsts, srcs, sizes)]
            returned = self.cuMemcpyBatchAsync(*lists, count, attributes[:6], indices[:1], num_attributes, stream or 0)
        except DriverMisuse as misuse:
            self.misuses.append(str(misuse))
            return int(CUresult.CUDA_ERROR_INVALID_VALUE)
        return int(returned[0])

    @driver_call
    def cuMemcpyBatchAsync(
        self,
        dsts: list[int],
        srcs: list[int],
        sizes: list[int],
        count: int,
        attributes: list[int],
        indices: list[int],
        num_attributes: int,
        stream: int,
    ) -> tuple[Any, ...]:
        """Not as cuda-python has it: what the C function was given."""
        self._require_context()
        number = self._require_stream(stream)
        require(number > 1, "a batch on the legacy default stream")
        self._require_stream_outside(number)
        require(len(dsts) == len(srcs) == len(sizes) == count > 0, "lengths")
        require(num_attributes == 1 and indices == [0], "attributes")
        require(attributes == [1, 0, 0, 0, 0, 0], "sources are read in stream order; no hints, no flags")
        if not self.takes_batches:
            return (CUresult.CUDA_ERROR_NOT_SUPPORTED,)
        for dst, src, size in zip(dsts, srcs, sizes, strict=True):
            self._copy(dst, src, size)
        require_independent(dsts, srcs, sizes)
        return (CUresult.CUDA_SUCCESS,)

    def _copy(self, dst: int, src: int, size: int) -> None:
        require(require_int(size, "size") > 0, "a copy of no bytes")
        self._require_copyable(dst, size)
        self._require_copyable(src, size)
        self.copies.append((dst, src, size))

    @driver_call
    def cuMemsetD8Async(self, dst: object, value: int, size: int, stream: object) -> None:
        self._require_context()
        self._open_capture_of(self._require_stream(stream))
        require(0 <= require_int(value, "value") <= 255, "value of a fill")
        self._require_copyable(require_handle(dst, CUdeviceptr, "dst"), require_int(size, "size"))

    @driver_call
    def cuModuleLoadData(self, image: object) -> tuple[Any, ...]:
        self._require_context()
        require(type(image) is bytes and len(image) > 0, "image of a module")
        handle = self._make_handle()
        self.modules.add(handle)
        return (CUresult.CUDA_SUCCESS, CUmodule(handle))

    @driver_call
    def cuModuleUnload(self, module: object) -> None:
        self._require_context()
        self.modules.remove(require_handle(module, CUmodule, "module"))

    @driver_call
    def cuModuleGetFunction(self, module: object, name: object) -> tuple[Any, ...]:
        self._require_context()
        assert isinstance(name, bytes), "name of a function"
        number = require_handle(module, CUmodule, "module")
        require(number in self.modules, "a module that was unloaded")
        handle = self._make_handle()
        self.functions[handle] = (number, name.decode())
        return (CUresult.CUDA_SUCCESS, CUfunction(handle))

    @driver_call
    def cuLaunchKernel(self, function: object, *args: Any) -> None:
        context = self._current_context()
        handle = require_handle(function, CUfunction, "function")
        require(self.functions[handle][0] in self.modules, "a function that was unloaded")
        sizes, stream, parameters, extra = args[:7], args[7], args[8], args[9]
        require(all(type(size) is int for size in sizes) and min(sizes[:6]) > 0, "grid or block")
        number = self._require_stream(stream)
        if self._context_of_stream(number) != context:
            raise Refused(CUresult.CUDA_ERROR_INVALID_HANDLE)
        self._open_capture_of(number)
        require(require_int(parameters, "parameters") > 0 and extra == 0, "parameters")

    @driver_call
    def cuLaunchHostFunc(self, stream: object, fn: object, data: object) -> None:
        number = self._require_stream(stream)
        address, argument = require_int(fn, "fn"), require_int(data, "userData")
        self._open_capture_of(number)
        self._call_on_host(number, lambda: ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)(argument))

    def _call_on_host(self, stream: int, call: Callable[[], None]) -> None:
        """The streams of this driver are always done. The thread is one of the driver's, and may make no call."""
        call()


def require_independent(dsts: list[int], srcs: list[int], sizes: list[int]) -> None:
    """Copies of a batch run in any order, so none may write what another one writes or reads (cuMemcpyBatchAsync)."""
    writes = sorted((dst, dst + size) for dst, size in zip(dsts, sizes, strict=True))
    for (_, end), (beg, _) in pairwise(writes):
        require(end <= beg, f"two copies of one batch write to {beg:#x}")
    begs = [beg for beg, _ in writes]
    for src, size in zip(srcs, sizes, strict=True):
        index = bisect_left(begs, src + size) - 1
        require(index < 0 or writes[index][1] <= src, f"a copy of a batch reads what another one writes, at {src:#x}")
