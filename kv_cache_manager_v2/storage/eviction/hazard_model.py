"""The model of LEARNED: how likely a segment that reaches an age comes back at that age, learned online.

Age has 14 buckets. For each bucket a logistic model over the one-hot features of `segment_traits`: a weight per bucket and level of
a feature, plus one that all buckets share. A segment that returns in a bucket is a positive example, one that passes it a
negative one; the step is Adagrad's, and the shared weights take half of it. An example counts as the square root of its blocks.

The value of a segment is Gittins' index: the most hits to be expected for each slot and time, over all ages to evict it at.
It is rounded to eight steps an octave: segments of one step stand in one line (`ValueLines`).

A hint that the caller gives has weights of its own, and no say at first: beside the features it predicts as they do, and what its
predictions win, in squared error, is summed up, while what it won long ago fades. Only while that is more than chance explains the
hint is believed: it counts in values, and the features learn what is left by it. So a hint that says nothing costs nothing.

Floats are added, multiplied, divided and rooted only, which all processors do alike, and the logistic function is a table.

That table, ``table[(x + 16) * 128]``, is ``65536 / (1 + exp(-x))``, rounded, for x from -16 to 16; at least 1, as nothing is impossible,
and at most 65535. No entry is so near to a half that how a processor rounds ``exp`` could tell.
"""

import struct
from math import exp, isfinite, sqrt
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from .segment_traits import FEATURE_LEVELS, FEATURE_SHIFTS, HINT_LEVELS, HINT_SHIFTS, NO_HINT, NUM_FEATURES, NUM_HINTS, waits

_MOST_LOGIT: Final = 16.0
_STEPS_PER_UNIT: Final = 128
_LAST_ENTRY: Final = 4096
NUM_BUCKETS: Final = 14
EDGES: Final = (0, 1, 2, 3, 4, 5, 8, 11, 15, 21, 29, 40, 57, 114, 228)
"""Where buckets begin and end, in eighths of the capacity."""
EDGE_UNIT: Final = 8
_RATE: Final = 0.05
_SHARED_RATE: Final = 0.025
_FIRST_SQUARE: Final = 0.125
_PRIOR_SQUARE: Final = 4.0
"""Of what was known at first: low, so that the first requests that say otherwise change it."""
_HINTS_SHIFT: Final = 27
"""Traits from there on are hints."""
_NUM_ALWAYS: Final = 10
"""Places that all traits have: the bias, and the features. A hint that was not given has none, so it changes nothing."""
_NUM_LEVELS: Final = 128
"""The bias, then the levels of each feature, then those of the hints."""
_ROW: Final = 16
_GAINS: Final = 117 * _ROW
"""The last rows. Of a hint, in the row of its feature: what it has won by its predictions, and the sum of the squares of that."""
_KEPT: Final = 1.0 - 1.0 / 16384.0
_LEAST_CERTAINTY: Final = 6.25
"""What a hint has won is believed while it is over 2.5 times its standard deviation."""
"""Weights of a level: one for each bucket, and the shared one."""
_SHARED: Final = NUM_BUCKETS
_NUM_WEIGHTS: Final = _NUM_LEVELS * _ROW
MODEL_BYTES: Final = 2 * 8 * _NUM_WEIGHTS
_MOST_RETURNS: Final = 0.95
_LEAST_LEARNED: Final = 4.0
"""Of the squared gradients of the bias: 16 pages or more, as one whose chance was a half adds a quarter, and one that was foreseen less."""
_SCALE: Final = 1.0 / 65536.0
_VALUE_SCALE: Final = 16777216.0
_STEPS_PER_OCTAVE: Final = 8
_LAST_LINE: Final = 255
_NUM_WAITING: Final = NUM_BUCKETS - 1
"""Buckets in which pages wait: 14 times the capacity."""


def make_sigmoid_entry(entry: int) -> float:
    return float(min(max(round(65536.0 / (1.0 + exp(_MOST_LOGIT - entry / _STEPS_PER_UNIT))), 1), 65535))


_SIGMOID: Final = [make_sigmoid_entry(entry) * _SCALE for entry in range(_LAST_ENTRY + 1)]
"""The logistic function, made once: for each manager anew it would be most of what making one takes."""


@final
class HazardModel:
    __slots__ = (
        "_weights", "_squares", "_prior", "_table", "_widths", "_shifts", "_masks", "_bases", "_places", "_places_of", "_num_places",
    )  # fmt: skip

    def __init__(self) -> None:
        self._weights: Final = vec[float]([0.0] * _NUM_WEIGHTS)
        self._squares: Final = vec[float]([_FIRST_SQUARE] * _NUM_WEIGHTS)
        """Of each weight: the sum of its squared gradients."""
        self._prior: list[float] = [0.0] * _NUM_WEIGHTS
        """Weights that it knows at first."""
        self._table: Final = vec[float](_SIGMOID)
        self._widths: Final = vec[float]([float(EDGES[bucket + 1] - EDGES[bucket]) for bucket in range(NUM_BUCKETS)])
        self._shifts: Final = vec[i64](FEATURE_SHIFTS + HINT_SHIFTS)
        levels = FEATURE_LEVELS + HINT_LEVELS
        self._masks: Final = vec[i64]([(1 << (count - 1).bit_length()) - 1 for count in levels])
        self._bases: Final = vec[i64]([(1 + sum(levels[:feature])) * _ROW for feature in range(NUM_FEATURES + NUM_HINTS)])
        self._places: Final = vec[i64]([0] * (_NUM_ALWAYS + NUM_HINTS))
        """Where the rows of the traits looked at last begin: that of the bias, those of the features, and of the hints that were given."""
        self._places_of: i64 = -1
        self._num_places: i64 = _NUM_ALWAYS

    def to_bytes(self) -> bytes:
        """What it has learned, for `load`."""
        numbers = [float(weight) for weight in self._weights] + [float(square) for square in self._squares]
        return struct.pack(f"<{len(numbers)}d", *numbers)

    def begin_from(self, prior: list[float]) -> None:
        """Forget what was learned, and know these weights at first, from now on: as `weights` of another model."""
        self._prior = prior
        self.load(b"")

    def weights(self) -> list[float]:
        """What it has learned, for `begin_from`: without what was learned of hints, which are another caller's."""
        num_known = int(self._bases[NUM_FEATURES])
        return [float(weight) for weight in self._weights][:num_known] + [0.0] * (_NUM_WEIGHTS - num_known)

    def load(self, data: bytes) -> bool:
        """Know what another model knew; False, and it knows what it knew at first, where the bytes are no model of this release."""
        count = _NUM_WEIGHTS
        numbers = list(struct.unpack(f"<{2 * count}d", data)) if len(data) == MODEL_BYTES else [0.0] * (2 * count)
        is_known = all([isfinite(number) for number in numbers]) and min(numbers[count:]) >= _FIRST_SQUARE
        if not is_known:
            numbers = self._prior + [_FIRST_SQUARE if weight == 0.0 else _PRIOR_SQUARE for weight in self._prior]
        for place in range(count):
            self._weights[place] = numbers[place]
            self._squares[place] = numbers[count + place]
        self._places_of = -1
        return is_known

    def _find_places(self, traits: i64) -> None:
        if traits == self._places_of:
            return
        self._places_of = traits
        places = self._places
        shifts = self._shifts
        masks = self._masks
        bases = self._bases
        for feature in range(NUM_FEATURES):
            places[feature + 1] = bases[feature] + ((traits >> shifts[feature]) & masks[feature]) * _ROW
        self._num_places = _NUM_ALWAYS
        if traits >> _HINTS_SHIFT != NO_HINT:
            for hint in range(NUM_FEATURES, NUM_FEATURES + NUM_HINTS):
                level = (traits >> shifts[hint]) & masks[hint]
                if level != NO_HINT and self._is_believed(hint):
                    places[self._num_places] = bases[hint] + level * _ROW
                    self._num_places += 1

    def _is_believed(self, feature: i64) -> bool:
        """Whether what the hint has won is more than chance explains."""
        at = _GAINS + feature * _ROW
        gain = self._weights[at]
        return gain > 0.0 and gain * gain > _LEAST_CERTAINTY * self._squares[at]

    def _sum_column(self, column: i64, num_places: i64) -> float:
        weights = self._weights
        places = self._places
        total = 0.0
        for position in range(num_places):
            total += weights[places[position] + column]
        return total

    def _chance(self, logit: float) -> float:
        if logit >= _MOST_LOGIT:
            return self._table[_LAST_ENTRY]
        if logit <= -_MOST_LOGIT:
            return self._table[0]
        entry: i64 = int((logit + _MOST_LOGIT) * _STEPS_PER_UNIT)
        return self._table[entry]

    def chance(self, traits: i64, bucket: i64) -> float:
        """Of a segment that has reached the bucket: to come back in it."""
        self._find_places(traits)
        return self._chance(self._sum_column(bucket, self._num_places) + self._sum_column(_SHARED, self._num_places))

    def likely_bucket(self, traits: i64, bucket: i64) -> i64:
        """Of a segment that has reached the bucket: the first one by whose end it has come back, if it does at all, with a probability of
        19 in 20; NUM_BUCKETS while too little was learned."""
        if self._squares[_SHARED] < _LEAST_LEARNED:
            return NUM_BUCKETS
        gone: list[float] = []
        alive = 1.0
        for column in range(bucket, NUM_BUCKETS):
            alive *= 1.0 - self.chance(traits, column)
            gone.append(1.0 - alive)
        return bucket + len([share for share in gone if share < _MOST_RETURNS * gone[-1]])

    def learn(self, traits: i64, bucket: i64, returned: float, num_blocks: i64) -> None:
        """``returned`` is 1 where so many blocks came back in the bucket, 0 where they passed it. Nothing of what is beyond all buckets."""
        if bucket >= NUM_BUCKETS or waits(traits):
            return
        self._find_places(traits)
        logit = self._sum_column(bucket, _NUM_ALWAYS) + self._sum_column(_SHARED, _NUM_ALWAYS)
        weight = sqrt(float(num_blocks))
        if traits >> _HINTS_SHIFT != NO_HINT:
            logit = self._learn_hints(traits, bucket, returned, weight, logit)
        gradient = (self._chance(logit) - returned) * weight
        places = self._places
        for position in range(_NUM_ALWAYS):
            self._step(places[position], bucket, gradient)

    def _step(self, place: i64, bucket: i64, gradient: float) -> None:
        weights = self._weights
        squares = self._squares
        at = place + bucket
        squares[at] += gradient * gradient
        weights[at] -= gradient * _RATE / sqrt(squares[at])
        at = place + _SHARED
        squares[at] += gradient * gradient
        weights[at] -= gradient * _SHARED_RATE / sqrt(squares[at])

    def _learn_hints(self, traits: i64, bucket: i64, returned: float, weight: float, logit: float) -> float:
        """``logit``: by the features alone. The logit with the hints that are believed.

        Each hint learns what is left by the features, and by the hints before it that are believed.
        """
        weights = self._weights
        squares = self._squares
        for feature in range(NUM_FEATURES, NUM_FEATURES + NUM_HINTS):
            level = (traits >> self._shifts[feature]) & self._masks[feature]
            if level != NO_HINT:
                place = self._bases[feature] + level * _ROW
                hinted = logit + weights[place + bucket] + weights[place + _SHARED]
                error = self._chance(logit) - returned
                hinted_error = self._chance(hinted) - returned
                if self._is_believed(feature):
                    logit = hinted
                gain = (error * error - hinted_error * hinted_error) * weight
                at = _GAINS + feature * _ROW
                weights[at] = weights[at] * _KEPT + gain
                squares[at] = _FIRST_SQUARE + (squares[at] - _FIRST_SQUARE) * _KEPT + gain * gain
                self._step(place, bucket, hinted_error * weight)
        self._places_of = -1
        return logit

    def line(self, traits: i64, bucket: i64) -> i64:
        """That of the value of a segment at the beginning of the bucket, from 1 on; 1 behind the last one."""
        if bucket >= NUM_BUCKETS:
            return 1
        if waits(traits) and bucket < _NUM_WAITING:
            return _LAST_LINE
        self._find_places(traits)
        shared = self._sum_column(_SHARED, self._num_places)
        weights = self._weights
        widths = self._widths
        places = self._places
        # A loop over the places in the loop over the buckets would be twice the work.
        uses = places[1]
        age = places[2]
        generated = places[3]
        new = places[4]
        length = places[5]
        last = places[6]
        depth = places[7]
        path = places[8]
        text = places[9]
        num_places = self._num_places
        alive = 1.0
        hits = 0.0
        time = 0.0
        best = 0.0
        while bucket < NUM_BUCKETS:
            logit = (
                weights[bucket] + weights[uses + bucket] + weights[age + bucket] + weights[generated + bucket] + weights[new + bucket]
                + weights[length + bucket] + weights[last + bucket] + weights[depth + bucket] + weights[path + bucket]
                + weights[text + bucket] + shared
            )  # fmt: skip
            for position in range(_NUM_ALWAYS, num_places):
                logit += weights[places[position] + bucket]
            returning = alive * self._chance(logit)
            hits += returning
            # What comes back in the bucket does so half way through it.
            time += (alive - 0.5 * returning) * widths[bucket]
            alive -= returning
            ratio = hits / time
            if ratio > best:
                best = ratio
            bucket += 1
        rounded: i64 = int(best * _VALUE_SCALE)
        line: i64 = 1
        while rounded >= 2 * _STEPS_PER_OCTAVE:
            rounded >>= 1
            line += _STEPS_PER_OCTAVE
        return line + rounded
