"""The cache of blocks over levels decides as a manager does: the same hits on each level, the same blocks written to the next one."""

from random import Random

import pytest
from small_models import BYTES_PER_TOKEN, attention_layers

from kv_cache_manager_v2 import EvictionPolicy, GpuCacheTierConfig, HostCacheTierConfig, HostDevice, KVCacheManager, KVCacheManagerConfig
from kv_cache_manager_v2.replay.block_cache import BlockCache
from kv_cache_manager_v2.replay.block_requests import BlockRequests
from kv_cache_manager_v2.replay.level_cache import LevelCache
from kv_cache_manager_v2.replay.policies.published import COMPARED

BLOCK = 4
SLOT_BYTES = 2 * BYTES_PER_TOKEN * BLOCK


def session_requests(seed: int, num_requests: int) -> BlockRequests:
    """Sessions that grow behind a few common beginnings, some of them often, among prompts that come once."""
    random = Random(seed)
    parents: list[int] = []

    def make_path(above: list[int], length: int) -> list[int]:
        path = list(above)
        for _ in range(length):
            parents.append(path[-1] if path else -1)
            path.append(len(parents) - 1)
        return path

    beginnings = [make_path([], 3) for _ in range(3)]
    sessions = [make_path(random.choice(beginnings), 2) for _ in range(8)]
    requests: list[list[int]] = []
    for _ in range(num_requests):
        if random.random() < 0.4:
            requests.append(make_path(random.choice([[], random.choice(beginnings)]), random.randint(1, 6)))
            continue
        number = min(int(random.expovariate(0.5)), len(sessions) - 1)
        session = make_path(sessions[number], random.randint(0, 2))
        requests.append(session)
        sessions[number] = make_path(random.choice(beginnings), 1) if len(session) > 12 else session
    return BlockRequests("sessions", requests, parents)


def serve(manager: KVCacheManager, blocks: list[int]) -> int:
    """How many blocks the manager has found."""
    prompt = [block * BLOCK + token for block in blocks for token in range(BLOCK)]
    with manager.create_kv_cache(input_tokens=prompt) as kv_cache:
        found = kv_cache.num_committed_tokens
        assert kv_cache.resume() and kv_cache.resize(len(prompt))
        kv_cache.commit(prompt[found:])
    return found // BLOCK


@pytest.mark.parametrize("policy", [EvictionPolicy.LRU, EvictionPolicy.LEARNED])
@pytest.mark.parametrize("sizes", [(20, 60), (24, 30, 40)])
@pytest.mark.parametrize("seed", range(2))
def test_a_manager_has_the_same_hits_and_writes(policy: EvictionPolicy, sizes: tuple[int, ...], seed: int) -> None:
    blocks = session_requests(seed, 120)
    cache = LevelCache(policy, list(sizes), blocks)
    tiers = [GpuCacheTierConfig(sizes[0] * SLOT_BYTES, policy)]
    lower = [HostCacheTierConfig(size * SLOT_BYTES, policy) for size in sizes[1:]]
    config = KVCacheManagerConfig(
        tokens_per_block=BLOCK, cache_tiers=[*tiers, *lower], layers=attention_layers([None], BLOCK), max_util_for_resume=1.0
    )
    with KVCacheManager(config, device=HostDevice()) as manager:
        for request in blocks.requests:
            hits = sum(cache.num_hits)
            cache.serve(request)
            assert serve(manager, request) == sum(cache.num_hits) - hits
            for level in range(len(sizes)):
                assert manager.get_storage_statistics(level)[0].free == cache.count_free(level)
        manager.check_invariants()
        usage = manager.get_statistics()
        assert sum([drop.blocks for drop in usage.drops]) == cache.num_dropped
        for level in range(len(sizes) - 1):
            written = [one.blocks for one in usage.transfers if (one.source_level, one.target_level) == (level, level + 1)]
            assert sum(written) == cache.num_written[level] > 0
    assert all([hits > 0 for hits in cache.num_hits])


def test_one_level_is_the_cache_of_one_level() -> None:
    blocks = session_requests(7, 200)
    for policy in COMPARED:
        alone = BlockCache(policy, 40, blocks)
        levels = LevelCache(policy, [40], blocks)
        for request in blocks.requests:
            alone.serve(request)
            levels.serve(request)
        assert levels.num_hits == [alone.num_hits]
        assert levels.num_dropped == alone.num_evicted


def exclusive_lru_hits(blocks: BlockRequests, sizes: list[int]) -> list[int]:
    """Plainly: one list by recency, the last ones on level 0. Of a prompt the last block is the least recent."""
    cached: list[int] = []
    hits = [0] * len(sizes)
    for request in blocks.requests:
        for block in request:
            if block in cached:
                place = len(cached) - 1 - cached.index(block)
                level = 0
                while place >= sum(sizes[: level + 1]):
                    level += 1
                hits[level] += 1
        cached = ([block for block in cached if block not in request] + request[::-1])[-sum(sizes) :]
    return hits


def test_lru_with_room_for_everything_is_what_plain_counting_says() -> None:
    """The lower level is never full, so nothing is dropped, and what lies on level 0 is what was used last."""
    blocks = session_requests(3, 120)
    cache = LevelCache(EvictionPolicy.LRU, [20, 1000], blocks)
    for request in blocks.requests:
        cache.serve(request)
    assert cache.num_hits == exclusive_lru_hits(blocks, [20, 1000])
    assert cache.num_dropped == 0
