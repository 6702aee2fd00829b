"""A snapshot and the events after it are exactly what introspection shows: at every step, and for one to whom events come late,
twice, in another order, or not at all."""

import dataclasses
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import BYTES_PER_TOKEN, config_of, run_prompt

from kv_cache_manager_v2 import (
    HostCacheTierConfig,
    HostDevice,
    KVCacheEvent,
    KVCacheEventIndex,
    KVCacheEventManager,
    KVCacheEventSnapshot,
    KVCacheManager,
    ReuseScope,
    compute_block_hashes,
)
from kv_cache_manager_v2.testing.event_follower import EventFollower, Places, find_indexed, find_published

SLOT_BYTES = 2 * BYTES_PER_TOKEN * 2  # key and value of two tokens
SCOPES = [ReuseScope(), ReuseScope(), ReuseScope(7), ReuseScope(salt="a"), ReuseScope(7, 1)]
TOKENS = st.one_of(st.integers(0, 1), st.integers(0, 1), st.sampled_from([b"cat", b"dog"]))
STEP = st.tuples(
    st.sampled_from(["serve", "serve", "serve", "open", "close", "grow", "suspend", "clear", "invalidate"]),
    st.sampled_from(SCOPES),
    st.lists(TOKENS, max_size=14),
    st.integers(0, 100),
)
# Windows, slots on the GPU, slots in host memory.
MODELS = st.sampled_from([((None,), 12, 0), ((None,), 4, 6), ((None, 4), 12, 0), ((None, 4), 8, 5), ((4,), 6, 0), ((None, 5, 2), 20, 30)])


class History:
    """A manager that is driven step by step; what each step left behind, by the id of its last event."""

    def __init__(self, windows: Any, num_slots: int, num_host_slots: int, max_entries: int, hash_algo: str) -> None:
        self.events = KVCacheEventManager(max_entries, hash_algo=hash_algo)
        config = config_of(windows, tokens_per_block=2, num_slots=num_slots)
        if num_host_slots > 0:
            tiers = [*config.cache_tiers, HostCacheTierConfig(num_host_slots * SLOT_BYTES)]
            config = dataclasses.replace(config, cache_tiers=tiers)
        self.manager = KVCacheManager(config, device=HostDevice(), event_manager=self.events)
        self.open: list[Any] = []

    def step(self, kind: str, scope: ReuseScope, text: list[int | bytes], number: int) -> None:
        if kind == "clear":
            if not self.open:
                self.manager.clear_reusable_blocks()
        elif kind == "invalidate":
            if scope not in [sequence.reuse_scope for sequence in self.open]:
                self.manager.invalidate_reuse_scope(scope)
        elif kind == "close" and self.open:
            self.open.pop(number % len(self.open)).close()
        elif kind == "suspend" and self.open:
            sequence = self.open[number % len(self.open)]
            if sequence.is_active:
                sequence.suspend()
            else:
                sequence.resume()
        elif kind == "grow" and self.open:
            sequence = self.open[number % len(self.open)]
            if sequence.is_active and sequence.resize(sequence.capacity + 1):
                sequence.commit([number % 2])
        elif kind in ("serve", "open"):
            arguments = {"reuse_scope": scope, "input_tokens": text}
            if number > 50:
                arguments["custom_priority_callback"] = lambda ordinal, cycle: number - ordinal
            sequence = self.manager.create_kv_cache(**arguments)
            if sequence.resume() and sequence.resize(max(len(text), sequence.capacity)):
                sequence.commit(text[sequence.num_committed_tokens :])
            if kind == "serve" or len(self.open) == 3:
                sequence.close()
            else:
                self.open.append(sequence)

    def end(self) -> None:
        for sequence in self.open:
            sequence.close()
        self.manager.shutdown()


@settings(max_examples=60, deadline=None)
@given(MODELS, st.lists(STEP, max_size=25), st.sampled_from([1, 3, 1000]), st.sampled_from(["sha256", "sha256_64"]))
def test_at_every_step(model: Any, steps: list[Any], max_entries: int, hash_algo: str) -> None:
    history = History(*model, max_entries, hash_algo)
    follower = EventFollower(history.events)
    for step in steps:
        history.step(*step)
        follower.check(history.manager.describe())
        history.manager.check_invariants()
    history.end()


DELIVERY = st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from(["next", "next", "next", "any", "skip", "snapshot"])))


@settings(max_examples=60, deadline=None)
@given(MODELS, st.lists(STEP, min_size=3, max_size=15), DELIVERY, st.integers(0, 5))
def test_whatever_becomes_of_the_messages(model: Any, steps: list[Any], deliveries: list[tuple[int, str]], max_waiting: int) -> None:
    history = History(*model, 100_000, "sha256")
    events: list[KVCacheEvent] = []
    snapshots: list[KVCacheEventSnapshot] = []
    truth: dict[int, Places] = {-1: {}}
    for step in steps:
        history.step(*step)
        snapshots.append(history.events.snapshot())
        truth[snapshots[-1].event_id] = find_published(history.manager.describe(), "sha256")
        events += history.events.get_latest_events()
    assert [event.event_id for event in events] == list(range(len(events)))

    index = KVCacheEventIndex(max_waiting)
    position = 0
    for number, kind in deliveries:
        if kind == "snapshot":
            index.apply_snapshot(snapshots[number % len(snapshots)])
        elif kind == "any":
            index.apply([events[number % len(events)]])
        elif position < len(events):
            if kind == "next":
                index.apply([events[position]])
            position += 1
        if index.last_event_id in truth:
            assert find_indexed(index) == truth[index.last_event_id]
    index.apply_snapshot(snapshots[-1])
    assert not index.needs_snapshot and len(index.missing_event_ids) == 0
    assert find_indexed(index) == truth[snapshots[-1].event_id]
    history.end()


def test_the_index_answers_how_much_of_a_prompt_is_there() -> None:
    history = History((None, 4), 20, 0, 1000, "sha256")
    run_prompt(history.manager, [1, 2, 3, 4, 5, 6]).close()
    history.events.flush_iteration_events()
    index = KVCacheEventIndex()
    index.apply(history.events.get_latest_events())
    hashes = compute_block_hashes([1, 2, 3, 4, 9, 9, 9], 2)
    assert index.count_leading_blocks(hashes) == 2 and index.count_leading_blocks(hashes, 1) == 2
    assert index.count_leading_blocks(compute_block_hashes([2, 1], 2)) == 0
    assert index.num_blocks_per_cache_level == {0: [20], 1: [20]}
    history.end()
