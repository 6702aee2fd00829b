"""When pages are written to colder levels: at eviction, or early."""

from typing import Final

from ..base.checks import to_text

WRITE_POLICIES: Final = ("back", "through")


def to_write_policy(value: object) -> str:
    policy = to_text(value, "write_policy")
    if policy not in WRITE_POLICIES:
        raise ValueError(f"write_policy is {policy!r}; it is 'back' (pages are written when they are evicted) or 'through' (early)")
    return policy
