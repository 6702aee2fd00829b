"""Pages lent to another machine are not used again before the lease is settled, whatever becomes of their sequence."""

import gc
import random
from typing import Any

import pytest
from small_models import config_of, free_slots, manager_of, new_manager, run_prompt, used_slots

from kv_cache_manager_v2 import HostDevice, KVCacheManager, LogicError


def test_leased_slots_survive_their_sequence() -> None:
    with manager_of(num_slots=4) as manager:
        kv_cache = run_prompt(manager, [1, 2, 3, 4, 5, 6])
        lease = kv_cache.reserve_transfer()
        slots = lease.get_page_indices(0)
        assert slots == kv_cache.get_base_page_indices(0).tolist()
        kv_cache.close()
        manager.check_invariants()
        assert lease.sequence_id == 0 and lease.is_open
        with manager.create_kv_cache() as other:
            assert other.resume()
            assert not other.resize(9)
            assert other.resize(8)
            assert not {*slots} & {*other.get_base_page_indices(0).tolist()}
            assert not other.resize(12)
            lease.settle()
            manager.check_invariants()
            assert other.resize(12)
        manager.clear_reusable_blocks()
        assert free_slots(manager) == 4


def test_a_private_block_is_kept_and_never_written_in_place() -> None:
    """A decode side that is closed while the other machine still writes; and one that goes on, which gets a copy."""
    with manager_of(num_slots=8) as manager:
        for closes in (True, False):
            kv_cache = manager.create_kv_cache()
            assert kv_cache.resume() and kv_cache.resize(6, 6)
            lease = kv_cache.reserve_transfer(1)
            (slot,) = lease.get_page_indices(0)
            if closes:
                kv_cache.close()
            else:
                assert kv_cache.resize(7, 6)
                assert kv_cache.get_base_page_indices(0)[1] != slot
                kv_cache.close()
            manager.check_invariants()
            # Block 0 is kept with it: without it the leased block could not be reached, once it is published.
            assert used_slots(manager) == 2
            lease.settle()
            manager.check_invariants()
            assert used_slots(manager) == 0


def test_a_published_tail_makes_no_room_for_the_copy_of_a_leased_block() -> None:
    """A full pool may take the published tail back rather than copy it; what this step writes is another block, which is lent."""
    with manager_of(num_slots=4, windows=[4]) as manager, manager.create_kv_cache() as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(16)
        kv_cache.commit([1, 2, 3, 4, 5, 6])
        kv_cache.stop_committing()
        # The window of token 11 is 8 to 11: the tail, block 1, is out of window, so no sequence holds its page.
        assert kv_cache.resize(16, 11)
        lease = kv_cache.reserve_transfer(3)
        pages = kv_cache.get_base_page_indices(0).tolist()
        with manager.create_kv_cache() as other:
            assert other.resume() and other.resize(8) and not other.resize(12)
            assert not kv_cache.resize(16, 13)
            assert kv_cache.history_length == 11 and kv_cache.get_base_page_indices(0).tolist() == pages
            manager.check_invariants()
            lease.settle()
            assert kv_cache.resize(16, 13)
            assert kv_cache.get_base_page_indices(0).tolist() == pages
            manager.check_invariants()


def test_leased_block_outlives_an_equal_one_that_is_dropped_above_it() -> None:
    """The lease keeps its own page of block 0, for which the sequence takes over an equal block; that one is evicted later."""
    with manager_of(num_slots=6) as manager:
        run_prompt(manager, [1, 2, 3, 4]).close()
        kv_cache = manager.create_kv_cache()
        assert kv_cache.resume() and kv_cache.resize(8)
        lease = kv_cache.reserve_transfer(1)
        slots = lease.get_page_indices(0)
        kv_cache.commit([1, 2, 3, 4, 5, 6, 7, 8])
        kv_cache.close()
        with manager.create_kv_cache() as other:
            # Two slots are leased, so four are free once the block that was taken over is gone.
            assert other.resume() and other.resize(16)
            manager.check_invariants()
            assert lease.get_page_indices(0) == slots and not {*slots} & {*other.get_base_page_indices(0).tolist()}
            lease.settle()
            manager.check_invariants()
            assert manager.probe_reuse(None, [1, 2, 3, 4, 5, 6, 7, 8]) == 0
            assert other.resize(24)
        manager.check_invariants()


@pytest.mark.filterwarnings("error")
def test_a_look_at_open_leases_warns_of_none(caplog: pytest.LogCaptureFixture) -> None:
    manager = new_manager()
    with run_prompt(manager, [1, 2, 3, 4, 5]) as kv_cache:
        lease = kv_cache.reserve_transfer()
    for _ in range(2):
        assert [seen.number for seen in manager.open_leases] == [lease.number]  # made, and dropped at once
    assert caplog.text == ""
    lease.settle()
    manager.shutdown()


def test_leases_count_where_they_stand_in_the_way() -> None:
    manager = new_manager()
    with run_prompt(manager, [1, 2, 3, 4, 5]) as kv_cache:
        leases = [kv_cache.reserve_transfer() for _ in range(2)]
    with pytest.raises(LogicError, match="2 transfer leases"):
        manager.shutdown()
    assert [lease.number for lease in manager.open_leases] == [0, 1]
    for lease in leases:
        lease.settle()
        with pytest.raises(LogicError):
            lease.settle()
    manager.shutdown()


def test_an_abandoned_lease_is_reported_and_never_freed() -> None:
    with manager_of() as manager:
        with run_prompt(manager, [1, 2, 3, 4, 5]) as kv_cache:
            lease = kv_cache.reserve_transfer()
        with pytest.warns(ResourceWarning, match="lease 0"):
            del lease
            gc.collect()
        manager.check_invariants()
        with pytest.raises(LogicError):
            manager.shutdown()
        (found,) = manager.open_leases
        found.settle(manager.device.default_stream())
        assert manager.open_leases == []


def test_with_settles_unless_something_went_wrong() -> None:
    with manager_of() as manager:
        with run_prompt(manager, [1, 2, 3, 4, 5]) as kv_cache:
            with kv_cache.reserve_transfer():
                pass
            assert manager.open_leases == []
            with pytest.raises(KeyError):
                with kv_cache.reserve_transfer() as lease:
                    raise KeyError("the transfer failed")
            assert lease.is_open
            lease.settle()


def test_mistakes_change_nothing() -> None:
    with manager_of() as manager, run_prompt(manager, [1, 2, 3, 4, 5]) as kv_cache:
        before = manager.describe()
        for blocks in ((0, 3), (2, 1), (-1, 1)):
            with pytest.raises(ValueError):
                kv_cache.reserve_transfer(*blocks)
        kv_cache.suspend()
        with pytest.raises(LogicError):
            kv_cache.reserve_transfer()
        assert kv_cache.resume()
        assert manager.describe() == before
        with kv_cache.reserve_transfer() as lease, pytest.raises(ValueError):
            lease.get_page_indices(1)


@pytest.mark.parametrize("seed", range(10))
def test_leases_with_forks_commits_and_rebases_in_any_order(seed: int) -> None:
    """Nothing leaks; a leased slot has no other owner while its lease is open."""
    rng = random.Random(seed)
    with manager_of([None, 6], num_slots=200) as manager:
        sequences: list[Any] = []
        leases: list[Any] = []
        for _ in range(150):
            kind = rng.random()
            if kind < 0.15 or not sequences:
                text = [rng.randrange(2) * 100 + i for i in range(24)]
                if len(sequences) < 6:
                    kv_cache = manager.create_kv_cache(input_tokens=text[: rng.randrange(24)])
                    assert kv_cache.resume()
                    sequences.append(kv_cache)
                continue
            kv_cache = rng.choice(sequences)
            if kind < 0.25:
                kv_cache.close()
                sequences.remove(kv_cache)
            elif kind < 0.35 and len(sequences) < 6:
                sequences.append(kv_cache.fork())
            elif kind < 0.5:
                leases.append(kv_cache.reserve_transfer(rng.randrange(kv_cache.num_blocks + 1)))
            elif kind < 0.6 and leases:
                leases.pop(rng.randrange(len(leases))).settle()
            elif kind < 0.75:
                room = kv_cache.capacity - kv_cache.num_committed_tokens
                # One text for all: forks never disagree, and equal blocks meet in the tree.
                start = kv_cache.num_committed_tokens
                try:
                    kv_cache.commit([start + i for i in range(rng.randrange(room + 1))])
                except ValueError:
                    pass
            else:
                assert kv_cache.resize(kv_cache.capacity + rng.randrange(6), kv_cache.capacity)
            manager.check_invariants()
        while sequences:
            sequences.pop(rng.randrange(len(sequences))).close()
            manager.check_invariants()
        while leases:
            leases.pop().settle()
            manager.check_invariants()
        manager.clear_reusable_blocks()
        assert free_slots(manager) == 200


def test_leases_are_recorded_and_run_again(tmp_path: Any) -> None:
    from kv_cache_manager_v2.replay.rerun import rerun

    path = tmp_path / "journal"
    with KVCacheManager(config_of(), device=HostDevice(), journal=path) as manager:
        kv_cache = run_prompt(manager, [1, 2, 3, 4, 5])
        first, second = kv_cache.reserve_transfer(), kv_cache.reserve_transfer(1)
        kv_cache.close()
        second.settle()
        first.settle(manager.device.default_stream())
        digest = manager.state_digest()
    assert rerun(path, HostDevice(), True).digest == digest


BEGINNINGS: list[tuple[str, tuple[int, int], tuple[int, int | None], tuple[int, int], bool]] = [
    ("inputs in the leased block, others behind it", (12, 6), (1, 2), (11, 6), True),
    ("inputs in the leased block alone", (8, 6), (1, 2), (7, 6), True),
    ("another machine fills the leased last block", (7, 7), (1, 2), (8, 8), True),
    ("inputs behind the leased block", (12, 8), (1, 2), (11, 8), False),
]


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize("row", BEGINNINGS, ids=[row[0] for row in BEGINNINGS])
def test_a_step_that_adds_no_block_never_writes_into_a_leased_page(row: Any, is_batch: bool) -> None:
    """Numbers move within the blocks that are there, and still the step gets a copy of a leased block that it writes into."""
    _, begin, blocks, step, is_written = row
    with manager_of(num_slots=8) as manager, manager.create_kv_cache() as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(*begin)
        lease = kv_cache.reserve_transfer(*blocks)
        (leased,) = lease.get_page_indices(0)
        before = kv_cache.get_base_page_indices(0).tolist()
        if is_batch:
            assert manager.resize_batch([kv_cache], [step[0]], [step[1]]) == 1
        else:
            assert kv_cache.resize(*step)
        after = kv_cache.get_base_page_indices(0).tolist()
        assert lease.get_page_indices(0) == [leased] and (leased not in after) == is_written
        assert [page for page in after if page != after[1]] == [page for page in before if page != leased]
        manager.check_invariants()
        lease.settle()
