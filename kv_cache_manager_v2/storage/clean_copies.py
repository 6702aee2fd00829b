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

from librt.vecs import vec
from mypy_extensions import i64

from ..device.stream_order import NO_POINT, StreamOrder, timeline_of_point
from ..pools.slot_allocator import SlotAllocator
from .page_rows import LOW_MASK, PageRows, WordColumn

_NO_COPY: Final = -1
NO_PAGE: Final = -1


@final
class _Lines:
    """The copies of each pool group and level, oldest first: a ring of pages, linked behind the ring's own node."""

    __slots__ = ("_links", "_num_rings")

    def __init__(self, rows: PageRows, num_rings: int) -> None:
        self._links: Final[WordColumn] = rows.add_words(0, num_before=num_rings)
        """By ring, then by page: the node after it (bits 0-31) | the node before it (32-62)."""
        self._num_rings: Final[i64] = num_rings
        for ring in range(num_rings):
            self._links.words[ring] = ring | (ring << 32)

    def add(self, ring: i64, page: i64) -> None:
        """As the newest of the ring."""
        links = self._links.words
        node = page + self._num_rings
        last = links[ring] >> 32
        links[node] = ring | (last << 32)
        links[last] = ((links[last] >> 32) << 32) | node
        links[ring] = (links[ring] & LOW_MASK) | (node << 32)

    def add_all(self, ring: i64, pages: vec[i64]) -> None:
        """`add` each, in order."""
        for page in pages:
            self.add(ring, page)

    def remove(self, page: i64) -> None:
        links = self._links.words
        both = links[page + self._num_rings]
        after = both & LOW_MASK
        before = both >> 32
        links[before] = ((links[before] >> 32) << 32) | after
        links[after] = (links[after] & LOW_MASK) | (before << 32)

    def renew(self, ring: i64, page: i64) -> None:
        """`remove` and `add` again."""
        if self._links.words[ring] >> 32 != page + self._num_rings:
            self.remove(page)
            self.add(ring, page)

    def oldest(self, ring: i64) -> i64:
        """NO_PAGE where there is none."""
        node = self._links.words[ring] & LOW_MASK
        return NO_PAGE if node == ring else node - self._num_rings

    def collect(self, ring: i64) -> list[int]:
        pages: list[int] = []
        node = self._links.words[ring] & LOW_MASK
        while node != ring:
            pages.append(int(node - self._num_rings))
            node = self._links.words[node] & LOW_MASK
        return pages


@final
class CleanCopies:
    """Conservation: the slots that the allocators have aside are those of the copies here."""

    __slots__ = ("num_copies", "_rows", "_order", "_allocators", "_num_pool_groups", "_lines", "_places", "_read_points")

    def __init__(self, rows: PageRows, order: StreamOrder, allocators: list[SlotAllocator], num_pool_groups: i64, num_levels: int) -> None:
        self.num_copies: i64 = 0
        self._rows: Final = rows
        self._order: Final = order
        self._allocators: Final = allocators
        self._num_pool_groups: Final = num_pool_groups
        has_copies = num_levels > 1
        self._lines: Final[_Lines | None] = _Lines(rows, num_levels * int(num_pool_groups)) if has_copies else None
        """By index, level and pool group. Without a second level there is no copy, and nothing is kept of pages."""
        self._places: Final[WordColumn] = rows.add_words(_NO_COPY) if has_copies else WordColumn(_NO_COPY)
        """By page: slot (bits 0-31) | index."""
        self._read_points: Final[WordColumn] = rows.add_words(NO_POINT) if has_copies else WordColumn(NO_POINT)
        """By page."""

    def has_copy(self, page: i64) -> bool:
        places = self._places.words
        return page < len(places) and places[page] != _NO_COPY

    def has_copy_at(self, page: i64, index: i64) -> bool:
        places = self._places.words
        return page < len(places) and places[page] >> 32 == index

    def slot_of(self, page: i64) -> i64:
        """Where the copy of a page that has one is."""
        return self._places.words[page] & LOW_MASK

    def keep(self, page: i64, index: i64, slot: i64, read_point: i64) -> None:
        """A slot in use is free from now on, and holds a copy of the page. ``read_point``: of a copy that was written down."""
        self.forget(page)
        self.keep_all(vec[i64]([page]), index, vec[i64]([slot]), read_point)

    def keep_all(self, pages: vec[i64], index: i64, slots: vec[i64], read_point: i64) -> None:
        """`keep` each of the pages, in order; none of them has a copy."""
        lines = self._lines
        assert lines is not None, "copies are kept, and there is one level"
        lines.add_all(index, pages)
        places = self._places.words
        read_points = self._read_points.words
        position: i64 = 0
        for page in pages:
            places[page] = slots[position] | (index << 32)
            read_points[page] = read_point
            position += 1
        self._allocators[index].set_aside(position)
        self.num_copies += position

    def read_point(self, page: i64) -> i64:
        """NO_POINT where the slot that the page lies in waits for nothing more."""
        return self._read_points.words[page]

    def end_read(self, page: i64, point: i64) -> i64:
        """The page leaves the slot that its copy was made from: the point after ``point`` and after that copy."""
        read_point = self.read_point(page)
        if read_point == NO_POINT:
            return point
        self._read_points.words[page] = NO_POINT
        return self._order.advance(point, timeline_of_point(read_point), read_point)

    def touch_block(self, first_page: i64, num_life_cycles: i64) -> None:
        """The copies of the block's pages are the newest of their pools, the first page's above all: the last ones to be released."""
        lines = self._lines
        if lines is not None:
            places = self._places.words
            page = first_page + num_life_cycles
            while page > first_page:
                page -= 1
                place = places[page]
                if place != _NO_COPY:
                    lines.renew(place >> 32, page)

    def take(self, page: i64) -> i64:
        """The page goes to its copy: the slot is in use again. The caller sees to the read point."""
        place = self._places.words[page]
        slot = place & LOW_MASK
        self._remove(page)
        self._allocators[place >> 32].take_aside(slot)
        return slot

    def forget(self, page: i64) -> None:
        """The page may have no copy."""
        if not self.has_copy(page):
            return
        place = self._places.words[page]
        read_point = self.read_point(page)
        if read_point != NO_POINT:
            index = self._rows.level(page) * self._num_pool_groups + (place >> 32) % self._num_pool_groups
            ready = self._allocators[index].ready
            slot = self._rows.slot(page)
            ready[slot] = self._order.advance(ready[slot], timeline_of_point(read_point), read_point)
        self._remove(page)
        self._allocators[place >> 32].end_aside(place & LOW_MASK)

    def forget_all(self, pool_group: i64) -> None:
        """Forget all copies of a pool group, whose slots are about to move."""
        lines = self._lines
        if lines is None:
            return
        for index in range(pool_group, len(self._allocators), self._num_pool_groups):
            page = lines.oldest(index)
            while page != NO_PAGE:
                self.forget(page)
                page = lines.oldest(index)

    def make_plain_slot(self, index: i64) -> None:
        """See that a free slot without a copy is there; the caller knows that one is free."""
        allocator = self._allocators[index]
        if self._lines is not None and allocator.num_free == allocator.num_aside:
            self.forget(self._lines.oldest(index))

    def _remove(self, page: i64) -> None:
        lines = self._lines
        assert lines is not None
        self._places.words[page] = _NO_COPY
        lines.remove(page)
        self.num_copies -= 1

    def collect(self) -> dict[int, tuple[int, int]]:
        """For checks and pictures: by page, index and slot of its copy; in each pool the oldest first."""
        found: dict[int, tuple[int, int]] = {}
        lines = self._lines
        if lines is not None:
            for index in range(len(self._allocators)):
                for page in lines.collect(index):
                    found[page] = (index, int(self._places.words[page] & LOW_MASK))
        return found
