"""A story that a device may refuse to go on with: a manager, an engine that checks every byte, and what each sequence has computed."""

from collections.abc import Callable, Sequence
from typing import Any, Final

from forwarding_device import ForwardingDevice

from kv_cache_manager_v2 import CacheTier, KVCache, KVCacheManager, KVCacheManagerConfig
from kv_cache_manager_v2.base.errors import PartlyCopiedError
from kv_cache_manager_v2.device.port import CopyBatch
from kv_cache_manager_v2.testing import FakeEngine, SimulatedDevice, Step
from kv_cache_manager_v2.testing.faults import FaultPlan


class Refused(Exception):
    """What the device says."""


class RefusingHostDevice(ForwardingDevice):
    """A host device that asks a `FaultPlan` before it does anything."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: Final = FaultPlan()

    def map_memory(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self.faults.count_call("map")
        super().map_memory(tier, address, num_bytes)

    def unmap_memory(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self.faults.count_call("unmap")
        super().unmap_memory(tier, address, num_bytes)

    def synchronize_stream(self, stream: int) -> None:
        self.faults.count_call("synchronize")
        super().synchronize_stream(stream)

    def synchronize_event(self, event: int) -> None:
        self.faults.count_call("synchronize")
        super().synchronize_event(event)

    def create_stream(self) -> int:
        self.faults.count_call("create_stream")
        return super().create_stream()

    def record_event(self, stream: int) -> int:
        self.faults.count_call("record")
        return super().record_event(stream)

    def wait_event(self, stream: int, event: int) -> None:
        self.faults.count_call("wait")
        super().wait_event(stream, event)

    def copy_batch(self, stream: int, batch: CopyBatch) -> None:
        self.faults.count_call("copy")
        super().copy_batch(stream, batch)

    def fill(self, stream: int, address: int, num_bytes: int, value: int) -> None:
        self.faults.count_call("fill")
        super().fill(stream, address, num_bytes, value)


class PartlyCopyingDevice(RefusingHostDevice):
    """A device that takes copies only one by one, and refuses the last one of a batch."""

    def copy_batch(self, stream: int, batch: CopyBatch) -> None:
        try:
            self.faults.count_call("copy")
        except Refused as refusal:
            if batch.count == 1:
                raise
            done = CopyBatch(batch.dst_tier, batch.src_tier, batch.num_bytes)
            for index in range(batch.count - 1):
                done.add(batch.dst_addresses[index], batch.src_addresses[index])
            ForwardingDevice.copy_batch(self, stream, done)
            raise PartlyCopiedError(f"of {batch.count} copies {done.count} were enqueued, then {refusal}") from refusal
        ForwardingDevice.copy_batch(self, stream, batch)


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
        """What the step after a resize computes: one token, or one for each beam."""
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
