"""A story that a device may refuse to go on with: a manager, an engine that checks every byte, and what each sequence has computed."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from kv_cache_manager_v2 import CacheTier, Device, HostDevice, KVCache, KVCacheManager, KVCacheManagerConfig, StorageIOError
from kv_cache_manager_v2.device.port import CopyBatch, HostKernel
from kv_cache_manager_v2.testing import FakeEngine, SimulatedDevice, Step
from kv_cache_manager_v2.testing.faults import FaultPlan


class Refused(Exception):
    """What the device says."""


class RefusingHostDevice(Device):
    """A host device that asks a `FaultPlan` before it does anything."""

    def __init__(self) -> None:
        self.faults: Final = FaultPlan()
        self._device = HostDevice()

    @property
    def name(self) -> str:
        return "refusing"

    @property
    def is_software(self) -> bool:
        return True

    def granularity_bytes(self, tier: CacheTier) -> int:
        return self._device.granularity_bytes(tier)

    def total_bytes(self, tier: CacheTier) -> int:
        return self._device.total_bytes(tier)

    def reserve_range(self, tier: CacheTier, num_bytes: int) -> int:
        return self._device.reserve_range(tier, num_bytes)

    def reserve_disk_range(self, path: str, num_bytes: int) -> int:
        return self._device.reserve_disk_range(path, num_bytes)

    def disk_failure(self, address: int) -> StorageIOError | None:
        return self._device.disk_failure(address)

    def take_failed_reads(self) -> Sequence[StorageIOError]:
        return self._device.take_failed_reads()

    def release_range(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self._device.release_range(tier, address, num_bytes)

    def map_memory(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self.faults.count_call("map")
        self._device.map_memory(tier, address, num_bytes)

    def unmap_memory(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self._device.unmap_memory(tier, address, num_bytes)

    def default_stream(self) -> int:
        return self._device.default_stream()

    def create_stream(self) -> int:
        self.faults.count_call("create_stream")
        return self._device.create_stream()

    def destroy_stream(self, stream: int) -> None:
        self._device.destroy_stream(stream)

    def synchronize_stream(self, stream: int) -> None:
        self._device.synchronize_stream(stream)

    def record_event(self, stream: int) -> int:
        self.faults.count_call("record")
        return self._device.record_event(stream)

    def wait_event(self, stream: int, event: int) -> None:
        self.faults.count_call("wait")
        self._device.wait_event(stream, event)

    def is_event_done(self, event: int) -> bool:
        return self._device.is_event_done(event)

    def synchronize_event(self, event: int) -> None:
        self._device.synchronize_event(event)

    def release_event(self, event: int) -> None:
        self._device.release_event(event)

    def start_timer(self, stream: int) -> int:
        return self._device.start_timer(stream)

    def stop_timer(self, stream: int, timer: int) -> None:
        self._device.stop_timer(stream, timer)

    def read_timer(self, timer: int) -> float:
        return self._device.read_timer(timer)

    def release_timer(self, timer: int) -> None:
        self._device.release_timer(timer)

    def copy_batch(self, stream: int, batch: CopyBatch) -> None:
        self.faults.count_call("copy")
        self._device.copy_batch(stream, batch)

    def fill(self, stream: int, address: int, num_bytes: int, value: int) -> None:
        self.faults.count_call("fill")
        self._device.fill(stream, address, num_bytes, value)

    def launch(self, stream: int, kernel: HostKernel) -> None:
        self._device.launch(stream, kernel)

    def close(self) -> None:
        self._device.close()


class Story:
    """One manager, one engine on several streams, and what each open sequence has computed."""

    def __init__(self, config: KVCacheManagerConfig, device: SimulatedDevice | RefusingHostDevice) -> None:
        self.device = device
        self.manager = KVCacheManager(config, device=self.device)
        self.engine = FakeEngine(config, self.device)
        self.streams = [self.device.create_stream() for _ in range(3)]
        self.texts: dict[int, Any] = {}
        self.open: list[KVCache] = []
        self.at_end: Callable[[], None] | None = None

    def begin(self, number: int, tokens: Sequence[int], stream: int, commit: int) -> KVCache:
        """A sequence that has computed ``tokens`` and committed the first ``commit`` of them."""
        kv_cache = self.manager.create_kv_cache(id=number, input_tokens=list(tokens[:commit]))
        start = kv_cache.num_committed_tokens
        assert kv_cache.resume(self.streams[stream])
        if len(tokens) > start:
            assert kv_cache.resize(len(tokens), start), self.manager.last_refusal
            self.engine.execute([Step(kv_cache, list(tokens[start:]), list(tokens[:start]))])
        if commit > start:
            kv_cache.commit(list(tokens[start:commit]))
        self.texts[number] = list(tokens)
        self.open.append(kv_cache)
        return kv_cache

    def write(self, kv_cache: KVCache, token: int) -> None:
        """What the step that a resize has made room for computes: one token, or one for each beam."""
        text = self.texts[kv_cache.id]
        if kv_cache.beam_width == 1:
            self.engine.execute([Step(kv_cache, [token], text)])
            self.texts[kv_cache.id] = [*text, token]
            return
        texts = text if isinstance(text[0], list) else [text] * kv_cache.beam_width
        self.engine.execute([Step(kv_cache, [[token + beam] for beam in range(kv_cache.beam_width)], texts)])
        self.texts[kv_cache.id] = [[*one, token + beam] for beam, one in enumerate(texts)]

    def check(self) -> None:
        self.manager.check_invariants()
        for kv_cache in self.open:
            text = self.texts[kv_cache.id]
            length = len(text[0]) if isinstance(text[0], list) else len(text)
            if kv_cache.is_active and length in (kv_cache.capacity, kv_cache.history_length):
                self.engine.execute([Step(kv_cache, [], self.texts[kv_cache.id])])

    def finish(self) -> None:
        self.check()
        self.engine.synchronize()
        for kv_cache in self.open:
            kv_cache.close()
        if self.at_end is not None:
            self.at_end()
        if isinstance(self.device, SimulatedDevice):
            assert self.device.races == ()
        self.engine.close()
        self.manager.clear_reusable_blocks()
        for level in range(len(self.manager.cache_tier_list)):
            assert all(counts.free == counts.total for counts in self.manager.get_storage_statistics(level))
        self.manager.shutdown()
        for stream in self.streams:
            self.device.destroy_stream(stream)
        if isinstance(self.device, SimulatedDevice):
            assert self.device.num_open_streams == self.device.num_open_events == 0
        self.device.close()
