"""Ctrl-C at each device call of a shutdown, one run a call: the next shutdown finishes, and the device has everything back."""

import gc
import warnings
from pathlib import Path
from typing import Any

import pytest
from forwarding_device import ForwardingDevice
from tiered_models import TOKENS_PER_BLOCK, tiered_config

from kv_cache_manager_v2 import CacheTier, CorruptedError, DebugFill, KVCacheManager, LogicError


class InterruptedDevice(ForwardingDevice):
    """Raises KeyboardInterrupt instead of carrying out the n-th call after `arm`; counts what is reserved and open."""

    def __init__(self) -> None:
        super().__init__()
        self.calls_left = -1
        self.reserved: set[int] = set()
        self.streams: set[int] = set()
        self.events: set[int] = set()

    def _count(self) -> None:
        if self.calls_left == 0:
            self.calls_left = -1
            raise KeyboardInterrupt
        if self.calls_left > 0:
            self.calls_left -= 1

    def reserve_range(self, tier: CacheTier, num_bytes: int) -> int:
        address = super().reserve_range(tier, num_bytes)
        self.reserved.add(address)
        return address

    def reserve_disk_range(self, path: str, num_bytes: int) -> int:
        address = super().reserve_disk_range(path, num_bytes)
        self.reserved.add(address)
        return address

    def release_range(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self._count()
        super().release_range(tier, address, num_bytes)
        self.reserved.remove(address)

    def unmap_memory(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self._count()
        super().unmap_memory(tier, address, num_bytes)

    def create_stream(self) -> int:
        stream = super().create_stream()
        self.streams.add(stream)
        return stream

    def destroy_stream(self, stream: int) -> None:
        self._count()
        super().destroy_stream(stream)
        self.streams.remove(stream)

    def record_event(self, stream: int) -> int:
        self._count()
        event = super().record_event(stream)
        self.events.add(event)
        return event

    def synchronize_event(self, event: int) -> None:
        self._count()
        super().synchronize_event(event)

    def release_event(self, event: int) -> None:
        self._count()
        super().release_event(event)
        self.events.remove(event)

    def read_timer(self, timer: int) -> float:
        self._count()
        return super().read_timer(timer)

    def release_timer(self, timer: int) -> None:
        self._count()
        super().release_timer(timer)


def serve(device: InterruptedDevice, folder: Path) -> KVCacheManager:
    """A manager that has pages on the host and on the disk, streams, events and timers."""
    config = tiered_config(4, [("host", 4), ("disk", 16)], str(folder))
    manager = KVCacheManager(config, device=device, debug_fill=DebugFill.NAN)
    manager.time_transfers()
    for start in range(3):
        stream = device.create_stream()
        device.streams.remove(stream)  # the caller's own
        kv_cache = manager.create_kv_cache()
        assert kv_cache.resume(stream) and kv_cache.resize(4 * TOKENS_PER_BLOCK)
        kv_cache.commit(list(range(start * 100, start * 100 + 4 * TOKENS_PER_BLOCK)))
        kv_cache.close()
    return manager


def test_at_each_device_call(tmp_path: Path) -> None:
    num_interrupted = 0
    is_interrupted = True
    while is_interrupted:
        device = InterruptedDevice()
        manager = serve(device, tmp_path)
        device.calls_left = num_interrupted
        try:
            manager.shutdown()
            is_interrupted = False
        except KeyboardInterrupt:
            num_interrupted += 1
            with pytest.raises((LogicError, CorruptedError)):
                manager.create_kv_cache()
            manager.shutdown()
        assert device.reserved == set(), f"interrupted at call {num_interrupted - 1}"
        # A handle whose release was cut off goes with the device.
        assert len(device.streams) + len(device.events) <= 1
        manager.shutdown()
        device.close()
    # At least: an event of each stream, and two calls for each tier's memory.
    assert num_interrupted > 8


@pytest.mark.parametrize("calls_before", [0, 4, 8])
def test_a_dropped_manager_releases_what_an_interrupted_shutdown_left(tmp_path: Path, calls_before: int) -> None:
    device = InterruptedDevice()
    manager: Any = serve(device, tmp_path)
    device.calls_left = calls_before
    with pytest.raises(KeyboardInterrupt):
        manager.shutdown()
    assert device.reserved != set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        del manager
        gc.collect()
    assert device.reserved == set()
    device.close()
