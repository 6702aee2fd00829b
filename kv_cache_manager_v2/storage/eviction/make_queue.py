"""A queue by its policy."""

from typing import Final

from mypy_extensions import i64

from ...config.eviction_policy import EvictionPolicy
from ..eviction_queue import EvictionQueue
from ..page_rows import PageRows
from ..victim_queue import NUM_PRIORITIES, ContentKeys, VictimQueue
from .learned import LearnedQueue
from .segment_records import Learning, SegmentRecords

NUM_SENTINELS: Final = NUM_PRIORITIES
"""The rows that a queue threads its lines through."""


def make_queue(
    policy: EvictionPolicy,
    rows: PageRows,
    first_sentinel: i64,
    keys: ContentKeys,
    num_slots: i64,
    records: SegmentRecords | None = None,
) -> VictimQueue:
    """``first_sentinel``: of NUM_SENTINELS rows. ``records``: of the pool group, for the queues of its
    levels in their order, whatever their policies; None for a queue alone.
    """
    queue: VictimQueue = EvictionQueue(rows, first_sentinel)
    if policy is EvictionPolicy.LEARNED:
        queue = LearnedQueue(rows, first_sentinel, keys, SegmentRecords(Learning(), 1) if records is None else records)
    elif records is not None:
        records.add_level(None)
    queue.set_capacity(num_slots)
    return queue
