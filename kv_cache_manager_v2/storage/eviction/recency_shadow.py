"""What recency alone would have had, beside a queue that chooses by something else, and whether that one may go on choosing.

*The shadow.* Recency keeps what was pushed last, as many pages as the queue has. So of the content that it would have only numbers
are kept: how much was pushed in each part of a tick and was not pushed again, and since which part that makes as many pages. Content
that comes back says when it was pushed last, from its page or from its ghost; if that is not before that part, recency would have had it.

*The account.* Each hit that recency would not have had is a page of credit, each hit that only it would have had a page of debt:

    every 1,024 pushed      a page of credit: so much may be lost in the long run
    credit                  fades by a 4096th each part, and is never more than half of the slots: what was won long ago excuses
                            nothing now
    debt > allowance        recency rules, until a quarter of that is forgiven; the allowance is two pages per 1024 pushed so far, at
                            most a 64th of the slots. With what is saved these are three per 1024: 0.3 points of hit rate
    pages at risk           are gone, and recency would still have them; if all that comes back from now on were of these, so many
                            would be lost. More than 16 times what credit and debt allow: recency rules, until there are fewer

So a policy that was right for long may differ from recency as it likes; one that has just begun, or was wrong lately, only in little.
Where recency rules, pages that it would not have are as free to choose from as ever: whichever goes, nothing is lost beside it. So what was
kept against recency, and not for nothing, stays, and wins back what was lost.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64

NUM_PARTS: Final = 4096
"""How far back it knows, a power of two: 64 times what fills the cache."""
_PAGE: Final = 1024
"""A page, as counted: for each one that was pushed one of 1,024 is saved."""
_FADE_SHIFT: Final = 12
_MOST_CREDIT: Final = 512
"""Per slot: half a page."""
_DEBT: Final = 2
"""Per page pushed so far: who has just begun may owe little."""
_MOST_DEBT: Final = 16
"""Per slot: reached when the cache was filled eight times."""
_MOST_RISK: Final = 16
"""Pages at risk for each one that may be lost: that all of them come back is rare."""


@final
class RecencyShadow:
    """``num_pages`` would be there, those pushed since the part began left out; ``num_at_risk`` of them are gone.

    ``is_barred``: the debt is too large. ``rules``: recency is to choose, since the latest `trim`. ``is_behind``: pages were pushed since.
    """

    __slots__ = (
        "num_pages", "num_at_risk", "is_barred", "rules", "is_behind", "oldest", "_credit", "_most_credit", "_debt_allowed", "_most_debt",
        "_counts", "_gone",
    )  # fmt: skip

    def __init__(self) -> None:
        self.num_pages: i64 = 0
        self.num_at_risk: i64 = 0
        self.is_barred = False
        self.rules = False
        self.is_behind = False
        self._credit: i64 = 0
        self._most_credit: i64 = 0
        self._debt_allowed: i64 = 0
        self._most_debt: i64 = 0
        self._counts = vec[i64]([0] * NUM_PARTS)
        """Ring of parts."""
        self._gone = vec[i32]([0] * NUM_PARTS)
        """Those of them that are gone."""
        self.oldest: i64 = 0
        """The part from which on content would be there."""

    def set_capacity(self, num_slots: i64) -> None:
        self._most_credit = num_slots * _MOST_CREDIT
        self._earn(0)
        # What was pushed so far stays counted, as far as it did: who shrinks and grows again may owe a little less.
        self._most_debt = num_slots * _MOST_DEBT
        self._debt_allowed = min(self._debt_allowed, self._most_debt)

    def save_account(self) -> tuple[int, int]:
        """For `load_account`: the credit, and the debt that is allowed."""
        return int(self._credit), int(self._debt_allowed)

    def load_account(self, credit: i64, debt_allowed: i64) -> None:
        """That of another process, as far as this many slots allow."""
        self._credit = min(max(credit, -self._most_debt), self._most_credit)
        self._debt_allowed = min(max(debt_allowed, 0), self._most_debt)
        self.is_barred = self._credit < -self._debt_allowed

    def restart(self, now: i64) -> None:
        """Parts have another length: nothing is known of what was pushed, and part ``now`` is the current one."""
        for part in range(NUM_PARTS):
            self._counts[part] = 0
            self._gone[part] = 0
        self.num_pages = 0
        self.num_at_risk = 0
        self.oldest = now - NUM_PARTS + 1 if now >= NUM_PARTS else 0

    def end_part(self, stamp: i64, num_pushed: i64) -> None:
        """In that part, which is over, so many pages were pushed."""
        self.note_come(stamp, num_pushed)
        if stamp + 1 - self.oldest == NUM_PARTS:
            self._drop_oldest()
        if self._credit > 0:
            self._credit -= self._credit >> _FADE_SHIFT
        self._earn(num_pushed)
        self._debt_allowed = min(self._debt_allowed + num_pushed * _DEBT, self._most_debt)
        if self.is_barred and self._credit * 4 >= -3 * self._debt_allowed:
            self.is_barred = False

    def _earn(self, credit: i64) -> None:
        self._credit = min(self._credit + credit, self._most_credit)

    def note_come(self, stamp: i64, count: i64 = 1) -> None:
        """So many pages are counted to that part, without a push."""
        if stamp >= self.oldest:
            self._counts[stamp & (NUM_PARTS - 1)] += count
            self.num_pages += count

    def note_left(self, stamp: i64, count: i64 = 1) -> bool:
        """So many pages that were pushed then are counted there no more; whether recency would have had them."""
        self.note_come(stamp, -count)
        return stamp >= self.oldest

    def note_hit(self, stamp: i64, count: i64 = 1) -> None:
        """So many pages that were pushed then came back, and are there."""
        if not self.note_left(stamp, count):
            self._earn(count * _PAGE)

    def note_gone(self, stamp: i64, count: i64 = 1) -> None:
        """So many pages that were pushed then were evicted."""
        if stamp >= self.oldest:
            self._gone[stamp & (NUM_PARTS - 1)] += i32(count)
            self.num_at_risk += count

    def note_miss(self, stamp: i64, count: i64 = 1) -> None:
        """So many pages that were pushed then came back, and are gone."""
        if self.note_left(stamp, count):
            at = stamp & (NUM_PARTS - 1)
            # What was dropped and came back in between is known by one of its stamps only.
            gone = i64(self._gone[at])
            back = min(count, gone)
            self._gone[at] = i32(gone - back)
            self.num_at_risk -= back
            self._credit -= count * _PAGE
            if self._credit < -self._debt_allowed:
                self.is_barred = True

    def trim(self, num_pages: i64, now: i64) -> None:
        """Pages are about to be evicted: recency has as many as the queue. ``num_pages`` are in it, those pushed in part ``now``,
        which is not over, left out."""
        self.is_behind = False
        while self.num_pages > num_pages and self.oldest < now:
            self._drop_oldest()
        self.rules = self.is_barred or self.num_at_risk * _PAGE > _MOST_RISK * (self._debt_allowed + self._credit)

    def check(self, now: i64) -> None:
        """Assert the bounds of what is counted; ``now`` is the part that is not over. O(1)."""
        assert now - NUM_PARTS < self.oldest <= now, f"part {self.oldest} is the oldest known one in part {now}"
        assert self._credit <= self._most_credit, f"a credit of {self._credit} where {self._most_credit} are allowed"
        assert 0 <= self._debt_allowed <= self._most_debt, f"a debt of {self._debt_allowed} is allowed, {self._most_debt} at most"
        assert self.num_at_risk >= 0, f"{self.num_at_risk} pages at risk"

    def _drop_oldest(self) -> None:
        at = self.oldest & (NUM_PARTS - 1)
        self.num_pages -= self._counts[at]
        self._counts[at] = 0
        self.num_at_risk -= i64(self._gone[at])
        self._gone[at] = 0
        self.oldest += 1
