"""What stands before every public call of a manager and its sequences.

One caller at a time: an overlap that can be seen is a `LogicError`. When an invariant fails inside a call the manager is
*broken*: that call and every later one raises `CorruptedError` with the first reason. So it is when a call is interrupted in
the middle of a change that cannot be undone (the device refuses an event, the user presses Ctrl-C): the interruption itself
is raised, later calls are refused. Sequences whose handle was dropped without `close` wait here; the next call closes them.

    state     way out
    IDLE      enter -> BUSY
    BUSY      leave -> IDLE, begin_change -> CHANGING, fail -> BROKEN
    CHANGING  end_change -> BUSY, leave or fail -> BROKEN
    BROKEN    none
"""

import logging
import sys
from abc import ABCMeta, abstractmethod
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from ..base.errors import CorruptedError, LogicError

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
class CallGuard:
    __slots__ = ("_attention", "_busy", "_num_changes", "_reason", "_user_error", "_abandoned")

    _attention: i64
    """0 when a call may go straight on; else the number of reasons to look closer."""
    _busy: bool
    _num_changes: i64
    """Changes that have begun and not ended; they nest."""
    _reason: str | None
    _user_error: AssertionError | None
    """An assertion that failed in the user's own code, which says nothing about ours."""
    _abandoned: Final[list[Abandoned]]

    def __init__(self) -> None:
        self._attention = _IDLE
        self._busy = False
        self._num_changes = 0
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
        self._num_changes += 1

    def end_change(self) -> None:
        self._num_changes -= 1

    def leave(self) -> None:
        if self._num_changes > 0:
            self._note_interruption()
        self._busy = False
        self._attention = 1 if self._reason is not None or len(self._abandoned) > 0 else _IDLE

    def _look_closer(self) -> None:
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
            if self._num_changes > 0:
                self._note_interruption()
            self._busy = False

    def _note_interruption(self) -> None:
        self._num_changes = 0
        if self._reason is None:
            error = sys.exc_info()[1]
            self._reason = f"a call was interrupted in the middle of a change: {error!r}"
            _logger.critical("kv_cache_manager_v2 is broken: %s", self._reason)

    def require_sound(self) -> None:
        """For calls that only look: a broken manager has nothing true to show."""
        if self._reason is not None:
            raise CorruptedError(f"the manager is broken since an earlier call: {self._reason}")

    def note_user_error(self, error: AssertionError) -> None:
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
        self._num_changes = 0
        return CorruptedError(f"the manager is broken: {self._reason}")

    @property
    def is_broken(self) -> bool:
        return self._reason is not None

    def add_abandoned(self, abandoned: Abandoned) -> None:
        """Called from a destructor, at any moment; only queues."""
        self._abandoned.append(abandoned)
        self._attention = 1
