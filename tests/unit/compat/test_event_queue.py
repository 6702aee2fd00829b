"""The event manager by itself: what the engine adds, in what order it is drained, gathered and waited for."""

import threading
from typing import Any

import pytest

import kv_cache_manager_v2.compat.tensorrt_llm as runtime


def block(name: Any, tokens: tuple[int, ...] = (1,)) -> runtime.KVCacheStoredBlockData:
    return runtime.KVCacheStoredBlockData(name, [runtime.UniqueToken(token) for token in tokens], 0, 35)


def drained(events: runtime.KVCacheEventManager) -> list[Any]:
    events.flush_iteration_events()
    return events.get_latest_events(0)


def test_stored_blocks_join_and_removals_wait() -> None:
    events = runtime.KVCacheEventManager(10, window_size=64, attention_dp_rank=2, window_size_by_layer_group={1: 8})
    events.add_created_event([4, 8], [0, 1])
    events.add_stored_event(None, [block(1)], 0)
    events.add_stored_event(1, [block(2)], 0)
    events.add_stored_event(1, [block(3)], 1)
    events.add_removed_event(1)
    events.add_removed_event([2, 3])
    events.add_updated_event(5, cache_level=runtime.KVCacheEventDiff(0, 1), layer_group_id=1)
    events.add_updated_event(5)
    found = drained(events)
    assert [type(event.data).__name__ for event in found] == [
        "KVCacheCreatedData", "KVCacheCreatedData", "KVCacheStoredData", "KVCacheStoredData", "KVCacheRemovedData", "KVCacheUpdatedData",
    ]  # fmt: skip
    assert found[2].data == runtime.KVCacheStoredData(None, [block(1), block(2)])
    assert found[4].data == runtime.KVCacheRemovedData([1, 2, 3]) and found[4].layer_group_id is None
    assert [event.event_id for event in found] == [*range(6)] and {event.attention_dp_rank for event in found} == {2}
    assert [event.window_size for event in found] == [64, 8, 64, 8, 64, 8] and {event.hash_algo for event in found} == {"v2_sha256"}
    assert drained(events) == []


def test_keys_are_shown_as_the_algorithm_says() -> None:
    for algorithm, name in (("v2_sha256", "01" * 32), ("v2_sha256_64", 0x0101010101010101)):
        events = runtime.KVCacheEventManager(10, hash_algo=algorithm)
        events.add_removed_event(b"\x01" * 32)
        assert drained(events)[0].data.block_hashes == [name]
    events = runtime.KVCacheEventManager(10, hash_algo="auto")
    assert events.hash_algo == "v1_block_key"
    events.add_removed_event(b"\x01" * 32)
    assert drained(events) == []
    with pytest.raises(ValueError, match="hash_algo"):
        runtime.KVCacheEventManager(10, hash_algo="sha256")


def test_the_oldest_go_first() -> None:
    events = runtime.KVCacheEventManager(2)
    for number in range(5):
        events.add_created_event([number])
    assert [event.event_id for event in drained(events)] == [3, 4]
    off = runtime.KVCacheEventManager(0)
    off.add_created_event([1])
    assert drained(off) == []


def test_ranks_gather() -> None:
    """Rank 1 hands its events over and queues none; rank 0 queues those of both."""
    gathered: list[list[Any]] = []

    def gather(events: list[Any]) -> list[list[Any]]:
        gathered.append(events)
        return list(gathered)

    ranks = [runtime.KVCacheEventManager(10, attention_dp_rank=rank, attention_dp_gather=gather) for rank in (0, 1)]
    for rank in (1, 0):
        ranks[rank].add_created_event([rank])
        ranks[rank].flush_iteration_events()
    assert ranks[1].get_latest_events(0) == []
    assert [event.data.num_blocks_per_cache_level for event in ranks[0].get_latest_events(0)] == [[1], [0]]


def test_a_drainer_waits() -> None:
    """Without a limit until something is there; another thread adds it once the drainer has been started."""
    events = runtime.KVCacheEventManager(10)
    assert events.get_latest_events(0) == [] and events.get_latest_events(1.5) == []
    found: list[Any] = []
    drainer = threading.Thread(target=lambda: found.extend(events.get_latest_events()))
    drainer.start()
    events.add_created_event([1])
    events.flush_iteration_events()
    drainer.join(60)
    assert len(found) == 1
    for wrong in (-1, float("nan"), 1e12, "x"):
        with pytest.raises((TypeError, ValueError), match="timeout_ms"):
            events.get_latest_events(wrong)  # type: ignore[arg-type]
