"""One step shares its prefixes: `publish_planned` offers blocks before they are computed, and other sequences of the step read them."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from small_models import config_of, manager_of, run_prompt, used_slots
from tiered_models import tiered_config

from kv_cache_manager_v2 import (
    HostDevice,
    KVCacheEventManager,
    KVCacheManager,
    LogicError,
    PlannedTokensLost,
    ReuseScope,
    SwaScratchReuseConfig,
)
from kv_cache_manager_v2.replay.rerun import rerun
from kv_cache_manager_v2.testing import FakeEngine, RaceError, SimulatedDevice, Step

PROMPT = list(range(100, 112))
"""Three blocks of 4 tokens."""


def indices(kv_cache: Any, group: int = 0) -> list[int]:
    found: list[int] = kv_cache.get_base_page_indices(group).tolist()
    return found


def begin(manager: KVCacheManager, tokens: Sequence[Any], capacity: int | None = None, **arguments: Any) -> Any:
    """An active sequence with room for all of ``tokens``."""
    kv_cache = manager.create_kv_cache(input_tokens=tokens, **arguments)
    assert kv_cache.resume()
    assert kv_cache.resize(len(tokens) if capacity is None else capacity)
    return kv_cache


def plan(manager: KVCacheManager, tokens: Sequence[Any], **arguments: Any) -> Any:
    """The same; what is not there yet is planned."""
    kv_cache = begin(manager, tokens, **arguments)
    kv_cache.publish_planned(list(tokens)[kv_cache.num_committed_tokens :])
    manager.check_invariants()
    return kv_cache


def close_all(manager: KVCacheManager, *kv_caches: Any) -> None:
    for kv_cache in kv_caches:
        kv_cache.close()
        manager.check_invariants()


# -- what is offered and matched -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stays", [True, False])
def test_four_equal_prompts_of_one_step_are_computed_once(stays: bool) -> None:
    """Three blocks once; each of the readers adds one page for the token behind them: 3 + 4 slots."""
    with manager_of(allow_seq_rebasing=not stays) as manager:
        writer = begin(manager, [*PROMPT, 1])
        assert writer.publish_planned([*PROMPT, 1]) == 12
        readers = [manager.create_kv_cache(input_tokens=[*PROMPT, 7]) for _number in range(3)]
        for reader in readers:
            assert reader.num_committed_tokens == 12 and reader.committed_tokens == PROMPT
            assert reader.match_info.planned_tokens == 12 and reader.match_info.attention_tokens == 12
            assert reader.resume() and reader.resize(13)
            assert indices(reader)[:3] == indices(writer)[:3]
        manager.check_invariants()
        assert used_slots(manager) == 7
        writer.commit([*PROMPT, 1])
        before = [indices(reader) for reader in readers]
        for reader in readers:
            reader.commit([7])
            manager.check_invariants()
        assert [indices(reader) for reader in readers] == before
        assert used_slots(manager) == 7
        assert manager.probe_reuse(input_tokens=PROMPT) == 12
        close_all(manager, writer, *readers)


def test_only_full_blocks_that_are_not_there_are_offered() -> None:
    """Of 14 tokens: block 0 is in the tree, blocks 1 and 2 are offered, the last two tokens fill no block."""
    with manager_of() as manager:
        writer = begin(manager, [*PROMPT, 1, 2])
        other = begin(manager, PROMPT[:4])
        other.commit(PROMPT[:4])
        assert writer.publish_planned([*PROMPT, 1, 2]) == 8
        assert writer.publish_planned([*PROMPT, 1, 2]) == 0
        manager.check_invariants()
        with manager.create_kv_cache(input_tokens=PROMPT) as reader:
            assert reader.num_committed_tokens == 12 and reader.match_info.planned_tokens == 8
            manager.check_invariants()
            writer.commit(PROMPT)
            manager.check_invariants()
            assert reader.resume() and indices(reader) == indices(writer)[:3] and indices(reader)[0] == indices(other)[0]
        close_all(manager, writer, other)


def test_what_another_has_planned_is_not_offered_again() -> None:
    """Both have pages for the same three blocks; what the second has behind them is of use only once they are committed."""
    with manager_of() as manager:
        longer = [*PROMPT, 1, 2, 3, 4]
        first, second = begin(manager, PROMPT), begin(manager, longer)
        assert first.publish_planned(PROMPT) == 12
        assert second.publish_planned(longer) == 0
        with manager.create_kv_cache(input_tokens=longer) as reader:
            assert reader.num_committed_tokens == 12
            assert reader.resume() and indices(reader) == indices(first)
            # The second commits before the first: its blocks are in the tree, and the reader still waits for the first.
            second.commit(longer)
            manager.check_invariants()
            with pytest.raises(LogicError, match=f"sequence {first.id} has planned"):
                reader.stop_committing()
            first.commit(PROMPT)
            manager.check_invariants()
            assert reader.resize(16)
            reader.commit([1, 2, 3, 4])
            manager.check_invariants()
        close_all(manager, first, second)


def test_two_may_plan_the_same_behind_a_block_that_one_has_planned_and_a_third_published() -> None:
    """Block 0 is planned by the first and then published by a third; both others plan block 1 below their own block 0."""
    with manager_of() as manager:
        first, third, second = begin(manager, PROMPT[:8]), begin(manager, PROMPT[:4]), begin(manager, PROMPT[:8])
        assert first.publish_planned(PROMPT[:8]) == 8
        early = manager.create_kv_cache(input_tokens=PROMPT[:8])
        third.commit(PROMPT[:4])
        second.commit(PROMPT[:4])
        assert second.publish_planned(PROMPT[4:8]) == 4
        late = manager.create_kv_cache(input_tokens=PROMPT[:8])
        manager.check_invariants()
        first.commit(PROMPT[:4])
        manager.check_invariants()
        assert late.resume() and early.resume()
        for commits in (second, first):
            commits.commit(PROMPT[4:8])
            manager.check_invariants()
        assert early.match_info.planned_tokens == 8 and late.match_info.planned_tokens == 4
        close_all(manager, late, early, first, second, third)


def test_a_reader_may_plan_what_follows() -> None:
    """A chain: the second step of the prefix is planned by a reader of the first; it commits after its writer."""
    with manager_of() as manager:
        first = plan(manager, PROMPT)
        second = begin(manager, [*PROMPT, 1, 2, 3, 4])
        assert second.publish_planned([1, 2, 3, 4]) == 4
        third = begin(manager, [*PROMPT, 1, 2, 3, 4, 5])
        assert third.match_info.planned_tokens == 16
        manager.check_invariants()
        with pytest.raises(LogicError, match="planned"):
            second.commit([1, 2, 3, 4])
        first.commit(PROMPT)
        second.commit([1, 2, 3, 4])
        manager.check_invariants()
        third.commit([5])
        close_all(manager, first, second, third)
        assert manager.probe_reuse(input_tokens=[*PROMPT, 1, 2, 3, 4, 5]) == 17


def test_planned_blocks_match_whole_only() -> None:
    """A prompt that parts from the planned text inside block 2 gets two blocks, one that ends inside block 1 gets one."""
    with manager_of() as manager:
        writer = plan(manager, PROMPT)
        for prompt, found in (([*PROMPT[:10], 7, 7], 8), (PROMPT[:7], 4), ([7, *PROMPT], 0)):
            with manager.create_kv_cache(input_tokens=prompt) as reader:
                assert reader.num_committed_tokens == found
                manager.check_invariants()
        with manager.create_kv_cache(ReuseScope(3), PROMPT) as reader:
            assert reader.num_committed_tokens == 0
        close_all(manager, writer)


@pytest.mark.parametrize("enable_partial_reuse", [True, False])
def test_other_matches_stay_as_they_are(enable_partial_reuse: bool) -> None:
    """A published block that shares three tokens of block 1 is longer than the planned whole one, unless that goes on."""
    with manager_of(enable_partial_reuse=enable_partial_reuse) as manager:
        run_prompt(manager, [*PROMPT[:7], 9]).close()
        writer = plan(manager, PROMPT)
        with manager.create_kv_cache(input_tokens=PROMPT[:7]) as reader:
            assert reader.num_committed_tokens == (7 if enable_partial_reuse else 4)
            assert reader.match_info.planned_tokens == 0
        with manager.create_kv_cache(input_tokens=PROMPT) as reader:
            assert reader.num_committed_tokens == 12 and reader.match_info.planned_tokens == 8
            manager.check_invariants()
        close_all(manager, writer)


def test_probes_leave_planned_tokens_out_unless_asked() -> None:
    with manager_of(enable_partial_reuse=False) as manager:
        writer = plan(manager, PROMPT)
        assert manager.probe_reuse(None, PROMPT) == 0
        assert manager.probe_reuse(None, PROMPT, include_planned=True) == 12
        writer.commit(PROMPT[:5])
        assert manager.probe_reuse(None, PROMPT) == 4
        assert manager.probe_reuse(None, PROMPT, include_planned=True) == 12
        close_all(manager, writer)


def test_a_backoff_is_taken_off_planned_tokens_too() -> None:
    """12 tokens of content less 1 leave 11: two whole blocks."""
    with manager_of(reuse_match_backoff=1) as manager:
        writer = plan(manager, PROMPT)
        with manager.create_kv_cache(input_tokens=PROMPT) as reader:
            assert reader.num_committed_tokens == 8
        close_all(manager, writer)


def test_windows_need_their_pages() -> None:
    """A window of 6 at length 12 reads blocks 1 and 2; the writer, computing block by block, releases block 0 at 10 tokens."""
    with manager_of([None, 6]) as manager:
        writer = plan(manager, [*PROMPT, 1, 2, 3, 4])
        with manager.create_kv_cache(input_tokens=PROMPT) as early:
            assert early.num_committed_tokens == 12 and early.resume()
            manager.check_invariants()
            writer.commit(PROMPT)
            manager.check_invariants()
            with manager.create_kv_cache(input_tokens=PROMPT[:5]) as short:
                assert short.match_info.planned_tokens == 0
            with manager.create_kv_cache(input_tokens=[*PROMPT, 1, 2, 3, 4]) as late:
                assert late.num_committed_tokens == 16 and late.match_info.planned_tokens == 4
                writer.commit([1, 2, 3, 4])
                manager.check_invariants()
                assert late.resume()
        close_all(manager, writer)


def test_scratch_blocks_are_not_matched() -> None:
    """Of a step of 64 tokens with a window of 8 the windowed layers keep the last blocks only: a prompt of 64 finds all, one of 32 none."""
    tokens = list(range(64))
    settings = SwaScratchReuseConfig(max_rewind_len=0)
    with manager_of([None, 8], swa_scratch_reuse=settings) as manager:
        writer = plan(manager, tokens)
        assert writer.has_scratch_slots
        with manager.create_kv_cache(input_tokens=tokens) as reader:
            assert reader.num_committed_tokens == 64
        with manager.create_kv_cache(input_tokens=tokens[:32]) as reader:
            assert reader.num_committed_tokens == 0
        writer.commit(tokens)
        close_all(manager, writer)


@pytest.mark.parametrize("windows", [[None, 3], [3], [None, 8], [None, 1], [5, 8]], ids=str)
@pytest.mark.parametrize("num_tokens", [30, 32, 33, 62, 64])
def test_as_many_tokens_are_planned_as_some_prompt_matches(windows: list[int | None], num_tokens: int) -> None:
    """Whichever blocks the step computes in scratch slots: a scheduler that goes by the number waits for no more than there will be."""
    tokens = list(range(num_tokens))
    with manager_of(windows, swa_scratch_reuse=SwaScratchReuseConfig(max_rewind_len=0)) as manager:
        writer = manager.create_kv_cache(input_tokens=tokens)
        assert writer.resume() and writer.resize(num_tokens)
        num_planned = writer.publish_planned(tokens)
        matches = [manager.probe_reuse(input_tokens=tokens[:end] + [99], include_planned=True) for end in range(num_tokens + 1)]
        assert num_planned == max(matches)
        close_all(manager, writer)


def test_digests_are_planned_like_ids() -> None:
    tokens: list[Any] = [1, b"image", 3, 4, 5, b"other", 7, 8]
    with manager_of() as manager:
        writer = plan(manager, tokens)
        with manager.create_kv_cache(input_tokens=tokens) as reader:
            assert reader.num_committed_tokens == 8 and reader.committed_tokens == tokens
            writer.commit(tokens[:6])
            manager.check_invariants()
            assert reader.committed_tokens == tokens
        manager.check_invariants()
        close_all(manager, writer)
        again = plan(manager, [9, b"third", 9, 9])
        close_all(manager, again)


# -- nothing is told before the commit -----------------------------------------------------------------------------------


def test_events_come_with_the_commit() -> None:
    events = KVCacheEventManager(1000)
    with KVCacheManager(config_of(), device=HostDevice(), event_manager=events) as manager:
        writer = plan(manager, PROMPT, custom_priority_callback=lambda ordinal, life_cycle: 50)
        reader = manager.create_kv_cache(input_tokens=PROMPT, custom_priority_callback=lambda ordinal, life_cycle: 90)
        events.flush_iteration_events()
        stored = [event for event in events.get_latest_events(0) if "Stored" in type(event.data).__name__]
        assert stored == []
        writer.commit(PROMPT)
        events.flush_iteration_events()
        data = [event.data for event in events.get_latest_events(0)]
        assert sum(len(one.blocks) for one in data if hasattr(one, "blocks")) == 3
        close_all(manager, writer, reader)


def test_statistics_count_planned_hits_apart() -> None:
    with manager_of() as manager:
        writer = plan(manager, PROMPT)
        reader = begin(manager, [*PROMPT, 1])
        usage = reader.statistics
        assert usage.prompts.tokens == 13 and usage.prompts.num_hit == 12 and usage.prompts.planned_tokens == 12
        assert usage.layer_groups[0].reused_planned == 3 and usage.layer_groups[0].reused_full == 0 and usage.reused == 3
        assert writer.statistics.prompts.planned_tokens == 0
        close_all(manager, reader, writer)


# -- streams and order ---------------------------------------------------------------------------------------------------


def test_a_reader_is_resumed_on_its_writers_stream() -> None:
    device = SimulatedDevice(1)
    config = config_of()
    with KVCacheManager(config, device=device) as manager:
        other = device.create_stream()
        writer = plan(manager, PROMPT, id=41)
        reader = manager.create_kv_cache(input_tokens=PROMPT)
        assert not reader.resume(other)
        refusal = manager.last_refusal
        assert refusal is not None and "sequence 41" in refusal.text
        assert reader.status is reader.Status.SUSPENDED
        writer.cuda_stream = writer.cuda_stream
        assert reader.resume(writer.cuda_stream)
        for one in (reader, writer):
            with pytest.raises(LogicError, match="planned"):
                one.cuda_stream = other
        reader.suspend()
        assert not reader.resume(other)
        writer.commit(PROMPT)
        assert reader.resume(other)
        writer.cuda_stream = other
        close_all(manager, reader, writer)
    device.close()


@pytest.mark.parametrize("windows", [(None,), (None, 6)])
@pytest.mark.parametrize("order", ["together", "reader listed first", "writer first"])
def test_one_step_computes_and_reads(windows: tuple[int | None, ...], order: str) -> None:
    """Every byte is checked: the reader reads what the writer writes in the same step, in one launch or in two."""
    device = SimulatedDevice(1)
    config = config_of(windows)
    with KVCacheManager(config, device=device) as manager, FakeEngine(config, device) as engine:
        # Pages that were used before: stale bytes must not pass for new ones.
        used = run_prompt(manager, list(range(500, 620)))
        used.close()
        manager.clear_reusable_blocks()
        writer = plan(manager, PROMPT)
        reader = begin(manager, [*PROMPT, 1, 2])
        first, second = Step(writer, PROMPT, []), Step(reader, [1, 2], PROMPT)
        if order == "writer first":
            engine.execute([first])
            engine.execute([second])
        else:
            engine.execute([first, second] if order == "together" else [second, first])
        writer.commit(PROMPT)
        reader.commit([1, 2])
        engine.synchronize()
        close_all(manager, reader, writer)
    assert engine.mismatches == 0 and list(device.races) == []
    device.close()


@pytest.mark.parametrize("is_used", [True, False])
def test_a_read_before_the_write_is_a_race(is_used: bool) -> None:
    """Also of slots that have old bytes."""
    device = SimulatedDevice(1)
    config = config_of(num_slots=8)
    with KVCacheManager(config, device=device) as manager:
        engine = FakeEngine(config, device, raise_on_mismatch=False)
        if is_used:
            used = begin(manager, list(range(500, 532)))
            engine.execute([Step(used, list(range(500, 532)), [])])
            used.close()
        writer = plan(manager, PROMPT)
        reader = begin(manager, [*PROMPT, 1])
        with pytest.raises(RaceError, match="not written"):
            engine.execute([Step(reader, [1], PROMPT)])
        close_all(manager, reader, writer)
        engine.close()
    device.close()


# -- what the writer and its readers may do ------------------------------------------------------------------------------


def test_a_reader_waits_with_its_commit() -> None:
    with manager_of() as manager:
        writer = plan(manager, PROMPT, id=41)
        reader = begin(manager, [*PROMPT, 1, 2])
        before = manager.describe()
        for call in (
            lambda: reader.commit_input(1),
            lambda: reader.commit([1]),
            lambda: reader.commit([1, 2]),
            lambda: reader.commit([], is_end=True),
            lambda: reader.stop_committing(),
            lambda: manager.commit_batch([reader], [1]),
        ):
            with pytest.raises(LogicError, match="sequence 41 has planned"):
                call()
            assert manager.describe() == before
        writer.commit(PROMPT[:11])
        with pytest.raises(LogicError, match="sequence 41 has planned"):
            reader.commit([1])
        writer.commit(PROMPT[11:])
        reader.commit([1])
        manager.check_invariants()
        close_all(manager, reader, writer)


def test_a_reader_that_closes_publishes_nothing() -> None:
    with manager_of() as manager:
        writer = plan(manager, PROMPT)
        reader = begin(manager, [*PROMPT, 1, 2])
        reader.close()
        manager.check_invariants()
        assert manager.probe_reuse(input_tokens=PROMPT) == 0
        writer.commit(PROMPT)
        assert manager.probe_reuse(input_tokens=[*PROMPT, 1, 2]) == 12
        close_all(manager, writer)
        assert used_slots(manager) == 3


def test_a_writer_commits_what_it_has_planned() -> None:
    with manager_of() as manager:
        writer = plan(manager, PROMPT)
        before = manager.describe()
        for wrong in ([7], [*PROMPT[:3], 7], [*PROMPT[:8], 7]):
            with pytest.raises(ValueError, match="planned"):
                writer.commit(wrong)
            with pytest.raises(ValueError, match="planned"):
                writer.publish_planned(wrong)
        with pytest.raises(ValueError, match="planned"):
            manager.commit_batch([writer], [7])
        assert manager.describe() == before
        # Taken back by a smaller capacity, they may be others.
        assert writer.resize(3) and writer.resize(12)
        writer.commit([*PROMPT[:3], 7])
        manager.check_invariants()
        close_all(manager, writer)


@pytest.mark.parametrize("num_planned", [1, 3])
def test_neither_is_forked_widened_or_lent(num_planned: int) -> None:
    prompt = PROMPT[: 4 * num_planned]
    with manager_of() as manager:
        writer = plan(manager, prompt)
        reader = begin(manager, [*prompt, 1])
        before = manager.describe()
        for one in (writer, reader):

            def widen(kv_cache: Any = one) -> None:
                kv_cache.beam_width = 2

            def commit_nodes(kv_cache: Any = one) -> None:
                kv_cache.commit_tree([100], [kv_cache.num_committed_tokens])

            for call in (one.fork, widen, one.reserve_transfer, commit_nodes):
                with pytest.raises(LogicError, match="planned"):
                    call()
        assert manager.describe() == before
        writer.commit(prompt)
        for one in (writer, reader):
            one.reserve_transfer().settle()
            one.fork().close()
        close_all(manager, reader, writer)


def test_only_an_unshared_committing_sequence_may_plan() -> None:
    with manager_of() as manager:
        kv_cache: Any = manager.create_kv_cache()
        with pytest.raises(LogicError, match="ACTIVE"):
            kv_cache.publish_planned(PROMPT)
        assert kv_cache.resume() and kv_cache.resize(12)
        with pytest.raises(ValueError, match="capacity of 12"):
            kv_cache.publish_planned([*PROMPT, 1])
        with pytest.raises(TypeError):
            kv_cache.publish_planned("text")
        with pytest.raises(ValueError):
            kv_cache.publish_planned([-1, *PROMPT[1:]])
        with kv_cache.fork():
            with pytest.raises(LogicError, match="fork or a lease"):
                kv_cache.publish_planned(PROMPT)
        lease = kv_cache.reserve_transfer()
        with pytest.raises(LogicError, match="fork or a lease"):
            kv_cache.publish_planned(PROMPT)
        lease.settle()
        kv_cache.beam_width = 2
        with pytest.raises(LogicError, match="2 beams"):
            kv_cache.publish_planned(PROMPT)
        kv_cache.beam_width = 1
        assert kv_cache.resize(12, 0)
        assert kv_cache.publish_planned([]) == 0
        assert kv_cache.publish_planned(PROMPT) == 12
        kv_cache.stop_committing()
        with pytest.raises(LogicError, match="stop_committing"):
            kv_cache.publish_planned(PROMPT)
        manager.check_invariants()
        kv_cache.close()
        with pytest.raises(LogicError, match="close"):
            kv_cache.publish_planned(PROMPT)


# -- taken back ----------------------------------------------------------------------------------------------------------


def take_back_by(how: str, writer: Any) -> None:
    if how == "suspend":
        writer.suspend()
    elif how == "close":
        writer.close()
    elif how == "rewind":
        writer.rewind(0)
    elif how == "stop":
        writer.stop_committing()
    else:
        assert writer.resize(3)


@pytest.mark.parametrize("is_active", [True, False])
@pytest.mark.parametrize("how", ["suspend", "close", "rewind", "stop", "resize"])
def test_readers_of_what_is_taken_back_are_void(how: str, is_active: bool) -> None:
    """Their pages are free at once; all they can do is end."""
    with manager_of() as manager:
        writer = plan(manager, PROMPT)
        reader = manager.create_kv_cache(input_tokens=[*PROMPT, 1])
        if is_active:
            assert reader.resume() and reader.resize(13)
        take_back_by(how, writer)
        manager.check_invariants()
        assert manager.probe_reuse(None, PROMPT, include_planned=True) == 0

        def set_width() -> None:
            reader.beam_width = 1

        def set_stream() -> None:
            reader.cuda_stream = 0

        def set_scratch() -> None:
            reader.enable_swa_scratch_reuse = False

        calls: list[Any] = [reader.resume, reader.prefetch]
        if is_active:
            calls = [
                lambda: reader.resize(14),
                lambda: reader.commit([1]),
                lambda: reader.commit([1], is_end=True),
                lambda: reader.commit_input(),
                lambda: reader.commit_tree([1], [0]),
                lambda: reader.publish_planned([1]),
                lambda: reader.reorder_beams([0]),
                lambda: reader.reserve_transfer(),
                lambda: manager.resize_batch([reader], [14]),
                lambda: manager.commit_batch([reader], [1]),
            ]
        calls += [
            lambda: reader.rewind(0),
            reader.fork,
            reader.stop_committing,
            reader.plan_committed_block_drop,
            set_width,
            set_stream,
            set_scratch,
            lambda: reader.set_base_page_index_buf(0, 0, None),
            lambda: manager.can_finish([reader], [1]),
        ]
        before = manager.describe()
        for call in calls:
            with pytest.raises(PlannedTokensLost) as lost:
                call()
            assert lost.value.valid_tokens == 0
        assert manager.describe() == before
        assert reader.committed_tokens == [] and reader.num_committed_tokens == 0 and indices(reader) == []
        if is_active:
            reader.suspend()
        manager.check_invariants()
        close_all(manager, reader, writer)
        assert manager.probe_reuse(input_tokens=PROMPT) == 0


def test_slots_of_void_readers_wait_for_what_they_have_enqueued() -> None:
    """Four slots, three of them the writer's. The reader's own block is free once the plan is taken back, and the next sequence, on another
    stream, must wait before it writes there."""
    device = SimulatedDevice(1)
    config = config_of(num_slots=4)
    with KVCacheManager(config, device=device) as manager:
        engine = FakeEngine(config, device, raise_on_mismatch=False)
        writer = plan(manager, PROMPT)
        reader = begin(manager, [*PROMPT, 1])
        engine.execute([Step(writer, PROMPT, []), Step(reader, [1], PROMPT)])
        own = indices(reader)[3]
        writer.suspend()
        stream = device.create_stream()
        other = manager.create_kv_cache()
        assert other.resume(stream) and other.resize(4)
        assert indices(other) == [own]
        engine.execute([Step(other, [7, 8, 9], [])])
        close_all(manager, other, reader, writer)
        assert list(device.races) == []
        engine.close()
        device.destroy_stream(stream)
    device.close()


def test_what_was_committed_stays_valid() -> None:
    """Block 0 is confirmed, blocks 1 and 2 are taken back: 4 tokens are valid."""
    with manager_of() as manager:
        writer = plan(manager, PROMPT)
        reader, further = begin(manager, [*PROMPT, 1]), begin(manager, [*PROMPT[:4], 1])
        writer.commit(PROMPT[:4])
        manager.check_invariants()
        writer.suspend()
        manager.check_invariants()
        with pytest.raises(PlannedTokensLost) as lost:
            reader.commit([1])
        assert lost.value.valid_tokens == 4 and reader.committed_tokens == PROMPT[:4]
        further.commit([1])
        manager.check_invariants()
        close_all(manager, reader, writer, further)


def test_a_smaller_capacity_takes_back_from_there_on() -> None:
    """Room for 9 tokens: blocks 0 and 1 stay planned, block 2 and what a reader has planned below it do not."""
    with manager_of() as manager:
        writer = plan(manager, PROMPT)
        chained = begin(manager, [*PROMPT, 1, 2, 3, 4])
        assert chained.publish_planned([1, 2, 3, 4]) == 4
        last = manager.create_kv_cache(input_tokens=[*PROMPT, 1, 2, 3, 4])
        short = manager.create_kv_cache(input_tokens=PROMPT[:8])
        assert last.num_committed_tokens == 16
        assert writer.resize(9)
        manager.check_invariants()
        for lost_reader in (chained, last):
            with pytest.raises(PlannedTokensLost) as lost:
                lost_reader.rewind(0)
            assert lost.value.valid_tokens == 8
        assert short.resume()
        writer.commit(PROMPT[:8])
        manager.check_invariants()
        # Void for good, though what is left of it is published by now.
        with pytest.raises(PlannedTokensLost):
            chained.resize(20)
        close_all(manager, last, chained, short, writer)


def test_a_batch_changes_nothing_where_a_reader_would_be_lost() -> None:
    with manager_of() as manager:
        writer = plan(manager, PROMPT)
        reader = begin(manager, [*PROMPT, 1])
        bystander = begin(manager, [5, 6])
        before = manager.describe()
        with pytest.raises(LogicError, match="takes back"):
            manager.resize_batch([bystander, writer, reader], [3, 5, 14])
        assert manager.describe() == before
        writer.suspend()
        before = manager.describe()
        with pytest.raises(PlannedTokensLost):
            manager.resize_batch([bystander, reader], [3, 14])
        with pytest.raises(PlannedTokensLost):
            manager.commit_batch([bystander, reader], [5, 1])
        assert manager.describe() == before
        close_all(manager, bystander, reader, writer)


def test_a_scratch_block_takes_back_its_plan() -> None:
    """A step of 32 tokens becomes one of 64: blocks 0 to 13 of the windowed layers share scratch slots now, and are not written."""
    tokens = list(range(64))
    with manager_of([None, 8], swa_scratch_reuse=SwaScratchReuseConfig(max_rewind_len=8)) as manager:
        writer = begin(manager, tokens[:8])
        assert not writer.has_scratch_slots and writer.publish_planned(tokens[:8]) == 8
        reader = manager.create_kv_cache(input_tokens=tokens[:8])
        assert reader.num_committed_tokens == 8
        assert writer.resize(64, 0)
        assert writer.has_scratch_slots
        manager.check_invariants()
        with pytest.raises(PlannedTokensLost):
            reader.resume()
        close_all(manager, reader, writer)


def test_a_forgotten_writer_takes_back_too() -> None:
    with manager_of() as manager:
        writer = plan(manager, PROMPT)
        reader = manager.create_kv_cache(input_tokens=PROMPT)
        with pytest.warns(ResourceWarning):
            del writer
        manager.probe_reuse()
        manager.create_kv_cache().close()
        manager.check_invariants()
        with pytest.raises(PlannedTokensLost):
            reader.resume()
        close_all(manager, reader)


# -- together with the rest ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("lower", [(), (("host", 40),)])
def test_random_steps_share_and_every_byte_is_right(stays: bool, lower: tuple[tuple[str, int], ...], tmp_path: Path) -> None:
    """Steps of several prompts with common beginnings, on two streams, in a small cache; the journal repeats all decisions."""
    randomness = random.Random(3)
    device = SimulatedDevice(1)
    config = tiered_config(40, lower, windows=[None, 9], allow_seq_rebasing=not stays, swa_scratch_reuse=None)
    path = tmp_path / "steps.journal"
    num_planned = num_void = 0
    with KVCacheManager(config, device=device, journal=str(path)) as manager, FakeEngine(config, device) as engine:
        streams = [device.default_stream(), device.create_stream()]
        for _number in range(60):
            stem = [randomness.randrange(2) for _token in range(randomness.choice([4, 8, 12]))]
            running: list[tuple[Any, list[int]]] = []
            stream = randomness.choice(streams)
            for _sequence in range(randomness.randrange(2, 5)):
                tail = [randomness.randrange(2) for _token in range(randomness.randrange(1, 6))]
                text = stem[: randomness.randrange(len(stem) + 1)] + tail
                kv_cache = manager.create_kv_cache(input_tokens=text[:-1])
                if not kv_cache.resume(stream) or not kv_cache.resize(len(text)):
                    kv_cache.close()
                    continue
                num_planned += kv_cache.match_info.planned_tokens
                kv_cache.publish_planned(text[kv_cache.num_committed_tokens :])
                manager.check_invariants()
                running.append((kv_cache, text))
            if randomness.random() < 0.3 and running:
                victim, _text = running.pop(randomness.randrange(len(running)))
                victim.close()
                manager.check_invariants()
            steps = []
            for kv_cache, text in list(running):
                if kv_cache.capacity < len(text):
                    with pytest.raises(PlannedTokensLost):
                        kv_cache.resize(len(text))
                    running.remove((kv_cache, text))
                    kv_cache.close()
                    num_void += 1
                    continue
                done = kv_cache.num_committed_tokens
                steps.append(Step(kv_cache, text[done:], text[:done]))
            randomness.shuffle(steps)
            engine.execute(steps)
            for kv_cache, text in running:
                kv_cache.commit(text[kv_cache.num_committed_tokens :])
                manager.check_invariants()
            for kv_cache, _text in running:
                kv_cache.close()
            manager.check_invariants()
        engine.synchronize()
        digest = manager.state_digest()
    assert num_planned > 100 and num_void > 0 and engine.mismatches == 0 and list(device.races) == []
    device.close()
    again = rerun(path, SimulatedDevice(1), check_invariants=True)
    assert again.digest == digest


def test_a_recurrent_model_plans_nothing() -> None:
    """A prefix is of use there only with the state at its end, which no sequence has before it is computed."""
    from hybrid_models import hybrid_config

    with KVCacheManager(hybrid_config(), device=HostDevice()) as manager:
        writer = begin(manager, PROMPT)
        assert writer.publish_planned(PROMPT) == 0
        with manager.create_kv_cache(input_tokens=PROMPT) as reader:
            assert reader.num_committed_tokens == 0
        close_all(manager, writer)
