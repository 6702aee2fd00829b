"""Levels become media, moves become a store and a removal; for each store there is exactly one removal, per medium and group."""

import random
from collections import Counter
from typing import Any

from kv_cache_manager_v2 import CacheTier
from kv_cache_manager_v2.events.event_snapshot import KVCacheEventSnapshot
from kv_cache_manager_v2.events.kv_cache_event import (
    KVCacheEvent,
    KVCacheEventData,
    KVCacheEventDiff,
    KVCacheRemovedData,
    KVCacheStoredBlockData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)
from kv_cache_manager_v2.publishing.wire_event import AllBlocksCleared, BlockRemoved, BlockStored, WireEvent
from kv_cache_manager_v2.publishing.wire_translator import WireTranslator, to_wire_token

TIERS = [CacheTier.GPU_MEM, CacheTier.HOST_MEM, CacheTier.HOST_MEM, CacheTier.DISK]
FULL = ["full_attention"]
BOTH = ["full_attention", "sliding_window"]


def translator(kinds: list[str] = FULL) -> WireTranslator:
    return WireTranslator(2, TIERS, kinds, {7: "poet"})


def stored(number: int, level: int = 0, tokens: Any = None) -> KVCacheStoredBlockData:
    return KVCacheStoredBlockData(number, [number, number + 1] if tokens is None else tokens, level, 35)


class Stream:
    """Events with their ids, through one translator."""

    def __init__(self, kinds: list[str] = FULL) -> None:
        self.translator = translator(kinds)
        self.next_id = 0

    def tell(self, *data: KVCacheEventData, group: int = 0, num_dropped: int = 0) -> list[WireEvent]:
        events = []
        for item in data:
            self.next_id += num_dropped
            events.append(KVCacheEvent(self.next_id, item, 8 if group == 1 else None, group, num_dropped))
            self.next_id += 1
        return self.translator.translate(events)


def facts(events: list[WireEvent]) -> list[Any]:
    found: list[Any] = []
    for event in events:
        if isinstance(event, BlockStored):
            found.append(("stored", event.hashes, event.parent_hash, event.token_ids, event.medium))
        elif isinstance(event, BlockRemoved):
            found.append(("removed", event.hashes, event.medium))
        else:
            found.append(("cleared",))
    return found


def test_a_path_over_several_media_is_told_medium_by_medium() -> None:
    path = KVCacheStoredData(None, [stored(10), stored(20), stored(30, 1), stored(40, 2), stored(50, 3)])
    assert facts(Stream().tell(path)) == [
        ("stored", [10, 20], None, [10, 11, 20, 21], "GPU"),
        ("stored", [30, 40], 20, [30, 31, 40, 41], "CPU"),  # two levels of host memory are one medium
        ("stored", [50], 40, [50, 51], "DISK"),
    ]


def test_a_move_is_a_store_and_then_a_removal() -> None:
    stream = Stream()
    stream.tell(KVCacheStoredData(None, [stored(10), stored(20)]))
    assert facts(stream.tell(KVCacheUpdatedData(20, KVCacheEventDiff(0, 1), None))) == [
        ("stored", [20], 10, [20, 21], "CPU"),
        ("removed", [20], "GPU"),
    ]
    assert facts(stream.tell(KVCacheUpdatedData(20, KVCacheEventDiff(1, 2), None))) == []
    assert facts(stream.tell(KVCacheUpdatedData(20, None, KVCacheEventDiff(35, 90)))) == []
    assert facts(stream.tell(KVCacheRemovedData([20, 10], "capacity"))) == [
        ("removed", [20], "CPU"),
        ("removed", [10], "GPU"),
    ]


def test_clearing_everything_is_one_event() -> None:
    stream = Stream(BOTH)
    stream.tell(KVCacheStoredData(None, [stored(10)]))
    stream.tell(KVCacheStoredData(None, [stored(10)]), group=1)
    first = KVCacheEvent(2, KVCacheRemovedData([10], "cleared"), None, 0)
    second = KVCacheEvent(3, KVCacheRemovedData([10], "cleared"), 8, 1)
    assert facts(stream.translator.translate([first, second])) == [("cleared",)]


def test_clearing_a_part_removes_block_by_block() -> None:
    stream = Stream()
    stream.tell(KVCacheStoredData(None, [stored(10), stored(20)]))
    assert facts(stream.tell(KVCacheRemovedData([20], "cleared"))) == [("removed", [20], "GPU")]


def test_what_is_known_is_passed_over_and_a_loss_is_seen() -> None:
    stream = Stream()
    event = KVCacheEvent(0, KVCacheStoredData(None, [stored(10)]), None, 0)
    told = [event, event]
    assert len(stream.translator.translate(told)) == 1 and told == [], "the second time it is known"
    stream.next_id = 1
    assert stream.tell(KVCacheRemovedData([99], "capacity"), num_dropped=3) == []
    assert stream.translator.needs_snapshot
    now = KVCacheEvent(4, KVCacheStoredData(None, [stored(60)]), None, 0)
    stream.translator.begin_anew(KVCacheEventSnapshot(4, [now]))
    assert not stream.translator.needs_snapshot
    assert facts(stream.translator.events_of_state()) == [("cleared",), ("stored", [60], None, [60, 61], "GPU")]


def test_groups_adapters_and_digests_are_told() -> None:
    both = Stream(BOTH)
    (event,) = both.tell(KVCacheStoredData(None, [stored(10, 0, [5, b"cat"]), stored(20)], 7), group=1)
    assert isinstance(event, BlockStored)
    assert (event.group, event.kind, event.window) == (1, "sliding_window", 8)
    assert (event.lora_id, event.lora_name) == (7, "poet")
    assert event.extra_keys == [[(b"cat".hex(), 1)], None]
    assert event.token_ids == [5, to_wire_token(b"cat"), 20, 21] and to_wire_token(b"cat") != to_wire_token(b"dog")
    (alone,) = Stream(FULL).tell(KVCacheStoredData(None, [stored(10)]))
    assert isinstance(alone, BlockStored) and alone.group is None
    assert not translator(FULL).has_groups and translator(["sliding_window"]).has_groups


def test_the_whole_is_told_parents_first_and_once() -> None:
    """A random tree of blocks on random levels: told at once it is what it was told bit by bit."""
    rng = random.Random(5)
    for _round in range(20):
        stream = Stream(BOTH)
        alive: dict[int, list[int]] = {0: [], 1: []}
        counts: Counter[tuple[int, int | None, str | None]] = Counter()

        def note(events: list[WireEvent]) -> None:
            for event in events:
                if isinstance(event, AllBlocksCleared):
                    counts.clear()
                elif isinstance(event, (BlockStored, BlockRemoved)):
                    for block_hash in event.hashes:
                        counts[block_hash, event.group, event.medium] += 1 if isinstance(event, BlockStored) else -1

        parents: dict[int, int | None] = {}
        levels: dict[tuple[int, int], int] = {}
        for number in range(10, 40):
            group = rng.randrange(2)
            parent = rng.choice([None, *alive[group]])
            parents[number] = parent
            levels[number, group] = rng.randrange(4)
            note(stream.tell(KVCacheStoredData(parent, [stored(number, levels[number, group])]), group=group))
            alive[group].append(number)
            moved = rng.choice(alive[group])
            level = rng.randrange(4)
            old = levels[moved, group]
            levels[moved, group] = level
            note(stream.tell(KVCacheUpdatedData(moved, KVCacheEventDiff(old, level), None), group=group))
            if rng.random() < 0.3:
                gone = rng.choice(alive[group])
                if gone not in [parents[other] for other in alive[group]]:
                    alive[group].remove(gone)
                    note(stream.tell(KVCacheRemovedData([gone], "capacity"), group=group))
        assert all(count in (0, 1) for count in counts.values())
        bit_by_bit = +counts
        seen: set[tuple[int, int | None]] = set()
        whole = stream.translator.events_of_state()
        assert isinstance(whole[0], AllBlocksCleared)
        for event in whole[1:]:
            assert isinstance(event, BlockStored)
            assert event.parent_hash is None or (event.parent_hash, event.group) in seen
            seen.update((block_hash, event.group) for block_hash in event.hashes)
        note(whole)
        assert +counts == bit_by_bit
