"""The console with rich: a live line on a terminal, and tables. Importing this module needs rich (extra ``cli``)."""

from time import monotonic
from typing import Final, TextIO, final

import rich.console
import rich.progress
import rich.table
import rich.text
from mypy_extensions import mypyc_attr

from .console import Console, PlainConsole, memory_text
from .report import ReplayReport
from .report_rows import (
    CALL_HEADER,
    LAYER_GROUP_HEADER,
    POOL_GROUP_HEADER,
    call_rows,
    figure_rows,
    layer_group_rows,
    plain_report,
    pool_group_rows,
    tier_tables,
)
from .tally import Tally


@final
@mypyc_attr(native_class=True)
class RichConsole(Console):
    """Live progress if the error stream is a terminal, tables if the output is one; otherwise as `PlainConsole`."""

    __slots__ = ("_output", "_plain", "_errors_console", "_is_live", "_progress", "_task", "_begin")

    def __init__(self, output: TextIO, errors: TextIO, is_quiet: bool = False) -> None:
        self._output: Final = output
        self._plain: Final = PlainConsole(output, errors, is_quiet)
        self._errors_console: Final = rich.console.Console(file=errors)
        self._is_live: Final = self._errors_console.is_terminal and not is_quiet
        self._progress: rich.progress.Progress | None = None
        self._task: rich.progress.TaskID | None = None
        self._begin = 0.0

    def start(self, num_requests: int) -> None:
        self._begin = monotonic()
        self._plain.start(num_requests)
        if not self._is_live:
            return
        progress = rich.progress.Progress(
            rich.progress.BarColumn(bar_width=24),
            rich.progress.MofNCompleteColumn(),
            rich.progress.TextColumn("requests"),
            rich.progress.TimeElapsedColumn(),
            rich.progress.TextColumn("{task.description}"),
            console=self._errors_console,
            transient=True,
        )
        self._progress = progress
        self._task = progress.add_task("", total=num_requests)
        progress.start()

    def update(self, tally: Tally, used_shares: list[float]) -> None:
        progress = self._progress
        task = self._task
        if progress is None or task is None:
            self._plain.update(tally, used_shares)
            return
        seconds = monotonic() - self._begin
        rate = tally.num_computed_tokens / seconds if seconds > 0.0 else 0.0
        description = (
            f"{tally.num_requests_running} running, {rate:,.0f} computed tokens/s, hit {tally.hit_rate:.1%}, "
            f"memory {memory_text(used_shares)}"
        )
        progress.update(task, completed=tally.num_requests_done + tally.num_requests_refused, description=description)

    def stop(self) -> None:
        progress = self._progress
        if progress is not None:
            self._progress = None
            progress.stop()

    def show(self, report: ReplayReport) -> None:
        console = rich.console.Console(file=self._output)
        if not console.is_terminal:
            self._output.write(plain_report(report))
            self._output.flush()
            return
        figures = rich.table.Table(show_header=False, box=None)
        figures.add_column(style="bold")
        figures.add_column()
        for name, value in figure_rows(report):
            # As text: a path with brackets is no markup.
            figures.add_row(name, rich.text.Text(value))
        console.print(figures)
        console.print(_table(POOL_GROUP_HEADER, pool_group_rows(report)))
        for table in tier_tables(report):
            console.print(_table(table[0], table[1:]))
        console.print(_table(LAYER_GROUP_HEADER, layer_group_rows(report)))
        console.print(_table(CALL_HEADER, call_rows(report)))

    def say(self, text: str) -> None:
        self._plain.say(text)


def print_table(title: str, header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """On the output, which is a terminal."""
    console = rich.console.Console()
    console.print(rich.text.Text(title))
    console.print(_table(header, rows))


def _table(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> rich.table.Table:
    table = rich.table.Table()
    table.add_column(header[0])
    for name in header[1:]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*row)
    return table
