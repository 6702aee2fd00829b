"""Which pages a shared level has in its store, as routers see them: blocks on the medium EXTERNAL.

A page is announced once, and removed once, whatever its level tells and how often. Names of blocks in a store are not those of events:
both follow from the tokens, so the changes bring the tokens along, and the publisher's thread hashes them. A publisher that is closed
leaves its copies, and the changes after it, to the next one of the same event manager.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, final


from ..base.ids import TokenIdExt
from ..durable.record_format import MIXED, decode_mixed
from ..events.block_digest import BlockHash, show_digest
from ..events.block_node import BlockNode
from ..events.event_index import IndexedBlock

MOST_WAITING: Final = 4096
"""Changes that are kept while no publisher takes them."""

SharedBlocks = Callable[[], list[tuple[int, bytes]]]
"""The full blocks of a path from its root on, as a durable level records tokens: form and bytes."""


@final
class SharedChange:
    """Pages that are in the store now: ``(layer group, ordinal in the path, key)``; or keys that are not there any more."""

    __slots__ = ("salt", "blocks", "pages", "gone")

    def __init__(self, salt: int | str | None, blocks: SharedBlocks | None, pages: list[tuple[int, int, bytes]], gone: list[bytes]) -> None:
        self.salt: Final = salt
        self.blocks: Final = blocks
        self.pages: Final = pages
        self.gone: Final = gone


@final
class SharedCopies:
    """``level``: what stands for the store among the cache levels. ``algorithm``: of the hashes in events.

    ``is_followed``: a publisher takes the changes. ``has_lost``: more waited than are kept, so what is there is not known any more.
    """

    __slots__ = ("is_followed", "has_lost", "_changes", "_level", "_algorithm", "_blocks", "_places")

    def __init__(self, level: int, algorithm: str) -> None:
        self.is_followed = True
        self.has_lost = False
        self._changes: Final[deque[SharedChange]] = deque()
        """Any thread appends, the publisher's takes."""
        self._level: Final = level
        self._algorithm: Final = algorithm
        self._blocks: Final[dict[BlockHash, IndexedBlock]] = {}
        self._places: Final[dict[bytes, tuple[BlockHash, int]]] = {}
        """Block and layer group, by the key in the store."""

    def __len__(self) -> int:
        return len(self._places)

    def tell(self, change: SharedChange) -> None:
        """From any thread; costs a list's entry."""
        if not self.is_followed and len(self._changes) >= MOST_WAITING:
            self.has_lost = True
            self._changes.clear()
        self._changes.append(change)

    def take_changes(self) -> list[SharedChange]:
        """Those that were told since, oldest first."""
        taken: list[SharedChange] = []
        while len(self._changes) > 0:
            taken.append(self._changes.popleft())
        return taken

    def begin(self) -> None:
        """A publisher follows from here on. Where too much was told meanwhile, nothing is known: pages are told again once they are
        seen."""
        self.is_followed = True
        if self.has_lost:
            self.has_lost = False
            self._blocks.clear()
            self._places.clear()

    def blocks(self) -> list[IndexedBlock]:
        return list(self._blocks.values())

    def add(self, change: SharedChange) -> list[tuple[int, list[IndexedBlock]]]:
        """Enter the pages; those that are new as runs, each block the parent of the next, with their layer group."""
        runs: list[tuple[int, list[IndexedBlock]]] = []
        if change.blocks is None:
            return runs
        nodes: list[BlockNode] = []
        parent = BlockNode(-1, None, b"", None, None, change.salt)
        for form, tokens in change.blocks():
            mixed: list[TokenIdExt] | None = None
            if form == MIXED:
                mixed = [*decode_mixed(tokens)]
            parent = BlockNode(0, parent, b"" if form == MIXED else tokens, mixed)
            nodes.append(parent)
        last_group = -1
        last_ordinal = -1
        for group, ordinal, key in sorted(change.pages):
            if key in self._places:
                continue
            node = nodes[ordinal]
            block_hash = self._show(node)
            block = self._blocks.get(block_hash)
            if block is None:
                above = nodes[ordinal - 1] if ordinal > 0 else None
                block = IndexedBlock(block_hash, None if above is None else self._show(above), node.tokens(), None, None, change.salt)
                self._blocks[block_hash] = block
            block._places[group] = (self._level, 0)
            self._places[key] = (block_hash, group)
            if group != last_group or ordinal != last_ordinal + 1:
                runs.append((group, []))
            runs[-1][1].append(block)
            last_group = group
            last_ordinal = ordinal
        return runs

    def _show(self, node: BlockNode) -> BlockHash:
        return show_digest(node.digest(self._algorithm), self._algorithm)

    def remove(self, keys: list[bytes]) -> dict[int, list[BlockHash]]:
        """Forget the pages; the blocks of those that were known, by layer group."""
        gone: dict[int, list[BlockHash]] = {}
        for key in keys:
            place = self._places.pop(key, None)
            if place is not None:
                block_hash, group = place
                block = self._blocks[block_hash]
                del block._places[group]
                if len(block._places) == 0:
                    del self._blocks[block_hash]
                gone.setdefault(group, []).append(block_hash)
        return gone
