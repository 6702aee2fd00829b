"""What stands before every public call of a manager and its sequences.

One caller at a time: an overlap that can be seen is a `LogicError`. When an invariant fails inside a call the manager is
*broken*: that call and every later one raises `CorruptedError` with the first reason. So it is when a call is interrupted in
the middle of a change that cannot be undone (the device refuses an event, the user presses Ctrl-C): the interruption itself
is raised, later calls are refused. Sequences whose handle was dropped without `close` wait here; the next call closes them.

In a process that was forked from the manager's own the guard is *foreign*: every call is a `LogicError`, whatever the state.

    state     way out
    IDLE      enter -> BUSY
    BUSY      leave -> IDLE, begin_change -> CHANGING, fail -> BROKEN
    CHANGING  end_change -> BUSY, leave or fail -> BROKEN
    BROKEN    none
"""

import logging
import os
import sys
from abc import ABCMeta, abstractmethod
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from ..base.change_count import ChangeCount
from ..base.errors import CorruptedError, LogicError
from ..base.process_bound import ProcessBound

_IDLE: Final = 0
_logger = logging.getLogger("kv_cache_manager_v2")


@mypyc_attr(native_class=True)
class Abandoned(metaclass=ABCMeta):
    """Something whose user forgot it, and which can be closed without him."""

    __slots__ = ()

    @abstractmethod
    def close_abandoned(self) -> None: ...


@final
@mypyc_attr(native_class=True)
class CallGuard(ProcessBound):
    __slots__ = ("is_foreign", "_attention", "_busy", "_changes", "_reason", "_user_error", "_abandoned", "_process")

    is_foreign: bool
    """Whether this process is a fork of the manager's: it must leave the manager's memory and files alone."""

    _attention: i64
    """0 when a call may go straight on; else the number of reasons to look closer."""
    _busy: bool
    _changes: Final[ChangeCount]
    """Of the storage, which counts evictions: they change things before the call that needs the room does."""
    _reason: str | None
    _user_error: AssertionError | None
    """An assertion that failed in the user's own code, which says nothing about ours."""
    _abandoned: Final[list[Abandoned]]
    _process: Final[int]

    def __init__(self, changes: ChangeCount) -> None:
        self._changes = changes
        self.is_foreign = False
        self._process = os.getpid()
        self._attention = _IDLE
        self._busy = False
        self._reason = None
        self._user_error = None
        self._abandoned = []

    @property
    def is_idle(self) -> bool:
        """Whether a call that changes a few numbers at once, and calls nobody, may do without `enter` and `leave`."""
        return self._attention == _IDLE

    def enter(self) -> None:
        if self._attention != _IDLE:
            self._look_closer()
        self._attention = 1
        self._busy = True

    def begin_change(self) -> None:
        """From here on the call changes things; an exception before `end_change` leaves them half done."""
        self._changes.begin()

    def end_change(self) -> None:
        self._changes.end()

    def leave(self) -> None:
        if self._changes.num_begun > 0:
            self._record_interruption()
        self._busy = False
        # In this order: a handle that another thread drops between the two sets it again.
        self._attention = _IDLE
        if self._reason is not None or len(self._abandoned) > 0 or self.is_foreign:
            self._attention = 1

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
            raise self.fail(error) from error
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
        """The user's callback raised it, before anything changed; it is his."""
        self._user_error = error

    def fail(self, error: AssertionError) -> Exception:
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
    def is_broken(self) -> bool:
        return self._reason is not None

    def add_abandoned(self, abandoned: Abandoned) -> None:
        """Called from a destructor, at any moment; only queues."""
        self._attention = 1
        self._abandoned.append(abandoned)
