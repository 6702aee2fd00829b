"""The part of a state that a new snapshot keeps, found step by step: all pages, and the nodes of the tree, the nodes
of the pages, and their ancestors.

    state        what a step looks at                                way out
    marking      some nodes of the tree, and their ordinals          all are marked: pages
    pages        some pages, in the order of their records           all are listed: ancestors
    ancestors    some nodes, the last ones first                     all are marked: nodes
    nodes        some nodes, parents first                           all are listed: done

A step takes well under a millisecond, however many pages there are.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from .index_state import IS_GONE, NO_ORDINAL, IndexState

_MARKING: Final = 0
_PAGES: Final = 1
_ANCESTORS: Final = 2
_NODES: Final = 3
_DONE: Final = 4
_AT_ONCE: Final = 1 << 13


@final
@mypyc_attr(native_class=True)
class SnapshotChoice:
    """``live``: the numbers of the blocks in the tree; numbers below 1 mean nothing. The state does not change meanwhile."""

    __slots__ = ("nodes", "pages", "_state", "_live", "_is_kept", "_phase", "_position")

    nodes: vec[i64]
    """Ordinals, parents first."""
    pages: vec[i64]
    """Ordinals, in the order of their records."""
    _state: Final[IndexState]
    _live: Final[vec[i64]]
    _is_kept: vec[bool]
    """By node."""
    _phase: i64
    _position: i64
    """Position of the present phase's next item."""

    def __init__(self, state: IndexState, live: vec[i64]) -> None:
        self.nodes = vec[i64]()
        self.pages = vec[i64]()
        self._state = state
        self._live = live
        self._is_kept = vec[bool]()
        self._phase = _MARKING
        self._position = 0

    def step(self) -> bool:
        """Some of the work; False once all of it is done."""
        if self._phase == _MARKING:
            self._mark()
        elif self._phase == _PAGES:
            self._list_pages()
        elif self._phase == _ANCESTORS:
            self._mark_ancestors()
        elif self._phase == _NODES:
            self._list_nodes()
        return self._phase != _DONE

    def _end(self, begin: i64, count: i64) -> i64:
        """Where a step ends that begins there, of ``count`` in all."""
        end = begin + _AT_ONCE
        return end if end < count else count

    def _go_on(self, end: i64, count: i64) -> None:
        self._position = end
        if end == count:
            self._phase += 1
            self._position = 0

    def _mark(self) -> None:
        state = self._state
        num_nodes = state.num_nodes
        is_kept = self._is_kept
        if len(is_kept) < num_nodes:
            end = self._end(len(is_kept), num_nodes)
            while len(is_kept) < end:
                is_kept = append(is_kept, False)
            self._is_kept = is_kept
            return
        live = self._live
        count: i64 = len(live)
        end = self._end(self._position, count)
        for position in range(self._position, end):
            number = live[position]
            if number > 0:
                node = state.find(number)
                if node != NO_ORDINAL:
                    is_kept[node] = True
        self._go_on(end, count)

    def _list_pages(self) -> None:
        page_nodes = self._state.page_nodes
        is_kept = self._is_kept
        pages = self.pages
        count: i64 = len(page_nodes)
        end = self._end(self._position, count)
        for page in range(self._position, end):
            node = page_nodes[page]
            if node != IS_GONE:
                is_kept[node] = True
                pages = append(pages, page)
        self.pages = pages
        self._go_on(end, count)

    def _mark_ancestors(self) -> None:
        parents = self._state.parents
        is_kept = self._is_kept
        count: i64 = len(parents)
        end = self._end(self._position, count)
        for position in range(self._position, end):
            node = count - 1 - position
            parent = parents[node]
            if is_kept[node] and parent >= 0:
                is_kept[parent] = True
        self._go_on(end, count)

    def _list_nodes(self) -> None:
        parents = self._state.parents
        is_kept = self._is_kept
        nodes = self.nodes
        count: i64 = len(parents)
        end = self._end(self._position, count)
        for node in range(self._position, end):
            if is_kept[node] and parents[node] != IS_GONE:
                nodes = append(nodes, node)
        self.nodes = nodes
        self._go_on(end, count)
