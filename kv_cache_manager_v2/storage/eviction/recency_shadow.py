"""What recency alone would have had, beside a queue that chooses by something else, and whether that one may go on choosing.

*The shadow.* Recency keeps what was pushed last, as many pages as the queue has. So of the content that it would have only numbers
are kept: how much was pushed in each part of a tick and was not pushed again, and since which part that makes as many pages. Content
that comes back says when it was pushed last, from its page or from its ghost; if that is not before that part, recency would have had it.

*The account.* Each hit that recency would not have had is a page of credit, each hit that only it would have had a page of debt:

    credit                  fades by a 256th each part (half in three caches), and is never more than a quarter of the slots: what
                            was won long ago excuses nothing now
    debt                    is forgiven at a rate of one page per 512 pushed
    debt > 3/128 of slots   recency rules, until a quarter of that is forgiven

So what is lost to recency, as a share of all pages, is about a 512th at most beyond what was won, and what one failure costs: that debt,
and the pages that recency would have, were not kept, and come back after it has begun to rule.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

NUM_PARTS: Final = 4096
"""How far back it knows, a power of two: 64 times what fills the cache."""
_PAGE: Final = 1024
"""A page, as counted."""
_FORGIVEN: Final = 2
"""Per page pushed: one of 512."""
_FADE_SHIFT: Final = 8
_MOST_CREDIT: Final = 256
"""Per slot: a quarter of a page."""
_MOST_DEBT: Final = 24


@final
@mypyc_attr(native_class=True)
class RecencyShadow:
    """``num_pages`` would be there, those pushed since the part began left out.

    ``rules``: recency is to choose. ``is_behind``: pages were pushed since `trim`.
    """

    __slots__ = ("num_pages", "rules", "is_behind", "_credit", "_most_credit", "_most_debt", "_counts", "_oldest")

    num_pages: i64
    rules: bool
    is_behind: bool
    _credit: i64
    _most_credit: i64
    _most_debt: i64
    _counts: vec[i64]
    """Ring of parts."""
    _oldest: i64
    """The part from which on content would be there."""

    def __init__(self) -> None:
        self.num_pages = 0
        self.rules = False
        self.is_behind = False
        self._credit = 0
        self._most_credit = 0
        self._most_debt = 0
        self._counts = vec[i64]([0] * NUM_PARTS)
        self._oldest = 0

    def set_capacity(self, num_slots: i64) -> None:
        self._most_credit = num_slots * _MOST_CREDIT
        self._most_debt = num_slots * _MOST_DEBT

    def end_part(self, stamp: i64, num_pushed: i64) -> None:
        """In that part, which is over, so many pages were pushed."""
        counts = self._counts
        counts[stamp & (NUM_PARTS - 1)] += num_pushed
        self.num_pages += num_pushed
        if stamp + 1 - self._oldest == NUM_PARTS:
            self._drop_oldest()
        counts[(stamp + 1) & (NUM_PARTS - 1)] = 0
        if self._credit > 0:
            self._credit -= self._credit >> _FADE_SHIFT
        else:
            self._credit += num_pushed * _FORGIVEN
        if self.rules and self._credit * 4 >= -3 * self._most_debt:
            self.rules = False

    def note_come(self, stamp: i64) -> None:
        """A page is counted to that part, without a push."""
        if stamp >= self._oldest:
            self._counts[stamp & (NUM_PARTS - 1)] += 1
            self.num_pages += 1

    def note_left(self, stamp: i64, count: i64 = 1) -> bool:
        """So many pages that were pushed then are counted there no more; whether recency would have had them."""
        if stamp < self._oldest:
            return False
        self._counts[stamp & (NUM_PARTS - 1)] -= count
        self.num_pages -= count
        return True

    def note_hit(self, stamp: i64, count: i64 = 1) -> None:
        """So many pages that were pushed then came back, and are there."""
        if not self.note_left(stamp, count):
            credit = self._credit + count * _PAGE
            self._credit = credit if credit < self._most_credit else self._most_credit

    def note_miss(self, stamp: i64) -> None:
        """What was pushed then came back, and is gone."""
        if self.note_left(stamp):
            self._credit -= _PAGE
            if self._credit < -self._most_debt:
                self.rules = True

    def trim(self, num_pages: i64, now: i64) -> None:
        """Pages are about to go to make room: recency has as many as the queue. ``num_pages`` are in it, those pushed in part ``now``,
        which is not over, left out."""
        self.is_behind = False
        while self.num_pages > num_pages and self._oldest < now:
            self._drop_oldest()

    def _drop_oldest(self) -> None:
        at = self._oldest & (NUM_PARTS - 1)
        self.num_pages -= self._counts[at]
        self._counts[at] = 0
        self._oldest += 1
