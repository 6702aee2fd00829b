"""ARC, adaptive replacement (Megiddo and Modha, FAST 2003): pages seen once against pages seen again, as the misses teach.

Two lines, each by recency: ONCE, pages that came and were not reused since, and AGAIN. Two lists of ghosts: content that either
lost. Content that comes back from ONCE's ghosts says that ONCE is too short, from AGAIN's that AGAIN is: the target
length of ONCE moves accordingly, by the ratio of the two lists of ghosts.
"""

from typing import Final, final

from mypy_extensions import i64

from ...storage.page_rows import PageRows
from ...storage.victim_queue import NO_VICTIM, ContentKeys
from .ghost_list import GhostList
from .listed_queue import ListedQueue
from .page_lists import NO_PAGE

ONCE: Final = 0
AGAIN: Final = 1
_KEY_SHIFT: Final = 1
_KEY_MASK: Final = (1 << 44) - 1


@final
class ArcQueue(ListedQueue):
    """The note of a page: bit 0 says whether it goes to AGAIN; above it 44 bits of its content key, 0 before its first push."""

    __slots__ = ("_keys", "_ghosts_of_once", "_ghosts_of_again", "_capacity", "_target")

    def __init__(self, rows: PageRows, keys: ContentKeys) -> None:
        super().__init__(rows, 2)
        self._keys: Final = keys
        self._ghosts_of_once: Final = GhostList()
        self._ghosts_of_again: Final = GhostList()
        self._capacity: i64 = 0
        self._target: i64 = 0
        """The length that ONCE should have."""

    def push(self, page: i64) -> None:
        self._lists.push_last(page, self._note_of(page) & AGAIN)
        self._note_queued(page)

    def _note_of(self, page: i64) -> i64:
        """The page's note; made where the page is new, when its ghost, if there is one, teaches the target."""
        note = self._lists.note(page)
        if note >> _KEY_SHIFT != 0:
            return note
        key = fold_key(self._keys.content_key(page))
        once = self._ghosts_of_once
        again = self._ghosts_of_again
        line: i64 = ONCE
        if once.contains(key):
            step = again.num_keys // once.num_keys
            self._target = min(self._target + (step if step > 1 else 1), self._capacity)
            once.take(key)
            line = AGAIN
        elif again.contains(key):
            step = once.num_keys // again.num_keys
            self._target = max(self._target - (step if step > 1 else 1), 0)
            again.take(key)
            line = AGAIN
        note = (key << _KEY_SHIFT) | line
        self._lists.set_note(page, note)
        return note

    def push_first(self, page: i64) -> None:
        self._note_of(page)
        self._lists.push_first(page, ONCE)
        self._note_queued(page)

    def use(self, page: i64) -> None:
        self._lists.unlink(page)
        self._lists.set_note(page, self._lists.note(page) | AGAIN)
        self._note_left(page)

    def evict(self, page: i64) -> None:
        key = self._lists.note(page) >> _KEY_SHIFT
        ghosts = self._ghosts_of_once if self._lists.list_of(page) == ONCE else self._ghosts_of_again
        self.remove(page)
        ghosts.add(key)
        # ONCE and its ghosts are as long as one cache, and everything together two.
        self._ghosts_of_once.set_limit(max(self._capacity - self._lists.counts[ONCE], 1))
        rest = 2 * self._capacity - self.num_pages - self._ghosts_of_once.num_keys
        self._ghosts_of_again.set_limit(max(rest, 1))

    def first(self) -> i64:
        if self.num_pages == 0:
            return NO_VICTIM
        lists = self._lists
        priority = lists.lowest_priority()
        page = lists.first(ONCE, priority)
        if page != NO_PAGE and lists.counts[ONCE] > self._target:
            return page
        other = lists.first(AGAIN, priority)
        return page if other == NO_PAGE else other

    def check(self) -> None:
        super().check()
        assert 0 <= self._target <= self._capacity, f"ONCE should be {self._target} long, of {self._capacity} slots"
        self._ghosts_of_once.check_count()
        self._ghosts_of_again.check_count()

    def set_capacity(self, num_slots: i64) -> None:
        self._capacity = num_slots
        self._target = min(self._target, num_slots)
        self._ghosts_of_once.set_limit(max(num_slots, 1))
        self._ghosts_of_again.set_limit(max(num_slots, 1))


def fold_key(key: i64) -> i64:
    """44 bits of a content key, never 0: what fits beside a page's note."""
    folded = (key ^ (key >> 17)) & _KEY_MASK
    if folded == 0:
        return 1
    return folded
