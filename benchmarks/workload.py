"""What can be measured: a name, what it is, and a function that measures it once, in a process of its own.

A function returns figures by name. Goals are those of the project, for compiled code on one core of a server machine.
"""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Size:
    """How much to do. The interpreted build is 10 to 20 times slower, so it does less of the same."""

    scale: float = 1.0
    huge: bool = False
    """Also what takes gigabytes and minutes."""

    def of(self, count: int, least: int = 1) -> int:
        return max(int(count * self.scale), least)


class Skipped(Exception):
    """Why a workload cannot be measured here."""


@dataclass(frozen=True)
class Row:
    """How to show one figure."""

    title: str
    unit: str
    goal: float | None = None


@dataclass(frozen=True)
class Workload:
    name: str
    measure: Callable[[Size], dict[str, float]]
    rows: dict[str, Row] = field(default_factory=dict)
    interpreted: bool = True
    """Whether it is worth running on the interpreted build."""
