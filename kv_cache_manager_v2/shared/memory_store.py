"""`MemoryStore`: a store in this process' memory, for tests and for several managers of one process."""

from collections import OrderedDict
from collections.abc import Sequence
from threading import Lock
from time import monotonic
from typing import Final

from ..base.checks import to_count
from .shared_store import MISSING, WRONG_SIZE, SharedStore, StoreConnection


class MemoryStore(SharedStore):
    """Keeps ``max_bytes`` of values, and evicts those that were used least recently."""

    def __init__(self, max_bytes: int = 1 << 30) -> None:
        self._lock: Final = Lock()
        self._values: Final[OrderedDict[bytes, bytes]] = OrderedDict()
        self._max_bytes: Final = int(to_count(max_bytes, "max_bytes"))
        self._num_bytes = 0

    @property
    def endpoints(self) -> tuple[str, ...]:
        return ("memory",)

    def connect(self, endpoint: str) -> StoreConnection:
        return _MemoryConnection(self)

    def has(self, key: bytes) -> bool:
        """Whether the key has a value."""
        with self._lock:
            return key in self._values

    def get(self, key: bytes) -> bytes | None:
        """The value, now the most recently used; None if there is none."""
        with self._lock:
            value = self._values.get(key)
            if value is not None:
                self._values.move_to_end(key)
            return value

    def put(self, key: bytes, value: bytes) -> None:
        """Keep the value, and evict others for it."""
        with self._lock:
            self._num_bytes += len(value) - len(self._values.pop(key, b""))
            self._values[key] = value
            while self._num_bytes > self._max_bytes:
                self._num_bytes -= len(self._values.popitem(last=False)[1])

    def discard(self, key: bytes) -> None:
        """Forget the value."""
        with self._lock:
            self._num_bytes -= len(self._values.pop(key, b""))

    def keys(self) -> list[bytes]:
        """All keys, the least recently used first."""
        with self._lock:
            return list(self._values)


class _MemoryConnection(StoreConnection):
    def __init__(self, store: MemoryStore) -> None:
        self._store: Final = store

    def check(self) -> None:
        self.last_progress = monotonic()

    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        return [self._store.has(key) for key in keys]

    def load(self, keys: Sequence[bytes], targets: Sequence[memoryview]) -> list[int]:
        sizes: list[int] = []
        for key, target in zip(keys, targets, strict=True):
            value = self._store.get(key)
            if value is None:
                sizes.append(MISSING)
            elif len(value) != len(target):
                sizes.append(WRONG_SIZE)
            else:
                target[:] = value
                sizes.append(len(value))
            self.last_progress = monotonic()
        return sizes

    def store(self, keys: Sequence[bytes], sources: Sequence[Sequence[memoryview]]) -> None:
        for key, pieces in zip(keys, sources, strict=True):
            self._store.put(key, b"".join(pieces))
            self.last_progress = monotonic()

    def remove(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._store.discard(key)

    def abort(self) -> None:
        return

    def close(self) -> None:
        return
