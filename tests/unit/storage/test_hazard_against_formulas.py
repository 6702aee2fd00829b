"""`HazardModel` beside its formulas, written down with a dict of weights: equal floats, as both add in the same order."""

from math import sqrt
from random import Random

import pytest

from kv_cache_manager_v2.storage.eviction.hazard_model import EDGES, NUM_BUCKETS, HazardModel, make_sigmoid_entry
from kv_cache_manager_v2.storage.eviction.segment_traits import FEATURE_LEVELS, FEATURE_SHIFTS, HINT_LEVELS, HINT_SHIFTS, waits

SHARED = "all buckets"
FEATURES = list(zip(FEATURE_SHIFTS, FEATURE_LEVELS, strict=True))
HINTS = list(zip(HINT_SHIFTS, HINT_LEVELS, strict=True))
Place = tuple[int, int]
"""A feature and a level; feature -1 is the bias, those from 100 on are hints."""


class Formulas:
    def __init__(self) -> None:
        self.weights: dict[tuple[Place, object], float] = {}
        self.squares: dict[tuple[Place, object], float] = {}
        self.gains = [(0.0, 0.125) for _hint in HINTS]

    def features(self, traits: int) -> list[Place]:
        mask = [(1 << (levels - 1).bit_length()) - 1 for _shift, levels in FEATURES]
        return [(-1, 0), *((number, traits >> shift & mask[number]) for number, (shift, _levels) in enumerate(FEATURES))]

    def hints(self, traits: int) -> list[Place]:
        levels = [(number, traits >> shift & ((1 << (levels - 1).bit_length()) - 1)) for number, (shift, levels) in enumerate(HINTS)]
        return [(100 + number, level) for number, level in levels if level > 0]

    def believed(self, place: Place) -> bool:
        gain, square = self.gains[place[0] - 100]
        return gain > 0 and gain * gain > 6.25 * square

    def sum(self, places: list[Place], column: object, total: float = 0.0) -> float:
        for place in places:
            total += self.weights.get((place, column), 0.0)
        return total

    def sigmoid(self, logit: float) -> float:
        return make_sigmoid_entry(int((min(max(logit, -16.0), 16.0) + 16.0) * 128)) / 65536

    def chance(self, traits: int, bucket: int) -> float:
        places = self.features(traits) + [place for place in self.hints(traits) if self.believed(place)]
        return self.sigmoid(self.sum(places, bucket) + self.sum(places, SHARED))

    def line(self, traits: int, bucket: int) -> int:
        """Of the best ratio of the hits to the slot-time that are to be expected until the end of some bucket: from 2**-21 on each octave
        has eight, which begin at 8/8, 9/8, ... 15/8 of it; below that each has a width of 2**-24."""
        if waits(traits) and bucket < NUM_BUCKETS - 1:
            return 255
        features = self.features(traits)
        hints = [place for place in self.hints(traits) if self.believed(place)]
        shared = self.sum(features + hints, SHARED)
        alive, hits, time, best = 1.0, 0.0, 0.0, 0.0
        for column in range(bucket, NUM_BUCKETS):
            returning = alive * self.sigmoid(self.sum(hints, column, self.sum(features, column) + shared))
            hits += returning
            time += (alive - returning / 2) * (EDGES[column + 1] - EDGES[column])
            alive -= returning
            best = max(best, hits / time)
        octave = max(int(best * 2**24).bit_length() - 4, 0)
        return 1 + 8 * octave + int(best * 2**24 / 2**octave)

    def likely_bucket(self, traits: int, bucket: int) -> int:
        if self.squares.get(((-1, 0), SHARED), 0.125) < 4:
            return NUM_BUCKETS
        alive, gone = 1.0, []
        for column in range(bucket, NUM_BUCKETS):
            alive *= 1 - self.chance(traits, column)
            gone.append(1 - alive)
        return bucket + next(number for number, share in enumerate(gone) if share >= 0.95 * gone[-1])

    def step(self, place: Place, bucket: int, gradient: float) -> None:
        for column, rate in ((bucket, 0.05), (SHARED, 0.025)):
            self.squares[place, column] = self.squares.get((place, column), 0.125) + gradient * gradient
            self.weights[place, column] = self.weights.get((place, column), 0.0) - gradient * rate / sqrt(self.squares[place, column])

    def learn(self, traits: int, bucket: int, returned: float, num_blocks: int) -> None:
        if waits(traits):
            return
        features = self.features(traits)
        logit = self.sum(features, bucket) + self.sum(features, SHARED)
        weight = sqrt(num_blocks)
        kept = 1 - 1 / 16384
        for place in self.hints(traits):
            hinted = logit + self.weights.get((place, bucket), 0.0) + self.weights.get((place, SHARED), 0.0)
            error, hinted_error = self.sigmoid(logit) - returned, self.sigmoid(hinted) - returned
            if self.believed(place):
                logit = hinted
            gain = (error * error - hinted_error * hinted_error) * weight
            old_gain, old_square = self.gains[place[0] - 100]
            self.gains[place[0] - 100] = old_gain * kept + gain, 0.125 + (old_square - 0.125) * kept + gain * gain
            self.step(place, bucket, hinted_error * weight)
        for place in features:
            self.step(place, bucket, (self.sigmoid(logit) - returned) * weight)


@pytest.mark.parametrize("seed", range(4))
def test_the_model_is_its_formulas(seed: int) -> None:
    """Two hints of which one tells what comes back, and is believed in time; one of 16 levels that tells it half the time."""
    choices = Random(seed)
    model, formulas = HazardModel(), Formulas()
    for turn in range(3000):
        traits = 0
        for shift, levels in FEATURES:
            traits |= choices.randrange(min(levels, 3)) << shift
        returned = float(choices.random() < 0.4)
        if choices.random() < 0.8:
            traits |= (1 if returned else 2) << HINT_SHIFTS[0]
        if choices.random() < 0.7:
            traits |= (choices.randrange(1, 16) if choices.random() < 0.5 else 3 + 4 * int(returned)) << HINT_SHIFTS[1]
        if choices.random() < 0.03:
            traits |= 3 << FEATURE_SHIFTS[7]
        bucket, num_blocks = choices.randrange(NUM_BUCKETS), choices.choice([1, 3, 100])
        if turn % 10 == 0:
            # In any order: none may rely on what another one has looked up.
            for call in choices.sample(("chance", "line", "likely_bucket"), 3):
                assert getattr(model, call)(traits, bucket) == getattr(formulas, call)(traits, bucket), call
            assert model.line(traits, NUM_BUCKETS) == 1
        model.learn(traits, bucket, returned, num_blocks)
        formulas.learn(traits, bucket, returned, num_blocks)
    assert all(formulas.believed((100 + number, 1)) for number in range(2))
