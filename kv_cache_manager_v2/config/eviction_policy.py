"""Eviction policies: which pages of equal priority are evicted first when a level is full."""

from enum import Enum

from ..base.checks import shown


class EvictionPolicy(Enum):
    """One value per policy; docs/eviction.md says what each does and how they compare.

    LEARNED, the default: evicts the pages with the lowest value, estimated from the reuse seen so far and its delays; falls back to
    LRU while LRU does better. LRU: least recently used.
    """

    LRU = "lru"
    LEARNED = "learned"


def to_eviction_policy(value: object, name: str) -> EvictionPolicy:
    if not isinstance(value, EvictionPolicy):
        choices = ", ".join([f"EvictionPolicy.{policy.name}" for policy in EvictionPolicy])
        raise TypeError(f"{name} must be one of {choices}, not {shown(value)}")
    return value
