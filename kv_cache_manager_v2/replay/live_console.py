"""The console of ``kvcm replay --live``: a table that is drawn anew while the replay runs. Importing this module needs rich."""

from time import monotonic
from typing import Final, TextIO, final

import rich.console
import rich.live
import rich.table
from mypy_extensions import mypyc_attr

from .console import Console
from .live_rows import live_rows
from .report import ReplayReport
from .rich_console import RichConsole
from .tally import Tally
from .timeline import TimelinePoint


@final
@mypyc_attr(native_class=True)
class LiveConsole(Console):
    """Draws on the error stream; where that is no terminal, the last table only. The report is shown as by `RichConsole`."""

    __slots__ = ("_report_console", "_console", "_live", "_num_requests", "_begin", "_rows")

    def __init__(self, output: TextIO, errors: TextIO) -> None:
        self._report_console: Final = RichConsole(output, errors, True)
        self._console: Final = rich.console.Console(file=errors)
        self._live: rich.live.Live | None = None
        self._num_requests = 0
        self._begin = 0.0
        self._rows: dict[str, tuple[str, str]] = {}

    def start(self, num_requests: int) -> None:
        self._num_requests = num_requests
        self._begin = monotonic()
        # Drawn when there is something new, by the thread that serves.
        live = rich.live.Live(console=self._console, auto_refresh=False)
        self._live = live
        live.start()

    def update(self, tally: Tally, used_shares: list[float]) -> None:
        pass

    @property
    def wants_points(self) -> bool:
        return True

    def look(self, point: TimelinePoint, tally: Tally, tiers: list[str]) -> None:
        live = self._live
        if live is None:
            return
        table = rich.table.Table(show_header=False, box=None)
        live_rows(self._rows, point, tally, tiers, self._num_requests, monotonic() - self._begin)
        for name, (value, bar) in self._rows.items():
            table.add_row(name, value, bar)
        live.update(table, refresh=True)

    def stop(self) -> None:
        live = self._live
        if live is not None:
            self._live = None
            live.stop()

    def show(self, report: ReplayReport) -> None:
        self._report_console.show(report)

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False)
