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
    # A 32nd of 640 slots are 20 pages. Debt is forgiven by one page per 512 pushed: from 21 to 15 in 6 * 512 = 3072.
    shadow = RecencyShadow()
    shadow.set_capacity(CAPACITY)
    for miss in range(21):
        assert not shadow.rules, miss
        shadow.note_miss(0)
    assert shadow.rules
    parts = 0
    while shadow.rules:
        shadow.end_part(parts, PART)
        parts += 1
    assert parts * PART in range(3072 - PART, 3072 + 2 * PART)


def test_credit_covers_debt_and_fades() -> None:
    # At most a 16th of 640 slots is kept as credit: 40 pages, and 20 of debt.
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

    assert misses_until_it_rules(0, 0) == 21
    assert misses_until_it_rules(7, 0) == 28
    assert misses_until_it_rules(1000, 0) == 61
    # A 16th less each part: 40 * (15/16)^8 = 23.9, so the 44th page is more than that and 20; 40 * (15/16)^12 = 18.4.
    assert misses_until_it_rules(1000, 8) == 44
    assert misses_until_it_rules(1000, 12) == 39
