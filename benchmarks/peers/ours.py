"""This library: with its defaults, and as docs/performance.md advises."""

from typing import Any

import numpy as np
from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    __version__,
    is_compiled,
)
from peer import TOKENS_PER_BLOCK, Peer

BYTES = 64 * TOKENS_PER_BLOCK


class Ours(Peer):
    name = "ours"

    def version(self) -> str:
        return f"{__version__}, {'compiled' if is_compiled() else 'INTERPRETED'}"

    def config(self, num_blocks: int, window: int | None) -> KVCacheManagerConfig:
        buffers = [BufferConfig("key", BYTES), BufferConfig("value", BYTES)]
        layers = [AttentionLayerConfig(LayerId(0), buffers)]
        if window is not None:
            layers.append(AttentionLayerConfig(LayerId(1), buffers, sliding_window_size=window))
        return KVCacheManagerConfig(TOKENS_PER_BLOCK, [self.tier(num_blocks * 2 * BYTES * len(layers))], layers, **self.settings())

    def tier(self, quota: int) -> GpuCacheTierConfig:
        return GpuCacheTierConfig(quota)

    def settings(self) -> dict[str, Any]:
        return {}

    def open(self, num_blocks: int, window: int | None = None) -> None:
        self.manager = KVCacheManager(self.config(num_blocks, window), device=HostDevice())

    def begin(self, prompt: Any) -> Any:
        # The last token is left off: its logits are needed.
        return [self.manager.create_kv_cache(input_tokens=prompt[:-1]), prompt]

    def num_reused(self, sequence: Any) -> int:
        return int(sequence[0].num_committed_tokens)

    def prefill(self, sequence: Any) -> None:
        kv_cache, prompt = sequence
        if not (kv_cache.resume() and kv_cache.resize(len(prompt))):
            raise MemoryError(self.manager.last_refusal)
        kv_cache.commit_input()
        kv_cache.commit(prompt[-1:])

    def step(self, sequences: list[Any], tokens: list[int]) -> None:
        for (kv_cache, _), token in zip(sequences, tokens, strict=True):
            if not kv_cache.resize(kv_cache.capacity + 1):
                raise MemoryError(self.manager.last_refusal)
            kv_cache.commit([token])

    def end(self, sequence: Any) -> None:
        sequence[0].close()

    def probe(self, prompt: Any) -> int:
        return self.manager.probe_reuse(None, prompt)

    def close(self) -> None:
        self.manager.shutdown()


class OursTuned(Ours):
    name = "ours, tuned"

    def prepare(self, tokens: list[int]) -> Any:
        return np.array(tokens, dtype=np.int32)

    def tier(self, quota: int) -> GpuCacheTierConfig:
        return GpuCacheTierConfig(quota, EvictionPolicy.LRU)

    def settings(self) -> dict[str, Any]:
        return {"enable_stats": False}

    def open(self, num_blocks: int, window: int | None = None) -> None:
        super().open(num_blocks, window)
        self.manager.freeze()

    def step(self, sequences: list[Any], tokens: list[int]) -> None:
        kv_caches: list[KVCache] = [sequence[0] for sequence in sequences]
        if self.manager.resize_batch(kv_caches, [kv_cache.capacity + 1 for kv_cache in kv_caches]) < len(kv_caches):
            raise MemoryError(self.manager.last_refusal)
        self.manager.commit_batch(kv_caches, tokens)
