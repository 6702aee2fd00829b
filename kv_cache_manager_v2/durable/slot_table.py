"""Which page lies in each slot of a pool group, as the records of an index say, in a column: with an object for each of a million pages
other threads would wait for tens of milliseconds whenever a table grows or goes.

The column is at most as long as twice the number of records, and some: slots behind it are in a dictionary, so that damaged records take
no memory.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

NO_PAGE: Final = -1
_LEAST_SLOTS: Final = 1024
_SLOTS_PER_PAGE: Final = 2


@final
@mypyc_attr(native_class=True)
class SlotTable:
    """Pages are numbers from 0 on. The dictionary has no slot twice, nor one that the column has a page for."""

    __slots__ = ("_pages", "_num_put", "_far")

    _pages: vec[i64]
    """By slot: its page or NO_PAGE."""
    _num_put: i64
    _far: Final[dict[int, int]]

    def __init__(self) -> None:
        self._pages = vec[i64]()
        self._num_put = 0
        self._far = {}

    def put(self, slot: i64, page: i64) -> None:
        """Into a free slot."""
        pages = self._pages
        count: i64 = len(pages)
        self._num_put += 1
        if slot >= count:
            if slot >= _LEAST_SLOTS + _SLOTS_PER_PAGE * self._num_put:
                self._far[int(slot)] = int(page)
                return
            while count <= slot:
                pages = append(pages, NO_PAGE)
                count += 1
            self._pages = pages
        pages[slot] = page

    def take(self, slot: i64) -> i64:
        """The page of the slot, which is free from now on; NO_PAGE if it was."""
        pages = self._pages
        page: i64 = NO_PAGE
        if slot < len(pages):
            page = pages[slot]
            pages[slot] = NO_PAGE
        if page == NO_PAGE and len(self._far) > 0:
            page = self._far.pop(int(slot), NO_PAGE)
        return page
