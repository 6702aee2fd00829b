"""Runs a scenario's history, or a part of it, to its end or to the first error."""

import sys
from collections.abc import Sequence
from typing import Final, final


from ...device.port import Device
from .scenario import Scenario
from .simulated_run import SimulatedRun


@final
class History:
    """The result. ``position`` is that of the action that failed; None with an error: the end failed."""

    __slots__ = ("error", "position", "action", "digest", "num_performed", "num_refused")

    def __init__(self, error: Exception | None, position: int | None, action: str, run: SimulatedRun | None) -> None:
        self.error: Final = error
        self.position: Final = position
        self.action: Final = action
        self.digest: Final[str] = run.digest if run is not None else ""
        self.num_performed: Final[int] = run.num_performed if run is not None else 0
        self.num_refused: Final[int] = run.num_refused if run is not None else 0


def run_history(scenario: Scenario, positions: Sequence[int] | None = None, trace: bool = False, device: Device | None = None) -> History:
    """Perform the actions, or only those at ``positions``, and end the history. ``device``: as for `SimulatedRun`."""
    run: SimulatedRun | None = None
    position: int | None = None
    action = "making the manager"
    try:
        run = SimulatedRun(scenario, device)
        for position in range(len(scenario.actions)) if positions is None else positions:
            action = repr(scenario.actions[position])
            if trace:
                sys.stdout.write(f"{position}: {action}\n")
            run.perform(scenario.actions[position])
        position = None
        run.finish()
    except Exception as error:
        return History(error, position, action, run)
    return History(None, None, "", run)
