"""Blocks and their rows, made once and recycled. Conservation: every block is free, private to sequences, or in the tree."""

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from ..storage.page_rows import NO_PAGE, PageRows, place_at
from ..storage.page_storage import PageStorage
from .block import Block


def count_full_blocks(storage: PageStorage) -> i64:
    """How many blocks with a page for every life cycle the slots of all levels hold; there may be more that lack some."""
    most: i64 = 0
    for pool_group in range(storage.num_pool_groups):
        num_slots: i64 = 0
        for index in range(pool_group, len(storage.allocators), storage.num_pool_groups):
            num_slots += storage.allocators[index].num_slots
        num_life_cycles: i64 = 0
        for other in storage.pool_group_of:
            if other == pool_group:
                num_life_cycles += 1
        count = num_slots // num_life_cycles
        if count > most:
            most = count
    return most


@final
@mypyc_attr(native_class=True)
class BlockPool:
    __slots__ = ("_rows", "_blocks", "_num_used", "_free")

    _rows: Final[PageRows]
    _blocks: Final[list[Block]]
    """By number; those from ``_num_used`` on were made in advance and never taken."""
    _num_used: i64
    _free: Final[list[Block]]

    def __init__(self, storage: PageStorage) -> None:
        self._rows = storage.rows
        self._rows.reserve(count_full_blocks(storage))
        self._blocks = []
        self._num_used = 0
        self._free = []

    def take(self) -> Block:
        """A private block without pages."""
        if len(self._free) > 0:
            return self._free.pop()
        self.make(self._num_used + 1)
        block = self._blocks[self._num_used]
        self._num_used += 1
        return block

    def take_many(self, count: i64, blocks: list[Block]) -> None:
        """Append ``count`` private blocks without pages, those that as many calls of `take` would have returned."""
        num_free: i64 = len(self._free)
        num_recycled = count if count < num_free else num_free
        if num_recycled > 0:
            recycled = self._free[int(num_free - num_recycled) :]
            recycled.reverse()
            blocks.extend(recycled)
            del self._free[int(num_free - num_recycled) :]
        num_new = count - num_recycled
        if num_new > 0:
            end = self._num_used + num_new
            self.make(end)
            blocks.extend(self._blocks[int(self._num_used) : int(end)])
            self._num_used = end

    def make(self, num_blocks: i64) -> None:
        """Make blocks in advance, until there are that many. Which one `take` returns does not depend on it."""
        while len(self._blocks) < num_blocks:
            self._blocks.append(Block(self._rows.add_block()))

    def release(self, block: Block) -> None:
        """The block has no page, no parent, no child, no pin."""
        assert block.parent is None and block.num_pins == 0 and block.num_co_owners == 0, "a block was recycled that is still in use"
        self._free.append(block)

    def block_of_page(self, page: i64) -> Block:
        return self._blocks[self._rows.block_number(page)]

    def has_any_page(self, block: Block) -> bool:
        words = self._rows.words
        for page in range(block.first_page, block.first_page + self._rows.num_life_cycles):
            if words[place_at(page)] != NO_PAGE:
                return True
        return False

    @property
    def num_blocks(self) -> int:
        """Blocks that were ever taken."""
        return int(self._num_used)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def free_blocks(self) -> list[Block]:
        return list(self._free)

    def all_blocks(self) -> list[Block]:
        """Those that were ever taken."""
        return self._blocks[: int(self._num_used)]
