"""Random copies among memory and disk on several streams, ordered by events where they must be, equal copies made at once.

On the host device with real files, with files that move few bytes at a time, and with a disk that refuses writes; on CUDA over a
driver that runs its streams late; and on the simulated device, which would also report a missing wait.
"""

import ctypes
import errno
import importlib
import importlib.util
import os
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from kv_cache_manager_v2 import CacheTier, CopyBatch, Device, HostDevice
from kv_cache_manager_v2.device.cuda_device import CudaDevice
from kv_cache_manager_v2.device.file_port import FilePort
from kv_cache_manager_v2.device.memory_range import MemoryRange
from kv_cache_manager_v2.device.os_files import OsFiles
from kv_cache_manager_v2.testing import SimulatedDevice

GPU, HOST, DISK = CacheTier.GPU_MEM, CacheTier.HOST_MEM, CacheTier.DISK
TIERS = (GPU, HOST, DISK)
SLOTS = 12
PAGE = 4096


class UnreliableFiles(FilePort):
    """Real files; a write fails with a probability, and a transfer may be short."""

    def __init__(self, seed: int, write_failures: float, short_transfers: float) -> None:
        self._files = OsFiles()
        self._random = random.Random(seed)
        self._write_failures, self._short_transfers = write_failures, short_transfers

    def open_file(self, path, is_direct):
        return self._files.open_file(path, is_direct)

    def close_file(self, file):
        self._files.close_file(file)

    def become_buffered(self, file):
        self._files.become_buffered(file)

    def grow(self, file, offset, num_bytes):
        self._files.grow(file, offset, num_bytes)

    def discard(self, file, offset, num_bytes, is_last):
        self._files.discard(file, offset, num_bytes, is_last)

    def free_bytes(self, path):
        return self._files.free_bytes(path)

    def transfer(self, file, is_write, addresses, sizes, offset):
        if is_write and self._random.random() < self._write_failures:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if self._random.random() < self._short_transfers:
            return self._files.transfer(file, is_write, addresses[:1], [self._random.randint(1, sizes[0])], offset)
        return self._files.transfer(file, is_write, addresses, sizes, offset)


class Interleaving:
    """Streams of one device and what each slot must contain; every operation is followed by an event."""

    def __init__(self, device: Device, folder: Path, slot_bytes: int, seed: int) -> None:
        self.device, self.slot_bytes = device, slot_bytes
        self.random = random.Random(seed)
        self.ranges: dict[CacheTier, list[MemoryRange]] = {GPU: [], HOST: [], DISK: []}
        for tier in TIERS:
            # Two disk levels.
            for _ in range(2 if tier == DISK else 1):
                memory = MemoryRange(device, tier, SLOTS * slot_bytes, str(folder) if tier == DISK else None)
                memory.resize(SLOTS * slot_bytes)
                self.ranges[tier].append(memory)
        self.streams = [device.default_stream(), device.create_stream(), device.create_stream()]
        self.values: dict[int, int] = {}  # by address
        self.users: dict[int, dict[int, int]] = {}  # by address: stream -> the event behind its last use
        self.last_event: dict[int, int] = {}
        for tier in TIERS:
            for memory in self.ranges[tier]:
                for slot in range(SLOTS):
                    self.users[memory.address + slot * slot_bytes] = {}
        self.write_everything()

    def run(self, num_operations: int) -> None:
        for _ in range(num_operations):
            stream = self.random.choice(self.streams)
            choice = self.random.random()
            if choice < 0.3:
                self.fill(stream)
            elif choice < 0.85:
                self.copy(stream)
            elif choice < 0.9:
                self.device.synchronize_stream(stream)
            elif self.last_event:
                event = self.random.choice(list(self.last_event.values()))
                if choice < 0.95:
                    self.device.is_event_done(event)
                else:
                    self.device.synchronize_event(event)

    def write_everything(self) -> None:
        """Each slot a value of its own."""
        stream = self.streams[0]
        gpu = self.ranges[GPU][0].address
        for value, address in enumerate(self.addresses(GPU) + self.addresses(HOST) + self.addresses(DISK)):
            self.values[address] = value
        for tier in (HOST, DISK, GPU):
            for address in self.addresses(tier):
                target = address if tier == GPU else gpu
                self.device.fill(stream, target, self.slot_bytes, self.values[address])
                if tier != GPU:
                    batch = CopyBatch(tier, GPU, self.slot_bytes)
                    batch.add(address, gpu)
                    self.device.copy_batch(stream, batch)
        self.device.synchronize_stream(stream)

    def fill(self, stream: int) -> None:
        address = self.random.choice(self.addresses(GPU))
        value = self.random.randrange(256)
        self.order(stream, [address])
        self.device.fill(stream, address, self.slot_bytes, value)
        self.values[address] = value
        self.record(stream, [address])

    def copy(self, stream: int) -> None:
        dst_tier, src_tier = self.random.choice(TIERS), self.random.choice(TIERS)
        count = self.random.randint(1, 5)
        sources = self.random.sample(self.addresses(src_tier), count)
        free = [address for address in self.addresses(dst_tier) if address not in sources]
        targets = self.random.sample(free, count)
        if self.random.random() < 0.5:
            sources.sort()
            targets.sort()
        self.order(stream, sources + targets)
        batch = CopyBatch(dst_tier, src_tier, self.slot_bytes)
        for target, source in zip(targets, sources, strict=True):
            batch.add(target, source)
        self.device.copy_batch(stream, batch)
        for target, source in zip(targets, sources, strict=True):
            self.values[target] = self.values[source]
        self.record(stream, sources + targets)

    def addresses(self, tier: CacheTier) -> list[int]:
        return [memory.address + slot * self.slot_bytes for memory in self.ranges[tier] for slot in range(SLOTS)]

    def order(self, stream: int, addresses: list[int]) -> None:
        waited: set[int] = set()
        for address in addresses:
            for user, event in self.users[address].items():
                if user != stream and event not in waited:
                    waited.add(event)
                    self.device.wait_event(stream, event)

    def record(self, stream: int, addresses: list[int]) -> None:
        event = self.device.record_event(stream)
        for address in addresses:
            # The stream waited for all others that used it.
            self.users[address] = {stream: event}
        self.last_event[stream] = event

    def check(self) -> None:
        for stream in self.streams:
            self.device.synchronize_stream(stream)
        host = MemoryRange(self.device, HOST, self.slot_bytes)
        host.resize(self.slot_bytes)
        for tier in TIERS:
            for address in self.addresses(tier):
                batch = CopyBatch(HOST, tier, self.slot_bytes)
                batch.add(host.address, address)
                self.device.copy_batch(self.streams[0], batch)
                self.device.synchronize_stream(self.streams[0])
                assert set(ctypes.string_at(host.address, self.slot_bytes)) == {self.values[address]}
        host.close()

    def close(self) -> None:
        for ranges in self.ranges.values():
            for memory in ranges:
                memory.close()
        self.device.close()


def make_async_driver(seed: int, can_wait_for_values: bool) -> Any:
    """It lives with the tests of `CudaDevice`, which are no package that this one could name."""
    folder = Path(__file__).parents[2] / "unit" / "device"
    name = "device_tests"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, folder / "__init__.py", submodule_search_locations=[str(folder)])
        assert spec is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
    driver = importlib.import_module(f"{name}.async_cuda_driver").AsyncCudaDriver(seed)
    driver.can_wait_for_values = can_wait_for_values
    return driver


def make_device(kind: str, seed: int) -> Device:
    if kind.startswith("cuda"):
        driver = make_async_driver(seed, kind != "cuda, blocking")
        files = UnreliableFiles(seed, 0.3, 0.3) if kind == "cuda, failing writes" else None
        # One or two staging slots, which are always in somebody's use.
        return CudaDevice(driver=driver, granularity_bytes=PAGE, files=files, staging_bytes=(1 + seed % 2) << 20)
    if kind == "simulated":
        return SimulatedDevice(seed)
    if kind == "short transfers":
        return HostDevice(PAGE, files=UnreliableFiles(seed, 0.0, 0.6))
    if kind == "failing writes":
        return HostDevice(PAGE, files=UnreliableFiles(seed, 0.3, 0.3))
    return HostDevice(PAGE, num_disk_threads=1 if kind == "one thread" else 4)


@pytest.mark.parametrize("slot_bytes", [PAGE, 1000, 3 * PAGE, 75 * PAGE])
@pytest.mark.parametrize(
    "kind",
    [*("threads", "one thread", "short transfers", "failing writes"), *("cuda", "cuda, blocking", "cuda, failing writes", "simulated")],
)
@pytest.mark.parametrize("seed", range(3))
def test_copies_through_disk_equal_copies_made_at_once(tmp_path: Path, kind: str, slot_bytes: int, seed: int) -> None:
    interleaving = Interleaving(make_device(kind, seed), tmp_path, slot_bytes, seed)
    interleaving.run({"simulated": 60}.get(kind, 100 if kind.startswith("cuda") else 250))
    interleaving.check()
    interleaving.close()
    assert list(tmp_path.iterdir()) == []
