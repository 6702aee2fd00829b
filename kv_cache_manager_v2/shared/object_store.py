"""`ObjectStore`: an object store or a shared file system, through the package obstore. Cold: seconds are normal, so fetch early.

    ObjectStore(obstore.store.LocalStore("/mnt/shared/kv"))
    ObjectStore(obstore.store.S3Store("bucket", client_options={"timeout": "2s"}, retry_config={"max_retries": 0}))

obstore's calls cannot be cut off: give its store a time limit. A call that takes longer than 300 ms without an answer is a miss for the
request that waits; its slots are quarantined until the call has returned.
"""

from collections.abc import Callable, Sequence
from functools import partial
from threading import Thread
from time import monotonic
from typing import Any, Final, TypeVar

from ..base.checks import to_text
from ..base.missing_package import missing_package
from .resp_connection import FORMAT, FORMAT_KEY
from .shared_store import MISSING, REFUSED, WRONG_SIZE, SharedStore, StoreConnection, store_error

_T = TypeVar("_T")
_LINE_END: Final = "\n"


MOST_AT_ONCE: Final = 16
"""Requests of one connection that are under way side by side."""


class ObjectStore(SharedStore):
    """``store``: any of `obstore.store`. ``name``: for messages, and equal in all processes. `ImportError` without obstore."""

    seconds_per_key = 0.3

    def __init__(self, store: Any, name: str = "objects") -> None:
        try:
            import obstore
        except ImportError as error:
            raise missing_package("ObjectStore", "obstore", error) from error
        if not all([hasattr(store, call) for call in ("get", "put", "head", "delete")]):
            raise TypeError(f"store must be one of obstore.store, such as LocalStore, not {type(store).__name__}")
        self._store: Final = store
        self._name: Final = to_text(name, "name")
        self._errors: Final = (obstore.exceptions.BaseError, OSError)

    @property
    def endpoints(self) -> tuple[str, ...]:
        return (self._name,)

    def connect(self, endpoint: str) -> StoreConnection:
        return _ObjectConnection(self._store, self._name, self._errors)


class _ObjectConnection(StoreConnection):
    """All connections are the one client of obstore, which keeps its own."""

    def __init__(self, store: Any, name: str, errors: tuple[type[BaseException], ...]) -> None:
        self._store: Final = store
        self._name: Final = name
        self._errors: Final = errors
        self.last_progress = monotonic()

    def _ask(self, function: Callable[[], Any], missing: Any) -> Any:
        """What the function returns, or ``missing`` where there is no such object."""
        try:
            result = function()
        except FileNotFoundError:
            result = missing
        except self._errors as error:
            # What follows the first line is obstore's own structures, for a debugger: the cause has it.
            raise store_error(REFUSED, f"the store {self._name} fails: {str(error).partition(_LINE_END)[0]}") from error
        self.last_progress = monotonic()
        return result

    def check(self) -> None:
        path = FORMAT_KEY.decode()
        found = self._ask(lambda: bytes(self._store.get(path).bytes()), b"")
        if found == b"":
            self._ask(lambda: self._store.put(path, FORMAT), None)
        elif found != FORMAT:
            raise ValueError(
                f"the store {self._name} has objects of the format {found[:32]!r}, and this release has {FORMAT!r}: give another bucket, "
                f"prefix or folder, or remove what is there"
            )

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        return self._for_each(len(keys), lambda position: self._ask(partial(self._store.head, keys[position].decode()), None) is not None)

    def load(self, keys: Sequence[bytes], targets: Sequence[memoryview]) -> list[int]:
        def load_one(position: int) -> int:
            target = targets[position]
            found = self._ask(partial(self._store.get, keys[position].decode()), None)
            if found is None:
                return MISSING
            if found.meta["size"] != len(target):
                return WRONG_SIZE
            size: int = self._ask(partial(_copy, found, target), MISSING)
            return size

        return self._for_each(len(keys), load_one)

    def store(self, keys: Sequence[bytes], sources: Sequence[Sequence[memoryview]]) -> None:
        self._for_each(
            len(keys), lambda position: self._ask(partial(self._store.put, keys[position].decode(), b"".join(sources[position])), None)
        )

    def remove(self, keys: Sequence[bytes]) -> None:
        self._for_each(len(keys), lambda position: self._ask(partial(self._store.delete, keys[position].decode()), None))

    def _for_each(self, count: int, function: Callable[[int], _T]) -> list[_T]:
        """The function's results for so many positions, up to `MOST_AT_ONCE` side by side; the first error, once all have ended."""
        results: dict[int, _T] = {}
        errors: list[BaseException] = []
        positions = iter(range(count))

        def work() -> None:
            for position in positions:
                try:
                    if len(errors) == 0:
                        results[position] = function(position)
                except BaseException as error:
                    errors.append(error)

        threads = [Thread(target=work, daemon=True) for _number in range(min(count, MOST_AT_ONCE) - 1)]
        for thread in threads:
            thread.start()
        work()
        for thread in threads:
            thread.join()
        if len(errors) > 0:
            raise errors[0]
        return [results[position] for position in range(count)]

    def abort(self) -> None:
        return

    def close(self) -> None:
        return


def _copy(found: Any, target: memoryview) -> int:
    view = memoryview(found.bytes())
    if len(view) != len(target):
        return WRONG_SIZE
    target[:] = view
    return len(view)
