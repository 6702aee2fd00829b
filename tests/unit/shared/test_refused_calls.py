"""A call in a wrong state is refused by a named error, and nothing has changed: no page, no staging slot, no token."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from shared_models import MODEL, Rank, wait_until

from kv_cache_manager_v2 import CorruptedError, KVCache, LogicError, ReuseScope
from kv_cache_manager_v2.shared import MemoryStore, RemoteAnswer, RemoteReport, RemoteRequest, SharedLevel

TEXT = list(range(100, 133))


STATES: dict[str, Callable[[KVCache], Any]] = {
    "suspended": lambda kv_cache: kv_cache.suspend(),
    "closed": lambda kv_cache: kv_cache.close(),
    "stopped": lambda kv_cache: kv_cache.stop_committing(),
    "beams": lambda kv_cache: setattr(kv_cache, "beam_width", 2),
    "grown": lambda kv_cache: kv_cache.resize(24),
    "committed": lambda kv_cache: (kv_cache.resize(24), kv_cache.commit(TEXT[18:22])),
    "tried to commit": lambda kv_cache: pytest.raises(ValueError, kv_cache.commit, TEXT),
}
REACHED: dict[str, Callable[[RemoteRequest], bool]] = {
    "looking": lambda request: True,
    "known": lambda request: request.remote_tokens is not None,
    "fetching": lambda request: request.fetch(),
    "arrived": lambda request: request.arrived_tokens is not None,
}


def begin(store: MemoryStore, reached: str) -> tuple[Rank, RemoteRequest]:
    """18 tokens match here, and the store has 14 more."""
    rank = Rank(store)
    rank.run(TEXT[:18] + [7])
    rank.drain()
    request = rank.begin(TEXT)
    assert request.kv_cache.num_committed_tokens == 18 and request.kv_cache.resume()
    for name, is_reached in REACHED.items():
        rank.wait(partial(is_reached, request))
        if name == reached:
            break
    return rank, request


def look(rank: Rank, request: RemoteRequest) -> tuple[object, ...]:
    level = rank.level
    level.check_invariants()
    rank.manager.check_invariants()
    free = level._loads.num_free, len(level._outgoing.free), level.num_quarantined, len(level._operations), len(level._requests)
    return rank.manager.state_digest(), free, request.remote_tokens, request.arrived_tokens


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("reached", REACHED)
def test_a_refused_call_changes_nothing(reached: str, state: str) -> None:
    store = MemoryStore()
    with Rank(store) as writer:
        writer.run(TEXT)
        writer.drain()
    rank, request = begin(store, reached)
    with rank:
        kv_cache = request.kv_cache
        STATES[state](kv_cache)
        calls: dict[str, Callable[[], Any]] = {
            "look_up": lambda: rank.level.look_up(kv_cache), "fetch": request.fetch, "take": request.take, "store": request.store
        }  # fmt: skip
        refused = set()
        for name, call in calls.items():
            before = look(rank, request)
            try:
                call()
            except LogicError:
                refused.add(name)
            if name in refused:
                assert look(rank, request) == before, f"{name}() was refused and has changed something"
        expected = {"take"}
        if state == "closed":
            expected = set(calls)
        elif state == "suspended":
            expected.add("store")
        if reached in ("fetching", "arrived"):
            expected.add("fetch")
        # `fetch` has gone before: it leads from KNOWN to FETCHING, where `take` comes too early.
        assert refused == expected
        request.cancel_remote()
        request.cancel_remote()
        kv_cache.close()
        rank.wait(lambda: not rank.level._operations)
        look(rank, request)


def test_a_fork_that_goes_another_way_stops_no_take() -> None:
    """It commits other tokens for the block that both began with, of which it gets a copy."""
    store = MemoryStore()
    with Rank(store) as writer:
        writer.run(TEXT)
        writer.drain()
    rank, request = begin(store, "arrived")
    with rank:
        fork = request.kv_cache.fork()
        assert fork.resize(20)
        fork.commit([1, 2])
        assert request.take() and request.kv_cache.num_committed_tokens == 32
        fork.close()
        rank.compute(request, TEXT)


@pytest.mark.parametrize("reached", REACHED)
def test_calls_after_the_level_or_the_manager_has_ended(reached: str) -> None:
    store = MemoryStore()
    with Rank(store) as writer:
        writer.run(TEXT)
        writer.drain()
    rank, request = begin(store, reached)
    kv_cache = request.kv_cache
    report = rank.level.remote_report()
    rank.engine.synchronize()
    rank.engine.close()
    rank.level.close()
    rank.level.close()
    for call in (request.fetch, request.take, request.store, rank.level.remote_report):
        with pytest.raises(LogicError, match="the shared level is closed"):
            call()
    with pytest.raises(LogicError, match="the shared level is closed"):
        rank.level.look_up(kv_cache)
    with pytest.raises(LogicError, match="the shared level is closed"):
        rank.level.admit(report)
    request.cancel_remote()
    assert request.remote_tokens == 0 and request.arrived_tokens is None
    kv_cache.close()
    rank.manager.check_invariants()
    rank.manager.shutdown()
    with pytest.raises(LogicError, match="shut down"):
        SharedLevel(rank.manager, store, MODEL)
    rank.device.close()


def test_sequences_of_another_manager() -> None:
    with Rank(MemoryStore()) as one, Rank(MemoryStore()) as other:
        with other.manager.create_kv_cache(ReuseScope(), TEXT) as kv_cache:
            with pytest.raises(ValueError, match="another manager"):
                one.level.look_up(kv_cache)


WRONG_LENGTHS = (
    None, 5, [], ((1,),), ((1, 2, 3),), ((0, 4),), ((3, 2),), ((1, 4), (4, 8)), ((5, 8), (1, 4)), ((1.0, 2),), (("a", 8),), ((True, 8),)
)  # fmt: skip


def test_reports_are_checked_where_they_are_made() -> None:
    wrong: Any
    for wrong in (5, None, [RemoteAnswer(0, 0, (), True)], (5,), ((0, 0, (), True),), "answers"):
        with pytest.raises(TypeError, match="answers"):
            RemoteReport(wrong)
    for wrong in WRONG_LENGTHS:
        with pytest.raises((TypeError, ValueError), match="lengths"):
            RemoteAnswer(0, 0, wrong, True)
    for position, name in enumerate(("request", "step", "lengths", "is_ended", "has_failed")):
        for wrong in (None, "x", 0.5, b"1", object()):
            arguments: list[Any] = [0, 0, (), True, False]
            arguments[position] = wrong
            with pytest.raises((TypeError, ValueError), match=name):
                RemoteAnswer(*arguments)


def test_an_answer_to_what_was_never_asked_is_skipped() -> None:
    with Rank(MemoryStore()) as rank:
        request = rank.begin(TEXT)
        wait_until(lambda: len(rank.level.remote_report().answers) > 0)
        before = look(rank, request)
        rank.level.admit(RemoteReport((RemoteAnswer(7, 3, ((1, 9),), True), RemoteAnswer(0, 9, (), True))))
        assert look(rank, request) == before
        request.cancel_remote()
        request.kv_cache.close()


def test_a_broken_manager_takes_nothing() -> None:
    store = MemoryStore()
    with Rank(store) as writer:
        writer.run(TEXT)
        writer.drain()
    rank, request = begin(store, "arrived")
    guard = rank.manager._shared.guard
    with pytest.raises(KeyboardInterrupt), guard:
        guard.begin_change()
        raise KeyboardInterrupt
    for call in (request.take, request.store):
        with pytest.raises(CorruptedError):
            call()
    assert rank.level.statistics.dropped_pages == 0
    rank.level.check_invariants()
    rank.level.close()
