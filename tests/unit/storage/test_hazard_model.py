"""Bits, bounds and bytes of `HazardModel`. (What it learns: `test_hazard_against_formulas.py`.)"""

from decimal import Decimal, localcontext

from kv_cache_manager_v2.storage.eviction.hazard_model import (
    _GAINS,
    _HINTS_SHIFT,
    _NUM_ALWAYS,
    _NUM_LEVELS,
    _ROW,
    NUM_BUCKETS,
    HazardModel,
    make_sigmoid_entry,
)
from kv_cache_manager_v2.storage.eviction.segment_traits import (
    FEATURE_LEVELS,
    FEATURE_SHIFTS,
    HINT_LEVELS,
    HINT_SHIFTS,
    NUM_FEATURES,
    NUM_HINTS,
    TRAIT_BITS,
    least_uses,
    level_of_count,
    level_of_kind,
    level_of_uses,
)

RARE, USED, LATE = 0, 3, 3 | 5 << 3


def test_the_table_is_the_logistic_function() -> None:
    """Rounded; never 0, and as far from 65536 on the other side. No entry is near to a half."""
    with localcontext() as context:
        context.prec = 40
        for entry in range(4097):
            exact = 65536 / (1 + (Decimal(2048 - entry) / 128).exp())
            assert make_sigmoid_entry(entry) == min(max(int(exact + Decimal("0.5")), 1), 65535)
            assert abs(exact % 1 - Decimal("0.5")) > Decimal("0.0001")


def test_features_have_bits_of_their_own() -> None:
    used = 0
    for shift, levels in zip(FEATURE_SHIFTS + HINT_SHIFTS, FEATURE_LEVELS + HINT_LEVELS, strict=True):
        mask = ((1 << (levels - 1).bit_length()) - 1) << shift
        assert used & mask == 0
        used |= mask
    assert used < 1 << TRAIT_BITS


def test_levels_and_gains_have_rows_of_their_own() -> None:
    """Row 0 is the bias; the last rows are the gains of hints, each in that of its feature."""
    assert len(FEATURE_LEVELS) == len(FEATURE_SHIFTS) == NUM_FEATURES == _NUM_ALWAYS - 1
    assert len(HINT_LEVELS) == len(HINT_SHIFTS) == NUM_HINTS and min(HINT_SHIFTS) == _HINTS_SHIFT
    assert 1 + sum(FEATURE_LEVELS + HINT_LEVELS) <= _GAINS // _ROW + NUM_FEATURES == _NUM_LEVELS - NUM_HINTS


def test_levels_of_uses_and_counts() -> None:
    assert [level_of_uses(uses) for uses in (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33)] == [0, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6]
    for uses in range(1, 34):
        assert least_uses(level_of_uses(uses)) <= uses
        assert level_of_uses(least_uses(level_of_uses(uses))) == level_of_uses(uses)
    assert level_of_kind(254) != level_of_kind(0) == level_of_kind(15) != level_of_kind(14)
    assert [level_of_count(count) for count in (0, 1, 2, 3, 4, 7, 8, 1 << 14, 1 << 40)] == [0, 1, 2, 2, 3, 3, 4, 15, 15]


def test_lines_fit_their_bits() -> None:
    """Everything returns at once: two hits for each eighth of the capacity, as they come half way through it; 2 is 2**25 steps of
    the first lines, which begin the 23rd octave."""
    model = HazardModel()
    for _ in range(3000):
        for bucket in range(NUM_BUCKETS):
            model.learn(USED, bucket, 1.0, 10_000)
    assert 1 + 21 * 8 + 8 < model.line(USED, 0) <= 1 + 22 * 8 + 8


def test_a_model_goes_on_from_bytes() -> None:
    taught = HazardModel()
    for step in range(50):
        taught.learn((RARE, USED, LATE)[step % 3], step % NUM_BUCKETS, step % 2, 1 + step)
    other = HazardModel()
    assert other.load(taught.to_bytes()) and other.to_bytes() == taught.to_bytes()
    for model in (taught, other):
        model.learn(USED, 2, 1.0, 7)
    assert other.to_bytes() == taught.to_bytes() and other.line(USED, 0) == taught.line(USED, 0)


def test_bytes_that_are_no_model_leave_one_that_knows_nothing() -> None:
    taught = HazardModel()
    taught.learn(USED, 2, 1.0, 7)
    data = taught.to_bytes()
    for wrong in (b"", data[:-8], data + data, b"\xff" * 8 + data[8:], data[:-8] + bytes(8)):
        model = HazardModel()
        model.learn(LATE, 1, 1.0, 7)
        assert not model.load(wrong) and model.to_bytes() == HazardModel().to_bytes(), "not a number, or squares below the first one"


def test_a_model_begins_from_what_another_has_learned() -> None:
    taught = HazardModel()
    for step in range(200):
        taught.learn((RARE, USED)[step % 2], step % NUM_BUCKETS, step % 2, 10)
        taught.learn(USED | 1 << HINT_SHIFTS[0], 3, 1.0, 10)
    model = HazardModel()
    fresh = model.to_bytes()
    untaught = model.chance(USED, 1)
    prior = taught.weights()
    model.begin_from(prior)
    assert model.chance(USED, 1) == taught.chance(USED, 1) != untaught and model.weights() == prior
    assert model.chance(USED | 1 << HINT_SHIFTS[0], 3) == model.chance(USED, 3), "what hints mean is learned of each caller anew"
    begun = model.to_bytes()
    model.learn(USED, 1, 0.0, 10)
    assert model.chance(USED, 1) < taught.chance(USED, 1)
    # What cannot be read leaves what it knew at first, not nothing.
    assert not model.load(b"cut") and model.to_bytes() == begun != fresh
    assert model.load(fresh) and model.to_bytes() == fresh, "another process knew nothing"


def test_a_prior_changes_sooner_than_what_was_learned() -> None:
    taught = HazardModel()
    for _ in range(2000):
        taught.learn(USED, 1, 1.0, 100)
    model = HazardModel()
    model.begin_from(taught.weights())
    for _ in range(20):
        taught.learn(USED, 1, 0.0, 100)
        model.learn(USED, 1, 0.0, 100)
        assert model.chance(USED, 1) < taught.chance(USED, 1)
