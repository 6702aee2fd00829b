"""What `ReuseRates` learns: nothing known is recency; what comes back late is kept until then, what never does is worth little."""

from random import Random

import pytest

from kv_cache_manager_v2.storage.eviction.reuse_rates import ReuseRates

CAPACITY = 768  # a tick is an eighth, 96 pushes; the clock counts eighths of ticks


def worths(rates: ReuseRates, kind: int) -> list[int]:
    """By age in ticks."""
    return [rates.worth(kind, rates.clock - 8 * age - 4) for age in range(60)]


def test_while_nothing_is_known_older_is_worth_less() -> None:
    rates = ReuseRates()
    rates.set_capacity(CAPACITY)
    for _ in range(7000):
        rates.note_pushes(1, 0)
    fresh = ReuseRates()
    fresh.set_capacity(CAPACITY)
    fresh.clock = rates.clock
    for kind in (0, 1):
        by_age = worths(fresh, kind)
        assert by_age == sorted(by_age, reverse=True)
        assert by_age[0] > by_age[-1] > 0
    # 7000 pages that never came back are worth less than those of which nothing is known.
    assert worths(rates, 0)[0] < worths(rates, 1)[0]


def serve(rates: ReuseRates, period: int, share: float, num_pushes: int) -> None:
    """So much of what is new comes back exactly ``period`` pushes later."""
    random = Random(5)
    due: dict[int, int] = {}
    for number in range(num_pushes):
        if number in due:
            rates.note_return(0, due.pop(number))
            rates.note_pushes(1, 1)
            continue
        stamp = rates.note_pushes(1, 0)
        if random.random() < share:
            due[number + period] = stamp


@pytest.mark.parametrize("period", [336, 912, 1776])
def test_what_comes_back_late_is_worth_most_just_before(period: int) -> None:
    rates = ReuseRates()
    rates.set_capacity(CAPACITY)
    serve(rates, period, 0.5, 40_000)
    by_age = worths(rates, 0)
    best = by_age.index(max(by_age))
    # Buckets begin at ticks 1, 2, 3, 4, 5, 8, 11, 15, 21: the return is in the best one, and right after it all is over.
    begins = [0, 1, 2, 3, 4, 5, 8, 11, 15, 21, 29, 40, 57]
    begin, end = next((b, e) for b, e in zip(begins, begins[1:], strict=False) if b <= period // 96 < e)
    assert begin <= best < end
    assert by_age[end] * 4 < by_age[best]
    assert by_age[0] < by_age[best]


def test_the_worth_is_hits_per_tick() -> None:
    # A share p comes back at 3.5 ticks: from the start, p hits cost 3.5 ticks for what comes back and 4 for the rest.
    rates = ReuseRates()
    rates.set_capacity(CAPACITY)
    share = 0.6
    serve(rates, 336, share, 60_000)
    expected = share / (share * 3.5 + (1 - share) * 4)
    assert rates.worth(0, rates.clock) / (1 << 24) == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize("before", [128, 260, 768, 5461])
@pytest.mark.parametrize("after", [1, 64, 318, 768, 6000])
def test_a_part_is_never_overfull(before: int, after: int) -> None:
    """At each place in a part: a size whose parts are shorter than what was pushed ends the part of now, and no other does."""
    for num_pushed in range(max(before // 64, 2)):
        rates = ReuseRates()
        rates.set_capacity(before)
        for _ in range(num_pushed):
            rates.note_pushes(1, num_pushed % 2)
        clock = rates.clock
        is_over = num_pushed >= max(after // 64, 2)
        assert rates.set_capacity(after) == is_over
        assert rates.clock == clock + is_over
        assert rates.num_left_in_part == max(after // 64, 2) - (0 if is_over else num_pushed)
        rates.check()


def test_what_was_learned_fades() -> None:
    rates = ReuseRates()
    rates.set_capacity(CAPACITY)
    serve(rates, 336, 0.9, 20_000)
    before = worths(rates, 0)[3]
    for _ in range(40_000):
        rates.note_pushes(1, 0)
    assert worths(rates, 0)[3] * 20 < before
