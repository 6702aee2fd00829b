"""A cache of any size and any policy that is resized, or shares its quota anew, at any moment goes on: nothing breaks afterwards.

Each story pushes another number of pages before the change, so that the change meets whatever a policy counts at another place.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from small_models import BYTES_PER_TOKEN, attention_layers

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    RebalanceConfig,
)
from kv_cache_manager_v2.device.host_device import HostDevice

T = 4
SLOT_BYTES = 2 * BYTES_PER_TOKEN * T
POLICIES = list(EvictionPolicy)


class Server:
    """Serves prompts of a number of blocks, one after the other: a close pushes the whole path at once."""

    def __init__(self, manager: KVCacheManager, seed: int) -> None:
        self.manager = manager
        self.random = Random(seed)
        self.next_token = 1000

    def serve(self, num_blocks: int, tokens: list[int] | None = None) -> list[int]:
        """A new prompt, or that one; its tokens."""
        if tokens is None:
            tokens = list(range(self.next_token, self.next_token + num_blocks * T))
            self.next_token += num_blocks * T
        with self.manager.create_kv_cache(input_tokens=tokens) as kv_cache:
            assert kv_cache.resume(), self.manager.last_refusal
            assert kv_cache.resize(len(tokens), kv_cache.num_committed_tokens), self.manager.last_refusal
            kv_cache.commit(tokens[kv_cache.num_committed_tokens :])
        return tokens

    def go_on(self, longest: int) -> None:
        """Old and new prompts, short and long, until pages of each kind have come and gone."""
        kept: list[list[int]] = []
        for _prompt in range(12):
            if kept and self.random.random() < 0.4:
                self.serve(0, self.random.choice(kept))
            else:
                kept.append(self.serve(self.random.choice((1, 3, longest // 4, longest))))
        self.manager.check_invariants()


def one_group(policy: EvictionPolicy, num_slots: int, host_slots: int = 0) -> KVCacheManager:
    tiers: list[Any] = [GpuCacheTierConfig(num_slots * SLOT_BYTES, policy)]
    if host_slots > 0:
        tiers.append(HostCacheTierConfig(host_slots * SLOT_BYTES, policy))
    config = KVCacheManagerConfig(T, tiers, attention_layers([None], T), max_util_for_resume=1.0)
    return KVCacheManager(config, device=HostDevice(granularity_bytes=4096))


SIZES = [(260, 130), (640, 320), (1000, 100), (3000, 1500), (5000, 260)]


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("large", "small"), SIZES)
def test_a_level_of_another_size(policy: EvictionPolicy, large: int, small: int) -> None:
    """Ten starting points: of a 64th of the slots, the unit in which LEARNED counts pushes, another part was pushed last each time."""
    for start in range(10):
        with one_group(policy, large) as manager:
            server = Server(manager, start)
            server.serve(large // 8)
            server.serve(1 + start * max(large // 64, 2) // 10)
            assert manager.resize(0, small * SLOT_BYTES)
            server.go_on(min(small * 3 // 4, 200))
            assert manager.resize(0, large * SLOT_BYTES)
            server.go_on(100)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_lower_level_of_another_size(policy: EvictionPolicy) -> None:
    """Pages come down to it one run at a time, and go from it."""
    for start in range(6):
        with one_group(policy, 260, 700) as manager:
            server = Server(manager, start)
            for _prompt in range(5):
                server.serve(200)
            server.serve(1 + start)
            assert manager.resize(1, 300 * SLOT_BYTES)
            server.go_on(200)
            assert manager.resize(1, 900 * SLOT_BYTES)
            server.go_on(200)


def two_groups(policy: EvictionPolicy) -> KVCacheManager:
    """A windowed layer and one without a window, of other slot sizes; at first nearly all of the quota is the windowed layer's."""
    layers = [
        AttentionLayerConfig(LayerId(0), [BufferConfig("key", 64)], 40 * T),
        AttentionLayerConfig(LayerId(1), [BufferConfig("key", 128)]),
    ]
    rebalance = RebalanceConfig(threshold=0.01, cool_down_seconds=0, min_samples=1, smoothing=1.0)
    config = KVCacheManagerConfig(
        T, [GpuCacheTierConfig(6000 * 64, policy)], layers, initial_pool_ratio=[0.91, 0.09], rebalance=rebalance,
        max_util_for_resume=1.0,
    )  # fmt: skip
    return KVCacheManager(config, device=HostDevice(granularity_bytes=4096))


@pytest.mark.parametrize("policy", POLICIES)
def test_a_quota_that_is_shared_anew(policy: EvictionPolicy) -> None:
    """The windowed group loses most of its 5,461 slots at once: the open sequence needs 41 of them, and 240 of the other group's."""
    for start in range(8):
        with two_groups(policy) as manager:
            before = [group.total for group in manager.get_storage_statistics()]
            assert before[0] > 5000 and before[1] < 300
            server = Server(manager, start)
            for _prompt in range(2):
                server.serve(200)
            server.serve(5 + 10 * start)
            with manager.create_kv_cache() as kv_cache:
                assert kv_cache.resume() and kv_cache.resize(240 * T, 240 * T), manager.last_refusal
                for _sample in range(3):
                    manager.create_kv_cache().close()
                assert manager.adjust()
            after = [group.total for group in manager.get_storage_statistics()]
            assert after[0] < 600 and after[1] > 2000, after
            server.go_on(100)


CHANGES: dict[str, Callable[[KVCacheManager, Random], object]] = {
    "halve": lambda manager, random: manager.resize(0, max(manager.get_quota(0) // 2, 260 * SLOT_BYTES)),
    "double": lambda manager, random: manager.resize(0, min(manager.get_quota(0) * 2, 5000 * SLOT_BYTES)),
    "anything": lambda manager, random: manager.resize(0, random.randrange(260, 5000) * SLOT_BYTES),
    "a slot less": lambda manager, random: manager.resize(0, max(manager.get_quota(0) - SLOT_BYTES, 260 * SLOT_BYTES)),
}


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(3))
def test_a_level_that_never_stays(policy: EvictionPolicy, seed: int) -> None:
    random = Random(seed)
    with one_group(policy, 2000) as manager:
        server = Server(manager, seed)
        for _change in range(30):
            for _prompt in range(random.randrange(4)):
                server.serve(random.choice((1, 2, 30, 200)))
            CHANGES[random.choice(list(CHANGES))](manager, random)
        manager.check_invariants()
