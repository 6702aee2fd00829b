"""Forced preemption: running requests are suspended now and then and resumed some steps later.

So a replay exercises what a busy engine does to its sequences, however much memory there is. Drawn with its own random
numbers, in the order in which the requests run: the same replay pauses the same ones.
"""

from random import Random
from typing import Final, final


_SEED: Final = 20
_LONGEST_PAUSE_STEPS: Final = 8


@final
class ForcedPauses:
    """``share`` of the running requests are paused after each step, for 1 to 8 steps."""

    __slots__ = ("share", "_random")

    def __init__(self, share: float) -> None:
        self.share: Final = share
        self._random: Final = Random(_SEED)

    def draw_pause(self) -> int:
        """Steps for which the next running request pauses; 0: it does not pause."""
        if self.share == 0.0 or self._random.random() >= self.share:
            return 0
        return 1 + int(self._random.random() * _LONGEST_PAUSE_STEPS)
