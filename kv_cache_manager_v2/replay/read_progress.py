"""Progress of what has no other: after a second a line on the error stream, updated in place on a terminal."""

from time import monotonic
from typing import Final, TextIO, final


_FIRST_SECONDS: Final = 1.0
_LINE_SECONDS: Final = 5.0
_TERMINAL_SECONDS: Final = 0.2


@final
class ReadProgress:
    """Call `update` often, or `begin` before each of ``num_runs``; silent if ``is_quiet``, and during the first second."""

    __slots__ = ("_errors", "_is_quiet", "_num_runs", "_run", "_next", "_width")

    def __init__(self, errors: TextIO, is_quiet: bool, num_runs: int = 0) -> None:
        self._errors: Final = errors
        self._is_quiet: Final = is_quiet
        self._num_runs: Final = num_runs
        self._run = 0
        self._next = monotonic() + _FIRST_SECONDS
        self._width = 0

    def begin(self, what: str) -> None:
        self._run += 1
        self.update(what, self._run, self._num_runs)

    def update(self, what: str, done: int, total: int) -> None:
        """``total`` 0: unknown."""
        if self._is_quiet:
            return
        now = monotonic()
        if now < self._next:
            return
        text = f"{what}: {done / total:.0%}" if total > 0 else f"{what}: {done:,}"
        if self._errors.isatty():
            self._next = now + _TERMINAL_SECONDS
            self._errors.write("\r" + text.ljust(self._width))
            self._width = max(self._width, len(text))
        else:
            self._next = now + _LINE_SECONDS
            self._errors.write(text + "\n")
        self._errors.flush()

    def stop(self) -> None:
        """Stop; also after an error, and more than once."""
        if self._width > 0:
            self._errors.write("\r" + " " * self._width + "\r")
            self._errors.flush()
            self._width = 0
