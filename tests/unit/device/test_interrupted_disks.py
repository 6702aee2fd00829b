"""A KeyboardInterrupt at every instruction of what a device's caller runs for its disk: no call waits for ever, and the device goes on.

Interpreted only, as compiled code is interrupted where it waits; `tests/promises/test_ctrl_c_hangs_nothing.py` does that in both builds.
"""

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import pytest

from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device import disk_workers
from kv_cache_manager_v2.device.cuda_device import CudaDevice
from kv_cache_manager_v2.device.host_device import HostDevice
from kv_cache_manager_v2.device.memory_range import MemoryRange
from kv_cache_manager_v2.device.port import CopyBatch, Device

from .async_cuda_driver import AsyncCudaDriver
from .fake_files import FakeFiles

pytestmark = pytest.mark.skipif(not disk_workers.__file__.endswith(".py"), reason="compiled code has no instructions to stop at")

GPU, HOST, DISK = CacheTier.GPU_MEM, CacheTier.HOST_MEM, CacheTier.DISK
PAGE = 4096
SLOT = 64 << 10
FILES = ("disk_workers", "host_streams", "failed_writes", "disk_job", "disk_dependencies", "cuda_disk", "cuda_flags", "cuda_staging")

Place = tuple[CodeType, int]


class Tracer:
    """Notes each instruction of `FILES` on this thread; raises at the given one, the n-th time it gets there."""

    def __init__(self, place: Place | None = None, nth: int = 1) -> None:
        self.counts: dict[Place, int] = {}
        self.place = place
        self.nth = nth
        self.has_raised = False

    def begin(self, frame: FrameType, event: str, argument: object) -> Any:
        name = frame.f_code.co_filename.rsplit("/", 1)[-1].removesuffix(".py")
        if name not in FILES:
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self.step

    def step(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            place = (frame.f_code, frame.f_lasti)
            count = self.counts.get(place, 0) + 1
            self.counts[place] = count
            if place == self.place and count == self.nth:
                self.has_raised = True
                raise KeyboardInterrupt
        return self.step

    @contextmanager
    def at_work(self) -> Iterator[None]:
        sys.settrace(self.begin)
        try:
            yield
        finally:
            sys.settrace(None)


class Bench:
    """4 slots of each tier."""

    def __init__(self, kind: str) -> None:
        self.files = FakeFiles()
        self.driver = AsyncCudaDriver(3) if kind == "cuda" else None
        self.device: Device = (
            HostDevice(PAGE, files=self.files, num_disk_threads=2)
            if self.driver is None
            else CudaDevice(
                driver=self.driver, granularity_bytes=PAGE, files=self.files, staging_bytes=1 << 20, num_disk_threads=2
            )
        )
        self.ranges = {
            tier: MemoryRange(self.device, tier, 4 * SLOT, "/nowhere" if tier == DISK else None) for tier in (GPU, HOST, DISK)
        }
        for memory in self.ranges.values():
            memory.resize(4 * SLOT)
        self.stream = self.device.create_stream()
        self.other = self.device.create_stream()

    def copy(self, stream: int, dst: CacheTier, src: CacheTier, pairs: list[tuple[int, int]]) -> None:
        batch = CopyBatch(dst, src, SLOT)
        for dst_slot, src_slot in pairs:
            batch.add(self.ranges[dst].address + dst_slot * SLOT, self.ranges[src].address + src_slot * SLOT)
        self.device.copy_batch(stream, batch)

    def use(self) -> None:
        """Host to disk, on another stream back to the GPU and to the disk again."""
        device = self.device
        self.copy(self.stream, DISK, HOST, [(0, 1), (1, 0)])
        event = device.record_event(self.stream)
        device.wait_event(self.other, event)
        device.release_event(event)
        self.copy(self.other, GPU, DISK, [(2, 0), (3, 1)])
        self.copy(self.other, DISK, GPU, [(2, 3), (1, 2)])
        event = device.record_event(self.other)
        while not device.is_event_done(event):
            pass
        device.release_event(event)
        device.synchronize_stream(self.other)
        device.take_failed_reads()
        device.disk_failure(self.ranges[DISK].address)

    def settle(self) -> None:
        """As a driver's thread would be: what was pushed in a call that was interrupted is there still."""
        if self.driver is not None:
            self.driver.context_stack.clear()
        self.device.synchronize_stream(self.stream)
        self.device.synchronize_stream(self.other)
        # Waits for all that is under way.
        self.ranges[DISK].resize(3 * SLOT)
        self.ranges[DISK].resize(4 * SLOT)

    def check(self, value: int) -> None:
        """The device does what it is told."""
        for slot in range(2):
            ctypes.memset(self.ranges[HOST].address + slot * SLOT, value + slot, SLOT)
        self.use()
        self.copy(self.stream, HOST, DISK, [(3, 2), (2, 1)])
        self.device.synchronize_stream(self.stream)
        found = [set(ctypes.string_at(self.ranges[HOST].address + slot * SLOT, SLOT)) for slot in (3, 2)]
        # Slot 0 went to disk slot 1, GPU slot 3 and disk slot 2; slot 1 to disk slot 0, GPU slot 2 and disk slot 1.
        assert found == [{value}, {value + 1}]

    def close(self) -> None:
        for memory in self.ranges.values():
            memory.close()
        self.device.close()


def attempt(call: Callable[[], None], tracer: Tracer) -> None:
    try:
        with tracer.at_work():
            call()
    except KeyboardInterrupt:
        assert tracer.has_raised


@pytest.mark.parametrize("kind", ["host", "cuda"])
def test_at_every_instruction(kind: str) -> None:
    """Of what hands jobs to the workers and waits for them; elsewhere at every twelfth. Where timing differs, and an instruction is not
    reached, nothing is interrupted."""
    bench = Bench(kind)
    tracer = Tracer()
    attempt(bench.use, tracer)
    bench.close()
    places = [
        (place, count)
        for index, (place, count) in enumerate(tracer.counts.items())
        if index % 12 == 0 or (kind == "host" and place[0].co_filename.endswith("disk_workers.py"))
    ]
    num_raised = 0
    for index, (place, count) in enumerate(places):
        bench = Bench(kind)
        stopper = Tracer(place, (1, count)[index % 2])
        attempt(bench.use, stopper)
        num_raised += stopper.has_raised
        bench.settle()
        bench.check(40 + index % 100)
        bench.close()
    assert num_raised > len(places) / 2 > 40
