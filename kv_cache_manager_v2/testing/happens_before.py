"""The happens-before relation, by vector clocks.

Every thread of execution is a *component*: the host thread is component 0, every stream that was ever created is one
more. An access is named by ``(component, tick)``. A clock has, for each component, the tick up to which its accesses
happened before; so access ``(c, t)`` happened before anything done under clock ``k`` exactly if ``k.ticks[c] >= t``.

    enqueueing an operation    the stream's clock joins the host's, then the stream's own tick advances
    record, wait               an event is a copy of the stream's clock; the waiting stream joins it
    the host waits             the host's clock joins the event's or the stream's
    the host touches memory    the host's own tick advances

All of this is known when a call is made, whatever order the simulator then chooses; so a race is found at the call that
makes the second access, in every run.
"""

from typing import Final, final


HOST: Final = 0
"""The component of the host thread."""


@final
class VectorClock:
    """One tick per component; a component beyond the end counts as tick 0."""

    __slots__ = ("ticks",)

    def __init__(self, ticks: list[int]) -> None:
        self.ticks = ticks

    def copy(self) -> "VectorClock":
        return VectorClock(self.ticks[:])

    def join(self, other: "VectorClock") -> None:
        """Everything that happened before ``other`` happened before this clock from now on."""
        ticks = self.ticks
        others = other.ticks
        missing = len(others) - len(ticks)
        if missing > 0:
            ticks.extend([0] * missing)
        component = 0
        for tick in others:
            if tick > ticks[component]:
                ticks[component] = tick
            component += 1

    def includes(self, component: int, tick: int) -> bool:
        """Whether access ``(component, tick)`` happened before this clock."""
        ticks = self.ticks
        return component < len(ticks) and ticks[component] >= tick

    def advance(self, component: int) -> int:
        """The component's next tick, which names one access."""
        ticks = self.ticks
        missing = component + 1 - len(ticks)
        if missing > 0:
            ticks.extend([0] * missing)
        tick = ticks[component] + 1
        ticks[component] = tick
        return tick
