"""What is kept or open when an epoch ends is never matched again; open sequences go on with their pages, and free them when they end."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from durable_models import PROMPTS, durable_config, next_process
from kv_cache_manager_v2 import (
    DropReason,
    HostDevice,
    KVCache,
    KVCacheEventIndex,
    KVCacheEventManager,
    KVCacheManager,
    LogicError,
    ReuseScope,
)
from kv_cache_manager_v2.replay.rerun import rerun
from kv_cache_manager_v2.shared import MemoryStore
from kv_cache_manager_v2.testing import Step
from lossy_files import LossyDisk
from shared_models import Rank
from small_models import config_of, free_slots, manager_of, run_prompt

TENANT = ReuseScope(salt="tenant")
OTHER = ReuseScope(lora_id=8)
TEXT = list(range(30))


def end_all(manager: KVCacheManager) -> None:
    manager.clear_reusable_blocks()


def end_scope(manager: KVCacheManager) -> None:
    manager.invalidate_reuse_scope(TENANT)


@pytest.fixture(params=[end_all, end_scope])
def end_epoch(request: pytest.FixtureRequest) -> Iterator[Callable[[KVCacheManager], None]]:
    yield request.param


def test_open_sequences_go_on_and_no_other_finds_what_they_commit(end_epoch: Callable[[KVCacheManager], None]) -> None:
    with manager_of(windows=(None, 8), num_slots=96) as manager:
        running = run_prompt(manager, TEXT[:18], reuse_scope=TENANT)
        waiting = run_prompt(manager, TEXT[:10], reuse_scope=TENANT)
        waiting.suspend()
        run_prompt(manager, [7, *TEXT], reuse_scope=TENANT).close()
        before = running.get_base_page_indices(0).tolist()
        end_epoch(manager)
        manager.check_invariants()
        assert [manager.probe_reuse(TENANT, text) for text in (TEXT, [7, *TEXT])] == [0, 0]
        assert running.get_base_page_indices(0).tolist() == before
        assert running.resize(30)
        running.commit(TEXT[18:])
        assert (running.num_committed_tokens, list(running.committed_tokens)) == (30, TEXT)
        assert waiting.resume() and waiting.resize(13)
        waiting.commit(TEXT[10:13])
        manager.check_invariants()
        assert manager.probe_reuse(TENANT, TEXT) == 0
        waiting.close()
        running.close()
        assert manager.probe_reuse(TENANT, TEXT) == 0
        assert free_slots(manager) == 96, "pages of an old epoch are free once their holders are done"
        manager.check_invariants()


def test_what_is_equal_is_not_taken_over_from_another_old_sequence(end_epoch: Callable[[KVCacheManager], None]) -> None:
    """The one may have computed it before the weights changed, and the other after."""
    with manager_of() as manager:
        first = run_prompt(manager, TEXT[:8], reuse_scope=TENANT)
        second = manager.create_kv_cache(TENANT)
        assert second.resume() and second.resize(8)
        own = second.get_base_page_indices(0).tolist()
        end_epoch(manager)
        second.commit(TEXT[:8])
        assert second.get_base_page_indices(0).tolist() == own
        third = run_prompt(manager, TEXT[:8], reuse_scope=TENANT)
        assert manager.probe_reuse(TENANT, TEXT) == 8
        # The old ones end later than the new one publishes: they take nothing away, and add nothing.
        first.close()
        second.close()
        manager.check_invariants()
        assert manager.probe_reuse(TENANT, TEXT) == 8
        third.close()


def test_epochs_may_end_one_after_another(end_epoch: Callable[[KVCacheManager], None]) -> None:
    with manager_of(num_slots=96) as manager:
        kept: list[KVCache] = []
        for epoch in range(3):
            kept.append(run_prompt(manager, TEXT[:9], reuse_scope=TENANT))
            assert kept[-1].match_info.attention_tokens == 0
            end_epoch(manager)
            manager.check_invariants()
        assert manager.probe_reuse(TENANT, TEXT) == 0
        for kv_cache in kept:
            kv_cache.close()
            manager.check_invariants()
        assert free_slots(manager) == 96


def test_other_scopes_are_left_alone() -> None:
    with manager_of(num_slots=96) as manager:
        other = run_prompt(manager, TEXT[:12], reuse_scope=OTHER)
        old = run_prompt(manager, TEXT[:12], reuse_scope=TENANT)
        manager.invalidate_reuse_scope(TENANT)
        assert other.resize(16)
        other.commit(TEXT[12:16])
        assert manager.probe_reuse(OTHER, TEXT) == 16
        old.close()
        other.close()
        assert manager.probe_reuse(OTHER, TEXT) == 16


def test_a_rewound_sequence_is_one_of_the_new_epoch(end_epoch: Callable[[KVCacheManager], None]) -> None:
    with manager_of(num_slots=96) as manager:
        old = run_prompt(manager, TEXT[:12], reuse_scope=TENANT)
        end_epoch(manager)
        assert old.rewind(12) == 0
        run_prompt(manager, TEXT[:8], reuse_scope=TENANT).close()
        again = run_prompt(manager, TEXT[:20], reuse_scope=TENANT)
        end_epoch(manager)
        again.close()
        run_prompt(manager, TEXT[:8], reuse_scope=TENANT).close()
        assert old.resume() and old.resize(12)
        old.commit(TEXT[:12])


def test_forks_beams_and_leases_of_old_sequences(end_epoch: Callable[[KVCacheManager], None]) -> None:
    with manager_of(num_slots=96) as manager:
        parent = run_prompt(manager, TEXT[:10], reuse_scope=TENANT)
        early = parent.fork()
        lease = parent.reserve_transfer(0, 2)
        end_epoch(manager)
        late = parent.fork()
        late_lease = late.reserve_transfer()
        manager.check_invariants()
        for kv_cache, token in ((parent, 70), (early, 71), (late, 72)):
            assert kv_cache.resize(14)
            kv_cache.commit([token] * 4)
            manager.check_invariants()
        late.beam_width = 2
        assert late.resize(17)
        late.commit([5, 6, 7], beam_search_indices=[0, 1, 0])
        manager.check_invariants()
        assert late.stop_committing() is None and late.plan_committed_block_drop() is None
        for kv_cache in (parent, late, early):
            kv_cache.close()
            manager.check_invariants()
        assert free_slots(manager) < 96, "leased pages stay"
        lease.settle()
        late_lease.settle()
        manager.check_invariants()
        assert free_slots(manager) == 96
        assert manager.probe_reuse(TENANT, TEXT) == 0


def test_planned_blocks_are_taken_back(end_epoch: Callable[[KVCacheManager], None]) -> None:
    with manager_of(num_slots=96) as manager:
        writer = manager.create_kv_cache(TENANT)
        assert writer.resume() and writer.resize(12)
        assert writer.publish_planned(TEXT[:12]) == 12
        reader = manager.create_kv_cache(TENANT, TEXT[:12])
        assert reader.num_committed_tokens == 12
        end_epoch(manager)
        manager.check_invariants()
        assert reader.num_committed_tokens == 0
        assert writer.publish_planned(TEXT[:12]) == 0
        writer.commit(TEXT[:12])
        reader.close()
        writer.close()
        assert free_slots(manager) == 96


def test_routers_and_statistics_hear_it_once() -> None:
    events = KVCacheEventManager(200)
    index = KVCacheEventIndex()
    with KVCacheManager(config_of(), device=HostDevice(), event_manager=events) as manager:
        old = run_prompt(manager, TEXT[:12], reuse_scope=TENANT)
        events.flush_iteration_events()
        index.apply(events.get_latest_events())
        assert len(index.blocks()) == 3
        manager.invalidate_reuse_scope(TENANT)
        assert manager.get_statistics().count_drops(DropReason.SCOPE_INVALIDATED) == 3
        events.flush_iteration_events()
        index.apply(events.get_latest_events())
        assert len(index.blocks()) == 0
        assert old.resize(16)
        old.commit(TEXT[12:16])
        old.close()
        events.flush_iteration_events()
        assert events.get_latest_events() == []
        run_prompt(manager, TEXT[:4], reuse_scope=TENANT).close()
        events.flush_iteration_events()
        index.apply(events.get_latest_events())
        assert len(index.blocks()) == 1
        assert manager.get_statistics().count_drops(DropReason.SCOPE_INVALIDATED) == 3


def test_it_runs_again_from_a_journal(tmp_path: Path) -> None:
    journal = tmp_path / "calls.journal"
    with KVCacheManager(config_of(windows=(None, 8)), device=HostDevice(), journal=journal) as manager:
        old = run_prompt(manager, TEXT[:12], reuse_scope=TENANT)
        lasting = run_prompt(manager, TEXT[:12])
        manager.invalidate_reuse_scope(TENANT)
        manager.clear_reusable_blocks()
        for kv_cache in (old, lasting):
            assert kv_cache.resize(20)
            kv_cache.commit(TEXT[12:20])
        old.close()
        run_prompt(manager, TEXT, reuse_scope=TENANT).close()
        lasting.close()
    digest = manager.state_digest()
    assert rerun(journal, HostDevice(), True).digest == digest


def test_levels_that_are_shared_have_other_names_in_another_epoch() -> None:
    store = MemoryStore()
    text = list(range(100, 133))
    with Rank(store) as first, Rank(store) as second:
        assert first.run(text) == 0
        first.drain()
        behind = second.begin(text)
        second.wait(lambda: behind.remote_tokens is not None)
        waiting = first.begin([5, *text])
        assert waiting.kv_cache.resume() and waiting.kv_cache.resize(34)
        first.level.begin_epoch(3)
        # A sequence of before goes on; its request wants, and gives, nothing.
        waiting.kv_cache.commit([5, *text])
        assert (waiting.remote_tokens, waiting.store()) == (0, 0)
        waiting.kv_cache.close()
        assert first.run(text) == 0, "the store has them under the names of another epoch"
        first.drain()
        assert second.run(text) == 32, "a process of the epoch before still finds its own"
        second.level.begin_epoch(3)
        assert behind.remote_tokens == 0
        behind.kv_cache.close()
        assert second.run(text) == 32
        with Rank(store, epoch=3) as third:
            assert (third.level.epoch, third.run(text)) == (3, 32)


@pytest.mark.parametrize("wrong", [0, 2, 3, -1, 2.5, "4", None])
def test_epochs_never_come_back(wrong: Any) -> None:
    with Rank(MemoryStore()) as rank:
        rank.level.begin_epoch(3)
        rank.run(list(range(100, 133)))
        with pytest.raises((ValueError, TypeError), match="epoch"):
            rank.level.begin_epoch(wrong)
        assert rank.level.epoch == 3 and rank.manager.probe_reuse(None, list(range(100, 133))) == 33
    with pytest.raises(LogicError, match="closed"):
        rank.level.begin_epoch(4)


@pytest.mark.parametrize("scope", [None, TENANT])
def test_a_process_that_is_killed_leaves_nothing_of_an_old_epoch(tmp_path: Path, scope: ReuseScope | None) -> None:
    """Open sequences of an old epoch go on, are offloaded to the disk and come back, and what they commit is not restored."""
    disk = LossyDisk()
    config = durable_config(str(tmp_path), gpu_slots=16)
    first, files = next_process(disk, config)
    old = first.manager.create_kv_cache(scope)
    assert old.resume() and old.resize(32)
    first.engine.execute([Step(old, PROMPTS[0], [])])
    old.commit(PROMPTS[0][:20])
    first.settle()
    if scope is None:
        first.manager.clear_reusable_blocks()
    else:
        first.manager.invalidate_reuse_scope(scope)
    old.commit(PROMPTS[0][20:])
    old.suspend()
    # Both need 16 slots with what the first one holds: its pages go to the disk, and come back byte for byte.
    assert [first.run(text, scope) for text in (PROMPTS[1], PROMPTS[2])] == [0, 20]
    first.manager.check_invariants()
    assert old.resume() and old.resize(33, 32)
    first.engine.execute([Step(old, [7], PROMPTS[0])])
    old.suspend()
    first.settle()
    files.kill()
    second, _files = next_process(disk, config)
    assert [second.manager.probe_reuse(scope, text) for text in PROMPTS[:3]] == [20, 32, 32], "20 tokens are those of the new ones too"
    old.close()
    assert [first.manager.probe_reuse(scope, text) for text in PROMPTS[:3]] == [20, 32, 32]
    for process in (first, second):
        process.end()
