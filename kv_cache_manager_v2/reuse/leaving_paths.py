"""Leaving paths: prefixes that lose a page for want of room are copied out of the cache, parents first.

The first page that the last block of a path is about to lose has the whole prefix copied, as far as it was not before: all blocks of
layers without a window, of windowed ones the sinks and the window's last blocks, of recurrent ones the state at its end. The bytes go into
slots of the caller's, on a stream of its own; where those are short, the path's end is not copied, and nothing waits.

    slots     in `free`  -> taken by a path in `paths` -> with who takes the path -> back in `free`
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.ids import TokenIdExt
from ..base.package_log import PackageLog
from ..layout.life_cycle import LifeCycle
from ..layout.registry import LifeCycleRegistry
from ..storage.page_owner import DropWatch
from ..storage.page_rows import LOW_MASK, NO_PAGE, PLACE, ROW_WORDS, level_of_place
from ..storage.pages_out import PagesOut
from .block import Block
from .content_key import NO_KEY, block_key
from .radix_tree import RadixTree
from .reuse_scope import ReuseScope
from .token_packing import has_digest, unpack_tokens

_logger: Final = PackageLog("kv_cache_manager_v2")


@final
class LeavingPath:
    """Pages that were copied. ``pages``: ordinal of the block times number of life cycles, plus life cycle; ``rows``, ``contents``,
    ``slots``: of each. ``tokens``: of the blocks from the root to the last one with such a page, packed or with digests."""

    __slots__ = ("scope", "tokens", "num_blocks", "pages", "rows", "contents", "slots", "is_copied")

    def __init__(self, scope: ReuseScope) -> None:
        self.scope: Final = scope
        self.tokens: bytes | list[TokenIdExt] = b""
        self.num_blocks: i64 = 0
        self.pages: Final[list[int]] = []
        self.rows: Final[list[int]] = []
        self.contents: Final[list[int]] = []
        self.slots: list[int] = []
        self.is_copied = False
        """False: the device has refused, and some copies may be under way."""


@final
class LeavingPaths(DropWatch):
    """``offered``: content by row; such pages are not copied again. A slot's address is ``address`` and ``stride`` times its number;
    ``heads``: by life cycle, how many bytes of the slot come before the page."""

    __slots__ = (
        "free", "paths", "num_dropped", "is_paused", "_tree", "_out", "_offered", "_address", "_stride", "_heads", "_cycles",
        "_is_unbounded", "_has_unbounded", "_block_tokens",
    )  # fmt: skip

    def __init__(
        self,
        tree: RadixTree,
        out: PagesOut,
        life_cycles: LifeCycleRegistry,
        block_tokens: int,
        offered: dict[int, int],
        slots: list[int],
        address: int,
        stride: int,
        heads: list[int],
    ) -> None:
        self.free: Final = slots
        self.paths: list[LeavingPath] = []
        self.num_dropped: i64 = 0
        """Paths whose end was not copied."""
        self.is_paused = False
        """Nothing is copied."""
        self._tree: Final = tree
        self._out: Final = out
        self._offered: Final = offered
        self._address: Final[i64] = address
        self._stride: Final[i64] = stride
        self._heads: Final = heads
        self._cycles: Final[list[LifeCycle]] = list(life_cycles)
        self._is_unbounded: Final[list[bool]] = [cycle.has_page_per_block and cycle.window_size is None for cycle in life_cycles]
        self._has_unbounded: Final[bool] = any(self._is_unbounded)
        self._block_tokens: Final[i64] = block_tokens

    def on_drop(self, page: i64) -> None:
        tree = self._tree
        block = tree.pool.block_of_page(page)
        if block.parent is None or not tree.is_full(block) or self._offered.get(page, NO_KEY) == block_key(block, tree.block_bytes):
            return
        has_children = block.only_child is not None or block.children is not None
        if has_children and self._has_unbounded and not self._is_unbounded[page - block.first_page]:
            # The window or the state of a prefix that goes on.
            return
        if self.is_paused or len(self.free) == 0:
            self.num_dropped += 1
            return
        try:
            self._copy_path(block)
        except Exception as error:
            self._out.discard()
            self.num_dropped += 1
            _logger.warning("pages are not stored, as the device does not copy them: %s", str(error))

    def _copy_path(self, leaf: Block) -> None:
        tree = self._tree
        blocks: list[Block] = []
        block = leaf
        parent = block.parent
        while parent is not None:
            blocks.append(block)
            block = parent
            parent = block.parent
        scope = tree._scopes[int(block.first_page)]
        if scope.lora_id is not None:
            return
        blocks.reverse()
        path = LeavingPath(scope)
        self._choose(path, blocks)
        count: i64 = len(path.pages)
        if count == 0:
            return
        packed = b"".join([tree.key_of(block) for block in blocks[: path.num_blocks]])
        path.tokens = unpack_tokens(packed, tree.digests) if has_digest(packed) else packed
        path.slots = self.free[len(self.free) - count :]
        words = tree.storage.rows.words
        num_life_cycles = tree.storage.rows.num_life_cycles
        for position in range(count):
            row: i64 = path.rows[position]
            page: i64 = path.pages[position]
            place = words[row * ROW_WORDS + PLACE]
            life_cycle = page % num_life_cycles
            index = level_of_place(place) * tree.storage.num_pool_groups + tree.storage.pool_group_of[life_cycle]
            slot: i64 = path.slots[position]
            head: i64 = self._heads[life_cycle]
            self._out.add(index, place & LOW_MASK, self._address + slot * self._stride + head, row)
        del self.free[len(self.free) - count :]
        self.paths.append(path)
        self._out.enqueue()
        path.is_copied = True
        for position in range(count):
            self._offered[path.rows[position]] = path.contents[position]

    def _choose(self, path: LeavingPath, blocks: list[Block]) -> None:
        """The pages that the prefix of these blocks needs and that were not offered, as many as slots are free."""
        tree = self._tree
        words = tree.storage.rows.words
        num_life_cycles = tree.storage.rows.num_life_cycles
        room: i64 = len(self.free)
        end: i64 = len(blocks)
        num_tokens = end * self._block_tokens
        sinks = vec[i64]([cycle.compute_stale_beg(num_tokens, self._block_tokens) for cycle in self._cycles])
        begins = vec[i64]([self._begin_of(cycle, num_tokens) for cycle in self._cycles])
        count: i64 = 0
        ordinal: i64 = 0
        while ordinal < end:
            block = blocks[ordinal]
            content = block_key(block, tree.block_bytes)
            before = count
            for life_cycle in range(num_life_cycles):
                row = block.first_page + life_cycle
                if words[row * ROW_WORDS + PLACE] == NO_PAGE or (ordinal < begins[life_cycle] and ordinal >= sinks[life_cycle]):
                    continue
                if self._offered.get(row, NO_KEY) != content:
                    path.pages.append(ordinal * num_life_cycles + life_cycle)
                    path.rows.append(row)
                    path.contents.append(content)
                    count += 1
            if count > room:
                del path.pages[before:]
                del path.rows[before:]
                del path.contents[before:]
                self.num_dropped += 1
                break
            ordinal += 1
            if count > before:
                path.num_blocks = ordinal

    def _begin_of(self, cycle: LifeCycle, num_tokens: i64) -> i64:
        """The first block behind the sinks that is read after a prefix of whole blocks with so many tokens."""
        size = self._block_tokens
        return cycle.compute_stale_end(num_tokens, size) if cycle.has_page_per_block else num_tokens // size - 1
