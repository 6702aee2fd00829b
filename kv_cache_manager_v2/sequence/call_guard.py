"""The door of every public call: ``with guard as journal:`` around the call's body.

One caller at a time: an overlap that can be seen is a `LogicError`. When an invariant fails inside a call the manager is
*broken*: that call and every later one raises `CorruptedError` with the first reason. So it is when a call is interrupted in
the middle of a change that cannot be undone (the device refuses an event, the user presses Ctrl-C): the interruption itself
is raised, later calls are refused. Sequences whose handle was dropped without `close` wait here; the next call closes them.

The call records itself in the journal that the door hands out, as its last step: a call that raises is not recorded. A manager
without a journal hands out one that keeps nothing. Compiled, the ``with`` and the record that is not kept cost some two nanoseconds
more than ``try``, ``finally`` and a test for a journal; a decode step inside a block needs no door at all (`is_idle`).

In a process that was forked from the manager's own the guard is *foreign*: every call is a `LogicError`, whatever the state.

    state     way out
    IDLE      __enter__ -> BUSY
    BUSY      __exit__ -> IDLE, or BROKEN after an AssertionError; begin_change -> CHANGING
    CHANGING  end_change -> BUSY, __exit__ -> BROKEN
    BROKEN    none
"""

import logging
import os
import sys
from abc import ABCMeta, abstractmethod
from types import TracebackType
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from ..base.change_count import ChangeCount
from ..base.errors import CorruptedError, LogicError
from ..base.process_bound import ProcessBound
from ..journal.call_records import CallRecords

_IDLE: Final = 0
_logger = logging.getLogger("kv_cache_manager_v2")


@mypyc_attr(native_class=True, allow_interpreted_subclasses=True)
class Abandoned(metaclass=ABCMeta):
    """A handle's work that its user forgot, and that the next call closes."""

    __slots__ = ()

    @abstractmethod
    def close_abandoned(self) -> None: ...


@final
@mypyc_attr(native_class=True)
class CallGuard(ProcessBound):
    __slots__ = ("is_foreign", "_attention", "_busy", "_changes", "_journal", "_reason", "_user_error", "_abandoned", "_process")

    is_foreign: bool
    """Whether this process is a fork of the manager's: it must leave the manager's memory and files alone."""

    _attention: i64
    """0 when a call may go straight on; else the number of reasons to look closer."""
    _busy: bool
    _changes: Final[ChangeCount]
    """Of the storage, which counts evictions: they change things before the call that needs the room does."""
    _journal: Final[CallRecords]
    _reason: str | None
    """Why the manager is broken; None while it is sound."""
    _user_error: AssertionError | None
    """An assertion that failed in the user's own code, which says nothing about ours."""
    _abandoned: Final[list[Abandoned]]
    _process: Final[int]

    def __init__(self, changes: ChangeCount, journal: CallRecords) -> None:
        self._changes = changes
        self._journal = journal
        self.is_foreign = False
        self._process = os.getpid()
        self._attention = _IDLE
        self._busy = False
        self._reason = None
        self._user_error = None
        self._abandoned = []

    @property
    def is_idle(self) -> bool:
        """Whether a call that only changes a few numbers may do without the door."""
        return self._attention == _IDLE

    def __enter__(self) -> CallRecords:
        if self._attention != _IDLE:
            self._look_closer()
        self._attention = 1
        self._busy = True
        return self._journal

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self._leave()
        else:
            self._leave_after(error)

    def begin_change(self) -> None:
        """From here on the call changes things; an exception before `end_change` leaves them half done."""
        self._changes.begin()

    def end_change(self) -> None:
        self._changes.end()

    def _leave(self) -> None:
        if self._changes.num_begun > 0:
            self._record_interruption()
        self._busy = False
        # In this order: a handle that another thread drops between the two sets it again.
        self._attention = _IDLE
        if self._reason is not None or len(self._abandoned) > 0 or self.is_foreign:
            self._attention = 1

    def _leave_after(self, error: BaseException) -> None:
        """Apart from `__exit__`: compiled, the name of an exception class is looked up each time."""
        raised: BaseException = error
        if isinstance(error, AssertionError):
            raised = self._fail(error)
        self._journal.discard()
        self._leave()
        if raised is not error:
            raise raised from error

    def become_foreign(self) -> None:
        self.is_foreign = True
        self._attention = 1

    def _require_own_process(self) -> None:
        if self.is_foreign:
            raise LogicError(
                f"this is process {os.getpid()}, a fork of process {self._process}, which has the manager's memory, files and "
                f"threads: serve there, or make a manager of its own here"
            )

    def _look_closer(self) -> None:
        self._require_own_process()
        if self._reason is not None:
            raise CorruptedError(f"the manager is broken since an earlier call: {self._reason}")
        if self._busy:
            raise LogicError(
                "a call began while another call on the same manager was running (from another thread, or from inside a "
                "callback); one caller at a time"
            )
        self._busy = True
        try:
            # Closing may run user code that drops further handles; what cannot be closed stays for the next call.
            while len(self._abandoned) > 0:
                self._abandoned[0].close_abandoned()
                del self._abandoned[0]
        except AssertionError as error:
            raise self._fail(error) from error
        finally:
            if self._changes.num_begun > 0:
                self._record_interruption()
            self._busy = False

    def _record_interruption(self) -> None:
        self._changes.num_begun = 0
        if self._reason is None:
            error = sys.exc_info()[1]
            self._reason = f"a call was interrupted in the middle of a change: {error!r}"
            _logger.critical("kv_cache_manager_v2 is broken: %s", self._reason)

    def require_sound(self) -> None:
        """For calls that only look: a broken manager has nothing true to show."""
        self._require_own_process()
        if self._reason is not None:
            raise CorruptedError(f"the manager is broken since an earlier call: {self._reason}")

    def record_user_error(self, error: AssertionError) -> None:
        """The user's callback raised it, before anything changed: the user gets it as it is."""
        self._user_error = error

    def _fail(self, error: AssertionError) -> Exception:
        """An invariant failed inside a call: remember the first reason; returns what the call has to raise."""
        if error is self._user_error:
            self._user_error = None
            return error
        if self._reason is None:
            self._reason = str(error) or "an invariant failed without a text"
            _logger.critical("kv_cache_manager_v2 is broken: %s", self._reason)
        self._attention = 1
        self._changes.num_begun = 0
        return CorruptedError(f"the manager is broken: {self._reason}")

    @property
    def broken_reason(self) -> str | None:
        """The first invariant that failed, or the interruption in the middle of a change; None while the manager is sound."""
        return self._reason

    @property
    def is_broken(self) -> bool:
        return self._reason is not None

    def add_abandoned(self, abandoned: Abandoned) -> None:
        """Called from a destructor, at any moment; only queues."""
        self._attention = 1
        self._abandoned.append(abandoned)
