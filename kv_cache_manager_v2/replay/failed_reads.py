"""Disk reads that fail while a replay serves: their tokens are computed again, and requests go on.

Each failure rewinds the sequence to the tokens before it (`LoadFailed.first_bad_token`), so that there are fewer each time.
"""

from .. import LoadFailed, StorageIOError
from ..testing import FakeEngine
from .served_request import ServedRequest
from .timed_calls import TimedCalls


def resume_what_is_there(calls: TimedCalls, served: ServedRequest, waits: bool) -> bool:
    """False if the manager refuses."""
    while True:
        try:
            return calls.resume(served.open_kv_cache(), waits)
        except LoadFailed as error:
            served.rewind(error.first_bad_token)


def synchronize_past_failures(engine: FakeEngine) -> None:
    """Wait for all that was enqueued. A failed read that no call has reported is raised to whatever waits behind it, once each."""
    while True:
        try:
            engine.synchronize()
            return
        except StorageIOError:
            # Pages of requests in a step have been asked for before; those of others are when they are resumed.
            continue
