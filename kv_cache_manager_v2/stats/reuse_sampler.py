"""How long ago a block was last used when a prompt asks for it, measured on a small sample of the blocks (SHARDS).

A block is in the sample or not by its content, so that all uses of a sampled block are seen. The sampled blocks stand in the order
of their last use; the distance of a query is the number of sampled blocks used since. A cache of ``n`` blocks under LRU has those
blocks whose distance is under ``n * rate``. Memory is bounded: beyond `MAX_SAMPLES` the quarter that was used longest ago is forgotten.

Counting the blocks used since takes a Fenwick tree over the times of use: ``log2(NUM_TIMES)`` steps.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from .block_times import BlockTimes
from .reuse_log import ASKED, BELOW, GIVEN_BACK, HELD, PUBLISHED, PUBLISHED_PART, ReuseLog

MAX_SAMPLES: Final = 1 << 13
NUM_TIMES: Final = 1 << 15
NO_KEY: Final = -1
SAMPLED_SHIFT: Final = 17
SAMPLED_MASK: Final = (1 << 20) - 1
"""A key is in the sample if these bits of it are under the threshold."""


@final
@mypyc_attr(native_class=True)
class ReuseSampler:
    """Keys are 62-bit hashes of contents. What happens to sampled blocks also goes into a log, for other policies."""

    __slots__ = ("rate", "log", "times", "num_queries", "distances", "threshold", "_times", "_tree", "_next_time", "_num_live")

    rate: Final[float]
    log: Final[ReuseLog]
    times: BlockTimes | None
    """None: nobody has a clock."""
    num_queries: i64
    """Of sampled blocks, found or not."""
    distances: Final[vec[i64]]
    """How many queries had each distance."""
    threshold: Final[i64]
    """Over 0."""
    _times: dict[int, int]
    """When each sampled block was last used, in order."""
    _tree: Final[vec[i64]]
    _next_time: i64
    _num_live: i64

    def __init__(self, rate: float) -> None:
        """``rate`` is over 0 and at most 1."""
        self.threshold = max(int(rate * (SAMPLED_MASK + 1)), 1)
        self.rate = float(int(self.threshold)) / float(SAMPLED_MASK + 1)
        self.log = ReuseLog()
        self.times = None
        self.num_queries = 0
        self.distances = vec[i64]([0] * MAX_SAMPLES)
        self._times = {}
        self._tree = vec[i64]([0] * (NUM_TIMES + 1))
        self._next_time = 1
        self._num_live = 0

    def is_sampled(self, key: i64) -> bool:
        return ((key >> SAMPLED_SHIFT) & SAMPLED_MASK) < self.threshold

    def note_published(self, key: i64, key_before: i64, is_full: bool) -> None:
        """A sampled block joins the tree. ``key_before``: of the nearest sampled block on its path, or NO_KEY."""
        if key_before != NO_KEY:
            self.log.note(BELOW, key_before)
        self.log.note(PUBLISHED if is_full else PUBLISHED_PART, key)
        self.touch(key)
        if self.times is not None:
            self.times.note_published(int(key))

    def note_held(self, key: i64) -> None:
        """A sequence begins to use a sampled block."""
        self.log.note(HELD, key)
        self.touch(key)
        if self.times is not None:
            self.times.note_used(int(key))

    def note_given_back(self, key: i64) -> None:
        self.log.note(GIVEN_BACK, key)
        self.touch(key)
        if self.times is not None:
            self.times.note_used(int(key))

    def note_asked(self, key: i64) -> None:
        """A prompt asks for a sampled block, which is there or not."""
        self.log.note(ASKED, key)
        self.query(key)
        if self.times is not None:
            self.times.note_asked(int(key))

    def note_gone(self, key: i64) -> None:
        """A block left the tree; asked of all blocks while there is a clock."""
        if self.times is not None and self.is_sampled(key):
            self.times.note_gone(int(key))

    def query(self, key: i64) -> None:
        self.num_queries += 1
        time: i64 = self._times.get(int(key), 0)
        if time > 0:
            distance = self._num_live - self._count_until(time)
            self.distances[distance] += 1

    def touch(self, key: i64) -> None:
        """A sampled block is used: it is the last one in order now."""
        number = int(key)
        time: i64 = self._times.pop(number, 0)
        if time > 0:
            self._add(time, -1)
            self._num_live -= 1
        elif self._num_live == MAX_SAMPLES:
            self._renumber(MAX_SAMPLES // 4)
        if self._next_time > NUM_TIMES:
            self._renumber(0)
        self._times[number] = int(self._next_time)
        self._add(self._next_time, 1)
        self._next_time += 1
        self._num_live += 1

    def count_queries_within(self, distance: float) -> i64:
        """Queries whose distance is under ``distance``."""
        count: i64 = 0
        position: i64 = 0
        while position < MAX_SAMPLES and float(position) < distance:
            count += self.distances[position]
            position += 1
        return count

    def _add(self, time: i64, change: i64) -> None:
        tree = self._tree
        while time <= NUM_TIMES:
            tree[time] += change
            time += time & -time

    def _count_until(self, time: i64) -> i64:
        tree = self._tree
        count: i64 = 0
        while time > 0:
            count += tree[time]
            time -= time & -time
        return count

    def _renumber(self, num_forgotten: i64) -> None:
        """Times from 1 on again, without the blocks that were used longest ago."""
        keys = list(self._times)[int(num_forgotten) :]
        tree = self._tree
        position: i64 = 0
        while position <= NUM_TIMES:
            tree[position] = 0
            position += 1
        self._times = {}
        self._next_time = 1
        self._num_live = len(keys)
        for key in keys:
            self._times[key] = int(self._next_time)
            self._add(self._next_time, 1)
            self._next_time += 1
