"""A user's clock that is read in the middle of calls: whatever it raises or returns, the call goes on."""

import math
from _thread import interrupt_main
from typing import Any, ClassVar, Final, final


from ..base.checks import shown
from ..base.package_log import PackageLog
from .statistics_clock import StatisticsClock

NEVER: Final = -math.inf
_logger: Final = PackageLog("kv_cache_manager_v2")


@final
class GuardedClock(StatisticsClock):
    """Stands still while the user's clock raises, goes back or returns no number; the first time is logged.

    A Ctrl-C that arrives while the clock is read is raised as soon as Python looks for signals again.
    """

    __slots__ = ("_clock", "_last", "_has_failed")

    _NAMES: ClassVar[str] = "a clock of this process"

    def __init__(self, clock: StatisticsClock) -> None:
        self._clock: Final = clock
        self._last: float = NEVER
        self._has_failed = False

    def seconds(self) -> float:
        try:
            self._advance(self._clock)
        except KeyboardInterrupt:
            interrupt_main()
        except BaseException as error:
            if not self._has_failed:
                self._has_failed = True
                _logger.warning("%s.seconds() failed, so statistics of times are wrong: %s", type(self._clock).__name__, shown(error))
        return 0.0 if self._last == NEVER else self._last

    def _advance(self, clock: Any) -> None:
        now = float(clock.seconds())
        if not -math.inf < now < math.inf:
            raise ValueError(f"seconds() returned {now}")
        if now > self._last:
            self._last = now
