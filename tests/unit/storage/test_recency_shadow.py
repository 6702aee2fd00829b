"""`RecencyShadow` against a plain list of what recency would have: which returns it would have served, and when it rules."""

from random import Random

import pytest

from kv_cache_manager_v2.storage.eviction.recency_shadow import NUM_PARTS, RecencyShadow

CAPACITY = 640
PART = CAPACITY // 64


@pytest.mark.parametrize(("seed", "num_contents"), [(1, 700), (2, 1500), (3, 5000)])
def test_what_recency_would_have(seed: int, num_contents: int) -> None:
    """Content by popularity; recency's cache is an ordered dict. Wrong is at most what lies in the part where it ends."""
    random = Random(seed)
    shadow = RecencyShadow()
    shadow.set_capacity(CAPACITY)
    recent: dict[int, int] = {}
    pushed: dict[int, int] = {}
    wrong = 0
    hits = 0
    num_steps = 30_000
    for step in range(num_steps):
        content = int(num_contents * random.random() ** 2)
        is_hit = content in recent
        hits += is_hit
        if content in pushed:
            wrong += shadow.note_left(pushed[content]) != is_hit
        recent.pop(content, None)
        recent[content] = step
        if len(recent) > CAPACITY:
            del recent[next(iter(recent))]
        pushed[content] = step // PART
        if step % PART == PART - 1:
            shadow.end_part(step // PART, PART)
        shadow.trim(len(recent) - (step + 1) % PART, (step + 1) // PART)
        assert shadow.num_pages + (step + 1) % PART <= max(len(recent), PART)
    assert hits > num_steps // 10
    assert wrong <= num_steps // 64


def make_shadow(num_parts: int) -> RecencyShadow:
    """So many parts were pushed."""
    shadow = RecencyShadow()
    shadow.set_capacity(CAPACITY)
    for part in range(num_parts):
        shadow.end_part(part, PART)
    return shadow


def count_misses_until_barred(shadow: RecencyShadow, stamp: int) -> int:
    misses = 0
    while not shadow.is_barred:
        shadow.note_miss(stamp)
        misses += 1
    return misses


@pytest.mark.parametrize("num_parts", [0, 64, 128, 192])
def test_a_new_policy_may_lose_less_than_a_third_of_a_point(num_parts: int) -> None:
    # Per 1024 pages pushed one is saved and two may be owed. (Nothing fades under 4 pages of credit: 410 parts.)
    shadow = make_shadow(num_parts)
    assert count_misses_until_barred(shadow, 0) == num_parts * PART * 3 // 1024 + 1


def test_most_debt() -> None:
    # 1,024 parts are 10,240 pages: two per 1,024 were 20, but a 64th of 640 slots is 10. Of the 10 pages saved a 4096th fades each part,
    # which leaves 40 * (1 - exp(-1024 / 4096)) = 8.8, and up to 1 more, as what is taken is cut off to 1024ths: 18.8 to 19.8.
    assert count_misses_until_barred(make_shadow(1024), 1023) in (19, 20)


def test_debt_makes_recency_rule_and_is_forgiven() -> None:
    # In 1024ths of a page: 64 parts have saved 64 * 10 = 640 and allow 64 * 20 = 1,280 of debt. The second miss makes it 1,408. After
    # n more parts it is 1,408 - 10 n, and it is forgiven where that is three quarters of 1,280 + 20 n: n = 448 / 25 = 17.9.
    shadow = make_shadow(64)
    assert count_misses_until_barred(shadow, 0) == 2
    parts = 64
    while shadow.is_barred:
        shadow.end_part(parts, PART)
        parts += 1
    assert parts == 64 + 18


def test_credit_covers_debt_and_fades() -> None:
    # At most half of 640 slots is kept as credit: 320 pages.
    def misses_until_it_rules(num_hits: int, num_parts: int) -> int:
        shadow = make_shadow(NUM_PARTS // 64)
        # Recency has the last 10 parts only.
        shadow.trim(10 * PART, NUM_PARTS // 64)
        for _ in range(num_hits):
            shadow.note_hit(5)
        for part in range(num_parts):
            shadow.end_part(NUM_PARTS // 64 + part, PART)
        return count_misses_until_barred(shadow, NUM_PARTS // 64 - 1)

    # 64 parts of 10 pages have saved 640 / 1024 = 0.625 pages, and allow 2 * 640 / 1024 = 1.25 of debt.
    assert misses_until_it_rules(0, 0) == 2
    assert misses_until_it_rules(7, 0) == 9
    assert misses_until_it_rules(1000, 0) == 322
    # A part takes a 4096th and saves 10 / 1024: that leaves 40 + 280 * exp(-1000 / 4096) = 259.3 of 320, and up to 0.5 more, as what
    # is taken is cut off to 1024ths. By then a 64th of 640 slots is allowed as debt: 10.
    assert misses_until_it_rules(1000, 1000) == 270


def test_many_pages_are_as_one_by_one() -> None:
    one, many = make_shadow(64), make_shadow(64)
    for shadow in (one, many):
        shadow.trim(CAPACITY, 64)
        shadow.note_gone(3, 4)
    for _ in range(6):
        one.note_miss(3)
        one.note_hit(7)
    many.note_miss(3, 6)
    many.note_hit(7, 6)
    assert (many.num_pages, many.num_at_risk, many.is_barred) == (one.num_pages, one.num_at_risk, one.is_barred)
    assert (one.num_at_risk, one.num_pages) == (0, 64 * PART - 12)
    assert count_misses_until_barred(one, 9) == count_misses_until_barred(many, 9) == 0


def test_pages_at_risk_make_recency_rule() -> None:
    # Sixteen times the 1.25 pages of debt and the 0.625 saved: 30 pages may be at risk.
    shadow = make_shadow(64)
    shadow.trim(CAPACITY, 64)
    for part in range(10):
        shadow.note_gone(part, 3)
    shadow.trim(CAPACITY, 64)
    assert not shadow.rules
    shadow.note_gone(10)
    shadow.trim(CAPACITY, 64)
    assert shadow.rules
    # Of the first part three pages were at risk: gone from recency's cache as well, they are not any more.
    shadow.trim(CAPACITY - PART, 64)
    assert shadow.num_at_risk == 28
    assert not shadow.rules
    # One comes back: it is at risk no more, but lost; 16 * (1.25 - 0.375) = 14.
    shadow.note_miss(5)
    shadow.trim(CAPACITY - PART, 64)
    assert shadow.num_at_risk == 27
    assert shadow.rules


def test_recency_rules_at_first() -> None:
    # Nothing was pushed, so nothing may be lost.
    shadow = make_shadow(0)
    shadow.note_gone(0)
    shadow.trim(0, 0)
    assert shadow.rules


def test_another_capacity() -> None:
    # Of 64 slots a 64th is one page of debt; of the 8.8 to 9.8 that were saved half of 64 slots, 32 pages, takes nothing.
    shadow = make_shadow(1024)
    shadow.set_capacity(64)
    shadow.end_part(1024, 1)
    assert count_misses_until_barred(shadow, 1024) in (10, 11)


def test_parts_of_another_length() -> None:
    shadow = make_shadow(64)
    shadow.note_gone(3, 4)
    shadow.restart(9000)
    assert (shadow.num_pages, shadow.num_at_risk) == (0, 0)
    shadow.check(9000)
    shadow.note_come(8999, 5)
    assert shadow.num_pages == 5
