"""The strict fake driver with bytes and time: GPU memory is the host's, streams are queues that run late.

What is enqueued runs when somebody asks for an event or synchronises, in an order that a seed picks, as far as it may. Any
thread may call.
"""

import ctypes
import mmap
import random
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from .fake_cuda_driver import GRANULARITY_BYTES, FakeCudaDriver
from .fake_cuda_types import CUdeviceptr, CUresult

Operation = Callable[[], bool]
"""Runs it; False where it must wait."""


class AsyncCudaDriver(FakeCudaDriver):
    def __init__(self, seed: int, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._random = random.Random(seed)
        self._lock = threading.RLock()
        self._queues: dict[int, deque[Operation]] = {}
        self._mappings: dict[int, mmap.mmap] = {}
        self._records: dict[int, int] = {}  # event -> its latest record
        self._done_records: set[int] = set()
        self._next_record = 1

    def cuMemAddressReserve(self, size: int, alignment: int, address: int, flags: int) -> tuple[Any, ...]:
        returned = super().cuMemAddressReserve(size, alignment, address, flags)
        if returned[0] != CUresult.CUDA_SUCCESS:
            return returned
        del self.ranges[int(returned[1])]
        memory = mmap.mmap(-1, size + GRANULARITY_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000)
        beg = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        beg = (beg + GRANULARITY_BYTES - 1) // GRANULARITY_BYTES * GRANULARITY_BYTES
        self.ranges[beg] = size
        self._mappings[beg] = memory
        return (CUresult.CUDA_SUCCESS, CUdeviceptr(beg))

    def cuMemAddressFree(self, ptr: Any, size: int) -> tuple[Any, ...]:
        returned = super().cuMemAddressFree(ptr, size)
        if returned[0] == CUresult.CUDA_SUCCESS:
            del self._mappings[int(ptr)]
        return returned

    def cuStreamDestroy(self, stream: Any) -> tuple[Any, ...]:
        with self._lock:
            return super().cuStreamDestroy(stream)

    def cuStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> tuple[Any, ...]:
        with self._lock:
            returned = super().cuStreamWaitEvent(stream, event, flags)
            record = self._records[int(event)]
            return self._enqueue(returned, stream, lambda: record in self._done_records)

    def cuStreamWaitValue32(self, stream: Any, addr: Any, value: int, flags: int) -> tuple[Any, ...]:
        with self._lock:
            returned = super().cuStreamWaitValue32(stream, addr, value, flags)
            word = ctypes.c_uint32.from_address(int(addr))
            return self._enqueue(returned, stream, lambda: (word.value - value) % (1 << 32) < 1 << 31)

    def cuStreamWriteValue32(self, stream: Any, addr: Any, value: int, flags: int) -> tuple[Any, ...]:
        with self._lock:
            return super().cuStreamWriteValue32(stream, addr, value, flags)

    def _write_value(self, stream: int, address: int, value: int) -> None:
        word = ctypes.c_uint32.from_address(address)

        def write() -> bool:
            word.value = value
            return True

        self._enqueue((CUresult.CUDA_SUCCESS,), stream, write)

    def cuEventRecord(self, event: Any, stream: Any) -> tuple[Any, ...]:
        with self._lock:
            returned = super().cuEventRecord(event, stream)
            record = self._next_record
            self._next_record += 1
            self._records[int(event)] = record

            def note() -> bool:
                self._done_records.add(record)
                return True

            return self._enqueue(returned, stream, note)

    def cuEventQuery(self, event: Any) -> tuple[Any, ...]:
        with self._lock:
            super().cuEventQuery(event)
            self._run(self._random.randrange(4))
            is_done = self._records[int(event)] in self._done_records
            return (CUresult.CUDA_SUCCESS if is_done else CUresult.CUDA_ERROR_NOT_READY,)

    def cuEventSynchronize(self, event: Any) -> tuple[Any, ...]:
        record = self._records[int(event)]
        self._run_until(lambda: record in self._done_records)
        return super().cuEventSynchronize(event)

    def cuStreamSynchronize(self, stream: Any) -> tuple[Any, ...]:
        self._run_until(lambda: not self._queues.get(int(stream)))
        return super().cuStreamSynchronize(stream)

    def cuCtxSynchronize(self) -> tuple[Any, ...]:
        self._run_until(lambda: not any(self._queues.values()))
        return super().cuCtxSynchronize()

    def cuMemcpyAsync(self, dst: Any, src: Any, size: int, stream: Any) -> tuple[Any, ...]:
        with self._lock:
            returned = super().cuMemcpyAsync(dst, src, size, stream)
            return self._enqueue(returned, stream, move(int(dst), int(src), size))

    def cuMemcpyBatchAsync(self, dsts: Any, srcs: Any, sizes: Any, *arguments: Any) -> tuple[Any, ...]:
        with self._lock:
            returned = super().cuMemcpyBatchAsync(dsts, srcs, sizes, *arguments)
            for dst, src, size in zip(dsts, srcs, sizes, strict=True):
                self._enqueue(returned, arguments[-1], move(int(dst), int(src), size))
            return returned

    def cuMemsetD8Async(self, dst: Any, value: int, size: int, stream: Any) -> tuple[Any, ...]:
        with self._lock:
            returned = super().cuMemsetD8Async(dst, value, size, stream)
            address = int(dst)

            def fill() -> bool:
                ctypes.memset(address, value, size)
                return True

            return self._enqueue(returned, stream, fill)

    def num_queued(self) -> int:
        return sum(len(queue) for queue in self._queues.values())

    # -- inside -------------------------------------------------------------------------------------------------------

    def _enqueue(self, returned: tuple[Any, ...], stream: Any, operation: Operation) -> tuple[Any, ...]:
        if returned[0] == CUresult.CUDA_SUCCESS:
            self._queues.setdefault(int(stream), deque()).append(operation)
            self._run(self._random.randrange(2))
        return returned

    def _run(self, count: int) -> None:
        """Try up to so many operations."""
        for _ in range(count):
            ready = [queue for queue in self._queues.values() if queue]
            if not ready:
                return
            queue = self._random.choice(ready)
            if queue[0]():
                queue.popleft()

    def _run_until(self, is_reached: Callable[[], bool]) -> None:
        is_over = False
        while not is_over:
            # Workers that raise flags need the lock now and then.
            with self._lock:
                self._run(20)
                is_over = is_reached()


def move(dst: int, src: int, size: int) -> Operation:
    def copy() -> bool:
        ctypes.memmove(dst, src, size)
        return True

    return copy
