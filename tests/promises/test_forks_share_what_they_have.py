"""A fork shares every block of its parent, copies the last one on the first write only, and may be closed in any order."""

import random
from typing import Any

import pytest
from small_models import config_of, free_slots, manager_of, run_prompt, used_slots

from kv_cache_manager_v2 import HostDevice, KVCacheManager, LogicError
from kv_cache_manager_v2.testing import FakeEngine, SimulatedDevice, Step


def indices(kv_cache: Any, group: int = 0) -> list[int]:
    found: list[int] = kv_cache.get_base_page_indices(group).tolist()
    return found


def test_a_fork_is_what_its_parent_is() -> None:
    with manager_of() as manager, run_prompt(manager, [1, 2, 3, 4, 5, 6]) as parent:
        with parent.fork(id=77) as child:
            assert (child.capacity, child.history_length, child.num_committed_tokens) == (6, 6, 6)
            assert child.committed_tokens == [1, 2, 3, 4, 5, 6]
            assert child.is_active and child.cuda_stream == parent.cuda_stream and child.id == 77
            assert child.manager is manager and child.reuse_scope == parent.reuse_scope
            assert indices(child) == indices(parent)
            assert used_slots(manager) == 2
            parent.suspend()
            assert child.is_active
            with parent.fork() as suspended:
                assert suspended.status is suspended.Status.SUSPENDED
                assert suspended.resume()
                assert indices(suspended) == indices(child)
                manager.check_invariants()


@pytest.mark.parametrize("length", [6, 102, 1002])
def test_the_first_write_copies_one_block_whatever_the_length(length: int) -> None:
    """T = 4: the last block is half full. The first to write gets a copy, the other continues in place."""
    with manager_of(num_slots=300) as manager, run_prompt(manager, list(range(length))) as parent:
        with parent.fork() as child:
            before = indices(parent)
            num_used = used_slots(manager)
            assert child.resize(length + 1)
            assert used_slots(manager) == num_used + 1
            assert indices(child)[:-1] == before[:-1] and indices(child)[-1] != before[-1]
            assert parent.resize(length + 1)
            assert indices(parent) == before
            assert used_slots(manager) == num_used + 1
            manager.check_invariants()


def test_a_full_last_block_is_never_copied() -> None:
    with manager_of() as manager, run_prompt(manager, list(range(8))) as parent, parent.fork() as child:
        assert child.resize(9) and parent.resize(9)
        assert indices(child)[:2] == indices(parent)[:2]
        assert used_slots(manager) == 4


def test_blocks_that_are_not_committed_are_shared_too() -> None:
    """A train of thought: 20 tokens in 5 blocks, none published. Of 6 owners 5 copy the last, half full block."""
    with manager_of() as manager:
        thinker = manager.create_kv_cache()
        assert thinker.resume() and thinker.resize(18)
        thinker.stop_committing()
        assert thinker.resize(18, 18)
        forks = [thinker] + [thinker.fork() for _ in range(5)]
        assert used_slots(manager) == 5
        for fork in forks:
            assert fork.resize(19, 18)
            manager.check_invariants()
        assert used_slots(manager) == 5 + 5
        for fork in forks:
            fork.close()
            manager.check_invariants()
        assert used_slots(manager) == 0


def test_what_one_fork_publishes_the_other_finds() -> None:
    """8 computed tokens, shared before they are committed: the second commit publishes nothing new and copies nothing."""
    with manager_of() as manager:
        parent = manager.create_kv_cache()
        assert parent.resume() and parent.resize(8)
        child = parent.fork()
        parent.commit([1, 2, 3, 4, 5])
        manager.check_invariants()
        assert indices(child) == indices(parent)
        child.commit([1, 2, 3, 4, 5, 6, 7, 8])
        manager.check_invariants()
        parent.commit([6, 7, 8])
        manager.check_invariants()
        assert indices(child) == indices(parent) and used_slots(manager) == 2
        child.close()
        parent.close()
        assert manager.probe_reuse(input_tokens=[1, 2, 3, 4, 5, 6, 7, 8]) == 8


def test_shared_bytes_stand_for_one_text() -> None:
    with manager_of() as manager:
        parent = manager.create_kv_cache()
        assert parent.resume() and parent.resize(8)
        with parent.fork() as child:
            parent.commit([1, 2, 3, 4, 5, 6])
            for wrong in ([1, 2, 9, 4], [1, 2, 3, 4, 5, 9]):
                before = manager.describe()
                with pytest.raises(ValueError, match="fork"):
                    child.commit(wrong)
                assert manager.describe() == before
            child.commit([1, 2, 3, 4, 5, 6, 7])


def test_forks_of_an_equal_published_block_take_it_over_together() -> None:
    with manager_of([None, 4], num_slots=32) as manager:
        parent = manager.create_kv_cache()
        assert parent.resume() and parent.resize(8)
        child = parent.fork()
        run_prompt(manager, list(range(8))).close()
        num_used = used_slots(manager)
        parent.commit(list(range(5)))
        manager.check_invariants()
        # One block for each of both groups comes back, for both owners at once.
        assert used_slots(manager) == num_used - 2
        assert indices(child)[0] == indices(parent)[0]


def test_the_partial_block_of_the_one_that_ends_first_is_kept_for_reuse() -> None:
    with manager_of() as manager:
        parent = run_prompt(manager, [1, 2, 3, 4, 5, 6])
        child = parent.fork()
        parent.close()
        manager.check_invariants()
        assert manager.probe_reuse(input_tokens=[1, 2, 3, 4, 5, 6, 7]) == 6
        assert child.resize(8)
        child.commit([7, 8])
        child.close()
        manager.check_invariants()
        assert manager.probe_reuse(input_tokens=[1, 2, 3, 4, 5, 6, 7, 8]) == 8
        manager.clear_reusable_blocks()
        assert free_slots(manager) == 64


def test_no_room_for_the_copy_changes_nothing() -> None:
    with manager_of(num_slots=2) as manager, run_prompt(manager, [1, 2, 3, 4, 5]) as parent:
        with parent.fork() as child:
            before = manager.describe()
            assert not child.resize(6)
            assert manager.describe() == before
        assert parent.resize(6)


def test_forks_need_an_open_sequence_and_no_history_in_scratch_slots() -> None:
    from kv_cache_manager_v2 import SwaScratchReuseConfig

    with manager_of([8], num_slots=32, swa_scratch_reuse=SwaScratchReuseConfig()) as manager:
        kv_cache = manager.create_kv_cache()
        assert kv_cache.resume() and kv_cache.resize(64, 0)
        assert kv_cache.has_scratch_slots
        before = manager.describe()
        with pytest.raises(LogicError, match="scratch"):
            kv_cache.fork()
        assert manager.describe() == before
        kv_cache.commit(list(range(64)))
        with kv_cache.fork() as child:
            assert child.resize(65, 64)
        manager.check_invariants()
        kv_cache.close()
        with pytest.raises(LogicError):
            kv_cache.fork()


@pytest.mark.parametrize("seed", range(12))
def test_any_number_of_forks_of_forks_closed_in_any_order(seed: int) -> None:
    """Random trees of forks on a device that reports races, every byte checked; at the end every slot is free."""
    rng = random.Random(seed)
    size = rng.choice([1, 2, 4, 8])
    windows: list[int | None] = rng.choice([[None], [None, 2 * size + 1], [3 * size]])
    device = SimulatedDevice(seed)
    config = config_of(windows, tokens_per_block=size, num_slots=400)
    manager = KVCacheManager(config, device=device)
    engine = FakeEngine(config, device)
    streams = [device.default_stream(), device.create_stream()]
    root = manager.create_kv_cache()
    assert root.resume()
    families: list[tuple[Any, list[int]]] = [(root, [])]
    for number in range(120):
        position = rng.randrange(len(families))
        kv_cache, text = families[position]
        kind = rng.random()
        if kind < 0.25 and len(families) < 9:
            families.append((kv_cache.fork(), list(text)))
        elif kind < 0.35 and len(families) > 1:
            kv_cache.close()
            families.pop(position)
        elif not kv_cache.is_active:
            assert kv_cache.resume(rng.choice(streams))
        elif kind < 0.42:
            kv_cache.suspend()
        elif kind < 0.5:
            kv_cache.cuda_stream = rng.choice(streams)
        elif kind < 0.6 and kv_cache.num_committed_tokens < len(text):
            count = kv_cache.num_committed_tokens
            kv_cache.commit(text[count : count + rng.randrange(1, len(text) - count + 1)])
        else:
            tokens = [number * 10 + i for i in range(rng.randrange(1, size + 3))]
            assert kv_cache.resize(len(text) + len(tokens), len(text))
            engine.execute([Step(kv_cache, tokens, text)])
            text.extend(tokens)
        manager.check_invariants()
    rng.shuffle(families)
    for kv_cache, text in families:
        if kv_cache.is_active:
            engine.execute([Step(kv_cache, [], text)])
        kv_cache.close()
        manager.check_invariants()
    engine.close()
    assert not device.races
    manager.clear_reusable_blocks()
    assert free_slots(manager) == 400
    manager.shutdown()


def test_a_block_published_by_one_fork_waits_for_what_the_other_read() -> None:
    """The child reads on a stream of its own and ends; the parent publishes the blocks; a third sequence takes their slots."""
    for seed in range(6):
        device = SimulatedDevice(seed)
        config = config_of(num_slots=2)
        with KVCacheManager(config, device=device) as manager, FakeEngine(config, device) as engine:
            parent = manager.create_kv_cache()
            assert parent.resume() and parent.resize(8, 0)
            text = list(range(8))
            engine.execute([Step(parent, text, [])])
            child = parent.fork()
            child.cuda_stream = device.create_stream()
            engine.execute([Step(child, [], text)])
            child.close()
            parent.commit(text)
            parent.close()
            third = manager.create_kv_cache()
            assert third.resume() and third.resize(8, 0)
            engine.execute([Step(third, list(range(50, 58)), [])])
            third.close()
        assert not device.races


def test_a_fork_is_recorded_and_runs_again(tmp_path: Any) -> None:
    from kv_cache_manager_v2.replay.rerun import rerun

    path = tmp_path / "journal"
    with KVCacheManager(config_of(), device=HostDevice(), journal=path) as manager:
        parent = run_prompt(manager, [1, 2, 3, 4, 5])
        child = parent.fork()
        assert child.resize(7, 5)
        child.commit([6, 7])
        parent.close()
        child.close()
        digest = manager.state_digest()
    assert rerun(path, HostDevice(), True).digest == digest


@pytest.mark.parametrize("windows", [(None,), (None, 8)])
def test_forks_that_take_an_equal_block_over_give_it_their_priority(windows: tuple[int | None, ...]) -> None:
    """The block was published with 35; the forks' has priority 80, and they say the same tokens."""

    def priorities(manager: KVCacheManager) -> list[int]:
        (scope,) = manager.describe()["tree"]
        return [page["priority"] for block in scope["blocks"] for page in block["pages"] if page is not None]

    with manager_of(windows=windows, num_slots=32) as manager:
        with run_prompt(manager, [1, 2, 3, 4, 5, 6, 7, 8]):
            assert set(priorities(manager)) == {35}
            parent = manager.create_kv_cache(custom_priority_callback=lambda ordinal, life_cycle: 80)
            assert parent.resume() and parent.resize(8)
            child = parent.fork()
            parent.commit([1, 2, 3, 4, 5, 6, 7, 8])
            assert set(priorities(manager)) == {80}
            manager.check_invariants()
            child.close()
            parent.close()
