"""`adjust` with `weighs_reuse`: a page and a snapshot of another size compete for bytes by the tokens that they save."""

from collections.abc import Sequence
from random import Random

import pytest

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    CacheTierConfig,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerConfig,
    LayerId,
    RebalanceConfig,
    SsmLayerConfig,
)

T = 4
PAGE = 64
STATE = 256
HYBRID: list[LayerConfig] = [
    SsmLayerConfig(LayerId(0), [BufferConfig("ssm", STATE)]), AttentionLayerConfig(LayerId(1), [BufferConfig("key", PAGE)])
]  # fmt: skip
WINDOWED: list[LayerConfig] = [
    AttentionLayerConfig(LayerId(0), [BufferConfig("key", STATE)], 9), AttentionLayerConfig(LayerId(1), [BufferConfig("key", PAGE)])
]  # fmt: skip


def make_manager(
    layers: Sequence[LayerConfig], others: int, pages: int, weighs_reuse: bool = True, host_slots: int = 0, threshold: float = 0.1
) -> KVCacheManager:
    """So many slots of states or windowed pages, and of pages of all tokens; on the host so many of each more."""
    total = others * STATE + pages * PAGE
    tiers: list[CacheTierConfig] = [GpuCacheTierConfig(total)]
    if host_slots > 0:
        tiers.append(HostCacheTierConfig(host_slots * (STATE + PAGE)))
    config = KVCacheManagerConfig(
        T, tiers, layers, initial_pool_ratio=[others * STATE / total, pages * PAGE / total], max_util_for_resume=1.0,
        rebalance=RebalanceConfig(threshold=threshold, cool_down_seconds=0, min_samples=4, weighs_reuse=weighs_reuse),
    )  # fmt: skip
    manager = KVCacheManager(config, device=HostDevice(granularity_bytes=4096))
    assert slots(manager) == [others, pages]
    return manager


def slots(manager: KVCacheManager, level: int = 0) -> list[int]:
    return [group.total for group in manager.get_storage_statistics(level)]


def serve(manager: KVCacheManager, order: Random, documents: int, blocks: int, shared: int = 0) -> int:
    """Each document once, in a random order: of so many blocks, the same in each round, behind what all share. The tokens hit."""
    hits = 0
    for document in order.sample(range(1, documents + 1), documents):
        prompt = [*range(shared * T), *range(1000 * document, 1000 * document + blocks * T)]
        with manager.create_kv_cache(input_tokens=prompt) as kv_cache:
            hits += kv_cache.num_committed_tokens
            if kv_cache.num_committed_tokens < len(prompt):
                assert kv_cache.resume() and kv_cache.resize(len(prompt)), manager.last_refusal
                kv_cache.commit(prompt[kv_cache.num_committed_tokens :])
    return hits


def serve_rounds(manager: KVCacheManager, rounds: int, documents: int, blocks: int, shared: int = 0) -> tuple[list[int], list[list[int]]]:
    """Hits of each round, and the slots after the adjustment that followed it."""
    hits: list[int] = []
    sizes: list[list[int]] = []
    order = Random(1)
    for _round in range(rounds):
        hits.append(serve(manager, order, documents, blocks, shared))
        if manager.need_adjustment:
            assert manager.adjust()
        manager.check_invariants()
        sizes.append(slots(manager))
    return hits, sizes


@pytest.mark.parametrize("host_slots", [0, 8])
def test_pages_get_the_bytes_of_snapshots_that_save_nothing(host_slots: int) -> None:
    """8 documents of 20 blocks need 160 pages and 8 snapshots; there are 120 and 50."""
    with make_manager(HYBRID, 50, 120, host_slots=host_slots) as manager:
        hits, sizes = serve_rounds(manager, 30, 8, 20)
        assert sizes[-1][1] >= 160 - host_slots and sizes[-1][0] >= 8 - host_slots
        assert hits[-1] == 8 * 20 * T > hits[1], hits


def test_snapshots_get_the_bytes_of_pages_that_save_nothing() -> None:
    """40 documents of 2 blocks need 40 snapshots and 80 pages; there are 15 and 300."""
    with make_manager(HYBRID, 15, 300) as manager:
        hits, sizes = serve_rounds(manager, 30, 40, 2)
        assert sizes[-1][0] >= 40 and sizes[-1][1] >= 80
        assert hits[-1] == 40 * 2 * T > hits[2], hits


def test_windows_get_the_bytes_of_pages_that_save_nothing() -> None:
    """40 documents of 2 blocks need 80 pages of either kind; of the windowed ones there are 40."""
    with make_manager(WINDOWED, 40, 400) as manager:
        hits, sizes = serve_rounds(manager, 30, 40, 2)
        assert sizes[-1][0] >= 80 and sizes[-1][1] >= 80
        assert hits[-1] == 40 * 2 * T > hits[2], hits


def test_pages_get_the_bytes_of_windows_that_save_nothing() -> None:
    """8 documents of 20 blocks need 160 pages and a window of 2 or 3 blocks each."""
    with make_manager(WINDOWED, 80, 120) as manager:
        hits, sizes = serve_rounds(manager, 30, 8, 20)
        assert sizes[-1][1] >= 160
        assert hits[-1] == 8 * 20 * T > hits[2], hits


@pytest.mark.parametrize("weighs_reuse", [True, False])
def test_need_alone_does_not_see_what_is_shared(weighs_reuse: bool) -> None:
    """40 documents of 21 blocks, 20 of them the same for all: 60 pages and 40 snapshots are all that is ever reused, 14,080 of 16,640
    bytes. No other sequence is open when one comes, so by need alone either pool group gets half: 32 states."""
    with make_manager(HYBRID, 15, 200, weighs_reuse) as manager:
        hits, sizes = serve_rounds(manager, 40, 40, 1, shared=20)
        assert (sizes[-1][0] >= 40) == weighs_reuse, sizes
        assert (hits[-1] == 40 * 21 * T) == weighs_reuse, hits


def test_it_settles() -> None:
    """Where all cannot be had, the last of 60 rounds change the split little, and it does not go to and fro."""
    with make_manager(HYBRID, 30, 120) as manager:
        _, sizes = serve_rounds(manager, 60, 14, 16)
        last = [pages for _, pages in sizes[30:]]
        turns = 0
        moves = [after - before for before, after in zip(last, last[1:], strict=False) if after != before]
        for before, after in zip(moves, moves[1:], strict=False):
            turns += (before > 0) != (after > 0)
        assert turns <= 2 and max(last) - min(last) <= max(last) // 4, sizes


def test_a_split_without_misses_stays() -> None:
    with make_manager(HYBRID, 50, 120) as manager:
        _, sizes = serve_rounds(manager, 20, 4, 20)
        assert sizes == [[50, 120]] * 20
        for number in range(40):
            # Never seen before, never again.
            with manager.create_kv_cache(input_tokens=(prompt := range(10**6 + 1000 * number, 10**6 + 1000 * number + 40))) as kv_cache:
                assert kv_cache.resume() and kv_cache.resize(40)
                kv_cache.commit(prompt)
            assert not manager.need_adjustment


def test_open_sequences_keep_what_they_need() -> None:
    """The snapshots' slots are all worth nothing, but 40 open sequences have one of 50 each."""
    with make_manager(HYBRID, 50, 120) as manager:
        open_ones = [manager.create_kv_cache() for _sequence in range(40)]
        for kv_cache in open_ones:
            assert kv_cache.resume()
        hits, sizes = serve_rounds(manager, 30, 8, 20)
        assert all(states >= 40 for states, _ in sizes), sizes
        for kv_cache in open_ones:
            assert kv_cache.is_active and kv_cache.resize(1)
            kv_cache.close()
        manager.check_invariants()


def test_equal_calls_share_alike() -> None:
    digests: set[bytes] = set()
    for _run in range(2):
        with make_manager(HYBRID, 15, 300) as manager:
            serve_rounds(manager, 10, 40, 2)
            digests.add(manager.state_digest())
    assert len(digests) == 1


@pytest.mark.parametrize("threshold", [0.1, 0.4])
def test_a_pool_group_of_which_calls_were_refused_gets_what_it_needs(threshold: float) -> None:
    """There is one state, and five sequences want one each: it grows from call to call until none is refused."""
    with make_manager(HYBRID, 1, 500, threshold=threshold) as manager:
        sequences: list[KVCache] = []
        num_refused = [0] * 8
        for number in range(80):
            with_room = manager.create_kv_cache(input_tokens=[number % 5] * 7)
            if with_room.resume() and with_room.resize(8):
                with_room.commit(([number % 5] * 7)[with_room.num_committed_tokens :])
            else:
                num_refused[number // 10] += 1
            sequences.append(with_room)
            if number % 10 == 9:
                was_refused = num_refused[number // 10] > 0
                assert manager.need_adjustment or not was_refused
                assert manager.adjust() or not was_refused
                manager.check_invariants()
            while len(sequences) > 4:
                sequences.pop(0).close()
        for kv_cache in sequences:
            kv_cache.close()
        assert slots(manager)[0] >= 5 and num_refused[0] >= 4 and num_refused[5:] == [0] * 3, (slots(manager), num_refused)


def test_a_pool_group_that_is_much_too_small_is_seen_to_be() -> None:
    """30 documents in turn, eight of them open, and twelve states: a snapshot that would save something went seven times as many drops
    ago as there are slots for snapshots."""
    with make_manager(HYBRID, 12, 400) as manager:
        sequences: list[KVCache] = []
        hits = [0] * 12
        for number in range(12 * 30):
            prompt = [number % 30 + 1] * (7 * T)
            kv_cache = manager.create_kv_cache(input_tokens=prompt)
            hits[number // 30] += kv_cache.num_committed_tokens
            assert kv_cache.resume() and kv_cache.resize(len(prompt))
            kv_cache.commit(prompt[kv_cache.num_committed_tokens :])
            sequences.append(kv_cache)
            if number % 10 == 9:
                manager.adjust()
                manager.check_invariants()
            while len(sequences) > 7:
                sequences.pop(0).close()
        for kv_cache in sequences:
            kv_cache.close()
        assert hits[1] == 0 and 2 * hits[-1] > 30 * 7 * T, (slots(manager), hits)
