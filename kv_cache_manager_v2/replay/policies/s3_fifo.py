"""S3-FIFO (Yang and others, SOSP 2023): a small queue that most content only passes through, and a main one.

New content enters SMALL, a tenth of the slots; content that is remembered from an earlier stay enters MAIN. At the head of SMALL a
page that was used more than once goes on to MAIN, the others go, and are remembered. At the head of MAIN a page that was used since
goes to its end once more, with a use less.

A use moves nothing. A page in use keeps its place in line; only where it reaches the head meanwhile it leaves the line, and
enters MAIN when it is pushed again.
"""

from typing import Final, final

from mypy_extensions import i64

from ...storage.page_rows import PLACE, ROW_WORDS, PageRows, priority_of_place
from ...storage.victim_queue import NO_VICTIM, ContentKeys
from .arc import fold_key
from .ghost_list import NOT_THERE, GhostList
from .listed_queue import ListedQueue
from .page_lists import NO_LIST, NO_PAGE

SMALL: Final = 0
MAIN: Final = 1
SMALL_SHARE: Final = 10
"""SMALL is one slot in so many."""
MOST_USES: Final = 3
_USES_MASK: Final = 3
_IN_USE: Final = 4
_KEY_SHIFT: Final = 3


@final
class S3FifoQueue(ListedQueue):
    """The note of a page: its uses (2 bits), whether it is in use (1 bit), then 44 bits of its content key, 0
    before its first push. A page in a line may be in use.
    """

    __slots__ = ("_keys", "_ghosts", "_most_in_small")

    def __init__(self, rows: PageRows, keys: ContentKeys) -> None:
        super().__init__(rows, 2)
        self._keys: Final = keys
        self._ghosts: Final = GhostList()
        self._most_in_small: i64 = 1

    def push(self, page: i64) -> None:
        lists = self._lists
        note = lists.note(page)
        if note & _IN_USE != 0:
            lists.set_note(page, note - _IN_USE)
        if lists.list_of(page) != NO_LIST:
            if lists.priority_of(page) != priority_of_place(self._rows.words[page * ROW_WORDS + PLACE]):
                lists.push_last(page, lists.unlink(page))
        else:
            if note != 0:
                lists.push_last(page, MAIN)
            else:
                key = fold_key(self._keys.content_key(page))
                lists.set_note(page, key << _KEY_SHIFT)
                lists.push_last(page, SMALL if self._ghosts.take(key) == NOT_THERE else MAIN)
        self._note_queued(page)

    def push_first(self, page: i64) -> None:
        lists = self._lists
        if lists.list_of(page) != NO_LIST:
            lists.unlink(page)
        key = lists.note(page) >> _KEY_SHIFT
        if key == 0:
            key = fold_key(self._keys.content_key(page))
        lists.set_note(page, key << _KEY_SHIFT)
        lists.push_first(page, SMALL)
        self._note_queued(page)

    def use(self, page: i64) -> None:
        note = self._lists.note(page)
        if note & _USES_MASK < MOST_USES:
            note += 1
        self._lists.set_note(page, note | _IN_USE)
        self._note_left(page)

    def evict(self, page: i64) -> None:
        if self._lists.list_of(page) == SMALL:
            self._ghosts.add(self._lists.note(page) >> _KEY_SHIFT)
        self.remove(page)

    def forget(self, page: i64) -> None:
        if self._lists.list_of(page) != NO_LIST:
            self._lists.unlink(page)
        self._lists.set_note(page, 0)

    def first(self) -> i64:
        """Each page that is passed over has a use less, or is in use and leaves its line: so uses pay for this."""
        if self.num_pages == 0:
            return NO_VICTIM
        lists = self._lists
        while True:
            priority = lists.lowest_priority()
            line: i64 = SMALL
            page = lists.first(SMALL, priority)
            if page == NO_PAGE or lists.counts[SMALL] <= self._most_in_small:
                other = lists.first(MAIN, priority)
                if other != NO_PAGE:
                    line = MAIN
                    page = other
            note = lists.note(page)
            if note & _IN_USE != 0:
                lists.unlink(page)
            elif line == SMALL and note & _USES_MASK > 1:
                lists.unlink(page)
                lists.set_note(page, note & ~_USES_MASK)
                lists.push_last(page, MAIN)
            elif line == MAIN and note & _USES_MASK > 0:
                lists.unlink(page)
                lists.set_note(page, note - 1)
                lists.push_last(page, MAIN)
            else:
                return page

    def set_capacity(self, num_slots: i64) -> None:
        self._most_in_small = num_slots // SMALL_SHARE
        self._ghosts.set_limit(max(num_slots - self._most_in_small, 1))

    def check(self) -> None:
        # Pages in use stay in line until they are at its head.
        in_lists = self._lists.counts[SMALL] + self._lists.counts[MAIN]
        assert in_lists >= self.num_pages, f"{in_lists} pages in the lists, {self.num_pages} of them not in use"
        self._ghosts.check_count()

    def collect(self) -> list[int]:
        return [page for page in self._lists.collect() if self._lists.note(page) & _IN_USE == 0]
