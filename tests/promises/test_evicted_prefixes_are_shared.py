"""With ``write_policy="eviction"`` what is dropped to make room is stored first: whole prefixes, parents first."""

import dataclasses
import random
import threading
from typing import Any

import pytest
from fake_valkey_server import FakeServer
from hybrid_models import hybrid_config
from shared_models import MODEL, Rank, shared_config

from kv_cache_manager_v2 import DiskCacheTierConfig, GpuCacheTierConfig, HostDevice, KVCacheManager, ReuseScope, SnapshotPolicy
from kv_cache_manager_v2.shared import MemoryStore, SharedLevel, ValkeyStore

TEXTS = [[1000 * number + position for position in range(17)] for number in range(1, 9)]  # 4 whole blocks each


@pytest.mark.parametrize("host_slots", [0, 12])
@pytest.mark.parametrize("windows", [(None,), (None, 8), (8,)])
def test_what_was_dropped_comes_back_whole(windows: tuple[int | None, ...], host_slots: int) -> None:
    store = MemoryStore()
    config = shared_config(windows, gpu_slots=12 * len(windows), host_slots=host_slots * len(windows))
    with Rank(store, config, write_policy="eviction") as writer:
        writer.run(TEXTS[0])
        writer.drain()
        assert store.keys() == []  # there is room: nothing is stored
        for text in TEXTS[1:]:
            writer.run(text)
            writer.drain()
        assert writer.level.statistics.dropped_pages == 0
        assert writer.run([*TEXTS[0], 5]) == 16  # its own, back from the store
        writer.drain()
    with Rank(store, shared_config(windows, gpu_slots=200), write_policy="off") as reader:  # its engine compares every byte
        assert reader.run([*TEXTS[1], 1]) == 16
        assert reader.run([*TEXTS[2], 1]) == 16


def test_digests_tenants_and_adapters() -> None:
    store = MemoryStore()
    text: list[Any] = [5, 6, *[bytes([number]) * 32 for number in range(9)], 7, 8, 9]
    with Rank(store, shared_config(gpu_slots=9), write_policy="eviction") as rank:
        for scope in (ReuseScope(salt="tenant"), ReuseScope(lora_id=3)):
            kv_cache = rank.manager.create_kv_cache(scope)
            assert kv_cache.resume() and kv_cache.resize(len(text), 0)
            kv_cache.commit(text)
            kv_cache.close()
        for other in TEXTS:
            rank.run(other)
        rank.drain()
        for scope, expected in ((ReuseScope(salt="tenant"), 12), (ReuseScope(lora_id=3), 0), (ReuseScope(salt="another"), 0)):
            rank.forget()
            found = rank.level.look_up(rank.manager.create_kv_cache(scope, text[:-1]))
            while found.remote_tokens is None:
                rank.settle()
            assert found.remote_tokens == expected
            found.kv_cache.close()


@pytest.mark.parametrize("windows", [(None,), (None, 8), ()])
def test_states_of_recurrent_layers_go_with_their_prefix(windows: tuple[int | None, ...]) -> None:
    store = MemoryStore()
    texts = [[1000 * number + position for position in range(21)] for number in range(1, 60)]
    settings: dict[str, Any] = {"max_util_for_resume": 1.0, "snapshot_policy": SnapshotPolicy(every_num_blocks=1)}
    with Rank(store, hybrid_config(windows, quota=1 << 14, **settings), write_policy="eviction") as writer:
        for text in texts:
            writer.run(text)
            writer.drain()
        assert writer.level.statistics.stored_pages > 0
    with Rank(store, hybrid_config(windows, quota=1 << 18, **settings), write_policy="off") as reader:
        assert reader.run([*texts[0], 7]) == 20


def test_parents_come_first_where_slots_are_short() -> None:
    """Staging slots for five pages, and a prefix of eight blocks is dropped at once: its first five are stored, and are of use."""
    store = MemoryStore()
    text = list(range(33))
    with Rank(store, shared_config(gpu_slots=9), write_policy="eviction", store_bytes=5 * 4096) as writer:
        writer.run(text)
        writer.run([1000 + token for token in text])
        writer.drain()
        assert writer.level.statistics.dropped_pages > 0
    with Rank(store, write_policy="off") as reader:
        assert reader.run(text) == 20


class HeldStore(MemoryStore):
    """Stores wait until the test lets them go."""

    def __init__(self) -> None:
        super().__init__()
        self.is_free = threading.Event()

    def put(self, key: bytes, value: bytes) -> None:
        self.is_free.wait(20.0)
        super().put(key, value)


def test_a_slow_store_costs_copies_and_nothing_else() -> None:
    """No eviction waits for it, slots of the pool are used anew at once, and staging memory is all that it holds."""
    store = HeldStore()
    with Rank(store, shared_config(gpu_slots=9), write_policy="eviction", store_bytes=8 * 4096) as rank:
        try:
            for text in TEXTS * 3:
                assert rank.run(text) in (0, 16)
                rank.settle()
                rank.level.check_invariants()
            assert store.keys() == []
            assert rank.level.statistics.dropped_pages > 0
        finally:
            store.is_free.set()
        rank.drain()
        assert len(store.keys()) > 0


def test_a_dead_store_is_not_copied_for() -> None:
    with FakeServer() as server, Rank(ValkeyStore([server.address]), shared_config(gpu_slots=9), write_policy="eviction") as rank:
        server.reply = lambda words: b"-LOADING\r\n"
        for text in TEXTS * 3:
            rank.run(text)
            rank.settle()
        assert rank.level.statistics.stored_pages == 0 and rank.level.failed_endpoints
        server.reply = None
        rank.drain()


def test_decisions_are_those_without_it() -> None:
    digests = []
    for policy in ("eviction", "off"):
        rng = random.Random(5)
        # A store that keeps nothing: every prompt is computed, with and without the policy.
        with Rank(MemoryStore(0), shared_config((None, 8), gpu_slots=20, host_slots=12), write_policy=policy) as rank:
            for _number in range(60):
                rank.run([*rng.choice(TEXTS)[: rng.randrange(5, 17)], rng.randrange(9)])
            rank.drain()
            digests.append(rank.manager.state_digest())
    assert digests[0] == digests[1]


def test_what_cannot_be_followed_is_refused(tmp_path: Any) -> None:
    with Rank(MemoryStore(), write_policy="eviction") as rank:
        with pytest.raises(ValueError, match="another shared level"):
            SharedLevel(rank.manager, MemoryStore(), MODEL, write_policy="eviction", load_bytes=1 << 16, store_bytes=1 << 16)
    tiers: list[Any] = [GpuCacheTierConfig(1 << 20), DiskCacheTierConfig(1 << 20, str(tmp_path))]
    config = dataclasses.replace(shared_config(), cache_tiers=tiers)
    device = HostDevice()
    with KVCacheManager(config, device=device) as manager:
        with pytest.raises(ValueError, match="second_hit"):
            SharedLevel(manager, MemoryStore(), MODEL, write_policy="eviction")
    device.close()


@pytest.mark.parametrize(("windows", "expected"), [((8,), 8), ((None, 8), 0), ((8, 12), 8)])
def test_where_a_prefix_goes_on_windows_alone_are_stored(windows: tuple[int | None, ...], expected: int) -> None:
    """A prompt of 8 tokens, and a longer one that goes on from it. Where all layers have windows, the shorter one's are a prefix's last
    pages, and are stored before they are dropped; beside layers without a window they are dropped: the longer prefix is still there."""
    store = MemoryStore()
    with Rank(store, shared_config(windows, gpu_slots=12 * len(windows)), write_policy="eviction") as writer:
        first = TEXTS[0][:9]
        writer.run(first)
        writer.run([*first[:8], *range(90, 100)])
        for text in TEXTS[1:]:
            writer.run(text)
            writer.drain()
    with Rank(store, shared_config(windows, gpu_slots=200), write_policy="off") as reader:
        assert reader.run([*first[:8], 7]) == expected
