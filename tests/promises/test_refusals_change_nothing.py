"""No room is an answer, not a disaster: False (or `OutOfPagesError` from a setter), and everything is as it was."""

import pytest
from hybrid_models import Rig
from small_models import manager_of, run_prompt
from tiered_models import tiered_config

from kv_cache_manager_v2 import BatchDesc, HostDevice, KVCacheDesc, KVCacheManager, OutOfPagesError


def test_704_tokens_fit_and_705_are_refused() -> None:
    """32 tokens per block: 704 = 22 blocks, one page each in the two layer groups, so 44 slots."""
    with manager_of([None, 4096], tokens_per_block=32, num_slots=44) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume()
            assert kv_cache.resize(704)
            before = manager.describe()
            assert not kv_cache.resize(705)
            with pytest.raises(OutOfPagesError):
                kv_cache.capacity = 705
            assert manager.describe() == before
            manager.check_invariants()
            refusal = manager.last_refusal
            assert refusal is not None
            assert (refusal.level, refusal.pool_group, refusal.asked, refusal.free, refusal.evictable) == (0, 0, 2, 0, 0)


def test_a_refusal_says_whether_other_sequences_could_make_room() -> None:
    """44 slots are 22 blocks in each of two layer groups: 22 blocks more fit once the other sequence ends, 23 never do."""
    with manager_of([None, 4096], tokens_per_block=32, num_slots=44) as manager:
        with manager.create_kv_cache() as other, manager.create_kv_cache() as kv_cache:
            assert other.resume() and other.resize(32)
            assert kv_cache.resume()
            assert not kv_cache.resize(704)
            assert "Close other sequences, or enlarge the GPU tier's quota" in str(manager.last_refusal)
            assert not kv_cache.resize(705)
            assert "would not fit into the empty level either: enlarge the GPU tier's quota" in str(manager.last_refusal)


def test_refused_resize_moves_no_window() -> None:
    """The call that would free 2 pages and take 4 of 2 + 1 is refused whole."""
    with manager_of([8], num_slots=6) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume()
            kv_cache.stop_committing()
            assert kv_cache.resize(20)
            before = manager.describe()
            # At 17 the next token reads from 10: blocks 0, 1 go; 40 tokens are 10 blocks, 5 more.
            assert not kv_cache.resize(40, 17)
            assert manager.describe() == before
            assert kv_cache.resize(32, 17)


def test_refused_resume_changes_nothing() -> None:
    """The copy of a partial last block, which another sequence holds too, needs a slot of its own."""
    with manager_of(num_slots=4) as manager:
        run_prompt(manager, [1, 2, 3, 4, 5, 6]).close()
        matched = manager.create_kv_cache(input_tokens=[1, 2, 3, 4, 5, 6])
        second = manager.create_kv_cache(input_tokens=[1, 2, 3, 4, 5, 6])
        other = run_prompt(manager, [11, 12, 13, 14, 15])
        before = manager.describe()
        assert not matched.resume()
        assert manager.describe() == before
        other.close()
        assert matched.resume()
        matched.close()
        second.close()


def test_resume_gate() -> None:
    """`max_util_for_resume`: refused when the others lock strictly more than that share of some pool group."""
    with manager_of(num_slots=10, max_util_for_resume=0.5) as manager:
        first = run_prompt(manager, list(range(20)))
        second = manager.create_kv_cache()
        assert second.resume(), "5 of 10 is not more than half"
        second.suspend()
        assert first.resize(24)
        before = manager.describe()
        assert not second.resume()
        assert manager.describe() == before
        assert second.status is second.Status.SUSPENDED


def test_constraints_hold_in_operation() -> None:
    """100 sequences of a block as a constraint and just the slots for them: all 100 run, though 98 are more than 0.97 of 100 slots."""
    constraint = BatchDesc([KVCacheDesc(4, 0)] * 100)
    with manager_of(num_slots=100, constraints=[constraint]) as manager:
        sequences = [manager.create_kv_cache() for _number in range(101)]
        for sequence in sequences[:100]:
            assert sequence.resume(), manager.last_refusal
            assert sequence.resize(4), manager.last_refusal
        assert sequences[100].resume(), "100 are not more than the constraint"
        before = manager.describe()
        assert not sequences[100].resize(4)
        assert manager.describe() == before
    with manager_of(num_slots=100, constraints=[BatchDesc([KVCacheDesc(4, 0)] * 98)]) as manager:
        with run_prompt(manager, list(range(99 * 4))), manager.create_kv_cache() as second:
            assert not second.resume(), "99 are more than 97, and than the 98 of the constraint"
            assert manager.last_refusal is not None and "constraints" in manager.last_refusal.text


def test_droppable_pages_are_evicted() -> None:
    with manager_of(num_slots=4) as manager:
        run_prompt(manager, list(range(16))).close()
        with run_prompt(manager, list(range(100, 116))) as kv_cache:
            assert kv_cache.num_blocks == 4
            manager.check_invariants()
        assert manager.get_storage_statistics()[0].evicted == 4


def test_tail_of_a_sequence_goes_first() -> None:
    """Two slots are needed: the last two of four blocks are evicted, the first two still serve."""
    with manager_of(num_slots=4) as manager:
        run_prompt(manager, list(range(16))).close()
        with run_prompt(manager, list(range(100, 108))):
            assert manager.probe_reuse(input_tokens=list(range(16))) == 8


def test_priority_decides_before_recency() -> None:
    with manager_of(num_slots=4) as manager:
        manager_of_old = manager.create_kv_cache(custom_priority_callback=lambda ordinal, life_cycle: 80)
        assert manager_of_old.resume() and manager_of_old.resize(8)
        manager_of_old.commit(list(range(8)))
        manager_of_old.close()
        run_prompt(manager, list(range(50, 58))).close()
        with run_prompt(manager, list(range(100, 108))):
            assert manager.probe_reuse(input_tokens=list(range(8))) == 8
            assert manager.probe_reuse(input_tokens=list(range(50, 58))) == 0


def test_leaves_are_evicted_first_whatever_the_priorities() -> None:
    """Blocks 1 to 9 have priority 90, their ancestor 35: one slot costs one block of a path, never the path."""
    with manager_of(num_slots=12) as manager:
        important = manager.create_kv_cache(custom_priority_callback=lambda ordinal, life_cycle: 90 if ordinal else 35)
        assert important.resume() and important.resize(40)
        important.commit(list(range(40)))
        important.close()
        run_prompt(manager, [500] * 8).close()
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(4)
            assert manager.probe_reuse(input_tokens=list(range(40))) == 40
            assert manager.probe_reuse(input_tokens=[500] * 8) == 4
            assert manager.get_storage_statistics()[0].evicted == 1
            manager.check_invariants()


def test_gate_at_exact_equality() -> None:
    """29 of 100 locked is not strictly more than 0.29, though 0.29 * 100 is less than 29 in floating point."""
    with manager_of(num_slots=100, max_util_for_resume=0.29) as manager:
        with run_prompt(manager, list(range(29 * 4))), manager.create_kv_cache() as second:
            assert second.resume()


def test_callback_is_asked_only_for_pages_that_will_be_made() -> None:
    asked = []

    def callback(ordinal: int, life_cycle: object) -> int:
        asked.append(ordinal)
        return 35

    with manager_of(num_slots=4) as manager:
        with manager.create_kv_cache(custom_priority_callback=callback) as kv_cache:
            assert kv_cache.resume()
            assert not kv_cache.resize(400_000)
            assert asked == []
            assert kv_cache.resize(8)
            assert asked == [0, 1]


def test_beams_without_room_evict_nothing() -> None:
    """Eight slots for states, one of them live and two or more snapshots: eight further beams need eight, and seven can be had."""
    with Rig(quota=1 << 11) as rig:
        manager = rig.manager
        text = list(range(8))
        rig.prefill(text).close()
        kv_cache = rig.prefill([50, 51])
        states = manager.get_storage_statistics()[1]
        assert states.total == 8 and 1 < states.free < 7
        before, digest, num_found = manager.describe(), manager.state_digest(), manager.probe_reuse(None, [*text, 9])
        assert num_found > 0
        with pytest.raises(OutOfPagesError, match="8 slots asked for"):
            kv_cache.beam_width = 9
        assert manager.describe() == before
        # A call that raised is in no journal, so that it must not show in the digest that a rerun compares.
        assert manager.state_digest() == digest
        assert manager.probe_reuse(None, [*text, 9]) == num_found
        kv_cache.beam_width = 8
        manager.check_invariants()
        kv_cache.close()


def test_resume_without_room_for_the_last_beam_keeps_the_stream() -> None:
    """Four slots on the GPU; three beams need one each, and another sequence has two of them: two beams could be resumed."""
    device = HostDevice()
    with KVCacheManager(tiered_config(4, [("host", 8)]), device=device) as manager, manager.create_kv_cache() as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(2)
        kv_cache.beam_width = 3
        assert kv_cache.resize(3, 2)
        kv_cache.suspend()
        stream = device.create_stream()
        with manager.create_kv_cache() as other:
            assert other.resume() and other.resize(8)
            assert not kv_cache.resume(stream)
            manager.check_invariants()
            assert kv_cache.cuda_stream == device.default_stream() and not kv_cache.is_active
        assert kv_cache.resume()
        manager.check_invariants()
        device.destroy_stream(stream)
