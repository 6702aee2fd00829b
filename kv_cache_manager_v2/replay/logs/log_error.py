"""A line of a log that is no request: why, and what is accepted. And the checks of its fields."""

from math import isfinite
from typing import Any, Final

MAX_REQUEST_TOKENS: Final = 1 << 24
"""A prompt with its answer is at most this long: far over any model's context."""


class LineError(ValueError):
    """Why this line is no request."""


def required(record: dict[str, Any], *names: str) -> Any:
    """The first of these fields that is there."""
    for name in names:
        if record.get(name) is not None:
            return record[name]
    missing = " or ".join([repr(name) for name in names])
    raise LineError(f"no {missing}; it has {shown(', '.join(sorted(record)))}")


def count_of(value: Any, name: str, least: int) -> int:
    if type(value) is not int:
        raise LineError(f"{name} is {shown(value)}, not an int")
    if value < least:
        raise LineError(f"{name} is {shown(value)}; it is at least {least}")
    return int(value)


def time_of(value: Any, name: str, unit: str = "milliseconds") -> float:
    """A finite number from 0 on."""
    if type(value) not in (int, float):
        raise LineError(f"{name} is {shown(value)}, not a number of {unit}")
    try:
        number = float(value)
    except OverflowError:
        raise LineError(f"{name} is too large") from None
    if not isfinite(number) or number < 0.0:
        raise LineError(f"{name} is {shown(value)}; it is a finite number of {unit} from 0 on")
    return number


def text_of(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise LineError(f"{name} is {shown(value)}, not a string")
    return value


def object_of(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise LineError(f"{name} is {shown(value)}, not an object")
    return value


def list_of(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise LineError(f"{name} is a {type(value).__name__}, not a list")
    return value


def require_length(input_tokens: int, output_tokens: int) -> None:
    if input_tokens + output_tokens > MAX_REQUEST_TOKENS:
        raise LineError(f"{shown(input_tokens)} + {shown(output_tokens)} tokens: a request has at most {MAX_REQUEST_TOKENS}")


def shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
