"""A reuse scope can be declared void as a whole: nothing of it is ever served again, and other scopes go on undisturbed."""

from pathlib import Path
from typing import Any

import pytest
from kv_cache_manager_v2 import (
    DropReason,
    HostDevice,
    KVCacheEventIndex,
    KVCacheEventManager,
    KVCacheManager,
    KVCacheRemovedData,
    LogicError,
    MissCause,
    ReuseScope,
    is_compiled,
)
from kv_cache_manager_v2.replay.rerun import rerun
from small_models import config_of, free_slots, manager_of, run_prompt

ADAPTER = ReuseScope(lora_id=7)
OTHER = ReuseScope(lora_id=8, salt="tenant")


def test_the_scope_is_gone_and_others_are_not():
    with manager_of(windows=(None, 8), num_slots=64) as manager:
        for scope in (None, ADAPTER, OTHER):
            run_prompt(manager, list(range(32)), reuse_scope=scope).close()
        before = free_slots(manager)
        running = run_prompt(manager, list(range(16)), reuse_scope=OTHER)
        manager.invalidate_reuse_scope(ADAPTER)
        manager.check_invariants()
        assert manager.probe_reuse(ADAPTER, list(range(32))) == 0
        assert manager.probe_reuse(None, list(range(32))) == 32
        # 8 blocks of full attention, and the last two of the window: position 32 reads 25 .. 32.
        assert manager.get_statistics().count_drops(DropReason.SCOPE_INVALIDATED) == free_slots(manager) - before >= 10
        again = manager.create_kv_cache(ADAPTER, list(range(32)))
        assert again.statistics.prompts.missed_tokens == {MissCause.DROPPED: 32}
        again.close()
        running.close()
        manager.invalidate_reuse_scope()
        assert manager.probe_reuse(None, list(range(32))) == 0
        assert manager.probe_reuse(OTHER, list(range(32))) == 32


class Tenant(ReuseScope):
    """An engine's own, with what else it knows of a tenant."""


def test_a_scope_of_a_subclass_is_the_same_root():
    if is_compiled():
        with pytest.raises(TypeError, match="ReuseScope object expected"):
            Tenant(8, "tenant")
        return
    with manager_of() as manager:
        run_prompt(manager, list(range(32)), reuse_scope=Tenant(8, "tenant")).close()
        assert Tenant(8, "tenant") == OTHER and hash(Tenant(8, "tenant")) == hash(OTHER)
        assert manager.probe_reuse(OTHER, list(range(32))) == 32
        manager.invalidate_reuse_scope(OTHER)
        assert manager.probe_reuse(Tenant(8, "tenant"), list(range(32))) == 0


def test_a_scope_that_has_nothing_is_fine():
    with manager_of() as manager:
        manager.invalidate_reuse_scope(ADAPTER)
        manager.invalidate_reuse_scope()


def test_routers_hear_why():
    events = KVCacheEventManager(100)
    index = KVCacheEventIndex()
    with KVCacheManager(config_of(), device=HostDevice(), event_manager=events) as manager:
        for scope in (ADAPTER, OTHER):
            run_prompt(manager, list(range(8)), reuse_scope=scope).close()
        events.flush_iteration_events()
        index.apply(events.get_latest_events())
        manager.invalidate_reuse_scope(ADAPTER)
        events.flush_iteration_events()
        found = events.get_latest_events()
        index.apply(found)
        assert [type(event.data) for event in found] == [KVCacheRemovedData]
        removed: Any = found[0].data
        assert removed.reason == "scope_invalidated" and len(removed.block_hashes) == 2
        other = KVCacheEventIndex()
        snapshot = events.snapshot()
        other.apply_snapshot(snapshot)
        assert len(snapshot.events) == 2, "its sizes, and two blocks of the other scope in one piece"


def test_wrong_scopes_are_refused():
    with manager_of() as manager:
        pass
    with pytest.raises(LogicError):
        manager.invalidate_reuse_scope(ADAPTER)


def test_a_leased_block_without_a_page_goes_when_it_is_settled():
    """It was out of window before it was lent, so no page of it is held; it is published later, and the lease pins it."""
    with manager_of(windows=(4,)) as manager:
        kv_cache = manager.create_kv_cache(ADAPTER)
        # With 8 tokens of history the next one reads 5 .. 8: block 0 is stale, and private still.
        assert kv_cache.resume() and kv_cache.resize(12, 8)
        lease = kv_cache.reserve_transfer(0, 1)
        assert lease.get_page_indices(0) == []
        kv_cache.commit(list(range(8)))
        kv_cache.close()
        manager.invalidate_reuse_scope(ADAPTER)
        manager.check_invariants()
        lease.settle()
        manager.check_invariants()
        assert free_slots(manager) == 64


def test_plans_in_the_scope_are_void():
    with manager_of() as manager:
        plans = []
        for scope in (ADAPTER, OTHER):
            kv_cache = run_prompt(manager, list(range(8)), reuse_scope=scope)
            kv_cache.stop_committing()
            plans.append(kv_cache.plan_committed_block_drop())
            kv_cache.close()
        manager.invalidate_reuse_scope(ADAPTER)
        assert [plan.drop() for plan in plans] == [0, 1]


def test_it_is_recorded_and_runs_again(tmp_path: Path):
    journal = tmp_path / "calls.journal"
    with KVCacheManager(config_of(), device=HostDevice(), journal=journal) as manager:
        for scope in (ADAPTER, OTHER, None):
            run_prompt(manager, list(range(8)), reuse_scope=scope).close()
        manager.invalidate_reuse_scope(OTHER)
        manager.invalidate_reuse_scope()
        run_prompt(manager, list(range(12)), reuse_scope=ADAPTER).close()
    digest = manager.state_digest()
    assert rerun(journal, HostDevice(), True).digest == digest
