"""What `HazardModel` learns, with numbers that are the same on every machine."""

from collections.abc import Callable
from decimal import Decimal, localcontext
from random import Random

import pytest

from kv_cache_manager_v2.storage.eviction.hazard_model import EDGES, NUM_BUCKETS, HazardModel
from kv_cache_manager_v2.storage.eviction.segment_traits import (
    FEATURE_LEVELS,
    FEATURE_SHIFTS,
    CONTINUES,
    CONTINUES_SHIFT,
    ENDS,
    HINT_LEVELS,
    HINT_SHIFTS,
    KIND_SHIFT,
    TRAIT_BITS,
    least_uses,
    level_of_count,
    level_of_kind,
    level_of_uses,
)
from kv_cache_manager_v2.storage.eviction.hazard_model import NUM_ENTRIES, SIGMOID_TABLE

RARE, USED, LATE = 0, 3, 3 | 5 << 3


def test_the_table_is_the_logistic_function() -> None:
    with localcontext() as context:
        context.prec = 40
        for entry in range(NUM_ENTRIES):
            logit = Decimal(entry - 2048) / 128
            exact = 65536 / (1 + (-logit).exp())
            # Rounded; never 0, and as far from 65536 on the other side.
            expected = min(max(int(exact + Decimal("0.5")), 1), 65535)
            assert abs(SIGMOID_TABLE[entry] - expected) <= (exact % 1 == Decimal("0.5"))
    assert SIGMOID_TABLE[2048] == 32768


def test_features_have_bits_of_their_own() -> None:
    used = 0
    for shift, levels in zip(FEATURE_SHIFTS + HINT_SHIFTS, FEATURE_LEVELS + HINT_LEVELS, strict=True):
        mask = ((1 << (levels - 1).bit_length()) - 1) << shift
        assert used & mask == 0
        used |= mask
    assert used < 1 << TRAIT_BITS


def test_levels_of_uses_and_counts() -> None:
    assert [level_of_uses(uses) for uses in (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33)] == [0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    for uses in range(1, 34):
        assert least_uses(level_of_uses(uses)) <= uses
        assert level_of_uses(least_uses(level_of_uses(uses))) == level_of_uses(uses)
    assert [level_of_count(count) for count in (0, 1, 2, 3, 4, 7, 8, 1 << 14, 1 << 40)] == [0, 1, 2, 2, 3, 3, 4, 15, 15]


def test_while_nothing_is_known_older_is_worth_less() -> None:
    model = HazardModel()
    values = [model.value(RARE, bucket) for bucket in range(NUM_BUCKETS + 1)]
    # Buckets of equal width are worth the same, wider ones less; behind the last one nothing.
    widths = [EDGES[bucket + 1] - EDGES[bucket] for bucket in range(NUM_BUCKETS)]
    for bucket in range(NUM_BUCKETS - 1):
        assert (values[bucket] > values[bucket + 1]) if widths[bucket] < widths[bucket + 1] else values[bucket] == values[bucket + 1]
    assert values[-2] > values[-1] == 0


def test_what_returns_is_worth_more_than_what_does_not() -> None:
    model = HazardModel()
    for _ in range(200):
        model.learn(RARE, 0, 0.0, 4)
        model.learn(USED, 0, 1.0, 4)
    assert model.chance(RARE, 0) < 0.25
    assert model.chance(USED, 0) > 0.75
    assert model.value(USED, 0) > 3 * model.value(RARE, 0)


def test_the_chance_is_the_share_that_returned() -> None:
    """Alternating one in four: near a quarter, for examples of any size alike."""
    for num_blocks in (1, 100):
        model = HazardModel()
        for number in range(4000):
            model.learn(RARE, 2, float(number % 4 == 0), num_blocks)
        assert abs(model.chance(RARE, 2) - 0.25) < 0.1


@pytest.mark.parametrize("bucket", [3, 7, 10])
def test_what_comes_back_late_is_worth_most_just_before(bucket: int) -> None:
    model = HazardModel()
    for _ in range(400):
        for passed in range(bucket):
            model.learn(LATE, passed, 0.0, 9)
        model.learn(LATE, bucket, 1.0, 9)
        # Another kind passes all: what is shared by buckets does not know which one it is.
        for passed in range(NUM_BUCKETS):
            model.learn(RARE, passed, 0.0, 9)
    values = [model.value(LATE, age) for age in range(NUM_BUCKETS)]
    assert values.index(max(values)) == bucket
    assert values[:bucket] == sorted(values[:bucket])


def test_values_fit_their_bits() -> None:
    """Everything returns at once: two hits for each eighth of the capacity, as they come half way through it."""
    model = HazardModel()
    for _ in range(3000):
        for bucket in range(NUM_BUCKETS):
            model.learn(USED, bucket, 1.0, 10_000)
    assert 1 << 44 < model.value(USED, 0) <= 1 << 45


def test_equal_examples_make_equal_models() -> None:
    models = [HazardModel(), HazardModel()]
    for model in models:
        for number in range(500):
            model.learn((number * 7919) % 3 | (number % 11) << 3, number % NUM_BUCKETS, float(number % 3 == 0), 1 + number % 17)
    assert [models[0].value(traits, 0) for traits in range(64)] == [models[1].value(traits, 0) for traits in range(64)]


def test_a_model_goes_on_from_bytes() -> None:
    taught = HazardModel()
    for step in range(50):
        taught.learn((RARE, USED, LATE)[step % 3], step % NUM_BUCKETS, step % 2, 1 + step)
    other = HazardModel()
    assert other.load(taught.to_bytes()) and other.to_bytes() == taught.to_bytes()
    for model in (taught, other):
        model.learn(USED, 2, 1.0, 7)
    assert other.to_bytes() == taught.to_bytes() and other.value(USED, 0) == taught.value(USED, 0)


def test_bytes_that_are_no_model_leave_one_that_knows_nothing() -> None:
    taught = HazardModel()
    taught.learn(USED, 2, 1.0, 7)
    data = taught.to_bytes()
    for wrong in (b"", data[:-8], data + data, b"\xff" * 8 + data[8:], data[:-8] + bytes(8)):
        model = HazardModel()
        model.learn(LATE, 1, 1.0, 7)
        assert not model.load(wrong) and model.to_bytes() == HazardModel().to_bytes(), "not a number, or squares below the first one"


# -- hints ----------------------------------------------------------------------------------------------------------------

GOES_ON, COMES_TO_AN_END = CONTINUES << CONTINUES_SHIFT, ENDS << CONTINUES_SHIFT


def teach(model: HazardModel, hint_of: Callable[[bool], int], num_examples: int = 2000, seed: int = 1) -> None:
    random = Random(seed)
    for _ in range(num_examples):
        returns = random.random() < 0.5
        model.learn(RARE | hint_of(returns), 0, float(returns), 4)


def test_a_hint_that_tells_something_is_believed() -> None:
    model = HazardModel()
    teach(model, lambda returns: GOES_ON if returns else COMES_TO_AN_END)
    assert model.chance(RARE | GOES_ON, 0) > 0.8 > 0.2 > model.chance(RARE | COMES_TO_AN_END, 0)
    assert model.value(RARE | GOES_ON, 0) > 2 * model.value(RARE | COMES_TO_AN_END, 0)
    restored = HazardModel()
    assert restored.load(model.to_bytes())
    assert restored.value(RARE | GOES_ON, 0) == model.value(RARE | GOES_ON, 0)


@pytest.mark.parametrize("seed", range(5))
def test_a_hint_that_tells_nothing_leaves_the_features_as_they_are(seed: int) -> None:
    """To the bit: constant, or at random."""
    plain = HazardModel()
    teach(plain, lambda returns: 0, seed=seed)
    random = Random(seed + 100)
    for hint_of in (lambda returns: GOES_ON, lambda returns: random.choice([GOES_ON, COMES_TO_AN_END])):
        model = HazardModel()
        teach(model, hint_of, seed=seed)
        for bucket in range(NUM_BUCKETS):
            assert model.value(RARE, bucket) == model.value(RARE | GOES_ON, bucket) == plain.value(RARE, bucket)


def test_a_hint_that_stops_telling_is_believed_no_more() -> None:
    model = HazardModel()
    teach(model, lambda returns: GOES_ON if returns else COMES_TO_AN_END)
    random = Random(7)
    teach(model, lambda returns: random.choice([GOES_ON, COMES_TO_AN_END]), 20_000)
    assert abs(model.chance(RARE | GOES_ON, 0) - model.chance(RARE | COMES_TO_AN_END, 0)) < 0.1


def test_two_hints_are_told_apart() -> None:
    """The kind says it, the other one is random: the kind alone counts."""
    model = HazardModel()
    random = Random(3)
    kinds = [level_of_kind(0) << KIND_SHIFT, level_of_kind(254) << KIND_SHIFT]
    assert kinds[0] != kinds[1] and level_of_kind(14) != level_of_kind(0) == level_of_kind(15)
    teach(model, lambda returns: kinds[returns] | random.choice([GOES_ON, COMES_TO_AN_END]))
    assert model.chance(RARE | kinds[1] | GOES_ON, 0) == model.chance(RARE | kinds[1] | COMES_TO_AN_END, 0) > 0.8


def test_nothing_is_likely_while_nothing_was_learned() -> None:
    model = HazardModel()
    assert [model.likely_bucket(RARE, bucket) for bucket in range(NUM_BUCKETS)] == [NUM_BUCKETS] * NUM_BUCKETS
    # Each example adds a quarter of its blocks or less: 15 are not enough for 4, 100 of them are.
    model.learn(RARE, 0, 1.0, 14)
    assert model.likely_bucket(RARE, 0) == NUM_BUCKETS
    for _ in range(100):
        model.learn(RARE, 0, 1.0, 1)
        model.learn(RARE, 0, 0.0, 1)
    assert model.likely_bucket(RARE, 0) < NUM_BUCKETS


@pytest.mark.parametrize("seed", range(10))
def test_likely_is_when_19_of_20_returns_have_come(seed: int) -> None:
    """By following a crowd: 10**12 segments that reach the bucket, of which the chance of each bucket comes back in it."""
    random = Random(seed)
    model = HazardModel()
    for _ in range(300):
        bucket = random.randrange(NUM_BUCKETS)
        model.learn(random.choice((RARE, USED, LATE)), bucket, float(random.random() < bucket / 20), random.randint(1, 9))
    for traits in (RARE, USED, LATE):
        for first in range(NUM_BUCKETS):
            crowd = 1e12
            returned = []
            for bucket in range(first, NUM_BUCKETS):
                returned.append(crowd * model.chance(traits, bucket))
                crowd -= returned[-1]
            likely = model.likely_bucket(traits, first) - first
            assert sum(returned[: likely + 1]) >= 0.95 * sum(returned) * (1 - 1e-9)
            assert likely == 0 or sum(returned[:likely]) < 0.95 * sum(returned) * (1 + 1e-9)
