"""The blocks of the tree in the index of the durable level: each gets a number and a record before its first page is recorded.

A block's number is forgotten when it leaves the tree; published again it gets another one, and the next process joins the two. Blocks of
scopes with a ``lora_id`` get none: the id of an adapter names nothing in another process.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..durable.durable_level import DurableLevel
from ..durable.live_nodes import LiveNodes
from ..durable.record_format import MIXED, PACKED, encode_mixed, encode_root
from ..storage.page_rows import PageRows, WordColumn
from .block import Block
from .block_pool import BlockPool
from .block_tokens import count_key_bytes, key_of
from .digest_table import DigestTable
from .reuse_scope import ReuseScope
from .token_packing import has_digest, unpack_tokens

NO_NODE: Final = 0
NOT_KEPT: Final = -1


@final
class DurableNodes(LiveNodes):
    """By block, and by root."""

    __slots__ = ("_level", "_rows", "_block_bytes", "_digests", "_of_blocks", "_of_roots", "_next_node")

    def __init__(self, level: DurableLevel, rows: PageRows, block_bytes: i64, digests: DigestTable, next_node: i64) -> None:
        self._level: Final = level
        self._rows: Final = rows
        self._block_bytes: Final = block_bytes
        self._digests: Final = digests
        self._of_blocks: Final[WordColumn] = rows.add_words(NO_NODE, is_per_block=True)
        """By block number; NO_NODE where there is none yet."""
        self._of_roots: Final[dict[int, int]] = {}
        """By the root's first page id."""
        self._next_node = next_node

    def find(self, block: Block) -> i64:
        """The block's number, or NO_NODE."""
        if block.first_page < 0:
            return self._of_roots.get(int(block.first_page), NO_NODE)
        return self._of_blocks.words[self._rows.block_number(block.first_page)]

    def copy_numbers(self) -> vec[i64]:
        # Each of the two copies is one step for other threads.
        roots = list(self._of_roots.values())
        numbers = self._of_blocks.words[:]
        for root in roots:
            numbers = append(numbers, root)
        return numbers

    def adopt(self, block: Block, node: i64) -> None:
        """The block, or root, was recorded by the last process."""
        if block.first_page < 0:
            self._of_roots[int(block.first_page)] = int(node)
            return
        nodes = self._of_blocks.words
        nodes[self._rows.block_number(block.first_page)] = node

    def forget(self, block: Block) -> None:
        """The block, or root, leaves the tree."""
        if block.first_page < 0:
            self._of_roots.pop(int(block.first_page), None)
            return
        nodes = self._of_blocks.words
        nodes[self._rows.block_number(block.first_page)] = NO_NODE

    def record_all(self, pages: vec[i64], pool: BlockPool, scopes: dict[int, ReuseScope]) -> vec[i64]:
        """`record` the block of each page; NO_NODE for pages of blocks that are not in the tree."""
        rows = self._rows
        of_blocks = self._of_blocks.words
        nodes = vec[i64](capacity=len(pages))
        for page in pages:
            number = rows.block_number(page)
            node = of_blocks[number]
            if node == NO_NODE:
                block = pool.block_of_page(page)
                parent = block.parent
                if parent is not None:
                    # Parents are written first, so that most have a number.
                    above: i64 = NO_NODE
                    if parent.first_page >= 0:
                        above = of_blocks[rows.block_number(parent.first_page)]
                    if above > NO_NODE:
                        node = self._record_block(block, above)
                        of_blocks[number] = node
                    else:
                        node = self.record(block, scopes)
            if node == NOT_KEPT:
                node = NO_NODE
            nodes = append(nodes, node)
        return nodes

    def record(self, block: Block, scopes: dict[int, ReuseScope]) -> i64:
        """The number of a block in the tree, recorded now if it was not yet; NO_NODE if it is not kept."""
        node = self.find(block)
        if node != NO_NODE:
            return NO_NODE if node == NOT_KEPT else node
        path: list[Block] = []
        above: Block | None = block
        while above is not None and node == NO_NODE:
            path.append(above)
            above = above.parent
            if above is not None:
                node = self.find(above)
        for fresh in reversed(path):
            if fresh.first_page < 0:
                node = self._record_root(fresh, scopes[int(fresh.first_page)])
            else:
                node = NOT_KEPT if node == NOT_KEPT else self._record_block(fresh, node)
            self.adopt(fresh, node)
        return NO_NODE if node == NOT_KEPT else node

    def _record_root(self, root: Block, scope: ReuseScope) -> i64:
        if scope.lora_id is not None:
            return NOT_KEPT
        node = self._take_number()
        self._level.record_root(encode_root(node, scope.lora_id, scope.salt))
        return node

    def _record_block(self, block: Block, parent: i64) -> i64:
        node = self._take_number()
        tokens = block.tokens
        if len(self._digests) > 0:
            key = key_of(block, self._block_bytes)
            if has_digest(key):
                mixed = encode_mixed(unpack_tokens(key, self._digests))
                self._level.record_node(node, parent, mixed, 0, len(mixed), MIXED)
                return node
        # The thread that writes the index cuts the block's tokens out of those of several.
        self._level.record_node(node, parent, tokens, block.tokens_begin, count_key_bytes(block, self._block_bytes), PACKED)
        return node

    def _take_number(self) -> i64:
        node = self._next_node
        self._next_node = node + 1
        return node
