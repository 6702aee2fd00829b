"""Ctrl-C as a flag that is read between steps, so that no call of the manager is interrupted.

The first Ctrl-C asks the replay to end with the report so far; a second one is an ordinary `KeyboardInterrupt`. Outside
the main thread, where Python delivers no signals, the flag is never raised.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, final


@final
class InterruptFlag:
    """A context manager: within it, Ctrl-C raises the flag."""

    __slots__ = ("_is_raised", "_previous", "_is_installed")

    def __init__(self) -> None:
        self._is_raised = False
        self._previous: Any = None
        self._is_installed = False

    def __enter__(self) -> "InterruptFlag":
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._on_interrupt)
            self._is_installed = True
        return self

    def __exit__(self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None) -> None:
        self._uninstall()

    def is_raised(self) -> bool:
        # Python runs signal handlers between bytecodes, and a compiled loop has none. This call of an interpreted
        # function lets a pending Ctrl-C be handled.
        signal.getsignal(signal.SIGINT)
        return self._is_raised

    def _on_interrupt(self, number: int, frame: FrameType | None) -> None:
        self._is_raised = True
        self._uninstall()

    def _uninstall(self) -> None:
        if self._is_installed:
            self._is_installed = False
            # None: the handler was not installed from Python; the nearest thing is the default.
            signal.signal(signal.SIGINT, signal.SIG_DFL if self._previous is None else self._previous)
