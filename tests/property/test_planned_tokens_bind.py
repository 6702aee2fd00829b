"""Random texts over two tokens are planned, committed, taken back and read by others, so most of them meet in the tree: a commit of other
tokens than planned is refused and has changed nothing, whichever sequence published what lies between, and no history breaks it."""

from random import Random

import pytest

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    GpuCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    LogicError,
    PlannedTokensLost,
)

TOKENS_PER_BLOCK = 2
NUM_ACTIONS = 120


class World:
    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        windows = self.random.choice(([None], [None, 3], [4]))
        layers = [AttentionLayerConfig(LayerId(n), [BufferConfig("key", 16)], sliding_window_size=size) for n, size in enumerate(windows)]
        config = KVCacheManagerConfig(TOKENS_PER_BLOCK, [GpuCacheTierConfig(1 << 14)], layers)
        self.manager = KVCacheManager(config, device=HostDevice())
        self.planned: dict[KVCache, list[int]] = {}
        """By open sequence: what it has promised behind its committed tokens."""
        self.num_refused = 0

    def text(self, most: int) -> list[int]:
        return self.random.choices((0, 1), (4, 1), k=self.random.randint(1, most))

    def start(self) -> None:
        prompt = self.text(10)
        kv_cache = self.manager.create_kv_cache(input_tokens=prompt)
        if not kv_cache.resume() or not kv_cache.resize(len(prompt) + 12):
            kv_cache.close()
            return
        self.planned[kv_cache] = []

    def plan(self, kv_cache: KVCache) -> None:
        room = kv_cache.capacity - kv_cache.num_committed_tokens
        text = (self.planned[kv_cache] + self.text(8))[:room]
        if self.random.random() < 0.3:
            text = self.text(8)[:room]
        if kv_cache.publish_planned(text) > 0:
            self.planned[kv_cache] = text

    def commit(self, kv_cache: KVCache) -> None:
        room = kv_cache.capacity - kv_cache.num_committed_tokens
        text = self.planned[kv_cache][: self.random.randint(1, 6)] if self.random.random() < 0.6 else self.text(4)
        text = text[:room]
        before = self.manager.state_digest(), self.manager.describe()
        try:
            kv_cache.commit(text)
        except ValueError:
            self.num_refused += 1
            assert (self.manager.state_digest(), self.manager.describe()) == before
            assert self.planned[kv_cache][: len(text)] != text
            return
        self.planned[kv_cache] = self.planned[kv_cache][len(text) :]

    def act(self) -> None:
        if not self.planned or self.random.random() < 0.2:
            self.start()
            return
        kv_cache = self.random.choice(list(self.planned))
        kind = self.random.random()
        try:
            if kind < 0.35:
                self.plan(kv_cache)
            elif kind < 0.8:
                self.commit(kv_cache)
            elif kind < 0.85:
                kv_cache.resize(self.random.randint(kv_cache.num_committed_tokens, kv_cache.capacity))
                self.planned[kv_cache] = []
            else:
                self.close(kv_cache)
        except PlannedTokensLost:
            self.close(kv_cache)
        except (LogicError, ValueError):
            return

    def close(self, kv_cache: KVCache) -> None:
        kv_cache.close()
        del self.planned[kv_cache]


@pytest.mark.parametrize("part", range(8))
def test_whatever_is_committed(part: int) -> None:
    num_refused = 0
    for seed in range(part * 25, part * 25 + 25):
        world = World(seed)
        for _ in range(NUM_ACTIONS):
            world.act()
            world.manager.check_invariants()
        for kv_cache in list(world.planned):
            world.close(kv_cache)
        num_refused += world.num_refused
        world.manager.shutdown()
    assert num_refused > 20
