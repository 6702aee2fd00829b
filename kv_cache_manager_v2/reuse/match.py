"""A match: the longest reusable prefix of a prompt.

A prefix of ``n`` tokens is reusable when every life cycle has the pages of all blocks that are not stale at history ``n``.
Found in one walk down the tree by content, then upwards from the deepest block until every window is whole:

- a block without the page of an unbounded life cycle ends the walk: every longer prefix needs it;
- within one block the condition is weakest at the block's end (the window's first block only moves forward with ``n``), so
  whole blocks need be tried at their ends only;
- the block where the prompt leaves the tree, or loses a window, may still serve its leading tokens, whichever child they
  belong to. Children are kept in sorted order, so those with the longest common prefix are neighbours of the prompt's place.
"""

from typing import Final, final

from librt.strings import read_i32_le, read_i64_le
from librt.vecs import vec
from mypy_extensions import i64

from ..layout.life_cycle import LifeCycle
from ..layout.registry import LifeCycleRegistry
from ..storage.page_rows import NO_PAGE, PLACE, ROW_WORDS, PageRows
from .block import Block, Children
from .block_tokens import count_equal_bytes
from .radix_tree import RadixTree
from .token_packing import PAIR_BYTES, TOKEN_BYTES

NEIGHBOURS_TRIED: Final = 8
NONE_MISSING: Final = -1


@final
class Match:
    """``num_tokens`` tokens are here, in ``blocks``; of the last block only the leading ones if it does not divide."""

    __slots__ = ("blocks", "num_tokens")

    def __init__(self, blocks: list[Block], num_tokens: i64) -> None:
        self.blocks: Final = blocks
        self.num_tokens: Final = num_tokens


@final
class Matcher:
    """Finds matches in one tree. Holds nothing."""

    __slots__ = (
        "_tree", "_rows", "_tokens_per_block", "_unbounded", "_windowed", "_windowed_cycles", "_partial", "is_windowed", "has_attention",
    )  # fmt: skip

    def __init__(self, tree: RadixTree, life_cycles: LifeCycleRegistry, tokens_per_block: int, enable_partial_reuse: bool) -> None:
        self._tree: Final = tree
        self._rows: Final[PageRows] = tree.storage.rows
        self._tokens_per_block: Final[i64] = tokens_per_block
        paged = [(number, cycle) for number, cycle in enumerate(life_cycles) if cycle.has_page_per_block]
        self._unbounded: Final = vec[i64]([number for number, cycle in paged if cycle.window_size is None])
        self._windowed: Final[list[int]] = [number for number, cycle in paged if cycle.window_size is not None]
        self._windowed_cycles: Final[list[LifeCycle]] = [cycle for _number, cycle in paged if cycle.window_size is not None]
        self._partial: Final = enable_partial_reuse
        self.is_windowed: Final[bool] = len(self._windowed) > 0
        """Whether some layers have a window."""
        self.has_attention: Final[bool] = self.is_windowed or len(self._unbounded) > 0
        """Whether any layer needs pages of the matched blocks."""

    def find_longest(self, root: Block | None, packed: bytes) -> Match:
        """The longest reusable prefix of the packed tokens below ``root``; an empty match if there is none."""
        blocks: list[Block] = []
        if root is None:
            return Match(blocks, 0)
        words = self._rows.words
        unbounded = self._unbounded
        block_bytes = self._tree.block_bytes
        num_bytes: i64 = len(packed)
        position: i64 = 0
        node = root
        text = b""
        known_end: i64 = 0
        while position + block_bytes <= num_bytes:
            child = node.only_child
            if child is None:
                children = node.children
                if children is None:
                    break
                child = children.find(packed[position : position + block_bytes])
                if child is None:
                    break
            elif child.tokens is not text or position >= known_end:
                num_equal = count_equal_bytes(child, packed, position, block_bytes)
                if num_equal == 0:
                    break
                text = child.tokens
                known_end = position + num_equal
            if not has_pages(words, child.first_page, unbounded):
                break
            blocks.append(child)
            node = child
            position += block_bytes
        if position < num_bytes:
            rest = packed[position : position + block_bytes]
            partial = self.find_partial(node, rest, blocks) if self._partial else self._find_exact(node, rest, blocks)
            if partial is not None:
                return partial
        return self._find_whole_windows(root, packed, blocks)

    def _find_exact(self, parent: Block, rest: bytes, blocks: list[Block]) -> Match | None:
        """Without partial reuse: the partial block that is just the prompt's last tokens."""
        if len(rest) == self._tree.block_bytes:
            return None
        child = self._tree.find_child(parent, rest)
        return None if child is None else self._try_partial(child, len(rest) // TOKEN_BYTES, blocks)

    def count_content(self, root: Block, match: Match, packed: bytes) -> i64:
        """How many leading tokens lie on a path of the tree, whatever pages are left of it, or go on as a block did that was dropped on
        request; at least those of ``match``."""
        size = self._tokens_per_block
        block_bytes = self._tree.block_bytes
        ordinal = match.num_tokens // size
        node = match.blocks[ordinal - 1] if ordinal > 0 else root
        known = self._tree.find_path(node, packed, ordinal * block_bytes)
        if len(known) > 0:
            node = known[-1]
        num_tokens = min((ordinal + len(known)) * size, len(packed) // TOKEN_BYTES)
        rest = packed[num_tokens * TOKEN_BYTES : num_tokens * TOKEN_BYTES + block_bytes]
        num_shared = count_shared_with_children(self._tree, node, rest) if self._partial else 0
        num_dropped = self._tree.dropped_ends.count_tokens(node, rest)
        return num_tokens + (num_shared if num_shared > num_dropped else num_dropped)

    def _find_whole_windows(self, root: Block, packed: bytes, blocks: list[Block]) -> Match:
        """The longest match at or above the end of the path ``blocks``; nothing below it can serve."""
        block_bytes = self._tree.block_bytes
        num_blocks: i64 = len(blocks)
        while num_blocks > 0:
            missing = self._find_missing(blocks, num_blocks, num_blocks * self._tokens_per_block)
            if missing == NONE_MISSING:
                break
            # A shorter prefix needs that block too, as windows begin earlier there, until it ends before it.
            num_blocks = missing
            del blocks[int(num_blocks) :]
            parent = blocks[num_blocks - 1] if num_blocks > 0 else root
            if self._partial and parent.children is not None:
                # The block of the whole prompt has lost a window; a sibling that begins like it may have kept its own.
                position = num_blocks * block_bytes
                partial = self.find_partial(parent, packed[position : position + block_bytes], blocks)
                if partial is not None:
                    return partial
        return Match(blocks, num_blocks * self._tokens_per_block)

    def _find_missing(self, blocks: list[Block], num_blocks: i64, num_tokens: i64) -> i64:
        """The last of the first ``num_blocks`` blocks whose page a windowed life cycle needs at that history and lacks."""
        rows = self._rows
        for life_cycle, cycle in zip(self._windowed, self._windowed_cycles):
            stale_beg = cycle.compute_stale_beg(num_tokens, self._tokens_per_block)
            stale_end = cycle.compute_stale_end(num_tokens, self._tokens_per_block)
            ordinal: i64 = num_blocks - 1
            while ordinal >= 0:
                if ordinal < stale_end and ordinal >= stale_beg:
                    ordinal = stale_beg - 1
                    continue
                if not rows.has_page(blocks[ordinal].first_page + life_cycle):
                    return ordinal
                ordinal -= 1
        return NONE_MISSING

    def has_windows(self, blocks: list[Block], num_blocks: i64, num_tokens: i64) -> bool:
        """Whether the first ``num_blocks`` blocks have all pages that windowed life cycles need at that history."""
        return self._find_missing(blocks, num_blocks, num_tokens) == NONE_MISSING

    def has_unbounded_pages(self, block: Block) -> bool:
        """Whether the block has the pages of all layers without a window."""
        return has_pages(self._rows.words, block.first_page, self._unbounded)

    def count_with_windows(self, blocks: list[Block], num_blocks: i64) -> i64:
        """The most of the first ``num_blocks`` blocks behind which every window is whole."""
        while num_blocks > 0:
            missing = self._find_missing(blocks, num_blocks, num_blocks * self._tokens_per_block)
            if missing == NONE_MISSING:
                break
            num_blocks = missing
        return num_blocks

    def moves_window(self, num_tokens: i64, later_tokens: i64) -> bool:
        """Whether some window passes a block while the history grows from one length to the other."""
        for cycle in self._windowed_cycles:
            end = cycle.compute_stale_end(num_tokens, self._tokens_per_block)
            later_end = cycle.compute_stale_end(later_tokens, self._tokens_per_block)
            # An empty stale range ends where it begins, which grows by itself up to the sinks.
            if later_end > end and later_end > cycle.compute_stale_beg(later_tokens, self._tokens_per_block):
                return True
        return False

    def leaves_at(self, parent: Block, rest: bytes) -> bool:
        """Whether ``parent`` has children, and ``rest`` goes on otherwise than they do: none is its beginning or begins with it."""
        only_child = parent.only_child
        if only_child is not None:
            key = self._tree.key_of(only_child)
            return not key.startswith(rest) and not rest.startswith(key)
        children = parent.children
        if children is None:
            return False
        before, after = children.sorted_keys().neighbours(rest, 1)
        if len(after) > 0 and after[0].startswith(rest):
            return False
        return len(before) == 0 or not rest.startswith(before[0])

    def find_partial(self, parent: Block, rest: bytes, blocks: list[Block]) -> Match | None:
        """The child that shares the most leading tokens with ``rest`` and whose pages can serve them."""
        only_child = parent.only_child
        if only_child is not None:
            return self._try_partial(only_child, count_shared_tokens(self._tree.key_of(only_child), rest), blocks)
        children = parent.children
        return None if children is None else self._try_neighbours(children, rest, blocks)

    def _try_neighbours(self, children: Children, rest: bytes, blocks: list[Block]) -> Match | None:
        """Try some of the children beside the place of ``rest`` in their order that share the most with it."""
        keys = children.sorted_keys()
        # Nearly always the nearest one serves or shares nothing; only where it does neither, look further.
        before, after = keys.neighbours(rest, 1)
        at_before: i64 = 0
        at_after: i64 = 0
        for tried in range(NEIGHBOURS_TRIED):
            shared_before = _count_shared_at(before, at_before, rest)
            shared_after = _count_shared_at(after, at_after, rest)
            if shared_after == 0 and shared_before == 0:
                return None
            if shared_after >= shared_before:
                key = after[at_after]
                at_after += 1
                num_shared = shared_after
            else:
                key = before[at_before]
                at_before += 1
                num_shared = shared_before
            child = children.find(key)
            match = None if child is None else self._try_partial(child, num_shared, blocks)
            if match is not None:
                return match
            if tried == 0:
                before, after = keys.neighbours(rest, NEIGHBOURS_TRIED)
        return None

    def _try_partial(self, child: Block, num_shared: i64, blocks: list[Block]) -> Match | None:
        if num_shared == 0 or not has_pages(self._rows.words, child.first_page, self._unbounded):
            return None
        num_tokens = len(blocks) * self._tokens_per_block + num_shared
        blocks.append(child)
        if self._find_missing(blocks, len(blocks), num_tokens) == NONE_MISSING:
            return Match(blocks, num_tokens)
        blocks.pop()
        return None


def has_pages(words: vec[i64], first_page: i64, life_cycles: vec[i64]) -> bool:
    """Whether the block whose rows begin at ``first_page`` has a page for each of the life cycles."""
    for life_cycle in life_cycles:
        if words[(first_page + life_cycle) * ROW_WORDS + PLACE] == NO_PAGE:
            return False
    return True


def count_shared_with_children(tree: RadixTree, parent: Block, key: bytes) -> i64:
    """The most leading tokens of ``key`` that a child of ``parent`` begins with."""
    only_child = parent.only_child
    if only_child is not None:
        return count_shared_tokens(tree.key_of(only_child), key)
    children = parent.children
    if children is None:
        return 0
    before, after = children.sorted_keys().neighbours(key, 1)
    shared_before = _count_shared_at(before, 0, key)
    shared_after = _count_shared_at(after, 0, key)
    return shared_after if shared_after > shared_before else shared_before


def _count_shared_at(keys: list[bytes], position: i64, rest: bytes) -> i64:
    """Tokens that ``rest`` and the key at that position share; 0 if there is none."""
    if position >= len(keys):
        return 0
    return count_shared_tokens(keys[position], rest)


def count_shared_tokens(a: bytes, b: bytes) -> i64:
    """How many leading tokens two packed runs share."""
    num_bytes: i64 = len(a) if len(a) < len(b) else len(b)
    position: i64 = 0
    while position + PAIR_BYTES <= num_bytes and read_i64_le(a, position) == read_i64_le(b, position):
        position += PAIR_BYTES
    if position + TOKEN_BYTES <= num_bytes and read_i32_le(a, position) == read_i32_le(b, position):
        position += TOKEN_BYTES
    return position // TOKEN_BYTES
