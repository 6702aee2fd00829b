"""Planned blocks of one manager: private blocks whose tokens their sequence, the *writer*, has promised to compute in this step.

    state       in the tree   owners                        ways out
    PRIVATE     no            the writer                    publish_planned -> PLANNED
    PLANNED     no            the writer and its readers    the writer commits the tokens -> PUBLISHED; it takes them back -> PRIVATE
    PUBLISHED   yes           the tree                      (see `block`)

A new sequence whose prompt goes on with a planned block becomes a *reader*: it lists the block, holds its pages, and is counted in
`Block.num_co_owners`. A planned block is below a published block or a root, its *anchor*, or below another planned block, perhaps of
another writer. What is done with planned blocks: `planned_steps`; how they are matched: `planned_match`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, final

from mypy_extensions import i64

from ..reuse.block import Block
from ..reuse.radix_tree import RadixTree

if TYPE_CHECKING:
    from .sequence_state import SequenceState

NOT_VOID: Final = -1


@final
class PlannedBlock:
    """One promised block. Its writer is ACTIVE, and its readers have not closed."""

    __slots__ = ("block", "writer", "ordinal", "key", "anchor", "above", "children", "readers")

    def __init__(
        self, block: Block, writer: SequenceState, ordinal: i64, key: bytes, anchor: Block | None, above: PlannedBlock | None
    ) -> None:
        self.block: Final = block
        self.writer: Final = writer
        self.ordinal: Final = ordinal
        self.key: Final = key
        """Its packed tokens; their digests are counted."""
        self.anchor: Block | None = anchor
        """The published block or root that it is below; None below a planned block, or where it is hidden."""
        self.above: PlannedBlock | None = above
        self.children: Final[dict[bytes, PlannedBlock]] = {}
        self.readers: Final[list[SequenceState]] = []
        """In the order in which they were made."""


@final
class PlannedLinks:
    """Planned blocks that one sequence offers and reads; a sequence that has nothing to do with any has no such object."""

    __slots__ = ("offered", "read", "valid_tokens")

    def __init__(self) -> None:
        self.offered: Final[list[PlannedBlock]] = []
        """As their writer, in order; blocks between them may be published by others."""
        self.read: Final[list[PlannedBlock]] = []
        """As their reader, in order: the blocks right behind its published path."""
        self.valid_tokens: i64 = NOT_VOID
        """First tokens that are left of a sequence that is void; else NOT_VOID."""

    @property
    def is_idle(self) -> bool:
        return len(self.offered) == 0 and len(self.read) == 0 and self.valid_tokens == NOT_VOID


@final
class PlannedBlocks:
    """Conservation: a planned block is here from `add` until `remove`, and each anchor is pinned once as long as it is one."""

    __slots__ = ("num_blocks", "_tree", "_below", "_anchors", "_hidden")

    def __init__(self, tree: RadixTree) -> None:
        self.num_blocks: i64 = 0
        """All that there are: a match looks for them only if this is not 0."""
        self._tree: Final = tree
        self._below: Final[dict[int, dict[bytes, PlannedBlock]]] = {}
        """By the first page of the anchor."""
        self._anchors: Final[dict[int, Block]] = {}
        self._hidden: Final[dict[int, PlannedBlock]] = {}
        """By first page, those whose place another one with the same tokens has: no new match finds them."""

    def find(self, anchor: Block | None, above: PlannedBlock | None, key: bytes) -> PlannedBlock | None:
        """The planned block with that key below a published block, or below a planned one with the same tokens."""
        if above is not None:
            found = above.children.get(key)
            if found is not None:
                return found
        if anchor is None:
            return None
        below = self._below.get(int(anchor.first_page))
        return None if below is None else below.get(key)

    def add(self, planned: PlannedBlock) -> None:
        """Its anchor or the planned block above it has none with that key."""
        self.num_blocks += 1
        if self._tree.has_digests:
            self._tree.digests.acquire_again(planned.key)
        self._link(planned)

    def _link(self, planned: PlannedBlock) -> None:
        anchor = planned.anchor
        above = planned.above
        if above is not None:
            above.children[planned.key] = planned
        elif anchor is not None:
            first_page = int(anchor.first_page)
            below = self._below.get(first_page)
            if below is None:
                below = {}
                self._below[first_page] = below
                self._anchors[first_page] = anchor
                anchor.num_pins += 1
            if planned.key in below:
                planned.anchor = None
                self._hidden[int(planned.block.first_page)] = planned
            else:
                below[planned.key] = planned

    def show(self, planned: PlannedBlock, anchor: Block | None, above: PlannedBlock | None) -> None:
        """It is hidden, and what it is below, one of the two, has none with its key any more."""
        del self._hidden[int(planned.block.first_page)]
        planned.anchor = anchor
        planned.above = None if anchor is not None else above
        self._link(planned)

    def remove(self, planned: PlannedBlock, published: Block | None) -> None:
        """It is published, as that block, and what is below it stays; or it is taken back, and nothing is below it any more."""
        self.num_blocks -= 1
        if self._tree.has_digests:
            self._tree.digests.release(planned.key)
        for child in planned.children.values():
            child.above = None
            child.anchor = published
            self._link(child)
        planned.children.clear()
        anchor = planned.anchor
        above = planned.above
        if above is not None:
            del above.children[planned.key]
        elif anchor is not None:
            first_page = int(anchor.first_page)
            below = self._below[first_page]
            del below[planned.key]
            if len(below) == 0:
                del self._below[first_page]
                del self._anchors[first_page]
                self._tree.unpin(anchor)
        else:
            del self._hidden[int(planned.block.first_page)]

    def list_below(self, planned: PlannedBlock) -> list[PlannedBlock]:
        """The planned block and all below it, each behind the one above it."""
        found = [planned]
        for one in found:
            found.extend(one.children.values())
        return found

    def anchors(self) -> list[Block]:
        """Published blocks and roots that are pinned here, each once: for checks."""
        return list(self._anchors.values())

    def list_all(self) -> list[PlannedBlock]:
        """For checks."""
        found: list[PlannedBlock] = []
        for planned in self._hidden.values():
            found.extend(self.list_below(planned))
        for below in self._below.values():
            for planned in below.values():
                found.extend(self.list_below(planned))
        return found
