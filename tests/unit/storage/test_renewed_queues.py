"""Queues that are made anew, where a durable level could not be restored, decide as those of a new manager."""

from random import Random

import pytest

from kv_cache_manager_v2 import EvictionPolicy, GpuCacheTierConfig, HostCacheTierConfig, KVCacheManager, KVCacheManagerConfig
from kv_cache_manager_v2.device.host_device import HostDevice
from small_models import attention_layers

T = 4
SLOT_BYTES = 2 * 8 * T


def serve_chats(windows: list[int | None], policy: EvictionPolicy, is_renewed: bool) -> bytes:
    config = KVCacheManagerConfig(
        T, [GpuCacheTierConfig(48 * SLOT_BYTES, policy), HostCacheTierConfig(24 * SLOT_BYTES, policy)], attention_layers(windows, T)
    )
    random = Random(5)
    chats: list[list[int]] = [[number] * 5 * T for number in range(8)]
    with KVCacheManager(config, device=HostDevice(granularity_bytes=4096)) as manager:
        if is_renewed:
            manager._shared.storage.renew_queues()
        for turn in range(80):
            chat = chats[random.randrange(8)]
            if len(chat) > 12 * T:
                del chat[5 * T :]
            chat.extend([1000 + turn] * T)
            with manager.create_kv_cache(None, chat) as kv_cache:
                assert kv_cache.resume() and kv_cache.resize(len(chat))
                kv_cache.commit(chat[kv_cache.num_committed_tokens :])
        manager.check_invariants()
        return manager.state_digest()


@pytest.mark.parametrize("policy", EvictionPolicy)
@pytest.mark.parametrize("windows", [[None], [None, 8, 16]], ids=str)
def test_renewed_queues_decide_as_new_ones(windows: list[int | None], policy: EvictionPolicy) -> None:
    assert serve_chats(windows, policy, True) == serve_chats(windows, policy, False)
