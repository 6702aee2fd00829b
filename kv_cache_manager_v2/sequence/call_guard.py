"""The door of every public call: ``with guard as journal:`` around the call's body.

One caller at a time: an overlap that can be seen is a `LogicError`. Calls that only look (`Reading`; `KVCache.ready` too, which notes
what has arrived) may come from other threads: they take the lock `readers`, and are refused (`BusyError`) while another call runs. A call
that comes meanwhile waits for them; where none looks it takes no lock, as two plain numbers say so, and CPython switches threads neither in
compiled code nor between reading and setting one. When an invariant fails inside a call the manager is *broken*: that call and every
later one raises `CorruptedError` with the first reason. So it is when a call is interrupted in the middle of a change that cannot be
undone (the device refuses an event, the user presses Ctrl-C): the interruption itself is raised, later calls are refused. Ctrl-C may
come between any two lines, so all invariants are evaluated after it (`StateChecker`), also where no change had begun, and where undoing
has failed with another error since. An `AssertionError` that code of the user's raised (a callback, an argument's ``__index__``) is no
invariant of ours, but an exception like others. Sequences whose handle was dropped without `close` wait here; the next call that finds
the manager idle closes them, also one that only looks.

Where kernels are plain code of the caller's thread, the end of a call waits for what it has made the streams of sequences wait for
(`StreamOrder.settle`): the kernels may touch the pages at once.

The call records itself in the journal that the door hands out, as its last step: a call that raises is not recorded. A manager
without a journal hands out one that keeps nothing. Compiled, the ``with`` and the record that is not kept cost some two nanoseconds
more than ``try``, ``finally`` and a test for a journal; a decode step inside a block needs no door at all (`is_idle`).

In a process that was forked from the manager's own the guard is *foreign*: every call is a `LogicError`, whatever the state. So it is
once the manager is shut down.

    state     way out
    IDLE      __enter__ -> BUSY; begin_reading -> READ
    READ      end_reading -> IDLE; __enter__ waits for that -> BUSY
    BUSY      __exit__ -> IDLE, or BROKEN after an AssertionError; begin_change -> CHANGING
    CHANGING  end_change -> BUSY, __exit__ -> BROKEN
    BROKEN    none
"""

import os
import sys
from abc import ABCMeta, abstractmethod
from threading import Lock, get_ident, main_thread
from types import FrameType, TracebackType
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from ..base.build_mode import is_compiled
from ..base.call_door import CallDoor
from ..base.change_count import ChangeCount
from ..base.errors import BusyError, CorruptedError, LogicError
from ..base.package_log import PackageLog
from ..device.stream_order import StreamOrder
from ..journal.call_journal import CallJournal
from ..journal.call_records import CallRecords

_IDLE: Final = 0
_NOT_IDLE: Final = 1
_PACKAGE: Final = __name__.rpartition(".sequence.")[0] + "."
_FACADES: Final = (_PACKAGE + "manager.", _PACKAGE + "kernels.")
"""Folders of the public calls."""
_logger: Final = PackageLog("kv_cache_manager_v2")


@mypyc_attr(allow_interpreted_subclasses=True)
class Abandoned(metaclass=ABCMeta):
    """A handle's work that its user forgot, and that the next call closes."""

    __slots__ = ()

    @abstractmethod
    def close_abandoned(self) -> None: ...


@mypyc_attr(allow_interpreted_subclasses=True)
class SnapshotPublisher(metaclass=ABCMeta):
    """Answers of a running call, at its end, to threads that found the manager busy."""

    __slots__ = ()

    @abstractmethod
    def publish(self) -> None: ...


@mypyc_attr(allow_interpreted_subclasses=True)
class StateChecker(metaclass=ABCMeta):
    """Evaluates all invariants after a call was interrupted; raises anything if one does not hold."""

    __slots__ = ()

    @abstractmethod
    def check(self) -> None: ...


@final
class CallGuard(CallDoor):
    __slots__ = (
        "is_foreign", "is_shut_down", "publisher", "checker", "order", "_attention", "_busy", "_number", "_changes", "journal",
        "is_recording", "_reason", "_abandoned", "_process", "_readers", "_reader", "_is_read", "_is_entering", "_must_stay", "_asked",
    )  # fmt: skip

    def __init__(self, changes: ChangeCount, journal: CallRecords) -> None:
        self._changes: Final = changes
        """Changes of the storage, evictions too: they change things before the call that needs the room does."""
        self.journal: Final = journal
        """Handed out by each call; without a journal one that keeps nothing."""
        self.is_recording: Final[bool] = isinstance(journal, CallJournal)
        """Whether the journal keeps anything: asked where a record for each sequence of a batch would cost."""
        self.is_foreign = False
        """Whether this process is a fork of the manager's: it must leave the manager's memory and files alone."""
        self.is_shut_down = False
        self._process: Final[int] = os.getpid()
        self._attention: i64 = _IDLE
        """0 when a call may go straight on; 1 when it has to look closer."""
        self._busy = False
        self._number: i64 = 0
        """Counts the calls: whether it is the same one that is still busy."""
        self._reason: str | None = None
        """Why the manager is broken; None while it is sound."""
        self._abandoned: Final[list[Abandoned]] = []
        self._readers: Final = Lock()
        self._reader = 0
        """The thread that looked last."""
        self._is_read = False
        """A thread may be looking: it is, if `_readers` is locked."""
        self._is_entering = False
        """A call is about to begin, or publishes: no thread may look."""
        self._must_stay = False
        """Something waits for the end of the call: a broken manager, abandoned handles, threads that asked for a snapshot, a stream."""
        self._asked: list[Lock] = []
        """Each locked by a thread that waits for a snapshot."""
        self.publisher: SnapshotPublisher | None = None
        self.checker: StateChecker | None = None
        """None while the manager is made, and once it is shut down."""
        self.order: StreamOrder | None = None
        """None where streams hold the kernels back."""

    @property
    def is_idle(self) -> bool:
        """Whether a call that only changes a few numbers may do without the door."""
        return self._attention == _IDLE

    def __enter__(self) -> CallRecords:
        if self._attention != _IDLE:
            self._look_closer()
        self._attention = _NOT_IDLE
        self._number += 1
        self._busy = True
        self._is_entering = False
        return self.journal

    def __exit__(self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None:
            self._leave()
        else:
            self._leave_after(error)

    def begin_change(self) -> None:
        """From here on the call changes things; an exception before `end_change` leaves them half done."""
        self._changes.num_begun += 1

    def end_change(self) -> None:
        self._changes.num_begun -= 1

    def _leave(self) -> None:
        if self._changes.num_begun > 0:
            self._record_interruption()
        if self.order is not None and self.order.owes:
            try:
                self.order.settle()
            finally:
                # Interrupted, it is left to the next call.
                self._must_stay = self._must_stay or self.order.owes
                self._become_idle()
            return
        self._become_idle()

    def _become_idle(self) -> None:
        self._busy = False
        # In this order: a handle that another thread drops between the two sets it again.
        self._attention = _IDLE
        if self._must_stay:
            self._attention = _NOT_IDLE
            self._is_entering = True
            self._stay()

    def _stay(self) -> None:
        """At the end of a call for which something waits. No thread may look until it is known whether the next call may go straight on."""
        try:
            if len(self._asked) > 0:
                self._publish()
            self._must_stay = False
            is_needed = self._reason is not None or len(self._abandoned) > 0 or len(self._asked) > 0 or self.is_foreign
            is_needed = is_needed or (self.order is not None and self.order.owes)
        finally:
            self._is_entering = False
        # Idle last, with no call in between: an interrupt leaves the closer look, another thread's reason is seen.
        if is_needed or self._must_stay:
            self._must_stay = True
        else:
            self._attention = _IDLE

    def _publish(self) -> None:
        asked = self._asked
        self._asked = []
        if self.publisher is not None and self._reason is None:
            self.publisher.publish()
        for waiting in asked:
            waiting.release()

    def _leave_after(self, error: BaseException) -> None:
        """Apart from `__exit__`: compiled, the name of an exception class is looked up each time."""
        raised = self._record_error(error)
        self._leave()
        _raise_instead(raised, error)

    def _record_error(self, error: BaseException) -> BaseException:
        """A call has raised; returns what the caller gets instead: the interruption before the error, or that the manager is broken."""
        raised: BaseException = error
        interruption = _find_interruption(error)
        if interruption is not None:
            raised = interruption
            self._record_interrupted(interruption, not isinstance(error, AssertionError))
        elif isinstance(error, AssertionError):
            raised = self._fail(error)
        self.journal.discard()
        return raised

    def become_foreign(self) -> None:
        self.is_foreign = True
        self._must_stay = True
        self._attention = _NOT_IDLE

    def shut_down(self) -> None:
        """No call begins any more. Twice is fine."""
        self.publisher = None
        self.checker = None
        self.is_shut_down = True
        self._must_stay = True
        self._attention = _NOT_IDLE

    def require_own_process(self) -> None:
        if self.is_foreign:
            raise LogicError(
                f"this is process {os.getpid()}, a fork of process {self._process}, which has the manager's memory, files and "
                f"threads: serve there, or make a manager of its own here"
            )

    def require_idle(self) -> None:
        """For calls without a door that change, write or consume something: `LogicError` in a forked process, and while a call runs."""
        if self._attention != _IDLE:
            self.require_own_process()
            if self._busy and _is_a_call_running():
                raise _two_calls()
            if self._is_read and self._reader != get_ident():
                # It may be closing what was dropped.
                with self._readers:
                    pass

    def _look_closer(self) -> None:
        self.require_sound()
        self.end_interrupted()
        if self._busy:
            raise _two_calls()
        if self._is_read:
            self._wait_for_reader()
        # A look that has ended since took the guard for idle.
        self._attention = _NOT_IDLE
        self._is_entering = True
        self._busy = True
        try:
            self._close_abandoned()
        except BaseException:
            self._is_entering = False
            raise
        finally:
            self._busy = False

    def end_interrupted(self) -> None:
        """End the call whose `__exit__` was kept from doing anything by an interrupt at its very beginning, if there is one."""
        number = self._number
        if self._busy and not _is_a_call_running() and self._busy and self._number == number:
            self._busy = False
            self.journal.discard()
            self._record_interrupted(None, True)
            if self._reason is not None:
                raise CorruptedError(f"the manager is broken: {self._reason}")

    def _close_abandoned(self) -> None:
        """Closing may run user code that drops further handles; what cannot be closed stays for the next call."""
        try:
            while len(self._abandoned) > 0:
                self._abandoned[0].close_abandoned()
                del self._abandoned[0]
        except AssertionError as error:
            raise self._fail(error) from error
        except BaseException as other:
            interruption = _find_interruption(other)
            if interruption is not None:
                self._record_interrupted(interruption, True)
            raise
        finally:
            if self._changes.num_begun > 0:
                self._record_interruption()

    def _wait_for_reader(self) -> None:
        """Block until no thread looks, and let no other one look."""
        if self._reader == get_ident() and self._readers.locked():
            raise LogicError("a call began inside a call of the same thread that only looks (from an object's __del__, say)")
        with self._readers:
            self._is_read = False
            self._is_entering = True
            self._attention = _NOT_IDLE

    # -- threads that only look ---------------------------------------------------------------------------------------

    @property
    def readers(self) -> Lock:
        """The lock of those that only look. `CorruptedError` if the manager is broken, `LogicError` in a forked process, `BusyError`
        where this thread has it already."""
        self.require_sound()
        if self._is_read and self._reader == get_ident() and self._readers.locked():
            raise BusyError("a call began inside a call of the same thread that only looks (from an object's __del__, say)")
        return self._readers

    def begin_reading(self) -> CallRecords:
        """With `readers` locked. `BusyError` while a call runs; else what was dropped is closed first."""
        # Before the look at `_attention`: another thread may take over at a call.
        reader = get_ident()
        if self._attention != _IDLE:
            self.require_sound()
            if self._busy or self._is_entering:
                raise BusyError(
                    "another thread is in a call on this manager, or this one is inside a callback: ask again later, or where the engine "
                    "calls the manager"
                )
        self._is_read = True
        self._attention = _NOT_IDLE
        self._reader = reader
        if len(self._abandoned) > 0:
            try:
                self._close_abandoned()
            except BaseException:
                self.end_reading()
                raise
        return self.journal

    def end_reading(self) -> None:
        self._is_read = False
        self._attention = _IDLE
        if self._must_stay:
            self._attention = _NOT_IDLE

    def fail_reading(self, error: BaseException) -> None:
        """`end_reading` after an error, which is raised, or says that the manager is broken."""
        raised = self._record_error(error)
        if self._changes.num_begun > 0:
            self._record_interruption()
        self.end_reading()
        _raise_instead(raised, error)

    def ask_for_snapshot(self) -> Lock:
        """From a thread that was refused: the call that runs publishes at its end, and then releases the lock."""
        waiting = Lock()
        waiting.acquire()
        # In this order: the call may end between any two of these.
        self._asked.append(waiting)
        self._must_stay = True
        self._attention = _NOT_IDLE
        return waiting

    def _record_interruption(self) -> None:
        self._break_by(repr(sys.exc_info()[1]))

    def _break_by(self, interruption: str) -> None:
        self._break(f"a call was interrupted in the middle of a change: {interruption}")

    def _break(self, reason: str) -> None:
        """The manager is broken; the first reason stays."""
        self._changes.num_begun = 0
        self._must_stay = True
        self._attention = _NOT_IDLE
        if self._reason is None:
            self._reason = reason
            _logger.critical("kv_cache_manager_v2 is broken: %s", reason)

    def _record_interrupted(self, interruption: BaseException | None, may_be_whole: bool) -> None:
        """A call was interrupted. Unless everything is as it must be by now, the manager is broken."""
        if self._reason is not None:
            return
        text = "KeyboardInterrupt()" if interruption is None else repr(interruption)
        if not may_be_whole or self._changes.num_begun > 0:
            self._break_by(text)
        elif self.checker is not None:
            try:
                self.checker.check()
            except BaseException as failed:
                # Another interruption of the check, too: then nothing is known.
                self._break_by(f"{text}; {failed}")

    def require_sound(self) -> None:
        """A broken manager has nothing true to show, and one that is shut down has nothing."""
        self.require_own_process()
        if self._reason is not None:
            raise CorruptedError(f"the manager is broken since an earlier call: {self._reason}")
        self.require_open()

    def require_open(self) -> None:
        """For calls without a door that a broken manager answers too."""
        self.require_own_process()
        if self.is_shut_down:
            raise LogicError("the manager is shut down; make another one")

    def _fail(self, error: AssertionError) -> Exception:
        """An assertion failed inside a call, perhaps an invariant of ours; returns what the call has to raise."""
        if not _is_ours(error):
            return error
        self._break(str(error) or "an invariant failed without a text")
        return CorruptedError(f"the manager is broken: {self._reason}")

    @property
    def broken_reason(self) -> str | None:
        """The first invariant that failed, or the interruption in the middle of a change; None while the manager is sound."""
        return self._reason

    @property
    def is_broken(self) -> bool:
        return self._reason is not None

    @property
    def num_abandoned(self) -> int:
        """Handles that were dropped, and whose work the next call does."""
        return len(self._abandoned)

    def add_abandoned(self, abandoned: Abandoned) -> None:
        """Called from a destructor, at any moment; only queues."""
        self._must_stay = True
        self._attention = _NOT_IDLE
        self._abandoned.append(abandoned)


@final
class Reading:
    """The door of a call that only looks: ``with guard.readers, reading as journal:``."""

    __slots__ = ("_guard",)

    def __init__(self, guard: CallGuard) -> None:
        self._guard: Final = guard

    def __enter__(self) -> CallRecords:
        return self._guard.begin_reading()

    def __exit__(self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None:
            self._guard.end_reading()
        else:
            self._guard.fail_reading(error)


def _raise_instead(raised: BaseException, error: BaseException) -> None:
    if raised is error:
        return
    if isinstance(raised, Exception):
        raise raised from error
    raise raised


def _two_calls() -> LogicError:
    return LogicError(
        "a call began while another call on the same manager was running (from another thread, or from inside a callback); one caller "
        "at a time"
    )


def _is_a_call_running() -> bool:
    """Whether some thread is in a public call, apart from the one that asks; compiled code, which is never interrupted, has no frames.

    Signals interrupt the main thread alone. No other one looks at frames: those of a thread that runs on may go while they are read.
    """
    # No variable here names this frame: it would keep those below it, and what they work on, until the next garbage collection.
    return is_compiled() or get_ident() != main_thread().ident or _is_in_a_call(sys._current_frames())


def _is_in_a_call(frames: dict[int, FrameType]) -> bool:
    """``frames``: where each thread is, this one in the function that asks."""
    for thread, top in frames.items():
        frame: FrameType | None = top
        if thread == get_ident():
            while frame is not None and _module_of(frame).startswith(_PACKAGE):
                frame = frame.f_back
        while frame is not None:
            if _module_of(frame).startswith(_FACADES):
                return True
            frame = frame.f_back
    return False


def _module_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _find_interruption(error: BaseException) -> BaseException | None:
    """KeyboardInterrupt and what else is no `Exception`: the error itself, or what it has replaced while the call was being undone.

    Not one that the caller's own code is handling: that one was raised further out.
    """
    found: BaseException | None = error
    while found is not None:
        if not isinstance(found, Exception):
            raised_at = found.__traceback__
            if found is error or (raised_at is not None and _module_of(raised_at.tb_frame).startswith(_PACKAGE)):
                return found
            return None
        found = found.__context__
    return None


def _is_ours(error: AssertionError) -> bool:
    """Whether a module of this package raised it, rather than code of the user's that the package had called."""
    last: TracebackType | None = error.__traceback__
    if last is None:
        return True
    while last.tb_next is not None:
        last = last.tb_next
    return _module_of(last.tb_frame).startswith(_PACKAGE)
