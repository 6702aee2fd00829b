"""When pages are written to colder levels: at eviction, or early."""

from typing import Final

WRITE_POLICIES: Final = ("back", "through")


def validate_write_policy(value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"write_policy must be a str, not {type(value).__name__}")
    if value not in WRITE_POLICIES:
        raise ValueError(f"write_policy is {value!r}; it is 'back' (pages are written when they are evicted) or 'through' (early)")
