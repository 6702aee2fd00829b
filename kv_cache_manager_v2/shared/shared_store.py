"""The port of the shared level: a store of bytes by name that several processes reach, such as a Valkey server.

A `SharedStore` names its *endpoints*, the servers that fail apart from each other; the level decides which endpoint has which key, and
opens one `StoreConnection` to each for every thread of its own. A connection's calls block, for `PROGRESS_SECONDS` without a byte moved
and until the call's deadline at most where the store's protocol allows that, and raise `StoreError`; the level closes such a connection
and opens another one. All that waits, retries, counts or cuts off is the level's (`store_workers`), so a store is a few calls.

What every store guarantees (`tests/contract` tests each of them):
- a value is the bytes of one `store` of that key, or part of them: the level verifies each record, and trusts no store further;
- `load` writes into its targets only until it returns or raises;
- a missing key is an answer, not an error;
- a store that has no room says `StoreFullError`, or evicts.
"""

import math
from abc import ABCMeta, abstractmethod
from collections.abc import Sequence
from typing import Final

from ..base.errors import KVCacheManagerError
from ..base.handle import Handle

PROGRESS_SECONDS: Final = 0.3
"""How long an operation may move no byte before it has failed."""

UNREACHABLE: Final = "unreachable"
SILENT: Final = "silent"
SLOW: Final = "slow"
CUT_OFF: Final = "cut_off"
REFUSED: Final = "refused"
GARBAGE: Final = "garbage"
STUCK: Final = "stuck"
FAILURE_CAUSES: Final = (UNREACHABLE, SILENT, SLOW, CUT_OFF, REFUSED, GARBAGE, STUCK, "other")
"""No connection; no byte for `PROGRESS_SECONDS`; bytes, but too few until the deadline; the connection ended; an error or a foreign key
space; what its protocol does not know; a call that does not return, whose request was answered without it."""

MISSING: Final = -1
WRONG_SIZE: Final = -2


class StoreError(KVCacheManagerError):
    """A store cannot be reached, refuses, or answers what its protocol does not know. The message names the endpoint and the reason.

    ``cause``: for metrics, one of `FAILURE_CAUSES`.
    """

    cause: str = "other"


def store_error(cause: str, message: str) -> StoreError:
    """A `StoreError` of that cause."""
    error = StoreError(message)
    error.cause = cause
    return error


class StoreFullError(StoreError):
    """The store has no room for more values, and evicts none. The connection goes on."""


class StoreConnection(Handle, metaclass=ABCMeta):
    """One connection to one endpoint, used by one thread at a time. ``last_progress``: when a byte was last moved, ``deadline``: when the
    present call has failed, which the level sets; both by `time.monotonic`."""

    last_progress: float = 0.0
    deadline: float = math.inf

    @abstractmethod
    def check(self) -> None:
        """Ask the server for a sign of life and for its key space: `StoreError`, or `ValueError` for one of another format."""

    def server_id(self) -> str:
        """Of the server's present life: another one after it was started again; "" where it says none."""
        return ""

    @abstractmethod
    def lookup(self, keys: Sequence[bytes]) -> list[bool]:
        """Whether each key has a value."""

    @abstractmethod
    def load(self, keys: Sequence[bytes], targets: Sequence[memoryview]) -> list[int]:
        """Write each value into its target, which has the size that the value must have; returns the sizes, MISSING or WRONG_SIZE."""

    @abstractmethod
    def store(self, keys: Sequence[bytes], sources: Sequence[Sequence[memoryview]]) -> None:
        """Keep each value, given in pieces, in place of what the key had. `StoreFullError` if not all of them were kept."""

    @abstractmethod
    def remove(self, keys: Sequence[bytes]) -> None:
        """Forget the values, where there are any."""

    @abstractmethod
    def abort(self) -> None:
        """Make a call that blocks in another thread raise, as far as that is possible."""

    @abstractmethod
    def close(self) -> None:
        """End the connection. Twice is fine."""


class SharedStore(Handle, metaclass=ABCMeta):
    """A store, by its endpoints. ``seconds_per_key``: what a request may take for each key, beside its bytes."""

    seconds_per_key: float = 0.002

    @property
    @abstractmethod
    def endpoints(self) -> tuple[str, ...]:
        """The names of the servers, in an order that is equal in all processes."""

    @abstractmethod
    def connect(self, endpoint: str) -> StoreConnection:
        """A new connection; `StoreError` if there is no server, or it refuses the credentials."""
