"""Makes a failing history short: leaves out actions as long as it still fails in the same way."""

from .history import run_history
from .scenario import Scenario


def shrink(scenario: Scenario, error: Exception) -> list[int]:
    """Positions of actions that suffice for an error of the same type; none of them can be left out alone."""
    positions = list(range(len(scenario.actions)))
    failed = run_history(scenario, positions)
    if failed.position is not None:
        positions = positions[: failed.position + 1]
    size = len(positions) // 2
    while size > 0:
        beg = 0
        while beg < len(positions):
            fewer = positions[:beg] + positions[beg + size :]
            again = run_history(scenario, fewer)
            if type(again.error) is type(error):
                positions = fewer
            else:
                beg += size
        size //= 2
    return positions
