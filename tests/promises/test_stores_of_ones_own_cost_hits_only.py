"""A store that a user writes may raise anything and answer anything: that costs hits, is counted and logged, and ends with its cause."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from shared_models import MODEL, Rank, shared_config, wait_until

from kv_cache_manager_v2 import KVCacheManager
from kv_cache_manager_v2.shared import MemoryStore, SharedLevel, StoreConnection, StoreError

TEXTS = [[1000 * number + position for position in range(17)] for number in range(1, 4)]


class PanicException(BaseException):
    """As pyo3 raises for a panic in Rust, on which stores of objects are built."""


class OwnConnection(StoreConnection):
    def __init__(self, store: "OwnStore", inner: StoreConnection) -> None:
        self._store = store
        self._inner = inner

    def _call(self, name: str, *arguments: Any) -> Any:
        self._store.called.add(name)
        fault = self._store.faults.get(name)
        call = getattr(self._inner, name)
        return call(*arguments) if fault is None else fault(call, *arguments)

    def check(self) -> None:
        self._call("check")

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        answer: list[bool] = self._call("lookup", keys)
        return answer

    def load(self, keys: Sequence[bytes], targets: Sequence[memoryview]) -> list[int]:
        answer: list[int] = self._call("load", keys, targets)
        return answer

    def store(self, keys: Sequence[bytes], sources: Sequence[Sequence[memoryview]]) -> None:
        self._call("store", keys, sources)

    def remove(self, keys: Sequence[bytes]) -> None:
        self._call("remove", keys)

    def abort(self) -> None:
        self._call("abort")

    def close(self) -> None:
        self._call("close")


# In place of a plain attribute, so that reading it may fail.
setattr(OwnConnection, "last_progress", property(lambda connection: connection._store.progress()))


class OwnStore(MemoryStore):
    """``faults``: by name of a call, what is done in its place with the call and its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: dict[str, Callable[..., Any]] = {}
        self.called: set[str] = set()
        self.progress: Callable[[], Any] = time.monotonic
        self.names: Any = super().endpoints

    @property
    def endpoints(self) -> tuple[str, ...]:
        names: tuple[str, ...] = self.names
        return names

    def connect(self, endpoint: str) -> StoreConnection:
        fault = self.faults.get("connect")
        if fault is not None:
            made: StoreConnection = fault(super().connect, endpoint)
            return made
        return OwnConnection(self, super().connect(endpoint))


def raises(error: BaseException) -> Callable[..., Any]:
    def fault(call: Callable[..., Any], *arguments: Any) -> Any:
        raise error

    return fault


def changes(change: Callable[[Any], Any]) -> Callable[..., Any]:
    def fault(call: Callable[..., Any], *arguments: Any) -> Any:
        return change(call(*arguments))

    return fault


ERRORS = [
    OSError("reset"), ValueError("v"), KeyError("k"), StopIteration(), AssertionError("a"), TimeoutError("t"), NotImplementedError(),
    StoreError("s"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError(), PanicException("p"), GeneratorExit(),
]  # fmt: skip
ANSWERS = {
    "lookup": {
        "few": lambda found: found[:1], "many": lambda found: [*found, True], "none": lambda found: None, "texts": lambda found: ["no"] * 4,
        "int": lambda found: 5, "dict": lambda found: dict.fromkeys(range(len(found)), True), "ints": lambda found: [1] * len(found),
    },
    "load": {
        "few": lambda sizes: sizes[:1], "many": lambda sizes: [*sizes, 9], "none": lambda sizes: None, "texts": lambda sizes: ["x"] * 4,
        "floats": lambda sizes: [1.5] * len(sizes), "bools": lambda sizes: [True] * len(sizes), "dict": lambda sizes: {},
    },
}  # fmt: skip
CASES: list[tuple[str, str, Any]] = [(call, repr(error), raises(error)) for call in ("connect", "lookup", "load") for error in ERRORS]
CASES += [(call, kind, changes(change)) for call, kinds in ANSWERS.items() for kind, change in kinds.items()]
CASES += [("connect", "None", changes(lambda made: None)), ("connect", "another", changes(lambda made: object()))]


def fill(store: OwnStore) -> None:
    with Rank(store) as writer:
        for text in TEXTS:
            writer.run(text)
            writer.drain()


@pytest.mark.parametrize(("call", "kind", "fault"), CASES, ids=[f"{call}-{kind}" for call, kind, _fault in CASES])
def test_it_costs_hits_until_it_ends(call: str, kind: str, fault: Any, caplog: pytest.LogCaptureFixture) -> None:
    store = OwnStore()
    fill(store)
    with caplog.at_level(logging.WARNING), Rank(store) as rank:
        if call == "connect":
            store.faults["lookup"] = raises(StoreError("so that new connections are asked for"))
        store.faults[call] = fault
        for text in TEXTS:
            assert rank.run(text) == 0
            rank.forget()
        # Look-ups that are answered between loads that fail keep the endpoint in use.
        assert rank.level.failed_endpoints == (() if call == "load" else store.endpoints)
        failures = rank.level.statistics.failures
        assert failures >= 2
        logged = [record for record in caplog.records if "is no StoreError" in record.getMessage()]
        assert len(logged) == (1 if kind in [repr(error) for error in ERRORS if not isinstance(error, StoreError)] else 0)
        assert all(record.exc_info is not None for record in logged)
        store.faults.clear()

        def is_back() -> bool:
            rank.forget()
            return rank.run(TEXTS[0]) == 16

        wait_until(is_back)
        assert rank.level.failed_endpoints == ()
        rank.wait(lambda: rank.level.num_quarantined == 0)
        threads = [thread for pool in rank.level._workers._pools for thread in pool.threads]
        assert all(thread.is_alive() for thread in threads)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("error", ERRORS, ids=repr)
def test_what_is_not_stored_is_stored_later(error: BaseException) -> None:
    store = OwnStore()
    with Rank(store) as rank:
        store.faults["store"] = raises(error)
        for text in TEXTS:
            rank.run(text)
            rank.drain()
        assert rank.level.statistics.dropped_pages == 4 * len(TEXTS) and rank.level.statistics.stored_pages == 0
        store.faults.clear()

        def is_stored() -> bool:
            rank.forget()
            rank.run(TEXTS[0])
            rank.drain()
            rank.forget()
            return rank.run(TEXTS[0]) == 16

        wait_until(is_stored)


@pytest.mark.parametrize("error", [error for error in ERRORS if isinstance(error, Exception)], ids=repr)
@pytest.mark.parametrize("call", ["abort", "close"])
def test_connections_that_do_not_end_harm_nothing(call: str, error: Exception) -> None:
    store = OwnStore()
    fill(store)
    store.faults[call] = raises(error)
    with Rank(store) as rank:
        assert rank.run(TEXTS[0]) == 16
        rank.forget()
        store.faults["lookup"] = raises(StoreError("a failure, which closes the connection"))
        assert rank.run(TEXTS[1]) == 0
        if call == "abort":

            def answer_late(call: Callable[..., Any], keys: Sequence[bytes]) -> Any:
                time.sleep(0.5)
                return call(keys)

            store.faults["lookup"] = answer_late
            rank.level.look_up(rank.manager.create_kv_cache(None, TEXTS[2])).kv_cache.close()
        threads = [thread for pool in rank.level._workers._pools for thread in pool.threads]
    assert call in store.called
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("progress", [lambda: None, lambda: "x", lambda: 1 / 0], ids=["none", "text", "raises"])
def test_progress_that_cannot_be_read(progress: Callable[[], Any]) -> None:
    store = OwnStore()
    fill(store)
    store.progress = progress
    with Rank(store) as rank:
        assert rank.run(TEXTS[0]) == 16


@pytest.mark.parametrize(
    ("names", "error", "message"),
    [
        ((), ValueError, r"store.endpoints is \(\); it must have one name or more, each once"),
        (("a", "a"), ValueError, "each once"), (iter(["a"]), TypeError, "it must be a tuple of names"), ("memory", TypeError, "a tuple of"),
        ((1, 2), TypeError, r"store.endpoints is \(1, 2\)"), (("",), TypeError, "a tuple of names"), (None, TypeError, "is None"),
        ({"a": 1}, TypeError, "store.endpoints is"), (5, TypeError, "store.endpoints is 5"), (np.array(["a"]), TypeError, "a tuple of"),
    ],
)  # fmt: skip
def test_wrong_endpoints_are_named(names: Any, error: type[Exception], message: str) -> None:
    store = OwnStore()
    store.names = names
    with KVCacheManager(shared_config()) as manager, pytest.raises(error, match=message):
        SharedLevel(manager, store, MODEL)


@pytest.mark.parametrize("call", ["connect", "check", "close"])
@pytest.mark.parametrize("error", [OSError("reset"), KeyError("k"), RuntimeError("r")], ids=repr)
def test_what_fails_at_the_start_is_a_store_error(call: str, error: Exception) -> None:
    store = OwnStore()
    store.faults[call] = raises(error)
    with KVCacheManager(shared_config()) as manager:
        if call == "close":
            SharedLevel(manager, store, MODEL).close()
        else:
            with pytest.raises(StoreError, match=rf"{call}\(\) of the store .* raised {type(error).__name__}"):
                SharedLevel(manager, store, MODEL)


def test_ctrl_c_at_the_start_is_the_callers() -> None:
    store = OwnStore()
    store.faults["check"] = raises(KeyboardInterrupt())
    with KVCacheManager(shared_config()) as manager, pytest.raises(KeyboardInterrupt):
        SharedLevel(manager, store, MODEL)
