"""A page whose bytes are on a colder level already is not written there again; with `write_policy="through"` they are there early.

The copies lie in free slots, which are allocated when needed. Blocks of 4 tokens, one page each.
"""

import random
from typing import Any

import pytest
from tiered_models import TOKENS_PER_BLOCK, Bench, tiered_config

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    DiskCacheTierConfig,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    StorageIOError,
)
from kv_cache_manager_v2.metrics.metric_samples import take_samples
from kv_cache_manager_v2.replay.tier_figures import tier_figures
from kv_cache_manager_v2.testing import SimulatedDevice


class Refused(Exception):
    """What the device says."""


def clean_copies(bench: Bench, level: int) -> int:
    return bench.manager.get_storage_statistics(level)[0].clean_copies


def take_turns(bench: Bench, sequences: list[KVCache], num_rounds: int) -> None:
    for _round in range(num_rounds):
        for kv_cache in sequences:
            assert kv_cache.resume()
            bench.check(kv_cache)
            kv_cache.suspend()
            bench.manager.check_invariants()


@pytest.mark.parametrize("kind", ["host", "disk"])
@pytest.mark.parametrize("seed", range(4))
def test_published_pages_that_come_and_go_are_written_once(kind: str, seed: int) -> None:
    """Two sequences of 4 blocks take turns in 4 slots: each page is offloaded many times, and copied once."""
    device = SimulatedDevice(seed)
    with Bench(tiered_config(4, [(kind, 12)]), device) as bench:
        sequences = [bench.suspended(number, 4 * TOKENS_PER_BLOCK, commit=True) for number in (1, 2)]
        assert bench.num_copied(0, 1) == 4
        take_turns(bench, sequences, 5)
        assert bench.num_copied(0, 1) == 8
        # All 10 turns brought 4 pages up; the last time the second's were the first's victims.
        assert bench.num_copied(1, 0) == 40
        # 4 pages are on level 0, with copies in 4 of the 12 - 4 free slots.
        assert bench.counts(1) == (12, 8) and clean_copies(bench, 1) == 4
        for kv_cache in sequences:
            kv_cache.close()
        assert device.races == ()


def test_private_pages_are_written_every_time() -> None:
    """What is not published may change while it is up."""
    with Bench(tiered_config(4, [("host", 12)]), SimulatedDevice(1)) as bench:
        sequences = [bench.suspended(number, 4 * TOKENS_PER_BLOCK) for number in (1, 2)]
        take_turns(bench, sequences, 5)
        # Once for the second to begin, and once for each of 10 turns.
        assert bench.num_copied(0, 1) == 44 and clean_copies(bench, 1) == 0
        for kv_cache in sequences:
            kv_cache.close()


@pytest.mark.parametrize("seed", range(4))
def test_a_clean_copy_is_dropped_when_its_slot_is_needed(seed: int) -> None:
    """4 + 4 slots and 8 held pages: every slot is needed, so nothing is kept, and any order of turns works."""
    device = SimulatedDevice(seed)
    with Bench(tiered_config(4, [("host", 4)]), device) as bench:
        sequences = [bench.suspended(number, 4 * TOKENS_PER_BLOCK, commit=True) for number in (1, 2)]
        take_turns(bench, sequences, 3)
        assert clean_copies(bench, 1) == 0
        for kv_cache in sequences:
            kv_cache.close()
        assert device.races == ()


@pytest.mark.parametrize("seed", range(4))
def test_over_three_levels_a_copy_on_the_disk_serves_later(seed: int) -> None:
    """From the disk to level 0, down to the host (a copy) and down again to the disk (none)."""
    device = SimulatedDevice(seed)
    with Bench(tiered_config(4, [("host", 4), ("disk", 24)]), device) as bench:
        sequences = [bench.suspended(number, 4 * TOKENS_PER_BLOCK, commit=True) for number in (1, 2, 3, 4)]
        take_turns(bench, sequences, 4)
        # 16 pages, each written to the disk once.
        assert bench.num_copied(1, 2) + bench.num_copied(0, 2) == 16
        for kv_cache in sequences:
            kv_cache.close()
        assert device.races == ()


def test_a_page_that_the_disk_failed_to_read_is_there_still() -> None:
    """Its read fails behind everybody's back; it goes down again before anybody looks, to where its bytes never left."""
    device = SimulatedDevice(3, eager=False)
    with Bench(tiered_config(4, [("disk", 12)]), device) as bench:
        first, second = [bench.suspended(number, 4 * TOKENS_PER_BLOCK, commit=True) for number in (1, 2)]
        device.faults.fail("disk_read", 1, Refused("a passing weakness"))
        assert first.resume(wait=False)
        first.suspend()
        assert second.resume(wait=False)
        for _attempt in range(5):
            try:
                device.synchronize_stream(device.default_stream())
                device.drain()
            except StorageIOError:
                continue
            break
        while not second.ready:
            pass
        bench.check(second)
        second.suspend()
        assert first.resume()
        bench.check(first)
        first.close()
        second.close()


def test_a_pool_that_shrinks_keeps_no_copies() -> None:
    slot_bytes = 2 * 8 * TOKENS_PER_BLOCK
    with Bench(tiered_config(4, [("host", 512)]), SimulatedDevice(1)) as bench:
        sequences = [bench.suspended(number, 4 * TOKENS_PER_BLOCK, commit=True) for number in (1, 2)]
        take_turns(bench, sequences, 1)
        assert clean_copies(bench, 1) == 4
        assert bench.manager.resize(1, 256 * slot_bytes)
        bench.manager.check_invariants()
        assert clean_copies(bench, 1) == 0
        take_turns(bench, sequences, 1)
        for kv_cache in sequences:
            kv_cache.close()


# -- write_policy="through" -----------------------------------------------------------------------------------------------


def through(gpu_slots: int, lower: list[tuple[str, int]], **settings: Any) -> KVCacheManagerConfig:
    return tiered_config(gpu_slots, lower, write_policy="through", **settings)


@pytest.mark.parametrize("kind", ["host", "disk"])
@pytest.mark.parametrize("seed", range(4))
def test_written_through_at_commit_and_evicted_for_nothing(kind: str, seed: int) -> None:
    """4 blocks are on level 1 when the commit returns. When another sequence needs their slots, no copy is made any more."""
    device = SimulatedDevice(seed)
    with Bench(through(4, [(kind, 12)]), device) as bench:
        first = bench.suspended(1, 4 * TOKENS_PER_BLOCK, commit=True)
        assert bench.num_copied(0, 1) == 4 and clean_copies(bench, 1) == 4
        assert [tier.clean_copies for tier in tier_figures(bench.manager, [0, 0])] == [0, 4]
        samples = {one.name: one.samples for one in take_samples(bench.manager)}
        assert samples["kvcm_clean_copies"] == [(("gpu", "0"), 0.0), ((kind, "0"), 4.0)]
        assert bench.counts(1) == (12, 12), "they take no room"
        device.faults.fail("copy", 1, Refused("there is nothing to copy"))
        second = bench.manager.create_kv_cache(id=2)
        assert second.resume() and bench.write(second, 4 * TOKENS_PER_BLOCK)
        assert device.faults.num_fired == 0 and bench.counts(1) == (12, 8)
        device.faults.clear()
        second.close()
        assert first.resume()
        bench.check(first)
        first.close()
        assert device.races == () and device.num_host_waits <= (1 if kind == "disk" else 0)


def test_the_partial_last_block_is_written_through_at_the_end() -> None:
    """6 tokens: one full block at the commit, the partial one when the sequence is closed."""
    with Bench(through(4, [("host", 12)]), SimulatedDevice(1)) as bench:
        first = bench.manager.create_kv_cache(id=1)
        assert first.resume() and bench.write(first, 6, commit=True)
        assert bench.num_copied(0, 1) == 1
        first.close()
        assert bench.num_copied(0, 1) == 2 and clean_copies(bench, 1) == 2
        again = bench.manager.create_kv_cache(input_tokens=list(bench.texts[1]), id=1)
        assert again.num_committed_tokens == 6
        again.close()


def test_early_copies_push_out_what_is_worth_least_below_and_no_other_copy() -> None:
    """Level 1 has 6 slots. 3 pages of an old text lie there, and 3 copies; the next text's go where the old pages were, then nowhere."""
    with Bench(through(12, [("host", 6)]), SimulatedDevice(1)) as bench:
        old = bench.suspended(1, 3 * TOKENS_PER_BLOCK, commit=True)
        old.close()
        filler = bench.suspended(2, 12 * TOKENS_PER_BLOCK)
        assert bench.counts(1) == (6, 3) and clean_copies(bench, 1) == 0
        filler.close()
        for number, expected in ((3, 3), (4, 6), (5, 6)):
            kv_cache = bench.suspended(number, 3 * TOKENS_PER_BLOCK, commit=True)
            kv_cache.close()
            assert clean_copies(bench, 1) == expected
            bench.manager.check_invariants()
        assert bench.manager.probe_reuse(input_tokens=list(bench.texts[1])) == 0
        for number in (3, 4, 5):
            assert bench.manager.probe_reuse(input_tokens=list(bench.texts[number])) == 12


@pytest.mark.parametrize("copy_is_made", [False, True])
def test_a_device_that_refuses_early_copies_costs_nothing(copy_is_made: bool) -> None:
    """The copy, or the event behind it and the host's wait in its place."""
    device = SimulatedDevice(1)
    with Bench(through(4, [("host", 12)]), device) as bench:
        first = bench.manager.create_kv_cache(id=1)
        assert first.resume() and bench.write(first, 2 * TOKENS_PER_BLOCK)
        if copy_is_made:
            # The events before it: of the commit, and of what the copy reads.
            device.faults.fail("record", 3, Refused("not now"))
            device.faults.fail("synchronize", 1, Refused("not now"))
        else:
            device.faults.fail("copy", 1, Refused("not now"))
        first.commit(bench.texts[1])
        first.suspend()
        assert device.faults.num_fired == 1 + copy_is_made and clean_copies(bench, 1) == 0
        bench.manager.check_invariants()
        second = bench.suspended(2, 4 * TOKENS_PER_BLOCK)
        assert bench.num_copied(0, 1) == 2
        assert first.resume()
        bench.check(first)
        first.close()
        second.close()


@pytest.mark.parametrize("seed", range(6))
def test_a_slot_waits_until_it_was_copied(seed: int) -> None:
    """Read by two streams, copied down, driven out and written again at once: no access without order, no wrong byte."""
    device = SimulatedDevice(seed)
    with Bench(through(10, [("disk", 8)], windows=(None, 8)), device) as bench:
        streams = [device.default_stream(), device.create_stream()]
        for number in range(1, 9):
            text = list(bench.texts.get(number - 2, []))[: 2 * TOKENS_PER_BLOCK]
            kv_cache = bench.manager.create_kv_cache(input_tokens=text, id=number)
            bench.texts[number] = text[: kv_cache.num_committed_tokens]
            assert kv_cache.resume(streams[number % 2], wait=number % 3 == 0)
            while not kv_cache.ready:
                pass
            assert bench.write(kv_cache, 2 * TOKENS_PER_BLOCK + 1, commit=True, chunk=3)
            kv_cache.close()
            bench.manager.check_invariants()
        assert device.races == ()


def test_the_setting_is_checked() -> None:
    with pytest.raises(ValueError, match="'back'.*'through'"):
        tiered_config(4, [("host", 4)], write_policy="around")
    with pytest.raises(TypeError, match="write_policy|str"):
        tiered_config(4, [("host", 4)], write_policy=1)
    # Without a lower level there is nowhere to write to.
    with Bench(through(4, []), SimulatedDevice(1)) as bench:
        bench.suspended(1, 4, commit=True).close()


def state_dumps_of_small_tiers(seed: int, has_quick_disk: bool, folder: str) -> list[Any]:
    """Short prompts of few tokens in 6, 2 and 8 slots: many match what is on the disk, whose own slot is soon another sequence's."""
    rng = random.Random(seed)
    device = SimulatedDevice(seed, eager=False)
    config = KVCacheManagerConfig(
        1, [GpuCacheTierConfig(48), HostCacheTierConfig(16), DiskCacheTierConfig(64, folder)],
        [AttentionLayerConfig(LayerId(0), [BufferConfig("key", 8)])], write_policy="through", max_util_for_resume=1.0,
    )  # fmt: skip
    dumps = []
    with KVCacheManager(config, device=device) as manager:
        for _request in range(60):
            text = [rng.randrange(3) for _ in range(rng.randrange(1, 6))]
            goes_on = rng.random() < 0.5
            with manager.create_kv_cache(input_tokens=text) as kv_cache:
                if kv_cache.resume(wait=False):
                    if has_quick_disk:
                        device.drain()
                        assert kv_cache.ready
                    if goes_on and kv_cache.resize(len(text)):
                        kv_cache.commit(text[kv_cache.num_committed_tokens :])
            manager.check_invariants()
            dumps.append(manager.describe())
    return dumps


@pytest.mark.parametrize("seed", range(12))
def test_what_is_written_early_does_not_depend_on_how_quick_a_disk_is(seed: int, tmp_path: Any) -> None:
    assert state_dumps_of_small_tiers(seed, True, str(tmp_path)) == state_dumps_of_small_tiers(seed, False, str(tmp_path))


def state_dumps_of_many_at_once(seed: int, write_policy: str, has_quick_disk: bool, folder: str) -> list[Any]:
    """The same with up to four sequences at a time, which find that another one has published what they have computed."""
    rng = random.Random(seed)
    device = SimulatedDevice(seed, eager=False)
    config = KVCacheManagerConfig(
        1, [GpuCacheTierConfig(80), HostCacheTierConfig(16), DiskCacheTierConfig(96, folder)],
        [AttentionLayerConfig(LayerId(0), [BufferConfig("key", 8)])], write_policy=write_policy, max_util_for_resume=1.0,
    )  # fmt: skip
    dumps = []
    open_ones: list[tuple[KVCache, list[int]]] = []
    with KVCacheManager(config, device=device) as manager:
        for _action in range(120):
            choice = rng.random()
            if choice < 0.4 and len(open_ones) < 4:
                text = [rng.randrange(2) for _ in range(rng.randrange(1, 6))]
                open_ones.append((manager.create_kv_cache(input_tokens=text if rng.random() < 0.5 else None), text))
            elif choice < 0.9 and open_ones:
                kv_cache, text = rng.choice(open_ones)
                if kv_cache.is_active or kv_cache.resume(wait=False):
                    if has_quick_disk:
                        device.drain()
                        assert kv_cache.ready
                    if kv_cache.capacity < len(text) and kv_cache.resize(len(text)):
                        kv_cache.commit(text[kv_cache.num_committed_tokens :])
                    elif rng.random() < 0.5:
                        kv_cache.suspend()
            elif open_ones:
                open_ones.pop(rng.randrange(len(open_ones)))[0].close()
            manager.check_invariants()
            dumps.append((manager.state_digest(), manager.describe()))
        for kv_cache, _text in open_ones:
            kv_cache.close()
    return dumps


@pytest.mark.parametrize("write_policy", ["back", "through"])
@pytest.mark.parametrize("seed", [17, 34, 37, 51, 54, 55])
def test_what_is_kept_below_does_not_depend_on_how_quick_a_disk_is(seed: int, write_policy: str, tmp_path: Any) -> None:
    quick, slow = [state_dumps_of_many_at_once(seed, write_policy, is_quick, str(tmp_path)) for is_quick in (True, False)]
    assert quick == slow
