"""A block: ``tokens_per_block`` tokens of some path, and where the rows of its pages begin.

    state       parent    in the tree    who owns it
    PRIVATE     None      no             one sequence, or several that were forked from one another
    PUBLISHED   a block   yes            the tree: it stays while it has pages, children or pins
    RETIRED     a block   no longer      those that hold its pages or pin a path through it; a root of its own is above (`RadixTree.retire`)
    ROOT        None      as a root      the tree; has no pages, ``first_page < 0``

Blocks are recycled by the `BlockPool`; a sequence may keep a reference to a published block only while a pin or a hold
at or below it keeps the block in the tree.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i32, i64

from .prefix_hash import EMPTY_PREFIX, hash_block
from .sorted_keys import SortedKeys

MOST_TOGETHER: Final = 10_000
"""Children of a block in one dict. A dict that grows is made anew at once: beyond some 20,000 that is a pause."""
_NUM_PARTS: Final = 256


@final
class Block:
    __slots__ = ("first_page", "tokens", "parent", "only_child", "children", "num_pins", "_half", "_word")

    def __init__(self, first_page: i64) -> None:
        self.first_page: Final = first_page
        self.tokens = b""
        """Its tokens as packed int32, from `tokens_begin` on, and perhaps those of blocks above and below it (`block_tokens`); empty while
        private. Of a published partial block its own tokens alone."""
        self.parent: Block | None = None
        self.only_child: Block | None = None
        """Found without a dict while there is no second child."""
        self.children: Children | None = None
        """All children, from the second one on."""
        # Numbers that no block has at once share memory: `num_co_owners` and `tokens_begin`, `num_shared_tokens` and `content_key`. So a
        # block is 96 bytes, the garbage collector's 16 included; 97 would be 112. In this order: the two of four bytes side by side.
        self.num_pins: i32 = 0
        """Open sequences whose published path ends here, or that list the block behind the end of theirs."""
        self._half: i32 = 0
        self._word: i64 = 0

    @property
    def num_co_owners(self) -> i32:
        """While PRIVATE: open sequences beyond the first that list the block; else 0."""
        return 0 if self.parent is not None else self._half

    @num_co_owners.setter
    def num_co_owners(self, count: i32) -> None:
        assert self.parent is None, "a published block is owned by the tree"
        self._half = count

    @property
    def tokens_begin(self) -> i64:
        """While PUBLISHED: the first byte of the block's own tokens in `tokens`."""
        return i64(self._half)

    @tokens_begin.setter
    def tokens_begin(self, begin: i64) -> None:
        self._half = i32(begin)

    @property
    def num_shared_tokens(self) -> i64:
        """While PRIVATE, where there are co-owners: the most tokens of this block that one of them had room for when it was forked."""
        return self._word

    @num_shared_tokens.setter
    def num_shared_tokens(self, num_tokens: i64) -> None:
        self._word = num_tokens

    @property
    def content_key(self) -> i64:
        """While PUBLISHED, or of a ROOT: see `block_key`; 0 until asked for."""
        return self._word

    @content_key.setter
    def content_key(self, key: i64) -> None:
        self._word = key


@final
class Children:
    """Two or more children of a block by their tokens; in sorted order from the first search among neighbours on.

    The first `MOST_TOGETHER` are in one dict; those that come while it has so many are in many, each in the one that its tokens say.
    """

    __slots__ = ("count", "num_partial", "_by_key", "_parts", "_sorted_keys")

    def __init__(self) -> None:
        self.count: i64 = 0
        self.num_partial: i64 = 0
        """How many of them are partial blocks; kept by the tree."""
        self._by_key: Final[dict[bytes, Block]] = {}
        self._parts: list[dict[bytes, Block] | None] | None = None
        """None until there are more than `MOST_TOGETHER`."""
        self._sorted_keys: SortedKeys | None = None

    def find(self, key: bytes) -> Block | None:
        child = self._by_key.get(key)
        if child is None:
            parts = self._parts
            if parts is not None:
                part = parts[_part_of(key)]
                if part is not None:
                    return part.get(key)
        return child

    def dicts(self) -> list[dict[bytes, Block]]:
        """Where the children are, in an order that depends on the calls alone."""
        parts = self._parts
        return [self._by_key] if parts is None else [self._by_key, *[part for part in parts if part is not None]]

    def list_all(self) -> list[Block]:
        children: list[Block] = []
        for part in self.dicts():
            children.extend(part.values())
        return children

    def add(self, key: bytes, child: Block) -> None:
        """No child has that key."""
        self.count += 1
        by_key = self._by_key
        if len(by_key) >= MOST_TOGETHER:
            by_key = self._make_part(_part_of(key))
        by_key[key] = child
        sorted_keys = self._sorted_keys
        if sorted_keys is not None:
            sorted_keys.add(key)

    def _make_part(self, number: i64) -> dict[bytes, Block]:
        """Where children of that part are, made if there is none yet."""
        parts = self._parts
        if parts is None:
            parts = [None] * _NUM_PARTS
            self._parts = parts
        part = parts[number]
        if part is None:
            part = {}
            parts[number] = part
        return part

    def remove(self, key: bytes) -> None:
        self.count -= 1
        by_key = self._by_key
        if self._parts is not None and key not in by_key:
            by_key = self._make_part(_part_of(key))
        del by_key[key]
        sorted_keys = self._sorted_keys
        if sorted_keys is not None:
            sorted_keys.remove(key)

    def sorted_keys(self) -> SortedKeys:
        sorted_keys = self._sorted_keys
        if sorted_keys is None:
            keys: list[bytes] = []
            for part in self.dicts():
                keys.extend(part)
            sorted_keys = SortedKeys(keys)
            self._sorted_keys = sorted_keys
        return sorted_keys


def _part_of(key: bytes) -> i64:
    return hash_block(EMPTY_PREFIX, key) & (_NUM_PARTS - 1)
