"""A KeyboardInterrupt at every instruction of what a device's caller runs for its disk: no call waits for ever, and the device goes on.

Interpreted only, as compiled code is interrupted where it waits; `tests/promises/test_ctrl_c_hangs_nothing.py` does that in both builds.
"""

import ctypes
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import served_interrupts
from served_interrupts import Place

from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device import disk_workers
from kv_cache_manager_v2.device.cuda_device import CudaDevice
from kv_cache_manager_v2.device.host_device import HostDevice
from kv_cache_manager_v2.device.port import Device

from .async_cuda_driver import AsyncCudaDriver
from .disk_bench import DISK, GPU, HOST, PAGE, TierBench
from .fake_files import FakeFiles

pytestmark = pytest.mark.skipif(not disk_workers.__file__.endswith(".py"), reason="compiled code has no instructions to stop at")

SLOT = 64 << 10
FILES = ("disk_workers", "host_streams", "failed_writes", "disk_job", "disk_dependencies", "cuda_disk", "cuda_flags", "cuda_staging")


class Tracer(served_interrupts.Tracer):
    """Notes each instruction of `FILES` on this thread; raises at the given one, the n-th time it gets there."""

    def __init__(self, place: Place | None = None, nth: int = 1) -> None:
        super().__init__(FILES, place)
        self.counts: Counter[Place] = Counter()
        self.nth = nth

    def step(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            place = (frame.f_code, frame.f_lasti)
            self.counts[place] += 1
            if place == self.stop and self.counts[place] == self.nth:
                self.has_raised = True
                raise KeyboardInterrupt
        return self.step


class Bench(TierBench):
    """4 slots of each tier."""

    def __init__(self, kind: str) -> None:
        files = FakeFiles()
        self.driver = AsyncCudaDriver(3) if kind == "cuda" else None
        self.device: Device = (
            HostDevice(PAGE, files=files, num_disk_threads=2)
            if self.driver is None
            else CudaDevice(driver=self.driver, granularity_bytes=PAGE, files=files, staging_bytes=1 << 20, num_disk_threads=2)
        )
        super().__init__(self.device, files, SLOT, 4)
        self.stream = self.device.create_stream()
        self.other = self.device.create_stream()

    def copy(self, stream: int, dst: CacheTier, src: CacheTier, pairs: list[tuple[int, int]]) -> None:
        self.device.copy_batch(stream, self.batch(dst, src, pairs))

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
            ctypes.memset(self.address(HOST, slot), value + slot, SLOT)
        self.use()
        self.copy(self.stream, HOST, DISK, [(3, 2), (2, 1)])
        self.device.synchronize_stream(self.stream)
        # Slot 0 went to disk slot 1, GPU slot 3 and disk slot 2; slot 1 to disk slot 0, GPU slot 2 and disk slot 1.
        assert [self.value(HOST, slot) for slot in (3, 2)] == [value, value + 1]

    def close(self) -> None:
        super().close()
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
