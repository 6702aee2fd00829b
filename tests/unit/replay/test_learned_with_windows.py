"""LEARNED in a manager with windowed layers, where a hit needs pages of several kinds: no worse than LRU."""

from collections import deque
from random import Random

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
)

BLOCK = 32
WINDOW = 1024
SLOT_BYTES = 64
NUM_RUNNING = 6
NUM_STEPS = 4
"""A request generates a block in each."""


def make_requests(seed: int, count: int) -> list[list[int]]:
    """Prompts: turns of chats that repeat the prompt before, not its answer, and as many that share nothing."""
    random = Random(seed)
    tokens = iter(range(2_000_000))
    chats: list[list[int]] = []
    requests: list[list[int]] = []
    for _ in range(count):
        turn = random.randint(1500, 6000)
        if random.random() < 0.5:
            requests.append([next(tokens) for _ in range(turn)])
            continue
        if len(chats) < 12 or random.random() < 0.4:
            chats.append([])
        number = max(len(chats) - 1 - int(random.expovariate(0.08)), 0)
        chats[number] = chats[number] + [next(tokens) for _ in range(turn)]
        requests.append(chats[number])
    return requests


def count_hits(policy: EvictionPolicy, requests: list[list[int]], num_slots: int) -> int:
    """Prompt tokens that need not be computed, with some requests at once."""
    layers = [
        AttentionLayerConfig(LayerId(number), [BufferConfig("key_and_value", SLOT_BYTES)], sliding_window_size=window)
        for number, window in enumerate((None, WINDOW))
    ]
    config = KVCacheManagerConfig(
        tokens_per_block=BLOCK, cache_tiers=[GpuCacheTierConfig(num_slots * SLOT_BYTES, policy)], layers=layers, enable_stats=False
    )
    num_hits = 0
    answers = iter(range(2_000_000, 3_000_000))
    running: deque[tuple[KVCache, int, int]] = deque()
    with KVCacheManager(config, device=HostDevice()) as manager:
        for prompt in [*requests, *[None] * NUM_RUNNING]:
            if prompt is not None:
                kv_cache = manager.create_kv_cache(None, prompt)
                num_matched = kv_cache.num_committed_tokens
                num_hits += num_matched
                assert kv_cache.resume() and kv_cache.resize(len(prompt) + 1)
                kv_cache.commit(prompt[num_matched:])
                running.append((kv_cache, len(prompt), 0))
            for _ in range(len(running)):
                kv_cache, length, num_steps = running.popleft()
                if num_steps == NUM_STEPS:
                    kv_cache.close()
                    continue
                assert kv_cache.resize(length + BLOCK + 1)
                kv_cache.commit([next(answers) for _ in range(BLOCK)])
                running.append((kv_cache, length + BLOCK, num_steps + 1))
        while running:
            running.popleft()[0].close()
    return num_hits


def test_learned_keeps_windows_as_long_as_what_they_make_reachable() -> None:
    # Recency is nearly all there is to know here, so LRU is hard to beat; windows that go early cost five points.
    requests = make_requests(7, 250)
    num_tokens = sum(len(prompt) for prompt in requests)
    lru = count_hits(EvictionPolicy.LRU, requests, 9000)
    learned = count_hits(EvictionPolicy.LEARNED, requests, 9000)
    assert learned >= lru - 0.015 * num_tokens
