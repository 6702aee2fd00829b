"""What of one sequence is worth keeping, for how long: values given when it is created."""

from collections.abc import Sequence
from dataclasses import dataclass

from .config_value import ConfigValue, to_tuple, validate_int

MAX_PRIORITY = 100
MAX_DURATION_SECONDS = 1e9


@dataclass(frozen=True)
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
        validate_int(self.begin, "TokenRangeRetention.begin", 0)
        if self.end is not None:
            validate_int(self.end, "TokenRangeRetention.end", self.begin + 1)
        validate_int(self.priority, "TokenRangeRetention.priority", 0, MAX_PRIORITY)
        validate_duration(self.duration_seconds, "TokenRangeRetention.duration_seconds")


@dataclass(frozen=True)
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
        if self.generated_priority is not None:
            validate_int(self.generated_priority, "RetentionConfig.generated_priority", 0, MAX_PRIORITY)
        validate_duration(self.generated_duration_seconds, "RetentionConfig.generated_duration_seconds")


def validate_duration(value: object, name: str) -> None:
    """A number of seconds, or None for ever."""
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} must be a number of seconds or None, not {type(value).__name__}")
    if not 0 <= value <= MAX_DURATION_SECONDS:
        raise ValueError(f"{name} is {value}; it must be from 0 to {MAX_DURATION_SECONDS:g} seconds")
