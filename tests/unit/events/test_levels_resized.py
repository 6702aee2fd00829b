"""Another size of a level is told of by the groups that it concerns, in order with what happened before and after; scopes are forgotten."""

from typing import Any

from small_models import config_of, run_prompt

from kv_cache_manager_v2 import (
    HostDevice,
    KVCacheCreatedData,
    KVCacheEventIndex,
    KVCacheEventManager,
    KVCacheManager,
    KVCacheStoredData,
    ReuseScope,
)


def test_groups_whose_slots_changed_say_so() -> None:
    events = KVCacheEventManager(100)
    with KVCacheManager(config_of((None, 8), num_slots=20), device=HostDevice(), event_manager=events) as manager:
        sink = manager._shared.storage.sink
        assert sink is not None
        run_prompt(manager, range(4)).close()
        sink.on_levels_resized([(20,), (30,)])
        run_prompt(manager, range(100, 104)).close()
        events.flush_iteration_events()
        index = KVCacheEventIndex()
        index.apply(events.get_latest_events())
        # One event for each group at first, and after the first prompt one for the second group, in the middle.
        assert index.num_blocks_per_cache_level == {0: [20], 1: [30]} and index.last_event_id == 6
        snapshot = events.snapshot()
        again = KVCacheEventIndex()
        again.apply_snapshot(snapshot)
        assert again.num_blocks_per_cache_level == {0: [20], 1: [30]}
        sink.on_levels_resized([(20,), (30,)])
        events.flush_iteration_events()
        assert events.get_latest_events() == []


def test_it_does_not_merge_into_what_surrounds_it() -> None:
    events = KVCacheEventManager(100)
    with KVCacheManager(config_of(num_slots=20), device=HostDevice(), event_manager=events) as manager:
        events.get_latest_events()
        sink = manager._shared.storage.sink
        assert sink is not None
        run_prompt(manager, range(4)).close()
        sink.on_levels_resized([(7,)])
        run_prompt(manager, range(8)).close()
        events.flush_iteration_events()
        kinds = [type(event.data) for event in events.get_latest_events()]
        assert kinds == [KVCacheStoredData, KVCacheCreatedData, KVCacheStoredData]


def test_nothing_is_kept_of_a_scope_whose_blocks_have_gone() -> None:
    events: Any = KVCacheEventManager(100)
    with KVCacheManager(config_of(), device=HostDevice(), event_manager=events) as manager:
        for lora_id in range(5):
            run_prompt(manager, range(4), reuse_scope=ReuseScope(lora_id)).close()
            manager.clear_reusable_blocks()
            events.flush_iteration_events()
            assert len(events.get_latest_events()) > 1
        assert len(events._backlog._assembler._roots) == 0
