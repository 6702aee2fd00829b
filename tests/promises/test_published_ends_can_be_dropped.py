"""The published end of a sequence can be dropped later, by a plan; what others planned, or still use, stays."""

import gc
from typing import Any

import pytest
from hybrid_models import hybrid_config
from small_models import config_of, free_slots, manager_of, run_prompt

from kv_cache_manager_v2 import HostDevice, KVCacheManager, LogicError

LONG = list(range(24))
SHORT = LONG[:8]


def planned(manager: KVCacheManager, text: list[int]) -> Any:
    with run_prompt(manager, text) as kv_cache:
        kv_cache.stop_committing()
        plan = kv_cache.plan_committed_block_drop()
    assert plan is not None
    manager.check_invariants()
    return plan


def test_each_plan_drops_what_no_other_needs() -> None:
    """8 tokens per block, a short text of 8 and a long one of 24 that begins with it, full attention and a window of 8.

    The short one's end is block 0, whose full page the long one needs, and whose windowed page it does not (at 24 its window
    reads 17 .. 24): so the short one matches nothing any more. The long one's end is block 2; 16 tokens remain: block 1 has
    its windowed page still.
    """
    with manager_of([None, 8], tokens_per_block=8) as manager:
        short, long = planned(manager, SHORT), planned(manager, LONG)
        assert (manager.probe_reuse(input_tokens=SHORT), manager.probe_reuse(input_tokens=LONG)) == (8, 24)
        assert short.drop() == 1
        manager.check_invariants()
        assert (manager.probe_reuse(input_tokens=SHORT), manager.probe_reuse(input_tokens=LONG)) == (0, 24)
        assert long.drop() == 2
        manager.check_invariants()
        assert manager.probe_reuse(input_tokens=LONG) == 16
        for plan in (short, long):
            assert plan.is_done
            with pytest.raises(LogicError, match="once"):
                plan.drop()


def test_dropping_the_long_one_first_leaves_the_short_one() -> None:
    with manager_of([None, 8], tokens_per_block=8) as manager:
        short, long = planned(manager, SHORT), planned(manager, LONG)
        assert long.drop() == 2
        assert (manager.probe_reuse(input_tokens=SHORT), manager.probe_reuse(input_tokens=LONG)) == (8, 16)
        short.drop()
        # Block 0's full page went too, and with it what hangs below.
        assert manager.probe_reuse(input_tokens=LONG) == 0
        manager.check_invariants()
        manager.clear_reusable_blocks()
        assert free_slots(manager) == 64


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize(("prompt", "backoff", "content"), [(24, 1, 17), (24, 3, 19), (18, 3, 18), (16, 1, 16), (22, 1, 17)])
def test_a_dropped_end_stays_content(prompt: int, backoff: int, content: int, partial: bool) -> None:
    """8 tokens per block. After the last of three blocks is dropped 16 tokens are there. A backoff is taken off what is known to have been
    published behind one another: those 16, and of the dropped block as many as a backoff can take, as far as the prompt has them.

    Without reuse of parts the match is cut to whole blocks. What ends the epoch also ends that knowledge.
    """
    with manager_of(tokens_per_block=8, reuse_match_backoff=backoff, enable_partial_reuse=partial) as manager:
        plan = planned(manager, LONG)
        asked = [*LONG[:prompt], 99]

        def cut(num_tokens: int) -> int:
            return num_tokens if partial else num_tokens // 8 * 8

        assert plan.drop() == 1
        assert manager.probe_reuse(input_tokens=asked) == cut(min(content - backoff, 16))
        manager.check_invariants()
        manager.clear_reusable_blocks()
        run_prompt(manager, LONG[:16]).close()
        assert manager.probe_reuse(input_tokens=asked) == cut(16 - backoff)


def test_a_snapshot_inside_another_planned_text_goes() -> None:
    """Each text ends with a snapshot of its state. The long one needs the full page of the short one's block, and not its snapshot."""
    with KVCacheManager(hybrid_config(tokens_per_block=8), device=HostDevice()) as manager:
        short, long = planned(manager, SHORT), planned(manager, LONG)
        assert (manager.probe_reuse(input_tokens=SHORT), manager.probe_reuse(input_tokens=LONG)) == (8, 24)
        assert short.drop() == 1
        manager.check_invariants()
        assert (manager.probe_reuse(input_tokens=SHORT), manager.probe_reuse(input_tokens=LONG)) == (0, 24)
        assert long.drop() > 0
        assert manager.probe_reuse(input_tokens=LONG) == 0


def test_a_planned_end_may_be_evicted_with_others_in_one_go() -> None:
    """Six blocks of eight slots; six new ones take four of theirs, the planned end first. The plan then finds nothing to drop."""
    with manager_of(num_slots=8) as manager:
        plan = planned(manager, LONG)
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(24)
            manager.check_invariants()
            assert manager.probe_reuse(input_tokens=LONG) == 8
        manager.check_invariants()
        assert plan.drop() == 0
        manager.check_invariants()
        assert manager.probe_reuse(input_tokens=LONG) == 8
        manager.clear_reusable_blocks()
        assert free_slots(manager) == 8


def test_what_an_open_sequence_uses_stays() -> None:
    with manager_of([None, 8], tokens_per_block=8) as manager:
        plan = planned(manager, LONG)
        with manager.create_kv_cache(input_tokens=LONG) as reader:
            assert reader.num_committed_tokens == 24
            assert plan.drop() == 0
            manager.check_invariants()
        assert manager.probe_reuse(input_tokens=LONG) == 24


def test_a_partial_last_block_is_the_end() -> None:
    """20 tokens, T = 8: block 2 has 4 of them. At 20 a window of 8 reads 13 .. 20: blocks 1 and 2; both windowed pages go."""
    with manager_of([None, 8], tokens_per_block=8) as manager:
        plan = planned(manager, LONG[:20])
        assert plan.drop() == 3
        # Block 1's windowed page is gone: 16 tokens would need it (9 .. 16), 8 need block 0's.
        assert manager.probe_reuse(input_tokens=LONG) == 8
        manager.check_invariants()


def test_a_plan_is_made_after_the_end_is_known() -> None:
    with manager_of() as manager, run_prompt(manager, [1, 2]) as kv_cache:
        with pytest.raises(LogicError, match="stop_committing"):
            kv_cache.plan_committed_block_drop()
        kv_cache.stop_committing()
        plan = kv_cache.plan_committed_block_drop()
        assert plan is not None
        kv_cache.close()
        with pytest.raises(LogicError):
            kv_cache.plan_committed_block_drop()
        plan.cancel()
        plan.cancel()
        manager.check_invariants()
        assert manager.probe_reuse(input_tokens=[1, 2]) == 2
        with pytest.raises(LogicError):
            plan.drop()
        with manager.create_kv_cache() as empty:
            empty.stop_committing()
            assert empty.plan_committed_block_drop() is None


def test_plans_are_void_once_everything_was_dropped_and_forgotten_ones_are_cancelled() -> None:
    with manager_of() as manager:
        plan, forgotten = planned(manager, [1, 2, 3, 4, 5]), planned(manager, [7, 8, 9])
        del forgotten
        gc.collect()
        assert manager.probe_reuse(input_tokens=[7, 8, 9]) == 3
        manager.check_invariants()
        manager.clear_reusable_blocks()
        assert plan.drop() == 0
        late = planned(manager, [1, 2, 3])
    assert late.drop() == 0


def test_evicted_pages_and_plans_get_along() -> None:
    with manager_of(num_slots=4) as manager:
        plan = planned(manager, list(range(16)))
        run_prompt(manager, list(range(100, 116))).close()
        manager.check_invariants()
        assert plan.drop() == 0
        manager.check_invariants()


def test_plans_are_recorded_and_run_again(tmp_path: Any) -> None:
    from kv_cache_manager_v2.replay.rerun import rerun

    path = tmp_path / "journal"
    with KVCacheManager(config_of([None, 8], 8), device=HostDevice(), journal=path) as manager:
        first, second = planned(manager, SHORT), planned(manager, LONG)
        first.cancel()
        second.drop()
        digest = manager.state_digest()
    assert rerun(path, HostDevice(), True).digest == digest
