"""A store of the user's as a shared level asks it: whatever its code raises or answers is a `StoreError`, and costs hits."""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import numpy as np

from ..base.checks import shown, to_list
from ..base.package_log import PackageLog
from .line_limit import LineLimit
from .shared_store import GARBAGE, SharedStore, StoreConnection, StoreError, store_error

_T = TypeVar("_T")

_logger: Final = PackageLog("kv_cache_manager_v2")


class GuardedConnection:
    """A `StoreConnection` with the calls of one. `check` alone may raise another error: `ValueError` for a foreign key space."""

    def __init__(self, store: "GuardedStore", endpoint: str, connection: StoreConnection) -> None:
        self._store: Final = store
        self._endpoint: Final = endpoint
        self._connection: Final = connection

    @property
    def last_progress(self) -> float:
        """0, which is long ago, if it cannot be read."""
        try:
            return float(self._connection.last_progress)
        except Exception:
            return 0.0

    def set_deadline(self, deadline: float) -> None:
        """When the calls from here on have failed; a store whose connections have no room for that keeps its own time."""
        try:
            self._connection.deadline = deadline
        except Exception:
            pass

    def check(self) -> None:
        try:
            self._connection.check()
        except (StoreError, ValueError):
            raise
        except Exception as error:
            raise self._store.failed(self._endpoint, "check", error) from error

    def server_id(self) -> str:
        """"" too where the store's own code fails."""
        try:
            return str(self._connection.server_id())
        except StoreError:
            raise
        except Exception as error:
            self._store.failed(self._endpoint, "server_id", error)
            return ""

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        answers = self._ask("lookup", lambda: self._connection.lookup(keys), len(keys))
        for answer in answers:
            if not isinstance(answer, (bool, np.bool_)):
                raise self._wrong_answer("lookup", f"{shown(answer)} among its answers, which are bools")
        return [bool(answer) for answer in answers]

    def load(self, keys: Sequence[bytes], targets: Sequence[memoryview]) -> list[int]:
        sizes = self._ask("load", lambda: self._connection.load(keys, targets), len(keys))
        found: list[int] = []
        for size in sizes:
            if not isinstance(size, (int, np.integer)) or isinstance(size, bool):
                raise self._wrong_answer("load", f"{shown(size)} among its sizes, which are ints")
            found.append(int(size))
        return found

    def store(self, keys: Sequence[bytes], sources: Sequence[Sequence[memoryview]]) -> None:
        self._call("store", lambda: self._connection.store(keys, sources))

    def remove(self, keys: Sequence[bytes]) -> None:
        self._call("remove", lambda: self._connection.remove(keys))

    def abort(self) -> None:
        """Raises nothing."""
        self._end("abort", self._connection.abort)

    def close(self) -> None:
        """Raises nothing."""
        self._end("close", self._connection.close)

    def _ask(self, name: str, function: Callable[[], Any], count: int) -> list[object]:
        answers = self._call(name, function)
        try:
            found = to_list(answers, "the answer")
        except Exception as error:
            raise self._wrong_answer(name, str(error)) from error
        if len(found) != count:
            raise self._wrong_answer(name, f"{len(found)} answers to {count} keys")
        return found

    def _wrong_answer(self, name: str, what: str) -> StoreError:
        return store_error(GARBAGE, f"{name}() of the store {self._endpoint} has a wrong result: {what}")

    def _call(self, name: str, function: Callable[[], _T]) -> _T:
        try:
            return function()
        except StoreError:
            raise
        except Exception as error:
            raise self._store.failed(self._endpoint, name, error) from error

    def _end(self, name: str, function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:
            self._store.failed(self._endpoint, name, error)


class GuardedStore:
    """``endpoints``: validated, `TypeError` or `ValueError` for what are no names."""

    def __init__(self, store: SharedStore) -> None:
        self._store: Final = store
        self._lines: Final = LineLimit()
        given: object = store.endpoints
        names = to_list(given, "store.endpoints") if isinstance(given, (tuple, list)) else None
        if names is None or not all([isinstance(name, str) and name != "" for name in names]):
            raise TypeError(f"store.endpoints is {shown(given)}; it must be a tuple of names")
        self.endpoints: Final = tuple([str(name) for name in names])
        if len(self.endpoints) == 0 or len(set(self.endpoints)) < len(self.endpoints):
            raise ValueError(f"store.endpoints is {shown(given)}; it must have one name or more, each once")

    def seconds_of(self, num_keys: int) -> float:
        """What a request may take for so many keys; the usual time where the store says nonsense."""
        try:
            return num_keys * min(max(float(self._store.seconds_per_key), 0.0), 60.0)
        except Exception:
            return num_keys * SharedStore.seconds_per_key

    def connect(self, endpoint: str) -> GuardedConnection:
        """`StoreError`, whatever the store raises."""
        try:
            connection: object = self._store.connect(endpoint)
        except StoreError:
            raise
        except Exception as error:
            raise self.failed(endpoint, "connect", error) from error
        if not isinstance(connection, StoreConnection):
            raise store_error(GARBAGE, f"connect() of the store {endpoint} returned {shown(connection)}, no StoreConnection")
        return GuardedConnection(self, endpoint, connection)

    def failed(self, endpoint: str, name: str, error: BaseException) -> StoreError:
        """An error that the port does not know is in the log with its traceback, once in a while; called while it is handled."""
        if self._lines.is_due():
            _logger.exception("%s() of the shared store %s raised what is no StoreError; it costs hits", name, endpoint)
        return StoreError(f"{name}() of the store {endpoint} raised {type(error).__name__}: {error}")
