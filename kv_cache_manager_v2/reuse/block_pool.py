"""Blocks and their rows, made once and recycled. Conservation: every block is free, private to sequences, or in the tree.

The garbage collector sees neither the blocks nor the lists that have all of them: it would look at each in every full collection. So the
cycles of blocks that are still in the tree when a manager goes are cut by `dissolve`.
"""

from typing import Final, final

from mypy_extensions import i64
from rawref import untrack, untrack_class

from ..storage.page_rows import NO_PAGE, PLACE, ROW_WORDS, PageRows
from ..storage.page_storage import PageStorage
from .block import Block


def count_possible_blocks(storage: PageStorage) -> i64:
    """How many blocks can have a page at once: one for each slot of every pool group and level, where each has a single page left."""
    return sum([int(allocator.num_slots) for allocator in storage.allocators])


untrack_class(Block)

_FEW_BLOCKS: Final = 16
"""Made at once where one is needed."""
_PART_BITS: Final = 9
"""Each list has 512 blocks: a list of all would be copied whenever it grows, for milliseconds at a million blocks."""
_IN_PART: Final = (1 << _PART_BITS) - 1


@final
class BlockPool:
    __slots__ = ("_rows", "_parts", "_num_made", "_free")

    def __init__(self, storage: PageStorage) -> None:
        self._rows: Final[PageRows] = storage.rows
        self._parts: Final[list[list[Block]]] = []
        """All blocks by number, `_PART_BITS` of it within the list."""
        self._num_made: i64 = 0
        self._free: Final[list[Block]] = []
        untrack([self._parts, self._free])
        self.reserve(count_possible_blocks(storage))

    def reserve(self, num_blocks: i64) -> None:
        """Take addresses for the rows of that many blocks: nothing is copied as they are made."""
        self._rows.reserve(num_blocks)

    def take(self) -> Block:
        """A private block without pages."""
        if len(self._free) == 0:
            self._make(_FEW_BLOCKS, self._free)
            self._free.reverse()
        return self._free.pop()

    def take_many(self, count: i64, blocks: list[Block]) -> None:
        """Append ``count`` private blocks without pages, those that as many calls of `take` would have returned."""
        kept = max(0, len(self._free) - int(count))
        recycled = self._free[kept:]
        recycled.reverse()
        blocks.extend(recycled)
        del self._free[kept:]
        if len(recycled) < count:
            self._make(count - len(recycled), blocks)

    def _make(self, count: i64, blocks: list[Block]) -> None:
        """Append so many new blocks. Which one `take` returns does not depend on how many are made at once."""
        end = self._num_made + count
        self._rows.grow(end)
        first_page = self._rows.first_page_of(self._num_made)
        while self._num_made < end:
            if self._num_made & _IN_PART == 0:
                self._parts.append([])
                untrack([self._parts[-1]])
            part = self._parts[-1]
            begin = len(part)
            while len(part) <= _IN_PART and self._num_made < end:
                part.append(Block(first_page))
                first_page += self._rows.num_life_cycles
                self._num_made += 1
            blocks.extend(part[begin:])

    def release(self, block: Block) -> None:
        """The block has no page, no parent, no child, no pin."""
        assert block.parent is None and block.num_pins == 0 and block.num_co_owners == 0, "a block was recycled that is still in use"
        self._free.append(block)

    def block_of_page(self, page: i64) -> Block:
        number = self._rows.block_number(page)
        return self._parts[number >> _PART_BITS][number & _IN_PART]

    def has_any_page(self, block: Block) -> bool:
        words = self._rows.words
        for page in range(block.first_page, block.first_page + self._rows.num_life_cycles):
            if words[page * ROW_WORDS + PLACE] != NO_PAGE:
                return True
        return False

    def free_blocks(self) -> list[Block]:
        return list(self._free)

    def all_blocks(self) -> list[Block]:
        return [block for part in self._parts for block in part]

    def dissolve(self) -> None:
        """The manager goes: cut what blocks refer to, in whatever state they are."""
        for block in self.all_blocks():
            block.parent = None
            block.only_child = None
            block.children = None
