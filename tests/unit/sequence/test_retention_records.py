"""What `RetentionRecords` keeps of retained blocks: bounded by the blocks, not by the calls."""

from math import inf

import pytest

from kv_cache_manager_v2 import GpuCacheTierConfig, KVCacheManager, KVCacheManagerConfig
from kv_cache_manager_v2.device.host_device import HostDevice
from small_models import attention_layers

T = 4


@pytest.mark.parametrize("durations", [[1000.0], [None], [None, 1000.0], [1000.0, inf, None]], ids=str)
def test_retaining_again_and_again_keeps_no_more(durations: list[float | None]) -> None:
    config = KVCacheManagerConfig(T, [GpuCacheTierConfig(16 * 2 * 8 * T)], attention_layers([None], T))
    with KVCacheManager(config, device=HostDevice(granularity_bytes=4096)) as manager:
        # Enough returns for the policy to expect more of them.
        for turn in range(60):
            tokens = list(range(turn % 3, turn % 3 + 3 * T))
            with manager.create_kv_cache(None, tokens) as kv_cache:
                assert kv_cache.resume() and kv_cache.resize(len(tokens))
                kv_cache.commit(tokens[kv_cache.num_committed_tokens :])
        records = manager._shared.retention
        for position in range(500):
            manager.retain(tokens, duration_seconds=durations[position % len(durations)])
            assert durations != [None] or records.num_expected > 0, "the policy expects nothing"
        # An end of each of 3 blocks, as many void ones, and 64 that are spared.
        assert len(records._entries) <= 64 + 2 * 3
        assert sum([len(ends) for ends in records._ends]) == len(records._entries)
        assert records.num_expected == sum([len(ends) for ends in records._ends[1:]])
        manager.check_invariants()
