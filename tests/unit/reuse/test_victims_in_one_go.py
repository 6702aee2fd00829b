"""Room for many pages at once is made of the same victims, in the same order, as room for one page after another.

Twin managers go through the same random history: prompts that share beginnings, some still open, some given up. Then one of them
drops victims until there is room for many pages, the other does so again and again for one page more, which never goes by runs.
"""

from random import Random
from typing import Any

import pytest
from small_models import BYTES_PER_TOKEN, run_prompt

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    EvictionPolicy,
    BufferConfig,
    GpuCacheTierConfig,
    HostDevice,
    KVCacheEventManager,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
)
from kv_cache_manager_v2.events.removal_cause import CAPACITY

BLOCK = 4
# Windows, and how many buffers a layer of theirs has: another number is another pool group.
MODELS: dict[str, list[tuple[int | None, int]]] = {
    "full": [(None, 1)],
    "full and window": [(None, 1), (9, 1)],
    "two windows": [(None, 1), (9, 1), (21, 1)],
    "window alone": [(13, 1)],
    "apart": [(None, 1), (9, 2)],
    "two that keep all, apart, and a window": [(None, 1), (None, 2), (13, 1)],
}


class Twin:
    def __init__(self, model: str, policy: EvictionPolicy) -> None:
        layers = [
            AttentionLayerConfig(
                LayerId(number),
                [BufferConfig(f"buffer {index}", BYTES_PER_TOKEN * BLOCK) for index in range(num_buffers)],
                sliding_window_size=window,
            )
            for number, (window, num_buffers) in enumerate(MODELS[model])
        ]
        config = KVCacheManagerConfig(
            tokens_per_block=BLOCK,
            cache_tiers=[GpuCacheTierConfig(400 * len(layers) * 2 * BYTES_PER_TOKEN * BLOCK, eviction_policy=policy)],
            layers=layers,
        )
        self.events = KVCacheEventManager(1 << 16)
        self.manager = KVCacheManager(config, device=HostDevice(), event_manager=self.events)
        self.open: list[Any] = []

    def play(self, seed: int) -> None:
        random = Random(seed)
        texts = [[random.randrange(2) + 1000 * number for number in range(60)] for _ in range(3)]
        for _ in range(random.randint(5, 25)):
            text = random.choice(texts)[: random.randint(1, 60)] + [random.randrange(5000, 9000)] * random.choice([0, 1, 9, 40])
            priority = random.choice([35, 35, 60])
            kv_cache = run_prompt(
                self.manager,
                text,
                custom_priority_callback=lambda ordinal, life_cycle, priority=priority: priority,
                expected_prompt_length=random.choice([0, None]),
            )
            self.open.append(kv_cache)
            while self.open and random.random() < 0.8:
                self.open.pop(random.randrange(len(self.open))).close()

    def drop(self, pool_group: int, step: int, count: int) -> None:
        """Until ``count`` pages more are free, ``step`` at a time."""
        tree = self.manager._shared.tree
        num_free = tree.storage.allocators[pool_group].num_free
        for more in range(step, count + 1, step):
            tree.drop_victims(0, pool_group, num_free + more, CAPACITY, None)

    def seen(self) -> dict[str, Any]:
        storage = self.manager._shared.storage
        tree = self.manager._shared.tree
        self.manager.check_invariants()
        self.events.flush_iteration_events()
        events = self.events.get_latest_events()
        return {
            "events": sorted(repr(event.data) for event in events),
            "digest": self.manager.state_digest(),
            "line": [queue.collect() for queue in storage.queues],
            "free slots": [allocator.collect_free_slots() for allocator in storage.allocators],
            "free blocks": [block.first_page for block in tree.pool.free_blocks()],
            "dropped": list(storage.counters.dropped_pages),
            "evicted": list(storage.num_evicted),
        }

    def close(self) -> None:
        for kv_cache in self.open:
            kv_cache.close()
        self.manager.shutdown()


@pytest.mark.parametrize("policy", EvictionPolicy)
@pytest.mark.parametrize("model", MODELS)
def test_the_same_victims(model: str, policy: EvictionPolicy) -> None:
    num_dropped = 0
    for seed in range(8):
        at_once, one_by_one = Twin(model, policy), Twin(model, policy)
        at_once.play(seed)
        one_by_one.play(seed)
        random = Random(1000 + seed)
        for pool_group in range(len(at_once.manager._shared.storage.queues)):
            for _ in range(3):
                count = random.randint(2, 60)
                before = at_once.manager._shared.storage.queues[pool_group].num_pages
                at_once.drop(pool_group, count, count)
                one_by_one.drop(pool_group, 1, count)
                assert at_once.seen() == one_by_one.seen(), f"seed {seed}, pool group {pool_group}, {count} pages"
                num_dropped += before - at_once.manager._shared.storage.queues[pool_group].num_pages
        at_once.close()
        one_by_one.close()
    assert num_dropped > 400
