"""A tier's quota can be changed while sequences are open: what is in it moves and keeps its bytes, or the call is refused."""

from random import Random
from typing import Any

import pytest

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    CorruptedError,
    DiskCacheTierConfig,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerGroupId,
    LayerId,
    LogicError,
    OutOfMemoryError,
    PageMoveError,
    RebalanceConfig,
)
from kv_cache_manager_v2.config.cache_tier_config import CacheTierConfig
from kv_cache_manager_v2.device.host_device import HostDevice
from kv_cache_manager_v2.testing import FakeEngine, SimulatedDevice, Step
from refused_work import Refused, RefusingHostDevice
from small_models import attention_layers
from tiered_models import TOKENS_PER_BLOCK, Bench, tiered_config

MIB = 1 << 20
T = 32
KIB = 1 << 10


def three_tiers(tmp_path, gpu: int, host: int, disk: int) -> KVCacheManagerConfig:
    """4 full-attention layers of 32 KiB key and value blocks: a slot of 256 KiB, 4 to the MiB."""
    layers = [AttentionLayerConfig(LayerId(index), [BufferConfig("key", 32 * KIB), BufferConfig("value", 32 * KIB)]) for index in range(4)]
    tiers: list[CacheTierConfig] = [GpuCacheTierConfig(gpu), HostCacheTierConfig(host), DiskCacheTierConfig(disk, str(tmp_path))]
    return KVCacheManagerConfig(T, tiers, layers, max_util_for_resume=1.0)


def run(engine: FakeEngine, kv_cache: KVCache, text: list[int], num_new: int) -> None:
    """Compute the next tokens in one step; the engine reads, and checks, all that came before."""
    start = len(text)
    new = [10_000 * (kv_cache.id + 1) + start + position for position in range(num_new)]  # nothing is shared
    assert kv_cache.resize(start + num_new, start)
    engine.execute([Step(kv_cache, new, list(text))])
    text.extend(new)
    kv_cache.commit(new)


def test_two_suspended_sequences_survive_a_shrink_of_all_tiers_and_growing_back(tmp_path) -> None:
    # 100 blocks each are 25 MiB: both fit into 32 + 16 + 32 MiB, one of them into the 32 MiB of level 0.
    config = three_tiers(tmp_path, 64 * MIB, 128 * MIB, 128 * MIB)
    device = HostDevice()
    with KVCacheManager(config, device=device) as manager, FakeEngine(config, device) as engine:
        sequences = [manager.create_kv_cache(id=number) for number in range(2)]
        texts: list[list[int]] = [[], []]
        for kv_cache, text in zip(sequences, texts):
            assert kv_cache.resume()
            run(engine, kv_cache, text, 100 * T - 1 - kv_cache.id)
        for kv_cache in sequences:
            kv_cache.suspend()
        for level, quota in enumerate((32 * MIB, 16 * MIB, 32 * MIB)):
            assert manager.resize(level, quota)
            assert manager.get_quota(level) == quota
            manager.check_invariants()
        assert sequences[0].resume()
        run(engine, sequences[0], texts[0], 1)
        assert not sequences[1].resume()
        assert manager.last_refusal is not None and "level" in manager.last_refusal.text
        for level, quota in enumerate((64 * MIB, 128 * MIB, 128 * MIB)):
            assert manager.resize(level, quota)
        assert sequences[1].resume()
        run(engine, sequences[1], texts[1], 1)
        run(engine, sequences[0], texts[0], 1)
        engine.synchronize()
        manager.check_invariants()
        for kv_cache in sequences:
            kv_cache.close()


def small_manager(num_slots: int = 16, **settings) -> tuple[KVCacheManagerConfig, HostDevice]:
    slot_bytes = 2 * 8 * 4
    config = KVCacheManagerConfig(4, [GpuCacheTierConfig(num_slots * slot_bytes)], attention_layers([None], 4), **settings)
    return config, HostDevice(granularity_bytes=4096)


def test_pages_of_an_active_sequence_move_from_the_end_of_the_pool() -> None:
    config, device = small_manager()
    slot_bytes = 64
    with KVCacheManager(config, device=device) as manager, FakeEngine(config, device) as engine:
        first, second = manager.create_kv_cache(id=1), manager.create_kv_cache(id=2)
        assert first.resume() and second.resume()
        other: list[int] = []
        text: list[int] = []
        run(engine, first, other, 10 * 4 - 2)
        run(engine, second, text, 4 * 4 - 1)
        assert second.get_base_page_indices(0).tolist() == [10, 11, 12, 13]
        first.stop_committing()
        first.close()
        assert manager.resize(0, 6 * slot_bytes)
        # Six slots are left, four of them the second sequence's.
        assert sorted(second.get_base_page_indices(0).tolist()) == sorted(set(second.get_base_page_indices(0).tolist()))
        assert max(second.get_base_page_indices(0).tolist()) < 6
        manager.check_invariants()
        run(engine, second, text, 3)
        engine.synchronize()
        assert manager.get_storage_statistics()[0].total == 6
        second.close()


def test_what_must_stay_is_not_cut_off() -> None:
    config, device = small_manager()
    with KVCacheManager(config, device=device) as manager:
        kv_cache = manager.create_kv_cache()
        assert kv_cache.resume() and kv_cache.resize(8 * 4)
        dump = manager.describe()
        assert not manager.resize(0, 7 * 64)
        assert not manager.resize(0, 7 * 64, best_efforts=True)
        assert manager.last_refusal is not None and "448 bytes" in manager.last_refusal.text
        assert manager.describe() == dump and manager.get_quota(0) == 16 * 64
        assert manager.resize(0, 8 * 64)
        kv_cache.close()


@pytest.mark.parametrize("seed", range(8))
def test_a_level_shrinks_to_what_finds_no_room_below(seed: int) -> None:
    """Of suspended sequences alone: to each size that leaves room for its pages there and in the free slots below, and to no other."""
    random = Random(seed)
    num_refused = 0
    with Bench(tiered_config(6, [("host", 8), ("host", 6)]), HostDevice()) as bench:
        manager = bench.manager
        slot_bytes = manager.get_quota(0) // 6
        sequences = [bench.suspended(number, random.randint(2, 4) * TOKENS_PER_BLOCK) for number in range(5)]
        for _turn in range(40):
            level = random.randrange(3)
            count = random.randint(2, 8)
            counts = [bench.counts(each) for each in range(3)]
            num_used = counts[level][0] - counts[level][1]
            num_free_below = sum(free for _total, free in counts[level + 1 :])
            assert manager.resize(level, count * slot_bytes) == (num_used - num_free_below <= count), (level, count, counts)
            num_refused += num_used - num_free_below > count
            manager.check_invariants()
        for level in range(3):
            assert manager.resize(level, 20 * slot_bytes)
        for kv_cache in sequences:
            assert kv_cache.resume()
            bench.check(kv_cache)
            kv_cache.close()
    assert num_refused > 0


@pytest.mark.parametrize("nth", [1, 2])
def test_a_refused_move_of_several_pages_leaves_every_slot(nth: int) -> None:
    """The last three pages of level 0 would move to its front. Where the copies of keys or of values are refused they stay, and the slots
    in front are as free as before: who takes them waits for copies that are under way."""
    for seed in range(6):
        device = SimulatedDevice(seed, eager=False)
        layer = AttentionLayerConfig(LayerId(0), [BufferConfig("key", 16 * TOKENS_PER_BLOCK), BufferConfig("value", 24 * TOKENS_PER_BLOCK)])
        slot_bytes = 40 * TOKENS_PER_BLOCK
        config = KVCacheManagerConfig(TOKENS_PER_BLOCK, [GpuCacheTierConfig(8 * slot_bytes)], [layer], max_util_for_resume=1.0)
        with Bench(config, device) as bench:
            manager = bench.manager
            first, second, third = [manager.create_kv_cache(id=number) for number in (1, 2, 3)]
            assert first.resume(device.create_stream()) and second.resume(device.create_stream())
            assert bench.write(first, 5 * TOKENS_PER_BLOCK) and bench.write(second, 3 * TOKENS_PER_BLOCK)
            first.close()
            for _attempt in range(2):
                device.faults.fail("copy", nth, Refused("refused"))
                with pytest.raises(PageMoveError, match="refused"):
                    manager.resize(0, 4 * slot_bytes)
                device.faults.clear()
                manager.check_invariants()
                assert bench.counts(0) == (8, 5)
                bench.check(second)
            assert third.resume(device.create_stream())
            assert bench.write(third, 5 * TOKENS_PER_BLOCK) and not third.resize(6 * TOKENS_PER_BLOCK)
            bench.check(third)
            third.close()
            assert manager.resize(0, 4 * slot_bytes)
            bench.check(second)
        assert device.races == ()


def test_pages_that_moved_before_a_refusal_are_waited_for() -> None:
    """Of two pool groups the first one's pages have moved, and those of the second are refused to: the sequence finds the first where they
    are, once they are there."""
    for seed in range(6):
        device = SimulatedDevice(seed, eager=False)
        sizes = (16 * TOKENS_PER_BLOCK, 24 * TOKENS_PER_BLOCK)
        layers = [
            AttentionLayerConfig(LayerId(number), [BufferConfig("key", size)], sliding_window_size=window)
            for number, (size, window) in enumerate(zip(sizes, (None, 1000)))
        ]
        config = KVCacheManagerConfig(TOKENS_PER_BLOCK, [GpuCacheTierConfig(8 * sum(sizes))], layers, max_util_for_resume=1.0)
        with Bench(config, device) as bench:
            manager = bench.manager
            first, second = [manager.create_kv_cache(id=number) for number in (1, 2)]
            assert first.resume(device.create_stream()) and second.resume(device.create_stream())
            assert bench.write(first, 5 * TOKENS_PER_BLOCK) and bench.write(second, 3 * TOKENS_PER_BLOCK)
            first.close()
            device.faults.fail("copy", 2, Refused("refused"))
            with pytest.raises(PageMoveError, match="refused"):
                manager.resize(0, 4 * sum(sizes))
            device.faults.clear()
            manager.check_invariants()
            indices = [second.get_base_page_indices(LayerGroupId(group)).tolist() for group in range(2)]
            assert sorted(indices) == [[0, 1, 2], [5, 6, 7]]
            bench.check(second)
            assert bench.write(second, 3 * TOKENS_PER_BLOCK)
        assert device.races == ()


def test_wrong_arguments() -> None:
    config, device = small_manager()
    with KVCacheManager(config, device=device) as manager:
        with pytest.raises(ValueError, match="level is 1; there are 1"):
            manager.resize(1, 64)
        with pytest.raises(ValueError, match="63 bytes, but at least 64 are needed: 1 slot of 64 bytes, one slot for each"):
            manager.resize(0, 63)
        with pytest.raises(ValueError, match="time goes forward"):
            manager.advance_clock(-1)
    with pytest.raises(LogicError):
        manager.resize(0, 640)


def two_groups(cool_down_seconds: float = 0, min_samples: int = 2, enable_stats: bool = True) -> KVCacheManagerConfig:
    """A page of the first pool group is half as large as one of the second, and each has half of the memory."""
    layers = [AttentionLayerConfig(LayerId(0), [BufferConfig("key", 64)], 5), AttentionLayerConfig(LayerId(1), [BufferConfig("key", 128)])]
    rebalance = RebalanceConfig(threshold=0.1, cool_down_seconds=cool_down_seconds, min_samples=min_samples, smoothing=0.5)
    tiers = [GpuCacheTierConfig(200 * 64)]
    return KVCacheManagerConfig(4, tiers, layers, initial_pool_ratio=[0.5, 0.5], enable_stats=enable_stats, rebalance=rebalance)


def serve_token(manager: KVCacheManager, is_counted: bool = True) -> None:
    """One look at the mix, where it counts."""
    with manager.create_kv_cache(count_in_statistics=is_counted) as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(1)


def test_the_quota_moves_to_where_it_is_needed() -> None:
    """Two pool groups share the memory evenly at first; sequences need one page of the first for 8 of the second."""
    config = two_groups(cool_down_seconds=10, min_samples=4)
    with KVCacheManager(config, device=HostDevice(granularity_bytes=4096)) as manager:
        before = [group.total for group in manager.get_storage_statistics()]
        assert before == [100, 50]
        assert not manager.need_adjustment
        kv_cache = manager.create_kv_cache()
        assert kv_cache.resume()
        for step in range(40):
            assert kv_cache.resize(4 * step + 4, 4 * step)
        for _sample in range(5):
            serve_token(manager)
        assert not manager.need_adjustment  # the cool-down
        manager.advance_clock(10)
        needs: list[bool] = [manager.need_adjustment, manager.adjust()]
        assert needs == [True, True]
        after = [group.total for group in manager.get_storage_statistics()]
        assert after[1] > 80 and after[0] >= 2
        assert after[0] * 64 + after[1] * 128 <= 200 * 64
        assert not manager.need_adjustment
        manager.check_invariants()
        kv_cache.close()


@pytest.mark.parametrize("with_stats", [True, False])
@pytest.mark.parametrize("forks", [False, True])
def test_sequences_that_are_not_counted_do_not_steer(with_stats: bool, forks: bool) -> None:
    """Dummies of a warm-up have 40 pages of the second group and 2 of the first; the shares are those without them."""
    config = two_groups(enable_stats=with_stats)
    shares: list[list[int]] = []
    for has_dummy in (False, True):
        with KVCacheManager(config, device=HostDevice(granularity_bytes=4096)) as manager:
            dummies = []
            if has_dummy:
                dummies.append(manager.create_kv_cache(count_in_statistics=False))
                assert dummies[0].resume() and dummies[0].resize(160, 159)
                dummies += [dummies[0].fork()] if forks else []
                for _look in range(5):
                    serve_token(manager, False)
                assert not manager.need_adjustment and not manager.adjust(), "there was no look at the mix"
            counted = manager.create_kv_cache()
            assert counted.resume() and counted.resize(8)
            for _look in range(9):
                serve_token(manager)
            for kv_cache in dummies:
                kv_cache.close()
            assert manager.need_adjustment == manager.adjust()
            shares.append([group.total for group in manager.get_storage_statistics()])
            manager.check_invariants()
            counted.close()
    assert shares[0] == shares[1]


def test_a_page_that_a_counted_sequence_needs_too_is_seen() -> None:
    config = two_groups()
    with KVCacheManager(config, device=HostDevice(granularity_bytes=4096)) as manager:
        first = manager.create_kv_cache(count_in_statistics=False)
        assert first.resume() and first.resize(160)
        first.commit(range(160))
        second = manager.create_kv_cache(input_tokens=range(160))
        assert second.num_committed_tokens == 160
        for _sample in range(5):
            serve_token(manager)
        assert manager.need_adjustment
        first.close()
        second.close()


def test_calls_that_were_refused_are_no_look_at_the_mix() -> None:
    """Two looks are wanted. The second `create_kv_cache` fails, by a token, an id or the user's callback, and then there is no room for a
    sequence: so there was one look."""
    config = two_groups()
    wrong: list[tuple[type[Exception], dict[str, Any]]] = [
        (ValueError, {"input_tokens": [-1]}),
        (TypeError, {"id": "seven"}),
        (ValueError, {"input_tokens": range(160), "custom_priority_callback": lambda ordinal, life_cycle: 101}),
    ]
    with KVCacheManager(config, device=HostDevice(granularity_bytes=4096)) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(160)
            kv_cache.commit(range(160))
            for error, arguments in wrong:
                with pytest.raises(error):
                    manager.create_kv_cache(**arguments)
            assert not manager.need_adjustment
            serve_token(manager)
            assert manager.need_adjustment


def test_ranks_whose_levels_differ_have_other_digests() -> None:
    """What ranks compare says so when one of them has been resized, or shared its quota out anew."""
    digests: list[bytes] = []
    for quota in (0, 400 * 64, 300 * 64):
        config = KVCacheManagerConfig(4, [GpuCacheTierConfig(200 * 64)], attention_layers([None], 4))
        with KVCacheManager(config, device=SimulatedDevice(1, granularity_bytes=64)) as manager:
            if quota > 0:
                assert manager.resize(0, quota)
            digests.append(manager.state_digest())
    assert len(set(digests)) == 3


def test_a_level_that_the_device_refuses_to_move_keeps_its_shares(caplog: pytest.LogCaptureFixture) -> None:
    """`adjust` of two levels whose pages must move: no error once a level has changed, an error while nothing has."""
    layers = [AttentionLayerConfig(LayerId(0), [BufferConfig("key", 64)], 5), AttentionLayerConfig(LayerId(1), [BufferConfig("key", 128)])]
    outcomes: list[str] = []
    while outcomes[-1:] != ["done"]:
        nth = len(outcomes) + 1
        device = SimulatedDevice(nth, granularity_bytes=64)
        tiers: list[CacheTierConfig] = [GpuCacheTierConfig(100 * 64), HostCacheTierConfig(100 * 64)]
        rebalance = RebalanceConfig(threshold=0.1, min_samples=4, smoothing=0.5)
        config = KVCacheManagerConfig(4, tiers, layers, initial_pool_ratio=[0.5, 0.5], rebalance=rebalance)
        with KVCacheManager(config, device=device) as manager:

            def totals() -> list[list[int]]:
                return [[group.total for group in manager.get_storage_statistics(level)] for level in (0, 1)]

            before = totals()
            for number in range(40):
                with manager.create_kv_cache(input_tokens=None) as kv_cache:
                    assert kv_cache.resume() and kv_cache.resize(8)
                    kv_cache.commit(list(range(8 * number, 8 * number + 8)))
            open_ones: list[KVCache] = []
            for _sequence in range(4):
                open_ones.append(manager.create_kv_cache())
                assert open_ones[-1].resume() and open_ones[-1].resize(24, 20)
            for _sample in range(5):
                serve_token(manager)
            device.faults.fail("copy", nth, RuntimeError("not now"))
            caplog.clear()
            try:
                assert manager.adjust()
                outcomes.append("passed" if device.faults.num_fired > 0 else "done")
            except PageMoveError:
                outcomes.append("refused")
            changed = [now != then for now, then in zip(totals(), before, strict=True)]
            if outcomes[-1] == "refused":
                assert changed == [False, False]
            elif outcomes[-1] == "passed":
                assert changed == [True, False] and "keeps the shares" in caplog.text
            else:
                assert changed == [True, True]
            device.faults.clear()
            manager.check_invariants()
            for kv_cache in open_ones:
                kv_cache.close()
        assert device.races == ()
    assert {"refused", "passed"} < set(outcomes)


def test_memory_that_the_device_does_not_have() -> None:
    config, device = small_manager()
    with KVCacheManager(config, device=device) as manager:
        too_much = 1 << 58
        with pytest.raises((OutOfMemoryError, ValueError)):
            manager.resize(0, too_much)
        assert manager.get_quota(0) == 16 * 64
        manager.check_invariants()


class ClearingDevice(RefusingHostDevice):
    """One whose memory does not begin as zeros: slots that are new are filled, and waited for."""

    @property
    def is_software(self) -> bool:
        return False


def test_new_slots_that_cannot_be_cleared_are_no_slots() -> None:
    """The fill, and the host's wait for it, are refused in turn, and both once more: nothing has changed, and the same call passes."""
    config, _device = small_manager()
    for kind in ("fill", "synchronize", "map"):
        device = ClearingDevice()
        with KVCacheManager(config, device=device) as manager:
            before = manager.describe()
            for _again in range(2):
                device.faults.fail(kind, 1, OutOfMemoryError("not now"))
                with pytest.raises(OutOfMemoryError, match="not now"):
                    manager.resize(0, 64 * (1 << 20))
                assert manager.describe() == before
            manager.check_invariants()
            assert manager.resize(0, 64 * (1 << 20))
            assert manager.get_storage_statistics()[0].total == 1 << 20


def two_buffers_manager(device: SimulatedDevice) -> KVCacheManager:
    """Two pools in the one pool group: a key of 64 bytes, a scale of 4."""
    layers = [AttentionLayerConfig(LayerId(0), [BufferConfig("key", 64), BufferConfig("scale", 4)])]
    return KVCacheManager(KVCacheManagerConfig(4, [GpuCacheTierConfig(1000 * 68)], layers), device=device)


def test_memory_that_the_device_does_not_take_back() -> None:
    """Of the first pool or of the second: the level keeps its size. Only if it then has no memory for it either, the manager is broken."""
    for nth in (1, 2):
        device = SimulatedDevice(nth, granularity_bytes=64)
        with two_buffers_manager(device) as manager:
            device.faults.fail("unmap", nth, Refused("not now"))
            with pytest.raises(Refused):
                manager.resize(0, 500 * 68)
            assert manager.get_storage_statistics()[0].total == 1000 and manager.get_quota(0) == 1000 * 68
            manager.check_invariants()
            assert manager.resize(0, 500 * 68) and manager.get_storage_statistics()[0].total == 500
    device = SimulatedDevice(3, granularity_bytes=64)
    manager = two_buffers_manager(device)
    device.faults.fail("unmap", 2, Refused("not now"))
    for nth in (1, 2):
        device.faults.fail("map", nth, OutOfMemoryError("nor again"))
    with pytest.raises((Refused, OutOfMemoryError)):
        manager.resize(0, 500 * 68)
    with pytest.raises(CorruptedError, match="nor again"):
        manager.probe_reuse(None, [1])
    manager.shutdown()
    device.close()
