"""Managers with levels below the GPU, counted in slots, and sequences whose every byte a fake engine checks."""

from collections.abc import Sequence
from typing import Any

from small_models import BYTES_PER_TOKEN, attention_layers, close_open_ones

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    ColdPageCodec,
    Device,
    DiskCacheTierConfig,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    KVCache,
    KVCacheEventManager,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
)
from kv_cache_manager_v2.testing import FakeEngine, Step

TOKENS_PER_BLOCK = 4


def tiered_config(
    gpu_slots: int,
    lower: Sequence[tuple[str, int]],
    folder: str = "/tmp",
    windows: Sequence[int | None] = (None,),
    num_pool_groups: int = 1,
    **settings: Any,
) -> KVCacheManagerConfig:
    """``lower``: ("host" or "disk", slots) for each level below the GPU. All layers are in one pool group; or each of so many layers in one
    of its own, with that many slots on each level: the second one's pages are twice as large, and its window is longer than all texts."""
    slot_bytes = 2 * BYTES_PER_TOKEN * TOKENS_PER_BLOCK
    layers = attention_layers(windows, TOKENS_PER_BLOCK)
    if num_pool_groups == 2:
        assert tuple(windows) == (None,)
        size = 2 * BYTES_PER_TOKEN * TOKENS_PER_BLOCK
        layers.append(AttentionLayerConfig(LayerId(1), [BufferConfig("key", size), BufferConfig("value", size)], 1000))
        settings["initial_pool_ratio"] = [1 / 3, 2 / 3]
        slot_bytes *= 3
    tiers: list[Any] = [GpuCacheTierConfig(gpu_slots * slot_bytes, EvictionPolicy.LRU)]
    for kind, num_slots in lower:
        num_bytes = num_slots * slot_bytes
        if kind == "host":
            tiers.append(HostCacheTierConfig(num_bytes, EvictionPolicy.LRU))
        else:
            tiers.append(DiskCacheTierConfig(num_bytes, folder, EvictionPolicy.LRU))
    return KVCacheManagerConfig(tokens_per_block=TOKENS_PER_BLOCK, cache_tiers=tiers, layers=layers, max_util_for_resume=1.0, **settings)


class Bench:
    """A manager, a fake engine on its device, and the text of each sequence. A context manager; all is checked at its end."""

    def __init__(
        self,
        config: KVCacheManagerConfig,
        device: Device,
        event_manager: KVCacheEventManager | None = None,
        codec: ColdPageCodec | None = None,
    ) -> None:
        self.device = device
        self.manager = KVCacheManager(config, device=device, event_manager=event_manager, cold_page_codec=codec)
        self.engine = FakeEngine(config, device)
        self.texts: dict[int, list[int]] = {}

    def __enter__(self) -> "Bench":
        return self

    def __exit__(self, error_type: object, error: object, traceback: object) -> None:
        if error is None:
            self.close()

    def close(self) -> None:
        """Open sequences are closed; every slot of every level must be free once the tree is empty."""
        close_open_ones(self.manager)
        self.engine.synchronize()
        self.engine.close()
        self.manager.check_invariants()
        self.manager.clear_reusable_blocks()
        for level in range(len(self.manager.cache_tier_list)):
            for counts in self.manager.get_storage_statistics(level):
                assert counts.free == counts.total
        self.manager.shutdown()
        self.device.close()

    def write(self, kv_cache: KVCache, num_tokens: int, commit: bool = False, chunk: int = 1 << 20) -> bool:
        """Compute that many more tokens, in steps of up to ``chunk``, and check all that they read; False: no room."""
        text = self.texts.setdefault(kv_cache.id, [])
        end = len(text) + num_tokens
        while len(text) < end:
            count = min(chunk, end - len(text))
            if not kv_cache.resize(len(text) + count, len(text)):
                return False
            new = [1000 * kv_cache.id + position for position in range(len(text), len(text) + count)]
            self.engine.execute([Step(kv_cache, new, list(text))])
            text.extend(new)
            if commit:
                kv_cache.commit(new)
        return True

    def check(self, kv_cache: KVCache) -> None:
        """Enqueue a step without input: it checks everything that the next token would read."""
        self.engine.execute([Step(kv_cache, [], list(self.texts[kv_cache.id]))])

    def suspended(self, number: int, num_tokens: int, commit: bool = False, stream: int | None = None) -> KVCache:
        """A sequence of that many tokens, suspended."""
        kv_cache = self.manager.create_kv_cache(id=number)
        assert kv_cache.resume(stream)
        assert self.write(kv_cache, num_tokens, commit)
        kv_cache.suspend()
        return kv_cache

    def counts(self, level: int, pool_group: int = 0) -> tuple[int, int]:
        """Slots of a level: (all, free)."""
        found = self.manager.get_storage_statistics(level)[pool_group]
        return found.total, found.free

    def num_copied(self, source: int, target: int) -> int:
        """Pages copied from one level to another so far."""
        transfers = self.manager.get_statistics().transfers
        return sum([one.blocks for one in transfers if (one.source_level, one.target_level) == (source, target)])
