"""A queue by its policy."""

from typing import Final

from mypy_extensions import i64

from ...config.eviction_policy import EvictionPolicy
from ..eviction_queue import EvictionQueue
from ..page_rows import PageRows
from ..victim_queue import NUM_PRIORITIES, ContentKeys, VictimQueue
from .arc import ArcQueue
from .learned import LearnedQueue
from .learned_lines import NUM_SENTINELS
from .lfu import LfuQueue
from .page_notes import PageNotes
from .s3_fifo import S3FifoQueue

MOST_SENTINELS: Final = NUM_SENTINELS


def count_sentinels(policy: EvictionPolicy) -> int:
    """The rows that a queue threads its lines through."""
    if policy is EvictionPolicy.LEARNED:
        return NUM_SENTINELS
    return NUM_PRIORITIES if policy is EvictionPolicy.LRU else 0


def make_queue(
    policy: EvictionPolicy,
    rows: PageRows,
    first_sentinel: i64,
    keys: ContentKeys,
    num_slots: i64,
    notes: PageNotes | None = None,
) -> VictimQueue:
    """``first_sentinel``: of as many rows of ``rows`` as `count_sentinels` says. ``notes``: of all queues that share the rows."""
    queue: VictimQueue
    if policy is EvictionPolicy.LRU:
        queue = EvictionQueue(rows, first_sentinel)
    elif policy is EvictionPolicy.LFU:
        queue = LfuQueue(rows)
    elif policy is EvictionPolicy.ARC:
        queue = ArcQueue(rows, keys)
    elif policy is EvictionPolicy.S3_FIFO:
        queue = S3FifoQueue(rows, keys)
    else:
        assert policy is EvictionPolicy.LEARNED, f"no queue for {policy}"
        queue = LearnedQueue(rows, first_sentinel, keys, PageNotes() if notes is None else notes)
    queue.set_capacity(num_slots)
    return queue
