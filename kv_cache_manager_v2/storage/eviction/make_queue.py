"""A queue by its policy."""

from mypy_extensions import i64

from ...config.eviction_policy import EvictionPolicy
from ..eviction_queue import EvictionQueue
from ..page_rows import PageRows
from ..victim_queue import ContentKeys, VictimQueue
from .arc import ArcQueue
from .learned import LearnedQueue
from .lfu import LfuQueue
from .s3_fifo import S3FifoQueue


def make_queue(
    policy: EvictionPolicy, rows: PageRows, first_sentinel: i64, keys: ContentKeys, num_slots: i64
) -> VictimQueue:
    """``first_sentinel``: of as many rows of ``rows`` as there are priorities, which the queue may use."""
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
        queue = LearnedQueue(rows, keys)
    queue.set_capacity(num_slots)
    return queue
