"""The strict fake driver with bytes and time: GPU memory is the host's, streams are queues that run late.

What is enqueued runs when the host asks for an event or synchronises, in an order that a seed picks, as far as it may. ``eager``:
True runs each operation as soon as it may run, False as late as possible, None lets the seed choose one of these or a mixture.
While a stream is to write a word that a thread of the host may be polling, a thread of the driver keeps the streams running. Any
thread may call.

Checked when an operation *runs*: all memory that it touches is mapped and accessible; where it is not, that is a fault of the GPU
(CUDA_ERROR_ILLEGAL_ADDRESS) and no later call works. Memory and modules that an operation in a queue will use cannot be unmapped,
unregistered or unloaded: the real driver leaves that undefined, so here it is a `DriverMisuse`. Copies of one batch run in an order
of their own. A stream takes ``queue_depth`` operations; then the call that enqueues one more blocks until the stream has run one.
The documentation names no such depth: 1,024 is what users report of launches. ``holds_gil``: the caller of a launch is an
extension that does not let other Python threads run, so that a block which only such a thread can end is a `DriverMisuse`.
"""

import contextlib
import ctypes
import mmap
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from .fake_cuda_driver import FakeCudaDriver
from .fake_cuda_types import CUdeviceptr, CUresult, DriverMisuse, require
from .kernels_on_host import KernelsOnHost

DEFAULT_QUEUE_DEPTH = 1024
_PATIENCE_SECONDS = 120.0
_PUMP_SECONDS = 0.0005
_WORD_MASK = (1 << 32) - 1

Span = tuple[int, int]


class Operation:
    """In a queue. ``run`` returns False where it must wait. ``spans``: what it reads and writes; ``module``: whose kernel it is."""

    def __init__(self, run: Callable[[], bool], spans: list[Span], *, module: int = 0, writes_word: bool = False) -> None:
        self.run = run
        self.spans = spans
        self.module = module
        self.writes_word = writes_word


class AsyncCudaDriver(FakeCudaDriver):
    def __init__(
        self,
        seed: int,
        *,
        eager: bool | None = None,
        queue_depth: int = DEFAULT_QUEUE_DEPTH,
        holds_gil: bool = False,
        kernels: KernelsOnHost | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self._random = random.Random(seed)
        self.eager = random.Random(seed).choice((None, None, True, False)) if eager is None else eager
        self.queue_depth = queue_depth
        self.holds_gil = holds_gil
        self.num_blocked = 0
        """Calls that found their stream's queue full."""
        self._kernels = kernels
        self._images: dict[int, bytes] = {}
        self._queues: dict[object, deque[Operation]] = {}
        self._mappings: dict[int, mmap.mmap] = {}
        self._records: dict[int, int] = {}  # event -> its latest record
        self._done_records: dict[int, float] = {}  # record -> when
        self._next_record = 1
        self._num_words_to_write = 0
        self._pump: threading.Thread | None = None

    # -- memory -------------------------------------------------------------------------------------------------------

    def cuMemAddressReserve(self, size: int, alignment: int, address: int, flags: int) -> tuple[Any, ...]:
        with self._lock:
            returned = super().cuMemAddressReserve(size, alignment, address, flags)
            if returned[0] != CUresult.CUDA_SUCCESS:
                return returned
            del self.ranges[int(returned[1])]
            memory = mmap.mmap(-1, size + self.granularity_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
            beg = ctypes.addressof(ctypes.c_char.from_buffer(memory))
            beg = (beg + self.granularity_bytes - 1) // self.granularity_bytes * self.granularity_bytes
            self.ranges[beg] = size
            self._mappings[beg] = memory
            return (CUresult.CUDA_SUCCESS, CUdeviceptr(beg))

    def cuMemAddressFree(self, ptr: Any, size: int) -> tuple[Any, ...]:
        returned = super().cuMemAddressFree(ptr, size)
        if returned[0] == CUresult.CUDA_SUCCESS:
            del self._mappings[int(ptr)]
        return returned

    def cuMemUnmap(self, ptr: Any, size: int) -> tuple[Any, ...]:
        with self._lock:
            self._require_idle(int(ptr), int(ptr) + size, "unmapped")
            return super().cuMemUnmap(ptr, size)

    def cuMemHostUnregister(self, p: int) -> tuple[Any, ...]:
        with self._lock:
            self._require_idle(p, p + self.registrations.get(p, 0), "unregistered")
            return super().cuMemHostUnregister(p)

    # -- streams and events -------------------------------------------------------------------------------------------

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> tuple[Any, ...]:
        self._make_room(stream)
        with self._lock:
            returned = super().cuStreamWaitEvent(stream, event, flags)
            record = self._records.get(int(event))
            return self._enqueue(returned, stream, Operation(lambda: record in self._done_records, []))

    def cuStreamWaitValue32(self, stream: Any, addr: Any, value: int, flags: int) -> tuple[Any, ...]:
        self._make_room(stream)
        with self._lock:
            returned = super().cuStreamWaitValue32(stream, addr, value, flags)
            address = int(addr)

            def look() -> bool:
                return (ctypes.c_uint32.from_address(address).value - value) % (1 << 32) < 1 << 31

            return self._enqueue(returned, stream, Operation(look, [(address, address + 4)]))

    def cuStreamWriteValue32(self, stream: Any, addr: Any, value: int, flags: int) -> tuple[Any, ...]:
        self._make_room(stream)
        with self._lock:
            return super().cuStreamWriteValue32(stream, addr, value, flags)

    def _write_value(self, stream: int, address: int, value: int) -> None:
        def write() -> bool:
            ctypes.c_uint32.from_address(address).value = value
            return True

        self._enqueue((CUresult.CUDA_SUCCESS,), stream, Operation(write, [(address, address + 4)], writes_word=True))

    def cuEventRecord(self, event: Any, stream: Any) -> tuple[Any, ...]:
        self._make_room(stream)
        with self._lock:
            returned = super().cuEventRecord(event, stream)
            if returned[0] != CUresult.CUDA_SUCCESS:
                return returned
            record = self._next_record
            self._next_record += 1
            self._records[int(event)] = record

            def note() -> bool:
                self._done_records[record] = time.perf_counter()
                return True

            return self._enqueue(returned, stream, Operation(note, []))

    def cuEventQuery(self, event: Any) -> tuple[Any, ...]:
        with self._lock:
            returned = super().cuEventQuery(event)
            if returned[0] != CUresult.CUDA_SUCCESS:
                return returned
            if self.eager is not False or self._random.random() < 0.25:
                self._run(self._random.randrange(4))
            if self.fault is not None:
                return (self.fault,)
            is_done = self._records[int(event)] in self._done_records
            return (CUresult.CUDA_SUCCESS if is_done else CUresult.CUDA_ERROR_NOT_READY,)

    def cuEventElapsedTime(self, start: Any, end: Any) -> tuple[Any, ...]:
        with self._lock:
            returned = super().cuEventElapsedTime(start, end)
            if returned[0] != CUresult.CUDA_SUCCESS:
                return returned
            times = [self._done_records.get(self._records[int(event)]) for event in (start, end)]
            if times[0] is None or times[1] is None:
                return (CUresult.CUDA_ERROR_NOT_READY, 0.0)
            return (CUresult.CUDA_SUCCESS, 1000.0 * (times[1] - times[0]))

    def cuEventSynchronize(self, event: Any) -> tuple[Any, ...]:
        returned = super().cuEventSynchronize(event)
        if returned[0] != CUresult.CUDA_SUCCESS:
            return returned
        record = self._records[int(event)]
        return self._run_until(lambda: record in self._done_records)

    def cuStreamSynchronize(self, stream: Any) -> tuple[Any, ...]:
        returned = super().cuStreamSynchronize(stream)
        if returned[0] != CUresult.CUDA_SUCCESS:
            return returned
        key = self._queue_of(int(stream))
        return self._run_until(lambda: not self._queues.get(key))

    def cuStreamQuery(self, stream: Any) -> tuple[Any, ...]:
        with self._lock:
            returned = super().cuStreamQuery(stream)
            if returned[0] == CUresult.CUDA_SUCCESS and self._queues.get(self._queue_of(int(stream))):
                return (CUresult.CUDA_ERROR_NOT_READY,)
            return returned

    def cuCtxSynchronize(self) -> tuple[Any, ...]:
        returned = super().cuCtxSynchronize()
        if returned[0] != CUresult.CUDA_SUCCESS:
            return returned
        return self._run_until(lambda: not any(self._queues.values()))

    # -- work ---------------------------------------------------------------------------------------------------------

    def cuMemcpyAsync(self, dst: Any, src: Any, size: int, stream: Any) -> tuple[Any, ...]:
        self._make_room(stream)
        with self._lock:
            returned = super().cuMemcpyAsync(dst, src, size, stream)
            return self._enqueue(returned, stream, self._copy_operation([(int(dst), int(src), size)]))

    def cuMemcpyBatchAsync(self, dsts: Any, srcs: Any, sizes: Any, *arguments: Any) -> tuple[Any, ...]:
        self._make_room(arguments[-1])
        with self._lock:
            returned = super().cuMemcpyBatchAsync(dsts, srcs, sizes, *arguments)
            copies = [(int(dst), int(src), int(size)) for dst, src, size in zip(dsts, srcs, sizes, strict=True)]
            self._random.shuffle(copies)
            return self._enqueue(returned, arguments[-1], self._copy_operation(copies))

    def cuMemsetD8Async(self, dst: Any, value: int, size: int, stream: Any) -> tuple[Any, ...]:
        self._make_room(stream)
        with self._lock:
            returned = super().cuMemsetD8Async(dst, value, size, stream)
            address = int(dst)

            def fill() -> bool:
                ctypes.memset(address, value, size)
                return True

            return self._enqueue(returned, stream, Operation(fill, [(address, address + size)]))

    def cuModuleLoadData(self, image: Any) -> tuple[Any, ...]:
        with self._lock:
            returned = super().cuModuleLoadData(image)
            if returned[0] == CUresult.CUDA_SUCCESS:
                self._images[int(returned[1])] = image
            return returned

    def cuModuleUnload(self, module: Any) -> tuple[Any, ...]:
        with self._lock:
            for queue in self._queues.values():
                require(all(operation.module != int(module) for operation in queue), "a module is unloaded before its kernel ran")
            return super().cuModuleUnload(module)

    def cuLaunchKernel(self, function: Any, *args: Any) -> tuple[Any, ...]:
        self._make_room(args[7])
        with self._lock:
            returned = super().cuLaunchKernel(function, *args)
            if returned[0] != CUresult.CUDA_SUCCESS:
                return returned
            module, name = self.functions[int(function)]
            if self._kernels is None:
                return self._enqueue(returned, args[7], Operation(lambda: True, [], module=module))
            call, pointers = self._kernels.prepare(self._images[module], name, args[:3], args[3:6], args[8])
            # The first byte of what each pointer names: how much a kernel uses there, only the kernel knows.
            spans = [(pointer, pointer + 1) for pointer in pointers if self._is_device_address(pointer)]
            return self._enqueue(returned, args[7], Operation(call, spans, module=module))

    def cuLaunchHostFunc(self, stream: Any, fn: Any, data: Any) -> tuple[Any, ...]:
        self._make_room(stream)
        with self._lock:
            return super().cuLaunchHostFunc(stream, fn, data)

    def _call_on_host(self, stream: int, call: Callable[[], None]) -> None:
        def run() -> bool:
            call()
            return True

        self._enqueue((CUresult.CUDA_SUCCESS,), stream, Operation(run, []))

    def run_to_end(self) -> None:
        """The GPU runs on while the host asks for nothing, until every queue is empty."""
        status = self._run_until(lambda: not any(self._queues.values()))[0]
        require(status is CUresult.CUDA_SUCCESS, f"the GPU stopped: {status.name}")

    def num_queued(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    # -- inside -------------------------------------------------------------------------------------------------------

    def _queue_of(self, stream: int) -> object:
        """0 and 1 are one stream, the legacy default stream; 2 is the calling thread's own. Each context has its own."""
        if stream > 2:
            return stream
        context = self.context_stack[-1] if self.context_stack else 0
        return (context, threading.get_ident()) if stream == 2 else (context, "legacy")

    def _is_device_address(self, address: int) -> bool:
        return any(beg <= address < beg + size for table in (self.ranges, self.registrations) for beg, size in table.items())

    def _copy_operation(self, copies: list[tuple[int, int, int]]) -> Operation:
        def copy() -> bool:
            for dst, src, size in copies:
                ctypes.memmove(dst, src, size)
            return True

        spans = [(address, address + size) for dst, src, size in copies for address in (dst, src)]
        return Operation(copy, spans)

    def _require_idle(self, beg: int, end: int, what: str) -> None:
        for queue in self._queues.values():
            for operation in queue:
                for span_beg, span_end in operation.spans:
                    require(end <= span_beg or span_end <= beg, f"memory at {beg:#x} is {what} before its work ran")

    def _make_room(self, stream: Any) -> None:
        """Blocks while the stream's queue is full."""
        key = self._queue_of(int(stream))
        if len(self._queues.get(key, ())) < self.queue_depth:
            return
        self.num_blocked += 1
        if self.holds_gil:
            with self._lock:
                while len(self._queues[key]) >= self.queue_depth:
                    if not self._run_all():
                        raise DriverMisuse("a launch blocks with the interpreter's lock held, and a Python thread has to end that")
            return
        self._run_until(lambda: len(self._queues[key]) < self.queue_depth)

    def _enqueue(self, returned: tuple[Any, ...], stream: Any, operation: Operation) -> tuple[Any, ...]:
        if returned[0] != CUresult.CUDA_SUCCESS:
            return returned
        capture = self.captures.get(int(stream))
        if capture is not None:
            capture.num_operations += 1
            return returned
        self._queues.setdefault(self._queue_of(int(stream)), deque()).append(operation)
        if operation.writes_word:
            self._num_words_to_write += 1
            self._start_pump()
        if self.eager:
            self._run_all()
        elif self.eager is None:
            self._run(self._random.randrange(2))
        return returned

    def _run(self, count: int) -> None:
        """Try up to so many operations."""
        for _ in range(count):
            ready = [queue for queue in self._queues.values() if queue]
            if not ready:
                return
            self._run_first(self._random.choice(ready))

    def _run_all(self) -> bool:
        """Everything that can run now; False if that was nothing."""
        num_run = 0
        is_progress = True
        while is_progress:
            is_progress = False
            for queue in list(self._queues.values()):
                while queue and self._run_first(queue):
                    is_progress = True
                    num_run += 1
        return num_run > 0

    def _run_first(self, queue: deque[Operation]) -> bool:
        operation = queue[0]
        if not all(self._is_accessible(beg, end - beg) for beg, end in operation.spans):
            self.break_context()
            return False
        if not operation.run():
            return False
        queue.popleft()
        self._num_words_to_write -= operation.writes_word
        return True

    @contextlib.contextmanager
    def stopped_streams(self) -> Iterator[None]:
        """No stream runs meanwhile, whatever a thread of the host is polling."""
        with self._lock:
            yield

    def break_context(self, fault: CUresult = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS) -> None:
        """What is in the queues never runs."""
        with self._lock:
            super().break_context(fault)
            for queue in self._queues.values():
                queue.clear()
            self._num_words_to_write = 0

    def heal(self) -> None:
        """For a test that ends with a fault, so that it can clean up: the real driver never goes on. What was enqueued has not run."""
        with self._lock:
            self.fault = None
            self._done_records.update((record, time.perf_counter()) for record in self._records.values())

    def _run_until(self, is_reached: Callable[[], bool]) -> tuple[Any, ...]:
        began = time.monotonic()
        while True:
            # Workers that raise flags need the lock now and then.
            with self._lock:
                self._run(20)
                if self.fault is not None:
                    return (self.fault,)
                if is_reached():
                    return (CUresult.CUDA_SUCCESS,)
            if time.monotonic() - began > _PATIENCE_SECONDS:
                raise DriverMisuse(f"{self.num_queued()} operations stand still: a wait that nothing ends")

    def _start_pump(self) -> None:
        if self._pump is None:
            self._pump = threading.Thread(target=self._keep_running, name="fake-gpu", daemon=True)
            self._pump.start()

    def _keep_running(self) -> None:
        pause = threading.Event()
        while True:
            with self._lock:
                if self._num_words_to_write == 0:
                    self._pump = None
                    return
                self._run(self._random.randrange(1, 16))
            pause.wait(_PUMP_SECONDS)
