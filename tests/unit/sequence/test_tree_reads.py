"""Which blocks a step after a tree of drafts reads: all that are not stale."""

import pytest
from hybrid_models import state_layers
from small_models import attention_layers

from kv_cache_manager_v2 import GpuCacheTierConfig, HostDevice, KVCacheManager, KVCacheManagerConfig, LayerConfig
from kv_cache_manager_v2.sequence.tree_commit import _is_read
from property.layout.brute_force import is_stale


@pytest.mark.parametrize("window, sinks", [(None, None), (6, None), (5, 3), (9, 8)])
def test_a_block_is_read_unless_it_is_stale(window: int | None, sinks: int | None) -> None:
    layers: list[LayerConfig] = [*attention_layers([window], 4, [sinks]), *state_layers(1)]
    config = KVCacheManagerConfig(4, [GpuCacheTierConfig(1 << 14)], layers)
    with KVCacheManager(config, device=HostDevice()) as manager, manager.create_kv_cache() as kv_cache:
        state = kv_cache._state_for_batch()
        for number, life_cycle in enumerate(manager._shared.life_cycles):
            for history in range(40):
                for ordinal in range(history // 4 + 1):
                    expected = life_cycle.has_page_per_block and not is_stale(life_cycle, ordinal, history, 4)
                    assert _is_read(state, number, ordinal, history) is expected
