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
        assert not shadow.rules, miss
        shadow.note_miss(0)
    assert shadow.rules
    parts = 0
    while shadow.rules:
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
        while not shadow.rules:
            shadow.note_miss(NUM_PARTS // 64 - 1)
            misses += 1
        return misses

    assert misses_until_it_rules(0, 0) == 16
    assert misses_until_it_rules(7, 0) == 23
    assert misses_until_it_rules(1000, 0) == 176
    # A 256th less each part: 160 * (255/256)^64 = 124.5, so the 140th page is more than that and 15; 160 * (255/256)^178 = 79.7.
    assert misses_until_it_rules(1000, 64) == 140
    assert misses_until_it_rules(1000, 178) == 95
