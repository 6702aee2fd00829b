"""A consumer of a manager's events knows its published blocks: which, on which level, their priority, why one is gone.

Once per block and layer group, in order, merged along paths, named by hashes that consumers can compute. Without a listener: no log.
"""

import dataclasses
import hashlib
import threading
from typing import Any

import pytest
from small_models import config_of, run_prompt

from kv_cache_manager_v2 import (
    HostCacheTierConfig,
    HostDevice,
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheEventIndex,
    KVCacheEventManager,
    KVCacheManager,
    KVCacheRemovedData,
    KVCacheStoredData,
    KVCacheUpdatedData,
    LogicError,
    ReuseScope,
    compute_block_hashes,
    gen_multimodal_cache_key_tokens,
)
from kv_cache_manager_v2.testing.event_follower import EventFollower, find_indexed


def followed(max_entries: int = 1000, hash_algo: str = "sha256", **settings: Any) -> Any:
    events = KVCacheEventManager(max_entries, hash_algo=hash_algo)
    return KVCacheManager(config_of(**settings), device=HostDevice(), event_manager=events)


def drained(manager: Any) -> list[KVCacheEvent]:
    manager.event_manager.flush_iteration_events()
    events = manager.event_manager.get_latest_events()
    assert [event.event_id for event in events] == list(range(events[0].event_id, events[0].event_id + len(events)))
    return list(events)


def stored(event: KVCacheEvent) -> list[list[int | bytes]]:
    assert isinstance(event.data, KVCacheStoredData)
    return [block.tokens for block in event.data.blocks]


def test_created_first_then_stored_paths_in_one_event_each() -> None:
    with followed(windows=(None, 8), num_slots=20) as manager:
        created = drained(manager)
        assert [event.event_id for event in created] == [0, 1]
        for event, window in zip(created, (None, 8)):
            assert isinstance(event.data, KVCacheCreatedData)
            assert event.data.num_blocks_per_cache_level == [20] and event.window_size == window
        run_prompt(manager, range(12)).close()
        first, second = drained(manager)
        assert (first.layer_group_id, second.layer_group_id) == (0, 1)
        names = compute_block_hashes(range(12), 4)
        for event in (first, second):
            assert isinstance(event.data, KVCacheStoredData)
            assert [block.block_hash for block in event.data.blocks] == names
            assert [(block.cache_level, block.priority) for block in event.data.blocks] == [(0, 35)] * 3
            assert stored(event) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]] and event.data.parent_hash is None
        # The next turn begins where this one ended; what is there already is not announced again.
        run_prompt(manager, range(20)).close()
        turn = drained(manager)
        assert [event.layer_group_id for event in turn] == [0, 1]
        data: Any = turn[0].data
        assert data.parent_hash == names[2] and stored(turn[0]) == [[12, 13, 14, 15], [16, 17, 18, 19]]


def test_a_block_in_part_is_not_announced_as_a_full_one() -> None:
    with followed() as manager:
        run_prompt(manager, range(3)).close()
        assert len(drained(manager)) == 1  # created
        sequence = run_prompt(manager, range(6))
        sequence.stop_committing()
        assert [stored(event) for event in drained(manager)] == [[[0, 1, 2, 3]]]
        sequence.close()


def test_removals_come_before_what_follows_and_say_why() -> None:
    with followed(num_slots=3) as manager:
        run_prompt(manager, range(8)).close()
        drained(manager)
        run_prompt(manager, range(100, 108)).close()  # needs two slots, one is free: the leaf of the first path is evicted
        removed, added = drained(manager)
        assert isinstance(removed.data, KVCacheRemovedData) and isinstance(added.data, KVCacheStoredData)
        assert removed.data.block_hashes == compute_block_hashes(range(8), 4)[1:] and removed.data.reason == "capacity"
        manager.clear_reusable_blocks()
        (cleared,) = drained(manager)
        assert isinstance(cleared.data, KVCacheRemovedData) and cleared.data.reason == "cleared"
        assert sorted(map(str, cleared.data.block_hashes)) == sorted(
            map(str, compute_block_hashes(range(8), 4)[:1] + compute_block_hashes(range(100, 108), 4))
        )


def test_a_new_priority_is_told_with_the_old_one() -> None:
    with followed() as manager:
        run_prompt(manager, range(4)).close()
        drained(manager)
        for has_room in (False, True):
            with manager.create_kv_cache(input_tokens=range(4), custom_priority_callback=lambda ordinal, cycle: 90) as kv_cache:
                assert kv_cache.resume() and kv_cache.resize(5 if has_room else 10_000) is has_room
            manager.event_manager.flush_iteration_events()
            assert has_room or manager.event_manager.get_latest_events() == []
        (updated,) = drained(manager)
        assert isinstance(updated.data, KVCacheUpdatedData) and updated.data.cache_level is None
        assert updated.data.block_hash == compute_block_hashes(range(4), 4)[0] and updated.data.priority is not None
        assert (updated.data.priority.old_value, updated.data.priority.new_value) == (35, 90)


def test_offload_and_onboard_events_have_both_levels() -> None:
    config = config_of(num_slots=2)
    tiers = [*config.cache_tiers, HostCacheTierConfig(4 * config.cache_tiers[0].quota)]
    events = KVCacheEventManager(100)
    config = dataclasses.replace(config, cache_tiers=tiers)
    with KVCacheManager(config, device=HostDevice(), event_manager=events) as manager:
        run_prompt(manager, range(4)).close()
        created, _added = drained(manager)
        assert isinstance(created.data, KVCacheCreatedData) and created.data.num_blocks_per_cache_level == [2, 8]
        names = compute_block_hashes(range(4), 4)
        run_prompt(manager, range(100, 108)).close()  # needs both slots
        down = drained(manager)[0].data
        assert isinstance(down, KVCacheUpdatedData) and down.cache_level is not None and down.priority is None
        assert (down.block_hash, down.cache_level.old_value, down.cache_level.new_value) == (names[0], 0, 1)
        run_prompt(manager, range(4)).close()  # from host memory
        up = [event.data for event in drained(manager) if isinstance(event.data, KVCacheUpdatedData)]
        changes = [(data.block_hash, data.cache_level.old_value, data.cache_level.new_value) for data in up if data.cache_level]
        assert (names[0], 1, 0) in changes


def test_a_level_of_another_size_is_told() -> None:
    with followed(num_slots=20) as manager:
        drained(manager)
        quota = manager.get_quota(0)
        assert manager.resize(0, quota // 2)
        (smaller,) = drained(manager)
        assert isinstance(smaller.data, KVCacheCreatedData) and smaller.data.num_blocks_per_cache_level == [10]
        assert manager.resize(0, quota // 2)
        manager.event_manager.flush_iteration_events()
        assert manager.event_manager.get_latest_events() == []


def test_what_both_sequences_produce_is_announced_once() -> None:
    with followed() as manager:
        first = manager.create_kv_cache()
        second = manager.create_kv_cache()
        for sequence in (first, second):
            assert sequence.resume() and sequence.resize(8)
        for sequence in (first, second):
            sequence.commit(range(8))
            sequence.close()
        assert [type(event.data).__name__ for event in drained(manager)] == ["KVCacheCreatedData", "KVCacheStoredData"]


def test_a_page_that_a_block_lacked_is_told_of_its_group() -> None:
    """Computed elsewhere up to token 16, whose window of 8 reads 9 .. 16: blocks 0 and 1 have pages of the other layers only. A sequence
    that computes the same tokens here has the windowed ones as well."""
    with followed(windows=(None, 8)) as manager:
        follower = EventFollower(manager.event_manager)
        for history, num_windowed in ((16, 2), (0, 4)):
            sequence = manager.create_kv_cache()
            assert sequence.resume() and sequence.resize(16, history)
            sequence.commit(range(16))
            sequence.close()
            follower.check(manager.describe())
            assert sum(group == 1 for _hash, group in find_indexed(follower.index)) == num_windowed


def test_hashes_are_chained_sha_256_that_consumers_can_compute() -> None:
    scope = ReuseScope(lora_id=7, salt="a")
    root = hashlib.sha256(b"i7;s1:a").digest()
    length = b"\x03\x00\x00\x00\x00\x00\x00\x00"
    first = hashlib.sha256(root + b"\x01\x00\x00\x00" + b"\xff\xff\xff\xff" + length + b"cat").digest()
    second = hashlib.sha256(first + b"\x03\x00\x00\x00\x04\x01\x00\x00").digest()
    tokens: list[int | bytes] = [1, b"cat", 3, 260, 5]
    assert compute_block_hashes(tokens, 2, scope) == [first.hex(), second.hex()]
    expected = [int.from_bytes(digest[:8], "big") for digest in (first, second)]
    assert compute_block_hashes(tokens, 2, scope, "sha256_64") == expected
    with followed(hash_algo="sha256_64", tokens_per_block=2) as manager:
        run_prompt(manager, tokens, reuse_scope=scope).close()
        data: Any = drained(manager)[1].data
        assert [block.block_hash for block in data.blocks] == expected and data.lora_id == 7
        assert [block.tokens for block in data.blocks] == [[1, b"cat"], [3, 260]]


def test_digests_name_their_blocks_apart() -> None:
    """Where one digest ends and the next begins is in the name, whatever bytes they have."""
    tag = b"\xff\xff\xff\xff"
    texts: list[list[int | bytes]] = [
        [b"aaaa", tag + b"cccc"],
        [b"aaaa" + tag, b"cccc"],
        [b"aaaa" + tag + b"cccc", 5],
        [b"aaaa", b"\x05\x00\x00\x00"],
        [b"aaaa\x05\x00\x00\x00", 5],
        [b"aaaa", 5],
    ]
    names = [compute_block_hashes(text, len(text))[0] for text in texts]
    assert len(set(names)) == len(texts)


def test_scopes_name_their_blocks_apart() -> None:
    scopes = [ReuseScope(a, b) for a in (None, 1, 11) for b in (None, 1, "1", "i1;", "")]
    assert len({compute_block_hashes([5], 1, scope)[0] for scope in scopes}) == len(scopes)


def test_a_full_buffer_drops_the_oldest_and_says_how_many() -> None:
    # Ten prompts of one block: ten events and the created one, of which the last four are kept.
    with followed(4) as manager:
        for start in range(0, 1000, 100):
            run_prompt(manager, range(start, start + 4)).close()
            manager.event_manager.flush_iteration_events()
        events = drained(manager)
        assert [event.event_id for event in events] == [7, 8, 9, 10]
        assert [event.num_dropped for event in events] == [7, 0, 0, 0] and manager.event_manager.num_dropped == 7
        assert stored(events[-1]) == [[900, 901, 902, 903]]
        index = KVCacheEventIndex()
        index.apply(events)
        assert (index.needs_snapshot, len(index)) == (True, 0)
        index.apply_snapshot(manager.event_manager.snapshot())
        assert (index.needs_snapshot, len(index)) == (False, 10)


def test_events_that_were_never_drained_are_counted_as_dropped() -> None:
    with followed(8, num_slots=8) as manager:
        for start in range(0, 4000, 100):
            run_prompt(manager, range(start, start + 16)).close()
        events = drained(manager)
        assert len(events) == 8 and events[0].num_dropped == events[0].event_id


def test_off_is_off() -> None:
    with followed(0) as manager:
        run_prompt(manager, range(8)).close()
        manager.event_manager.flush_iteration_events()
        assert manager.event_manager.get_latest_events() == []
        with pytest.raises(LogicError, match="max_kv_event_entries is 0"):
            manager.event_manager.snapshot()


def test_the_last_events_can_be_drained_after_the_end() -> None:
    manager = followed()
    with manager:
        run_prompt(manager, range(8)).close()
    kinds = [type(event.data).__name__ for event in manager.event_manager.get_latest_events()]
    assert kinds == ["KVCacheCreatedData", "KVCacheStoredData", "KVCacheRemovedData"]


def test_another_thread_drains_meanwhile() -> None:
    index = KVCacheEventIndex()
    with followed(100_000, windows=(None, 8), num_slots=30) as manager:
        events = manager.event_manager
        stop = threading.Event()

        def drain() -> None:
            while not stop.is_set():
                index.apply(events.get_latest_events(timeout_ms=5))

        drainer = threading.Thread(target=drain)
        drainer.start()
        try:
            for start in range(150):
                run_prompt(manager, range(start, start + 24)).close()
                events.flush_iteration_events()
        finally:
            stop.set()
            drainer.join()
        index.apply(events.get_latest_events())
        fresh = KVCacheEventIndex()
        fresh.apply_snapshot(events.snapshot())
        assert {block.block_hash: dict(block.places) for block in index.blocks()} == {
            block.block_hash: dict(block.places) for block in fresh.blocks()
        }
        assert index.last_event_id == fresh.last_event_id and not index.needs_snapshot


def test_waiting_ends_with_the_first_flush() -> None:
    with followed() as manager:
        drained(manager)
        assert manager.event_manager.get_latest_events(timeout_ms=1) == []
        run_prompt(manager, range(4)).close()
        flusher = threading.Thread(target=manager.event_manager.flush_iteration_events)
        flusher.start()
        assert len(manager.event_manager.get_latest_events(timeout_ms=60_000)) == 1
        flusher.join()


def test_misuse_is_a_clear_error() -> None:
    unbound = KVCacheEventManager(10)
    assert unbound.get_latest_events() == []
    unbound.flush_iteration_events()
    with pytest.raises(LogicError, match="give this event manager to a KVCacheManager"):
        unbound.snapshot()
    with pytest.raises(ValueError, match="max_kv_event_entries is -1"):
        KVCacheEventManager(-1)
    with pytest.raises(ValueError, match="sha256"):
        KVCacheEventManager(10, hash_algo="md5")
    for timeout_ms in (-1, float("nan"), 1e20):
        with pytest.raises(ValueError, match="timeout_ms"):
            unbound.get_latest_events(timeout_ms)
    not_an_event_manager: Any = "no"
    with pytest.raises(TypeError):
        KVCacheManager(config_of(), device=HostDevice(), event_manager=not_an_event_manager)
    with followed() as manager, pytest.raises(LogicError, match="another KVCacheManager"):
        KVCacheManager(config_of(), device=HostDevice(), event_manager=manager.event_manager)
    with pytest.raises(ValueError, match="tokens_per_block is 0"):
        compute_block_hashes([1], 0)
    for wrong in ((10, b"", 3), (10, b"x", 0), (2**31 - 2, b"x", 4)):
        with pytest.raises(ValueError):
            gen_multimodal_cache_key_tokens(*wrong)


def test_the_json_form_is_that_of_tensorrt_llm() -> None:
    with followed(hash_algo="sha256_64") as manager:
        run_prompt(manager, [1, 2, 3, 4]).close()
        created, added = [event.to_json() for event in drained(manager)]
        assert created["data"] == {"type": "created", "num_blocks_per_cache_level": [64]}
        (name,) = compute_block_hashes([1, 2, 3, 4], 4, None, "sha256_64")
        tokens = [{"type": "unique_token", "token_id": token, "token_extra_id": 0} for token in (1, 2, 3, 4)]
        block = {"type": "stored_block", "block_hash": name, "tokens": tokens, "cache_level": 0, "priority": 35}
        assert added == {
            "event_id": 1,
            "data": {"type": "stored", "parent_hash": None, "blocks": [block]},
            "window_size": None,
            "hash_algo": "sha256_64",
            "layer_group_id": 0,
        }


def test_multimodal_items_match_by_their_digest() -> None:
    assert gen_multimodal_cache_key_tokens(1000, b"cat", 3) == [b"cat", 1001, 1002]
    with followed() as manager:
        cat = gen_multimodal_cache_key_tokens(1000, b"cat", 6)
        dog = gen_multimodal_cache_key_tokens(1000, b"dog", 6)
        run_prompt(manager, [1, 2, *cat]).close()
        assert manager.probe_reuse(None, [1, 2, *cat]) == 8 and manager.probe_reuse(None, [1, 2, *dog]) == 2


def test_a_block_that_is_taken_from_the_tree_for_its_only_reader_is_removed() -> None:
    """A match ends inside a full block, and another sequence takes the room for a copy of it before this one resumes."""
    with followed(num_slots=3, max_util_for_resume=1.0) as manager:
        run_prompt(manager, range(8)).close()
        kv_cache = manager.create_kv_cache(input_tokens=list(range(6)))
        other = manager.create_kv_cache()
        assert kv_cache.num_committed_tokens == 6 and other.resume() and other.resize(1)
        drained(manager)
        assert kv_cache.resume() and kv_cache.resize(7, 6)
        (event,) = drained(manager)
        assert isinstance(event.data, KVCacheRemovedData)
        assert (event.data.block_hashes, event.data.reason) == (compute_block_hashes(range(8), 4)[1:], "capacity")
        manager.check_invariants()
        kv_cache.close()
        other.close()
