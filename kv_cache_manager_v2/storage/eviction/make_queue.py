"""A queue by the name of its policy."""

from typing import Final

from mypy_extensions import i64

from ..eviction_queue import EvictionQueue
from ..page_rows import PageRows
from ..victim_queue import ContentKeys, VictimQueue
from .arc import ArcQueue
from .learned import LearnedQueue
from .lfu import LfuQueue
from .s3_fifo import S3FifoQueue

POLICY_NAMES: Final = ("lru", "lfu", "arc", "s3-fifo", "learned")


def make_queue(policy: str, rows: PageRows, first_sentinel: i64, keys: ContentKeys) -> VictimQueue:
    """``first_sentinel``: of as many rows of ``rows`` as there are priorities, which the queue may use."""
    if policy == "lru":
        return EvictionQueue(rows, first_sentinel)
    if policy == "lfu":
        return LfuQueue(rows)
    if policy == "arc":
        return ArcQueue(rows, keys)
    if policy == "s3-fifo":
        return S3FifoQueue(rows, keys)
    if policy == "learned":
        return LearnedQueue(rows, keys)
    raise ValueError(f"no eviction policy {policy!r}")
