"""Progress of a comparison: a line on the error stream now and then, one that is updated in place on a terminal."""

from time import monotonic
from typing import Final, TextIO, final

from mypy_extensions import mypyc_attr

_LINE_INTERVAL_SECONDS: Final = 5.0


@final
@mypyc_attr(native_class=True)
class ComparisonProgress:
    """Progress over ``num_runs`` calls of `begin`. Silent if ``is_quiet``."""

    __slots__ = ("_errors", "_is_quiet", "_num_runs", "_run", "_last", "_width")

    def __init__(self, errors: TextIO, num_runs: int, is_quiet: bool) -> None:
        self._errors: Final = errors
        self._is_quiet: Final = is_quiet
        self._num_runs: Final = num_runs
        self._run = 0
        self._last = monotonic()
        self._width = 0

    def begin(self, source: str, num_slots: int, policy: str) -> None:
        self._run += 1
        if self._is_quiet:
            return
        text = f"{self._run} of {self._num_runs}: {source}, {num_slots:,} blocks, {policy}"
        if self._errors.isatty():
            self._errors.write("\r" + text.ljust(self._width))
            self._width = len(text)
            self._errors.flush()
        elif monotonic() - self._last >= _LINE_INTERVAL_SECONDS:
            self._last = monotonic()
            self._errors.write(text + "\n")
            self._errors.flush()

    def stop(self) -> None:
        """Stop; also after an error, and more than once."""
        if self._width > 0:
            self._errors.write("\r" + " " * self._width + "\r")
            self._errors.flush()
            self._width = 0
