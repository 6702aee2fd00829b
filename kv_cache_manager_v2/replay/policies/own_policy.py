"""A policy to compare with: a queue of one's own shows what it would have hit, beside the manager's policies.

The caches of blocks (`BlockCache`, `LevelCache`) run it as they run `EvictionPolicy`. A manager evicts by `EvictionPolicy` alone.
"""

from abc import ABCMeta, abstractmethod
from typing import Final, TypeAlias

from mypy_extensions import i64, mypyc_attr

from ... import EvictionPolicy
from ...storage.eviction.learned import make_queue
from ...storage.eviction.segment_records import SegmentRecords
from ...storage.page_rows import PageRows
from ...storage.victim_queue import ContentKeys, VictimQueue


@mypyc_attr(allow_interpreted_subclasses=True)
class OwnPolicy(metaclass=ABCMeta):
    """``value``: the name in tables."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value: Final = value

    @abstractmethod
    def make_queue(self, rows: PageRows, keys: ContentKeys) -> VictimQueue:
        """An empty queue, of pages of ``rows``. Its `set_capacity` is called before anything else."""


ComparedPolicy: TypeAlias = EvictionPolicy | OwnPolicy


def make_compared_queue(
    policy: ComparedPolicy, rows: PageRows, first_sentinel: i64, keys: ContentKeys, num_slots: i64, records: SegmentRecords
) -> VictimQueue:
    """As `make_queue`."""
    if isinstance(policy, EvictionPolicy):
        return make_queue(policy, rows, first_sentinel, keys, num_slots, records)
    queue = policy.make_queue(rows, keys)
    records.add_level(None)
    queue.set_capacity(num_slots)
    return queue
