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


def test_debt_makes_recency_rule_and_is_forgiven() -> None:
    # 3/128 of 640 slots are 15 pages. Debt is forgiven by one page per 512 pushed: from 16 to 11.25 in 4.75 * 512 = 2432.
    shadow = RecencyShadow()
    shadow.set_capacity(CAPACITY)
    for miss in range(16):
        assert not shadow.is_barred, miss
        shadow.note_miss(0)
    assert shadow.is_barred
    parts = 0
    while shadow.is_barred:
        shadow.end_part(parts, PART)
        parts += 1
    assert parts * PART in range(2432 - PART, 2432 + 2 * PART)


def test_credit_covers_debt_and_fades() -> None:
    # At most a quarter of 640 slots is kept as credit: 160 pages, and 15 of debt.
    def misses_until_it_rules(num_hits: int, num_parts: int) -> int:
        shadow = RecencyShadow()
        shadow.set_capacity(CAPACITY)
        for part in range(NUM_PARTS // 64):
            shadow.end_part(part, PART)
        # Recency has the last 10 parts only.
        shadow.trim(10 * PART, NUM_PARTS // 64)
        for _ in range(num_hits):
            shadow.note_hit(5)
        for part in range(num_parts):
            shadow.end_part(NUM_PARTS // 64 + part, PART)
        misses = 0
        while not shadow.is_barred:
            shadow.note_miss(NUM_PARTS // 64 - 1)
            misses += 1
        return misses

    # 64 parts of 10 pages have saved 640 / 512 = 1.25 pages.
    assert misses_until_it_rules(0, 0) == 17
    assert misses_until_it_rules(7, 0) == 24
    assert misses_until_it_rules(1000, 0) == 176
    # A part takes a 4096th and saves 10 / 512: that leaves 80 + 80 * exp(-1000 / 4096) = 142.7 of 160, and up to 0.5 more, as what
    # is taken is cut off to 1024ths.
    assert misses_until_it_rules(1000, 1000) in (158, 159)


def test_pages_at_risk_make_recency_rule() -> None:
    # Four times the 15 pages of debt and the 1.25 saved: 65 pages may be at risk.
    shadow = RecencyShadow()
    shadow.set_capacity(CAPACITY)
    for part in range(64):
        shadow.end_part(part, PART)
    shadow.trim(CAPACITY, 64)
    for page in range(65):
        shadow.note_gone(page % 64)
    shadow.trim(CAPACITY, 64)
    assert not shadow.rules
    shadow.note_gone(10)
    shadow.trim(CAPACITY, 64)
    assert shadow.rules
    # Of the first parts two pages each were at risk: gone from recency's cache as well, they are not any more.
    shadow.trim(CAPACITY - PART, 64)
    assert shadow.num_at_risk == 64
    assert not shadow.rules
    # One comes back: it is at risk no more, but lost; 4 * 15.25 = 61.
    shadow.note_miss(20)
    shadow.trim(CAPACITY - PART, 64)
    assert shadow.num_at_risk == 63
    assert shadow.rules
