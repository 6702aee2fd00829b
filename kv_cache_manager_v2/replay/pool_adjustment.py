"""Adjustment of the pool groups while serving, as a server does: between steps, when the manager asks for it.

The manager's cool-down counts seconds, and a replay reads no clock. So a step lasts as long as `StepTime` says: the same requests are
adjusted at the same steps everywhere.
"""

from typing import Final, final


from .service_clock import StepTime
from .timed_calls import TimedCalls

_MICROSECONDS_BETWEEN_LOOKS: Final = 1_000_000
"""Each check counts the pages that must stay, which takes as long as a step of the manager."""


@final
class PoolAdjustment:
    """Call `end_step` after each step. Counts the adjustments that have changed a pool group."""

    __slots__ = ("num_adjustments", "_calls", "_step_time", "_waiting_microseconds")

    def __init__(self, calls: list[TimedCalls], step_time: StepTime | None = None) -> None:
        self.num_adjustments = 0
        self._calls: Final = calls
        """Of each manager."""
        self._step_time: Final[StepTime] = StepTime() if step_time is None else step_time
        self._waiting_microseconds = 0
        """Since the last look."""

    def end_step(self, num_inputs: int) -> bool:
        """End a step; returns whether pages may have moved, and slots may be free where there were none."""
        self._waiting_microseconds += self._step_time.microseconds(num_inputs)
        if self._waiting_microseconds < _MICROSECONDS_BETWEEN_LOOKS:
            return False
        has_changed = False
        for calls in self._calls:
            calls.manager.advance_clock(self._waiting_microseconds / 1e6)
            if calls.adjust_if_needed():
                self.num_adjustments += 1
                has_changed = True
        self._waiting_microseconds = 0
        return has_changed
