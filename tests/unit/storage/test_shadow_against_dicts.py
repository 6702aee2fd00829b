"""The shadow of recency counts what plain dicts by part count, and its account is what its table of rules says."""

import random

import pytest

from kv_cache_manager_v2.storage.eviction.recency_shadow import NUM_PARTS, RecencyShadow

PAGE = 1024


class PlainShadow:
    """In 1024ths of a page: ``credit``, ``allowed`` debt, and the most of both."""

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        self.gone: dict[int, int] = {}
        self.oldest = 0
        self.credit = self.most_credit = self.allowed = self.most_debt = 0
        self.is_barred = self.rules = False

    @property
    def num_pages(self) -> int:
        return sum(self.counts.values())

    @property
    def num_at_risk(self) -> int:
        return sum(self.gone.values())

    def set_capacity(self, num_slots: int) -> None:
        self.most_credit, self.most_debt = num_slots * 512, num_slots * 16
        self.credit = min(self.credit, self.most_credit)
        self.allowed = min(self.allowed, self.most_debt)

    def restart(self, now: int) -> None:
        self.counts, self.gone = {}, {}
        self.oldest = max(now - NUM_PARTS + 1, 0)

    def drop_oldest(self) -> None:
        self.counts.pop(self.oldest, None)
        self.gone.pop(self.oldest, None)
        self.oldest += 1

    def end_part(self, stamp: int, num_pushed: int) -> None:
        self.counts[stamp] = self.counts.get(stamp, 0) + num_pushed
        if stamp + 1 - self.oldest == NUM_PARTS:
            self.drop_oldest()
        if self.credit > 0:
            self.credit -= self.credit // 4096
        self.credit = min(self.credit + num_pushed, self.most_credit)
        self.allowed = min(self.allowed + 2 * num_pushed, self.most_debt)
        if self.is_barred and 4 * self.credit >= -3 * self.allowed:
            self.is_barred = False

    def come(self, stamp: int, count: int) -> None:
        if stamp >= self.oldest:
            self.counts[stamp] = self.counts.get(stamp, 0) + count

    def leave(self, stamp: int, count: int) -> bool:
        self.come(stamp, -count)
        return stamp >= self.oldest

    def hit(self, stamp: int, count: int) -> None:
        if not self.leave(stamp, count):
            self.credit = min(self.credit + count * PAGE, self.most_credit)

    def go(self, stamp: int, count: int) -> None:
        if stamp >= self.oldest:
            self.gone[stamp] = self.gone.get(stamp, 0) + count

    def miss(self, stamp: int, count: int) -> None:
        if self.leave(stamp, count):
            self.gone[stamp] = max(self.gone.get(stamp, 0) - count, 0)
            self.credit -= count * PAGE
            self.is_barred = self.is_barred or self.credit < -self.allowed

    def trim(self, num_pages: int, now: int) -> None:
        while self.num_pages > num_pages and self.oldest < now:
            self.drop_oldest()
        self.rules = self.is_barred or self.num_at_risk * PAGE > 16 * (self.allowed + self.credit)


@pytest.mark.parametrize("seed", range(16))
def test_against_dicts(seed: int) -> None:
    """Each number after each call; parts are left behind by trimming, or, where nothing is trimmed, as too many parts ago."""
    choices = random.Random(seed)
    trims = seed % 4 != 0
    shadow, plain = RecencyShadow(), PlainShadow()
    assert not (shadow.is_barred or shadow.rules or shadow.is_behind or shadow.num_pages or shadow.num_at_risk or shadow.oldest)
    num_slots = choices.choice((1, 5, 64, 640))
    shadow.set_capacity(num_slots)
    plain.set_capacity(num_slots)
    now = 0
    for step in range(900):
        kind = choices.random()
        stamp = max(now - int((now - plain.oldest + 3) * choices.random() ** 2), 0)
        count = choices.choice((1, 1, 2, 7))
        if kind < 0.35:
            for _ in range(choices.choice((1, 1, 3, 1 if trims else 200))):
                num_pushed = choices.choice((1, num_slots, 3 * num_slots, 5000))
                shadow.end_part(now, num_pushed)
                plain.end_part(now, num_pushed)
                now += 1
        elif kind < 0.45:
            shadow.note_come(stamp, count)
            plain.come(stamp, count)
        elif kind < 0.55:
            assert shadow.note_left(stamp, count) == plain.leave(stamp, count)
        elif kind < 0.65:
            shadow.note_hit(stamp, count)
            plain.hit(stamp, count)
        elif kind < 0.75:
            shadow.note_gone(stamp, count)
            plain.go(stamp, count)
        elif kind < 0.85:
            shadow.note_miss(stamp, count)
            plain.miss(stamp, count)
        elif kind < 0.98:
            if trims:
                num_pages = choices.choice((0, num_slots, max(plain.num_pages - 1, 0), plain.num_pages, plain.num_pages + 1))
                shadow.is_behind = True
                shadow.trim(num_pages, now)
                assert not shadow.is_behind
                plain.trim(num_pages, now)
        elif kind < 0.985:
            now += choices.choice((0, 10, NUM_PARTS - 2, NUM_PARTS + 5))
            shadow.restart(now)
            plain.restart(now)
        else:
            num_slots = choices.choice((1, 5, 64, 640))
            shadow.set_capacity(num_slots)
            plain.set_capacity(num_slots)
        shadow.check(now)
        assert (shadow.num_pages, shadow.num_at_risk, shadow.oldest) == (plain.num_pages, plain.num_at_risk, plain.oldest), step
        assert (shadow.is_barred, shadow.rules) == (plain.is_barred, plain.rules)
        assert (shadow._credit, shadow._debt_allowed) == (plain.credit, plain.allowed)


def test_one_page_is_counted_unless_told_otherwise() -> None:
    shadow = RecencyShadow()
    shadow.set_capacity(640)
    shadow.note_come(0)
    shadow.note_gone(0)
    assert (shadow.num_pages, shadow.num_at_risk) == (1, 1)
    shadow.note_hit(0)
    assert (shadow.num_pages, shadow._credit) == (0, 0)
    shadow.note_miss(0)
    assert (shadow.num_pages, shadow.num_at_risk, shadow._credit) == (-1, 0, -PAGE)
    assert shadow.note_left(0)
    assert shadow.num_pages == -2


def test_debt_may_be_what_is_allowed_and_is_forgiven_at_three_quarters() -> None:
    """1,024 pages pushed save one page and allow two of debt, so three may be lost. Five lost make four of debt; 1,024 pushed more
    make it three where four are allowed."""
    shadow = RecencyShadow()
    shadow.set_capacity(640)
    shadow.end_part(0, 1024)
    shadow.note_miss(0, 3)
    barred = [shadow.is_barred]
    shadow.note_miss(0, 2)
    barred.append(shadow.is_barred)
    shadow.end_part(1, 1024)
    assert [*barred, shadow.is_barred] == [False, True, False]


@pytest.mark.parametrize("now", [0, 1, NUM_PARTS - 1, NUM_PARTS, NUM_PARTS + 1])
def test_a_new_start_knows_no_more_parts_than_the_ring_has(now: int) -> None:
    shadow = RecencyShadow()
    shadow.restart(now)
    shadow.check(now)
    assert shadow.oldest == max(0, now - NUM_PARTS + 1)
