"""Retention: priorities of one sequence's blocks, and for how long; given when the sequence is created."""

from collections.abc import Sequence
from dataclasses import dataclass

from mypy_extensions import mypyc_attr

from ..base.checks import to_instance
from .config_value import ConfigValue, take_int, take_optional_float, take_optional_int, to_tuple

MAX_PRIORITY = 100
MAX_DURATION_SECONDS = 1e9
MAX_KIND = 255


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class TokenRangeRetention(ConfigValue):
    """The priority of every block with one of the prompt's tokens ``begin .. end - 1`` (``end`` None: to the prompt's end).

    ``priority``: 0 (evict first) to 100. ``duration_seconds`` of `KVCacheManager.advance_clock` after the block was published,
    its priority becomes the default again; None: never.

    ``kind``: what these tokens are, by a number of the caller's own from 0 to 255 (system prompt, user, tool output, thought), or None.
    EvictionPolicy.LEARNED learns which kinds come back, and goes by it as far as it helps; where ranges overlap the kind of the
    highest priority counts. Kinds that differ by a multiple of 15 are one to it.
    """

    begin: int
    end: int | None
    priority: int
    duration_seconds: float | None = None
    kind: int | None = None

    def __post_init__(self) -> None:
        take_int(self, "begin", "TokenRangeRetention.begin", 0)
        take_optional_int(self, "end", "TokenRangeRetention.end", 0)
        if self.end is not None and self.end <= self.begin:
            raise ValueError(f"TokenRangeRetention.end is {self.end}; it must be over begin, which is {self.begin}")
        take_int(self, "priority", "TokenRangeRetention.priority", 0, MAX_PRIORITY)
        take_optional_float(self, "duration_seconds", "TokenRangeRetention.duration_seconds", 0, MAX_DURATION_SECONDS)
        take_optional_int(self, "kind", "TokenRangeRetention.kind", 0, MAX_KIND)


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class RetentionConfig(ConfigValue):
    """Priorities of the prompt's ``ranges`` (the highest one where they overlap), and of generated tokens.

    ``generated_priority`` None: generated tokens have the default priority, like all tokens outside the ranges.
    """

    ranges: Sequence[TokenRangeRetention] = ()
    generated_priority: int | None = None
    generated_duration_seconds: float | None = None

    def __post_init__(self) -> None:
        given = to_tuple(self.ranges, "RetentionConfig.ranges")
        items = [to_instance(item, TokenRangeRetention, f"RetentionConfig.ranges[{index}]") for index, item in enumerate(given)]
        object.__setattr__(self, "ranges", tuple(items))
        take_optional_int(self, "generated_priority", "RetentionConfig.generated_priority", 0, MAX_PRIORITY)
        take_optional_float(self, "generated_duration_seconds", "RetentionConfig.generated_duration_seconds", 0, MAX_DURATION_SECONDS)
