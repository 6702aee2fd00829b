"""The console of a replay: progress while it runs, the report at its end.

Progress goes to the error stream, a line every few seconds, and the report to the output, so that the report can be piped.
"""

from time import monotonic
from typing import ClassVar, Final, TextIO, final

from mypy_extensions import mypyc_attr

from ..base.handle import Handle
from .report import ReplayReport
from .report_rows import plain_report
from .tally import Tally

_QUIET_INTERVAL_SECONDS: Final = 10.0


@mypyc_attr(allow_interpreted_subclasses=True)
class Console(Handle):
    """The output of a replay to the user. This one says nothing."""

    __slots__ = ()

    _NAMES: ClassVar[str] = "the output of this process"

    def start(self, num_requests: int) -> None:
        """The replay begins."""

    def update(self, tally: Tally, used_shares: list[float]) -> None:
        """Show progress, at most several times a second; ``used_shares``: slots in use over all, per pool group."""

    def stop(self) -> None:
        """The last update has come. Also after an error, and more than once."""

    def show(self, report: ReplayReport) -> None:
        """The report at the end."""

    def say(self, text: str) -> None:
        """A line of progress after the report."""


@final
class PlainConsole(Console):
    """Plain lines; silent about progress if ``is_quiet``."""

    __slots__ = ("_output", "_errors", "_is_quiet", "_num_requests", "_begin", "_last")

    def __init__(self, output: TextIO, errors: TextIO, is_quiet: bool = False) -> None:
        self._output: Final = output
        self._errors: Final = errors
        self._is_quiet: Final = is_quiet
        self._num_requests = 0
        self._begin = 0.0
        self._last = 0.0

    def start(self, num_requests: int) -> None:
        self._num_requests = num_requests
        self._begin = monotonic()
        self._last = self._begin

    def update(self, tally: Tally, used_shares: list[float]) -> None:
        now = monotonic()
        if self._is_quiet or now - self._last < _QUIET_INTERVAL_SECONDS:
            return
        self._last = now
        self._errors.write(progress_text(tally, used_shares, self._num_requests, now - self._begin) + "\n")
        self._errors.flush()

    def show(self, report: ReplayReport) -> None:
        self._output.write(plain_report(report))
        self._output.flush()

    def say(self, text: str) -> None:
        if not self._is_quiet:
            self._errors.write(text + "\n")
            self._errors.flush()


def progress_text(tally: Tally, used_shares: list[float], num_requests: int, seconds: float) -> str:
    done = tally.num_requests_done + tally.num_requests_refused
    rate = tally.num_computed_tokens / seconds if seconds > 0.0 else 0.0
    memory = " ".join([f"{share:.0%}" for share in used_shares]) if len(used_shares) > 0 else "-"
    return (
        f"{done:,} of {num_requests:,} requests, {tally.num_requests_running} running, {rate:,.0f} computed tokens/s, "
        f"hit rate {tally.hit_rate:.1%}, memory {memory}"
    )
