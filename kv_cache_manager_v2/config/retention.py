"""What of one sequence is worth keeping, for how long: values given when it is created."""

from collections.abc import Sequence
from dataclasses import dataclass

from mypy_extensions import mypyc_attr

from ..base.checks import to_number
from .config_value import ConfigValue, take_int, take_optional_float, take_optional_int, to_tuple

MAX_PRIORITY = 100
MAX_DURATION_SECONDS = 1e9


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class TokenRangeRetention(ConfigValue):
    """Tokens ``begin .. end - 1`` of the prompt (``end`` None: to its end) and the priority of every block with one of them.

    ``priority``: 0 (evict first) to 100. ``duration_seconds`` of `KVCacheManager.advance_clock` after the block was published its
    priority is the default one again; None: it stays.
    """

    begin: int
    end: int | None
    priority: int
    duration_seconds: float | None = None

    def __post_init__(self) -> None:
        take_int(self, "begin", "TokenRangeRetention.begin", 0)
        take_optional_int(self, "end", "TokenRangeRetention.end", 0)
        if self.end is not None and self.end <= self.begin:
            raise ValueError(f"TokenRangeRetention.end is {self.end}; it must be over begin, which is {self.begin}")
        take_int(self, "priority", "TokenRangeRetention.priority", 0, MAX_PRIORITY)
        take_optional_float(self, "duration_seconds", "TokenRangeRetention.duration_seconds", 0, MAX_DURATION_SECONDS)


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class RetentionConfig(ConfigValue):
    """``ranges`` of the prompt, of which the highest priority counts where they overlap, and what is generated.

    ``generated_priority`` None leaves generated tokens, as all that no range names, at the default priority.
    """

    ranges: Sequence[TokenRangeRetention] = ()
    generated_priority: int | None = None
    generated_duration_seconds: float | None = None

    def __post_init__(self) -> None:
        items: list[TokenRangeRetention] = []
        for index, item in enumerate(to_tuple(self.ranges, "RetentionConfig.ranges")):
            if not isinstance(item, TokenRangeRetention):
                raise TypeError(f"RetentionConfig.ranges[{index}] must be a TokenRangeRetention, not {type(item).__name__}")
            items.append(item)
        object.__setattr__(self, "ranges", tuple(items))
        take_optional_int(self, "generated_priority", "RetentionConfig.generated_priority", 0, MAX_PRIORITY)
        take_optional_float(
            self, "generated_duration_seconds", "RetentionConfig.generated_duration_seconds", 0, MAX_DURATION_SECONDS
        )


def to_duration(value: object, name: str) -> float | None:
    """A number of seconds, or None for ever."""
    if value is None:
        return None
    seconds = to_number(value, name)
    if not 0 <= seconds <= MAX_DURATION_SECONDS:
        raise ValueError(f"{name} is {value}; it must be from 0 to {MAX_DURATION_SECONDS:g} seconds")
    return seconds
