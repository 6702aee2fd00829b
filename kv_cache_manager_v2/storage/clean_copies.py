"""Clean copies: what free slots of colder levels still hold of published pages on warmer levels.

The bytes of a published page never change, so what a page leaves behind when it is onboarded, or what is written down early
(`EarlyCopies`), serves when the page is offloaded again: nothing is copied then. A copy costs no room: its slot is free, and is
handed out when no other free slot of its pool is left, the oldest copy first. So no quota, statistics or event knows of it.

    state of the slot             way out
    free, holds a copy (aside)    take: the page is offloaded to it
                                  forget: free without a copy; the page is gone, has other bytes, or the slot is needed

A page has at most one copy, on a colder level than its own. *Read point*: the point after which a copy that was written down has
read its page; the next user of the page's slot waits for that. It is put into the slot's point once it matters, so that readers
of the page never wait for a copy of it.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from ..device.stream_order import NO_POINT, StreamOrder, timeline_of_point
from ..pools.slot_allocator import SlotAllocator
from .page_rows import PageRows

_NO_COPY: Final = -1
_SLOT_MASK: Final = (1 << 32) - 1


@final
@mypyc_attr(native_class=True)
class _Line:
    """The copies of one pool group at one level, oldest first: a ring of slots, linked by ``slot + 1``; 0 is where it begins."""

    __slots__ = ("pages", "read_points", "after", "before")

    pages: vec[i64]
    read_points: vec[i64]
    after: vec[i64]
    before: vec[i64]

    def __init__(self) -> None:
        self.pages = vec[i64]([_NO_COPY])
        self.read_points = vec[i64]([NO_POINT])
        self.after = vec[i64]([0])
        self.before = vec[i64]([0])

    def add(self, slot: i64, page: i64, read_point: i64) -> None:
        at = slot + 1
        while len(self.pages) <= at:
            self.pages = append(self.pages, _NO_COPY)
            self.read_points = append(self.read_points, NO_POINT)
            self.after = append(self.after, 0)
            self.before = append(self.before, 0)
        self.pages[at] = page
        self.read_points[at] = read_point
        last = self.before[0]
        self.after[last] = at
        self.before[at] = last
        self.after[at] = 0
        self.before[0] = at

    def remove(self, slot: i64) -> None:
        at = slot + 1
        self.pages[at] = _NO_COPY
        self.after[self.before[at]] = self.after[at]
        self.before[self.after[at]] = self.before[at]


@final
@mypyc_attr(native_class=True)
class CleanCopies:
    """Conservation: the slots that the allocators have aside are those of the copies here."""

    __slots__ = ("num_copies", "_rows", "_order", "_allocators", "_num_pool_groups", "_lines", "_place_of")

    num_copies: i64
    _rows: Final[PageRows]
    _order: Final[StreamOrder]
    _allocators: Final[list[SlotAllocator]]
    _num_pool_groups: Final[i64]
    _lines: Final[list[_Line]]
    """By index, level and pool group; as many as were needed so far."""
    _place_of: vec[i64]
    """By page: slot (bits 0-31) | index; as many as were needed so far."""

    def __init__(self, rows: PageRows, order: StreamOrder, allocators: list[SlotAllocator], num_pool_groups: i64) -> None:
        self.num_copies = 0
        self._rows = rows
        self._order = order
        self._allocators = allocators
        self._num_pool_groups = num_pool_groups
        self._lines = []
        self._place_of = vec[i64]()

    def has_copy(self, page: i64) -> bool:
        return page < len(self._place_of) and self._place_of[page] != _NO_COPY

    def has_copy_at(self, page: i64, index: i64) -> bool:
        return page < len(self._place_of) and self._place_of[page] >> 32 == index

    def keep(self, page: i64, index: i64, slot: i64, read_point: i64) -> None:
        """A slot in use is free from now on, and holds a copy of the page. ``read_point``: of a copy that was written down."""
        self.forget(page)
        while len(self._lines) <= index:
            self._lines.append(_Line())
        while len(self._place_of) <= page:
            self._place_of = append(self._place_of, _NO_COPY)
        self._lines[index].add(slot, page, read_point)
        self._place_of[page] = slot | (index << 32)
        self._allocators[index].set_aside(slot)
        self.num_copies += 1

    def read_point(self, page: i64) -> i64:
        """NO_POINT where the slot that the page lies in waits for nothing more."""
        place = self._place_of[page]
        return self._lines[place >> 32].read_points[(place & _SLOT_MASK) + 1]

    def end_read(self, page: i64, point: i64) -> i64:
        """The page leaves the slot that its copy was made from: the point after ``point`` and after that copy."""
        place = self._place_of[page]
        line = self._lines[place >> 32]
        at = (place & _SLOT_MASK) + 1
        read_point = line.read_points[at]
        if read_point == NO_POINT:
            return point
        line.read_points[at] = NO_POINT
        return self._order.advance(point, timeline_of_point(read_point), read_point)

    def touch(self, page: i64) -> None:
        """Its copy, if it has one, is the newest of its pool: the last one to be released."""
        if self.has_copy(page):
            place = self._place_of[page]
            line = self._lines[place >> 32]
            read_point = line.read_points[(place & _SLOT_MASK) + 1]
            line.remove(place & _SLOT_MASK)
            line.add(place & _SLOT_MASK, page, read_point)

    def take(self, page: i64) -> i64:
        """The page goes to its copy: the slot is in use again. The caller sees to the read point."""
        place = self._place_of[page]
        slot = place & _SLOT_MASK
        self._remove(page, place)
        self._allocators[place >> 32].take_aside(slot)
        return slot

    def forget(self, page: i64) -> None:
        """The page may have no copy."""
        if page >= len(self._place_of) or self._place_of[page] == _NO_COPY:
            return
        place = self._place_of[page]
        read_point = self.read_point(page)
        if read_point != NO_POINT:
            index = self._rows.level(page) * self._num_pool_groups + (place >> 32) % self._num_pool_groups
            ready = self._allocators[index].ready
            slot = self._rows.slot(page)
            ready[slot] = self._order.advance(ready[slot], timeline_of_point(read_point), read_point)
        self._remove(page, place)
        self._allocators[place >> 32].end_aside(place & _SLOT_MASK)

    def forget_all(self, pool_group: i64) -> None:
        """Of a pool group, whose slots are about to move."""
        for index in range(pool_group, len(self._lines), self._num_pool_groups):
            line = self._lines[index]
            while line.after[0] != 0:
                self.forget(line.pages[line.after[0]])

    def make_plain_slot(self, index: i64) -> None:
        """See that a free slot without a copy is there; the caller knows that one is free."""
        allocator = self._allocators[index]
        if allocator.num_free == allocator.num_aside:
            line = self._lines[index]
            self.forget(line.pages[line.after[0]])

    def _remove(self, page: i64, place: i64) -> None:
        self._place_of[page] = _NO_COPY
        self._lines[place >> 32].remove(place & _SLOT_MASK)
        self.num_copies -= 1

    def collect(self) -> dict[int, tuple[int, int]]:
        """For checks and pictures: by page, index and slot of its copy; in each pool the oldest first."""
        found: dict[int, tuple[int, int]] = {}
        for index, line in enumerate(self._lines):
            at = line.after[0]
            while at != 0:
                found[int(line.pages[at])] = (index, int(at) - 1)
                at = line.after[at]
        return found
