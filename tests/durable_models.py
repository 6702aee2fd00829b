"""Managers over a disk that outlives them, one process after another, and engines that check every byte they read."""

from collections.abc import Sequence
from typing import Any

from lossy_files import LossyDisk, LossyFiles
from small_models import BYTES_PER_TOKEN, attention_layers

from kv_cache_manager_v2 import (
    ColdPageCodec,
    DiskCacheTierConfig,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCacheEventManager,
    KVCacheManager,
    KVCacheManagerConfig,
    ModelId,
    ReuseScope,
    StorageIOError,
)
from kv_cache_manager_v2.device.file_port import FilePort
from kv_cache_manager_v2.testing import FakeEngine, Step

TOKENS_PER_BLOCK = 4
SLOT_BYTES = 2 * BYTES_PER_TOKEN * TOKENS_PER_BLOCK
SYSTEM = list(range(100, 120))
PROMPTS = [SYSTEM + [1000 * number + position for position in range(12)] for number in range(1, 6)]


def durable_config(
    folder: str,
    gpu_slots: int = 16,
    host_slots: int = 0,
    disk_slots: int = 64,
    windows: Sequence[int | None] = (None,),
    model_id: ModelId = ModelId("a model"),
    more_paths: Sequence[str] = (),
    read_only: bool = False,
    policy: EvictionPolicy = EvictionPolicy.LRU,
    **settings: Any,
) -> KVCacheManagerConfig:
    """One pool group; slots by level."""
    tiers: list[Any] = [GpuCacheTierConfig(gpu_slots * SLOT_BYTES, policy)]
    if host_slots > 0:
        tiers.append(HostCacheTierConfig(host_slots * SLOT_BYTES, policy))
    disk = DiskCacheTierConfig(disk_slots * SLOT_BYTES, folder, policy, True, model_id, more_paths=tuple(more_paths), read_only=read_only)
    tiers.append(disk)
    return KVCacheManagerConfig(
        tokens_per_block=TOKENS_PER_BLOCK,
        cache_tiers=tiers,
        layers=attention_layers(windows, TOKENS_PER_BLOCK),
        max_util_for_resume=1.0,
        **settings,
    )


class Process:
    """A manager with its engine, from start to end. ``files``: None for the operating system's."""

    def __init__(
        self,
        config: KVCacheManagerConfig,
        files: FilePort | None = None,
        event_manager: KVCacheEventManager | None = None,
        journal: str | None = None,
        codec: ColdPageCodec | None = None,
    ) -> None:
        self.device = HostDevice() if files is None else HostDevice(files=files)
        self.manager = KVCacheManager(config, device=self.device, event_manager=event_manager, journal=journal, cold_page_codec=codec)
        self.engine = FakeEngine(config, self.device)
        self.manager.check_invariants()

    def run(self, text: list[int], scope: ReuseScope | None = None) -> int:
        """Serve a prompt and publish it, every byte that it reads checked; returns how many tokens were reused. -1: its pages were
        lost, and no byte of them was used."""
        kv_cache = self.manager.create_kv_cache(scope, text)
        try:
            assert kv_cache.resume(), self.manager.last_refusal
            num_reused = kv_cache.num_committed_tokens
            assert kv_cache.resize(len(text), num_reused)
            self.engine.execute([Step(kv_cache, text[num_reused:], text[:num_reused])])
            kv_cache.commit(text[num_reused:])
        except StorageIOError:
            num_reused = -1
        kv_cache.close()
        return num_reused

    def settle(self) -> None:
        """Have everything on the disk that is on its way there."""
        try:
            self.engine.synchronize()
        except StorageIOError:
            pass
        durable, early = self.manager._shared.storage.durable, self.manager._shared.traffic.early_copies
        assert durable is not None and early is not None
        early.offload_put_off()
        self.manager._shared.order.synchronize_all()
        durable.writer.flush()

    def end(self, drain_seconds: float = 60.0) -> None:
        self.engine.synchronize()
        self.engine.close()
        self.manager.check_invariants()
        self.manager.shutdown(drain_seconds)
        self.device.close()


def next_process(disk: LossyDisk, config: KVCacheManagerConfig, kill_at: int = 1 << 60) -> tuple[Process, LossyFiles]:
    files = LossyFiles(disk, kill_at)
    return Process(config, files), files
