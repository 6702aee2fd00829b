"""Priorities and durations of one sequence's blocks, from its `RetentionConfig`; called as a priority callback is."""

from math import inf
from typing import Final, final


from ..base.checks import to_int, to_number
from ..base.ids import PRIORITY_DEFAULT, BlockOrdinal
from ..config.retention import MAX_DURATION_SECONDS, RetentionConfig
from ..layout.life_cycle import LifeCycle
from .priority_callback import PriorityCallback

FOR_EVER: Final = -1
EXPECTED: Final = -2
"""Duration for `KVCacheManager.retain`: as long as the policy expects that the prefix comes back."""
_MICROSECONDS: Final = 1_000_000


@final
class RetentionPlan:
    __slots__ = (
        "_ranges", "_prompt_length", "_tokens_per_block", "_callback", "has_durations", "_generated_priority", "_generated_duration"
    )  # fmt: skip

    def __init__(self, retention: RetentionConfig, prompt_length: int, tokens_per_block: int, callback: PriorityCallback | None) -> None:
        """``callback``: the user's own; where both say something the higher priority counts."""
        self._ranges: Final[list[tuple[int, int, int, int]]] = [
            (item.begin, prompt_length if item.end is None else item.end, item.priority, _to_microseconds(item.duration_seconds))
            for item in retention.ranges
        ]
        """Begin and end, in tokens, priority and duration."""
        self._prompt_length: Final = prompt_length
        self._tokens_per_block: Final = tokens_per_block
        self._callback: Final = callback
        generated = retention.generated_priority
        self._generated_priority: Final[int] = int(PRIORITY_DEFAULT) if generated is None else generated
        self._generated_duration: Final[int] = _to_microseconds(retention.generated_duration_seconds)
        self.has_durations: Final[bool] = self._generated_duration != FOR_EVER or any([item[3] != FOR_EVER for item in self._ranges])

    def __call__(self, ordinal: BlockOrdinal, life_cycle: LifeCycle) -> int:
        priority, _duration = self.find(int(ordinal))
        callback = self._callback
        if callback is not None:
            asked = to_int(callback(ordinal, life_cycle), "what custom_priority_callback returned")
            if asked > priority or asked < 0:
                return asked
        return priority

    def find(self, ordinal: int) -> tuple[int, int]:
        """Priority and duration of a block: those of the first of the highest priority among the entries that name a token of it. The
        duration is in microseconds, or FOR_EVER."""
        begin = ordinal * self._tokens_per_block
        end = begin + self._tokens_per_block
        priority = -1
        duration = FOR_EVER
        for range_begin, range_end, its_priority, its_duration in self._ranges:
            if range_begin < end and begin < range_end and its_priority > priority:
                priority, duration = its_priority, its_duration
        if end > self._prompt_length and self._generated_priority > priority and begin >= self._prompt_length:
            priority, duration = self._generated_priority, self._generated_duration
        return int(PRIORITY_DEFAULT) if priority < 0 else priority, duration


def _to_microseconds(seconds: float | None) -> int:
    return FOR_EVER if seconds is None else round_microseconds(seconds)


def round_microseconds(seconds: float) -> int:
    """To the nearest one, so that a number of microseconds, divided and multiplied again, is itself."""
    return int(seconds * _MICROSECONDS + 0.5)


def to_duration(value: object, name: str) -> int:
    """Microseconds of a number of seconds; FOR_EVER of infinity, EXPECTED of None."""
    if value is None:
        return EXPECTED
    seconds = to_number(value, name)
    if seconds == inf:
        return FOR_EVER
    if not 0 <= seconds <= MAX_DURATION_SECONDS:
        raise ValueError(f"{name} is {value}; it must be from 0 to {MAX_DURATION_SECONDS:g} seconds, or math.inf: until it is released")
    return _to_microseconds(seconds)
