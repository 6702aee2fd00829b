"""Configurations with recurrent layers, and an engine that prefills through a fake model: for tests that look at state."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from small_models import attention_layers

from kv_cache_manager_v2 import (
    BatchDesc,
    BufferConfig,
    Device,
    EvictionPolicy,
    GpuCacheTierConfig,
    KVCache,
    KVCacheDesc,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerConfig,
    LayerId,
    SsmLayerConfig,
)
from kv_cache_manager_v2.device.host_device import HostDevice
from kv_cache_manager_v2.testing import FakeEngine, Step

STATE_BYTES = 96
FIRST_STATE_LAYER = 100


def state_layers(count: int) -> list[SsmLayerConfig]:
    """With the ids `FIRST_STATE_LAYER` and following; `STATE_BYTES` each, in two buffers."""
    return [
        SsmLayerConfig(
            layer_id=LayerId(FIRST_STATE_LAYER + index),
            buffers=[BufferConfig("conv", STATE_BYTES // 4), BufferConfig("ssm", STATE_BYTES * 3 // 4)],
        )
        for index in range(count)
    ]


def hybrid_config(
    windows: Sequence[int | None] = (None,), tokens_per_block: int = 4, num_state_layers: int = 2, quota: int = 1 << 14, **settings: Any
) -> KVCacheManagerConfig:
    """An attention layer per window, then the recurrent ones."""
    layers: list[LayerConfig] = [*attention_layers(windows, tokens_per_block), *state_layers(num_state_layers)]
    tiers = settings.pop("cache_tiers", [GpuCacheTierConfig(quota, EvictionPolicy.LRU)])
    # About as many slots for states as for blocks of a few tokens.
    settings.setdefault("typical_step", BatchDesc([KVCacheDesc(2 * tokens_per_block, 0)]))
    return KVCacheManagerConfig(tokens_per_block=tokens_per_block, cache_tiers=tiers, layers=layers, **settings)


class Rig:
    """A manager, its device and a fake engine for one hybrid model."""

    def __init__(
        self, device: Device | None = None, config: KVCacheManagerConfig | None = None, journal: Path | None = None, **settings: Any
    ) -> None:
        self.config = hybrid_config(**settings) if config is None else config
        self.device = HostDevice() if device is None else device
        self.manager = KVCacheManager(self.config, device=self.device, journal=journal)
        self.engine = FakeEngine(self.config, self.device)

    def __enter__(self) -> "Rig":
        return self

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            self.engine.close()
            self.manager.check_invariants()
            for kv_cache in self.manager.open_kv_caches:
                kv_cache.close()
            self.manager.clear_reusable_blocks()
            for counts in self.manager.get_storage_statistics():
                assert counts.free == counts.total
            self.manager.shutdown()

    @property
    def state_group(self) -> int:
        return next(
            group
            for group, layers in enumerate(self.manager.layer_grouping)
            if not self.manager.life_cycle_of_group(group).has_page_per_block
        )

    def step(self, kv_cache: KVCache, text: Sequence[int], begin: int, end: int) -> None:
        """Compute and commit ``text[begin:end]``."""
        assert kv_cache.resize(end)
        self.engine.execute([self.make_step(kv_cache, text, begin, end)])
        kv_cache.commit(list(text[begin:end]))

    def make_step(self, kv_cache: KVCache, text: Sequence[int], begin: int, end: int) -> Step:
        return Step(kv_cache, list(text[begin:end]), list(text[:begin]))

    def create(self, text: Sequence[int], **arguments: Any) -> KVCache:
        kv_cache = self.manager.create_kv_cache(input_tokens=list(text), **arguments)
        assert kv_cache.resume()
        return kv_cache

    def prefill(self, text: Sequence[int], stops: Sequence[int] = (), **arguments: Any) -> KVCache:
        """A sequence with the text computed and committed in chunks that end at ``stops`` and at its end."""
        kv_cache = self.create(text, **arguments)
        begin = kv_cache.num_committed_tokens
        for end in sorted({*stops, len(text)}):
            if end > begin:
                self.step(kv_cache, text, begin, end)
                begin = end
        return kv_cache

    def read_state(self, kv_cache: KVCache, layer: int, role: str) -> bytes:
        """The bytes of the live state, from a device of the host."""
        slot = kv_cache.get_ssm_block_base_index(self.state_group)
        view = np.asarray(self.manager.pool_view(LayerId(layer), role, by_slot=True))
        return bytes(view[slot])
