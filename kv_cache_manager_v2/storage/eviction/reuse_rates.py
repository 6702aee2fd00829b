"""What comes back, and after how long: hit rates by kind of content and age, learned from what did; in integers throughout.

Content is of a *kind*: 0 if it has come for the first time, 1 if it has come back before. Its *age* is the number of pages pushed since it
was last pushed itself, in ticks of an eighth of the cache, in buckets that widen with age. For each kind and bucket two numbers are
counted, older ones ever less: content that reached the bucket, and content that came back in it. Their quotient is the
chance to come back in that bucket, smoothed by a guess that falls with age, as recency has it, while little is known.

The *worth* of a page is what keeping it yields per tick: hits to be expected over slots and ticks spent until they come, for the
best moment to give up (Gittins' index). It is made anew every tick.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

NUM_KINDS: Final = 2
TICKS_PER_CACHE: Final = 8
_THRESHOLDS: Final = (1, 2, 3, 4, 5, 8, 11, 15, 21, 29, 40, 57)
"""In ticks: where each bucket but the first begins."""
_NUM_BUCKETS: Final = 13
_LAST_WIDTH: Final = 57
_NUM_TICKS: Final = 64
"""Ticks of which pushes are remembered: more than the last threshold, a power of two."""
_ONE: Final = 1 << 16
"""One piece of content, as counted; a chance of 1."""
_MOST: Final = 62259
"""A chance of 0.95."""
_FADE_SHIFT: Final = 6
"""Counts lose a 64th each tick."""
_WORTH_SHIFT: Final = 24
PART_SHIFT: Final = 3
"""A tick has eight parts: the unit of stamps, so that an age takes no division."""
_LEAST_PART: Final = 2
_LEAST_SMOOTHING: Final = 64
"""Contents: what a small cache sees of one age is too little to give up recency for."""


@final
@mypyc_attr(native_class=True)
class ReuseRates:
    """``clock`` counts parts of ticks; a stamp is its value when content was pushed.

    Between any two calls ``0 <= num_in_part < pushes per part``, so `num_left_in_part` is at least 1.
    """

    __slots__ = (
        "clock", "last_old", "num_in_part", "num_pushed", "_num_known", "_pushes_per_part", "_smoothing", "_num_ticks_done",
        "_pushed", "_reached", "_returned", "_remaining", "_worth", "_chances", "_bucket_of", "_begins", "_widths",
    )  # fmt: skip

    clock: i64
    last_old: i64
    """Content of that stamp or an older one is not in the first bucket."""
    num_in_part: i64
    """Pushes since the clock went on."""
    num_pushed: i64
    """Pushes of the part before."""
    _num_known: i64
    """Of ``num_in_part``, those of kind 1."""
    _pushes_per_part: i64
    _smoothing: i64
    _num_ticks_done: i64
    _pushed: vec[i64]
    """Ring of ticks: pushes of each kind."""
    _reached: vec[i64]
    """Kind by bucket, as the next three."""
    _returned: vec[i64]
    _remaining: vec[i64]
    """Share of what was pushed that gets to the bucket."""
    _worth: vec[i64]
    _chances: vec[i64]
    """Of one kind, while its worth is computed."""
    _bucket_of: vec[i64]
    """By age in ticks."""
    _begins: vec[i64]
    _widths: vec[i64]

    def __init__(self) -> None:
        self.clock = 0
        self.last_old = -(1 << PART_SHIFT)
        self.num_in_part = 0
        self.num_pushed = 0
        self._num_known = 0
        self._num_ticks_done = 0
        self._pushed = vec[i64]([0] * (_NUM_TICKS * NUM_KINDS))
        self._reached = vec[i64]([0] * (NUM_KINDS * _NUM_BUCKETS))
        self._returned = vec[i64]([0] * (NUM_KINDS * _NUM_BUCKETS))
        self._remaining = vec[i64]([_ONE] * (NUM_KINDS * _NUM_BUCKETS))
        self._worth = vec[i64]([0] * (NUM_KINDS * _NUM_BUCKETS))
        self._chances = vec[i64]([0] * _NUM_BUCKETS)
        begins = [0, *_THRESHOLDS]
        self._begins = vec[i64](begins)
        ends = [*_THRESHOLDS, _THRESHOLDS[-1] + _LAST_WIDTH]
        self._widths = vec[i64]([ends[bucket] - begins[bucket] for bucket in range(_NUM_BUCKETS)])
        buckets: list[int] = []
        for age in range(_NUM_TICKS):
            buckets.append(sum([1 for threshold in _THRESHOLDS if age >= threshold]))
        self._bucket_of = vec[i64](buckets)
        self._pushes_per_part = _LEAST_PART
        self._smoothing = _ONE
        self._evaluate()

    def set_capacity(self, num_slots: i64) -> bool:
        """Whether the part of now is over with that: a smaller cache has shorter parts, and so much was pushed already."""
        part = num_slots // (TICKS_PER_CACHE << PART_SHIFT)
        self._pushes_per_part = part if part > _LEAST_PART else _LEAST_PART
        self._smoothing = (num_slots // 12 + _LEAST_SMOOTHING) * _ONE
        self._evaluate()
        if self.num_in_part < self._pushes_per_part:
            return False
        self._end_part()
        return True

    def worth(self, kind: i64, stamp: i64) -> i64:
        return self._worth[kind * _NUM_BUCKETS + self._bucket(stamp)]

    def _bucket(self, stamp: i64) -> i64:
        age = (self.clock - stamp) >> PART_SHIFT
        return self._bucket_of[age] if age < _NUM_TICKS else _NUM_BUCKETS - 1

    def note_return(self, kind: i64, stamp: i64, count: i64 = 1) -> None:
        """So much content of that kind and stamp came back."""
        self._returned[kind * _NUM_BUCKETS + self._bucket(stamp)] += count * _ONE

    @property
    def num_left_in_part(self) -> i64:
        """How many pushes from now on have the stamp of the next one; at least 1."""
        return self._pushes_per_part - self.num_in_part

    def note_pushes(self, count: i64, num_known: i64) -> i64:
        """So much content is pushed, at most what is left of the part, some of it of kind 1; returns its stamp."""
        stamp = self.clock
        self._num_known += num_known
        self.num_in_part += count
        if self.num_in_part >= self._pushes_per_part:
            self._end_part()
        return stamp

    def _end_part(self) -> None:
        tick = (self._num_ticks_done & (_NUM_TICKS - 1)) * NUM_KINDS
        self._pushed[tick] += self.num_in_part - self._num_known
        self._pushed[tick + 1] += self._num_known
        self.num_pushed = self.num_in_part
        self.num_in_part = 0
        self._num_known = 0
        self.clock += 1
        self.last_old = self.clock - (1 << PART_SHIFT)
        if self.clock & ((1 << PART_SHIFT) - 1) == 0:
            self._end_tick()

    def _end_tick(self) -> None:
        """What was pushed so many ticks ago reaches the buckets that begin there."""
        reached = self._reached
        returned = self._returned
        at: i64 = 0
        kind: i64 = 0
        while kind < NUM_KINDS:
            bucket: i64 = 0
            while bucket < _NUM_BUCKETS:
                reached[at] -= reached[at] >> _FADE_SHIFT
                returned[at] -= returned[at] >> _FADE_SHIFT
                tick = self._num_ticks_done - self._begins[bucket]
                if tick >= 0:
                    reached[at] += self._pushed[(tick & (_NUM_TICKS - 1)) * NUM_KINDS + kind] * self._remaining[at]
                at += 1
                bucket += 1
            kind += 1
        self._num_ticks_done += 1
        kind = 0
        while kind < NUM_KINDS:
            self._pushed[(self._num_ticks_done & (_NUM_TICKS - 1)) * NUM_KINDS + kind] = 0
            kind += 1
        self._evaluate()

    def check(self) -> None:
        """Evaluate the laws from scratch."""
        assert 0 <= self.num_in_part < self._pushes_per_part, f"{self.num_in_part} pushes in a part of {self._pushes_per_part}"
        assert 0 <= self._num_known <= self.num_in_part, f"{self._num_known} of {self.num_in_part} pushes are known content"
        assert self._num_ticks_done == self.clock >> PART_SHIFT, f"{self._num_ticks_done} ticks at a clock of {self.clock}"
        assert self.last_old == self.clock - (1 << PART_SHIFT), f"{self.last_old} is the last old stamp at a clock of {self.clock}"

    def _chance(self, at: i64, bucket: i64) -> i64:
        """To come back in the bucket, once there."""
        width = self._widths[bucket]
        guess = self._smoothing * width // (8 * (self._begins[bucket] + width))
        reached = self._reached[at] + self._smoothing
        chance = ((self._returned[at] + guess) * 256 // (reached // 256 + 1))
        return chance if chance < _MOST else _MOST

    def _evaluate(self) -> None:
        chances = self._chances
        kind: i64 = 0
        while kind < NUM_KINDS:
            remaining: i64 = _ONE
            bucket: i64 = 0
            while bucket < _NUM_BUCKETS:
                at = kind * _NUM_BUCKETS + bucket
                chances[bucket] = self._chance(at, bucket)
                self._remaining[at] = remaining
                remaining = remaining * (_ONE - chances[bucket]) >> 16
                bucket += 1
            bucket = 0
            while bucket < _NUM_BUCKETS:
                self._worth[kind * _NUM_BUCKETS + bucket] = self._best_worth(chances, bucket)
                bucket += 1
            kind += 1

    def _best_worth(self, chances: vec[i64], bucket: i64) -> i64:
        alive: i64 = 1 << 28
        hits: i64 = 0
        time: i64 = 0
        best: i64 = 0
        while bucket < _NUM_BUCKETS:
            lost = (alive >> 8) * chances[bucket] >> 8
            hits += lost
            # What comes back in the bucket does so half way through it.
            time += (alive - (lost >> 1)) * self._widths[bucket]
            alive -= lost
            worth = (hits << _WORTH_SHIFT) // (time + 1)
            if worth > best:
                best = worth
            bucket += 1
        return best
