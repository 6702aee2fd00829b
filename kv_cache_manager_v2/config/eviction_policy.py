"""Which pages of one priority go first when a level is full."""

from enum import Enum


class EvictionPolicy(Enum):
    """One value per policy; docs/eviction.md says what each does and how they compare.

    LEARNED, the default: what is worth least by what has come back so far, and after how long; the longest unused while that does
    better. LRU: the longest unused. LFU: the least used. ARC: adapts between recency and reuse. S3_FIFO: what is not reused soon passes
    through a small queue.
    """

    LRU = "lru"
    LFU = "lfu"
    ARC = "arc"
    S3_FIFO = "s3-fifo"
    LEARNED = "learned"


def validate_eviction_policy(value: object, name: str) -> None:
    if not isinstance(value, EvictionPolicy):
        choices = ", ".join([f"EvictionPolicy.{policy.name}" for policy in EvictionPolicy])
        raise TypeError(f"{name} must be one of {choices}, not {value!r}")
