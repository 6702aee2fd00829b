"""Reuse distances of blocks, measured on a small sample (SHARDS).

A block's content decides whether it is in the sample, so all uses of a sampled block are seen. The sampled blocks are kept in the
order of their last use; the distance of a query is the number of sampled blocks used since. A cache of ``n`` blocks under LRU has
the blocks whose distance is under ``n * rate``. Memory is bounded by `UseOrder`.

A few blocks, with which every other prompt begins, are looked up as often as thousands of others, and are in the sample or not by
chance. So all found blocks are counted as well, without looking at their keys: if the sample found fewer or more than its share, by
more than chance explains, it lacks such blocks, or has too many of them (`compute_unsampled`).
"""

import math
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from .block_times import BlockTimes
from .reuse_log import ASKED, BELOW, PUBLISHED, PUBLISHED_PART, ReuseLog
from .use_order import MAX_KEYS, UseOrder

MAX_SAMPLES: Final = MAX_KEYS
NO_KEY: Final = -1
_NUM_COUNTS: Final = 1 << 13
SAMPLED_SHIFT: Final = 17
SAMPLED_MASK: Final = (1 << 20) - 1
"""A key is sampled if these bits of it are under the threshold."""


@final
@mypyc_attr(native_class=True)
class ReuseSampler:
    """Keys are 62-bit hashes of contents. Events of sampled blocks also go into a log, to simulate other policies."""

    __slots__ = (
        "rate", "log", "times", "num_queries", "distances", "threshold", "num_found", "_num_sampled_found", "_found_counts", "_order"
    )  # fmt: skip

    rate: Final[float]
    log: Final[ReuseLog]
    times: BlockTimes | None
    """None without a clock."""
    num_queries: i64
    """Look-ups of sampled blocks, found or not."""
    distances: Final[vec[i64]]
    """By distance: the number of queries."""
    threshold: Final[i64]
    """Above 0."""
    num_found: i64
    """Blocks found by prompts, sampled or not."""
    _num_sampled_found: i64
    _found_counts: Final[vec[i64]]
    """How often sampled blocks were found, by a part of their keys: several blocks may share a count."""
    _order: Final[UseOrder]

    def __init__(self, rate: float) -> None:
        """``rate`` is above 0 and at most 1."""
        self.threshold = max(int(rate * (SAMPLED_MASK + 1)), 1)
        self.rate = float(int(self.threshold)) / float(SAMPLED_MASK + 1)
        self.log = ReuseLog()
        self.times = None
        self.num_queries = 0
        self.distances = vec[i64]([0] * MAX_SAMPLES)
        self.num_found = 0
        self._num_sampled_found = 0
        self._found_counts = vec[i64]([0] * _NUM_COUNTS)
        self._order = UseOrder()

    def is_sampled(self, key: i64) -> bool:
        return ((key >> SAMPLED_SHIFT) & SAMPLED_MASK) < self.threshold

    def record_published(self, key: i64, key_before: i64, is_full: bool) -> None:
        """A sampled block is published. ``key_before``: of the nearest sampled block on its path, or NO_KEY."""
        if key_before != NO_KEY:
            self.log.record(BELOW, key_before)
        self.log.record(PUBLISHED if is_full else PUBLISHED_PART, key)
        self.touch(key)
        if self.times is not None:
            self.times.record_published(int(key))

    def record(self, kind: i64, key: i64) -> None:
        """Log an event of a sampled block: looked up (ASKED), a sequence begins to use it (HELD), a sequence released it (RELEASED)."""
        self.log.record(kind, key)
        times = self.times
        if kind == ASKED:
            self.query(key)
            if times is not None:
                times.record_lookup(int(key))
            return
        self.touch(key)
        if times is not None:
            times.record_used(int(key))

    def record_found(self, key: i64) -> None:
        """A prompt found a sampled block."""
        self._num_sampled_found += 1
        self._found_counts[key & (_NUM_COUNTS - 1)] += 1
        self.record(ASKED, key)

    def compute_unsampled(self) -> float:
        """The sample's missing share of queries, those of blocks that are always cached, over its own queries; negative: surplus.

        0.0 if the difference is up to twice what chance explains; the whole difference from three times on.
        """
        found = float(self._num_sampled_found)
        missing = float(self.num_found) * self.rate - found
        if found == 0.0:
            return 0.0
        # Chance decides which blocks are sampled; each brings all its queries. If one block alone is the surplus, that is no chance.
        most = found if missing > 0.0 else -missing / 4.0
        variance = 1.0
        for count in self._found_counts:
            if float(count) <= most:
                variance += float(count * count)
        deviations = abs(missing) / math.sqrt(variance)
        return missing * min(max(deviations - 2.0, 0.0), 1.0) / float(self.num_queries)

    def record_removal(self, key: i64) -> None:
        """A sampled block was removed from the tree."""
        if self.times is not None:
            self.times.record_removal(int(key))

    def query(self, key: i64) -> None:
        self.num_queries += 1
        distance = self._order.count_used_since(key)
        if distance >= 0:
            self.distances[distance] += 1

    def touch(self, key: i64) -> None:
        """A sampled block is used: move it to the MRU end."""
        self._order.record_use(key)

    def count_queries_within(self, distance: float) -> i64:
        """Queries whose distance is under ``distance``."""
        count: i64 = 0
        position: i64 = 0
        while position < MAX_SAMPLES and float(position) < distance:
            count += self.distances[position]
            position += 1
        return count
