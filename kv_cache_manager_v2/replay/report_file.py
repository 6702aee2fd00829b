"""Writing the page of a replay, where the library for its plots is installed."""

from ..base.missing_package import missing_package
from .other_sizes import MeasuredCurve
from .replayer import PlanError
from .report import ReplayReport
from .result_file import write_result
from .timeline import Timeline


def require_plots() -> None:
    """`PlanError` before anything is served if the page could not be made."""
    try:
        import plotly  # type: ignore[import-untyped]
    except ImportError as error:
        raise PlanError(str(missing_package("--report", "plotly", error))) from None
    assert plotly is not None


def write_html_report(
    path: str, report: ReplayReport, timeline: Timeline, curves: list[MeasuredCurve], command: str
) -> None:
    """``command``: what was asked for, as a line of a shell."""
    from .html_report import make_html

    write_result(path, make_html(report, timeline.points, timeline.tiers, curves, command))
