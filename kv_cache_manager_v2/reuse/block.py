"""A block: ``tokens_per_block`` tokens of some path, and where the rows of its pages begin.

    state       parent    in the tree    who owns it
    PRIVATE     None      no             one sequence, or several that were forked from one another
    PUBLISHED   a block   yes            the tree: it stays while it has pages, children or pins
    ROOT        None      as a root      the tree; has no pages, ``first_page < 0``

Blocks are recycled by the `BlockPool`; a sequence may keep a reference to a published block only while a pin or a hold
at or below it keeps the block in the tree.
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i32, i64, mypyc_attr

from .sorted_keys import SortedKeys


@final
@mypyc_attr(native_class=True)
class Block:
    __slots__ = ("first_page", "tokens", "parent", "only_child", "children", "num_pins", "_half", "_word")

    first_page: Final[i64]
    tokens: bytes
    """Its tokens as packed int32, from `tokens_begin` on, and perhaps those of blocks above and below it (`block_tokens`); empty while
    private. Of a published partial block its own tokens alone."""
    parent: Block | None
    only_child: Block | None
    """Found without a dict while there is no second child."""
    children: Children | None
    """All children, from the second one on."""
    # Numbers that no block has at once share memory: `num_co_owners` and `tokens_begin`, `num_shared_tokens` and `content_key`. So a block
    # is 96 bytes, the garbage collector's 16 included; 97 would be 112.
    num_pins: i32
    """Open sequences whose published path ends here, or that list the block behind the end of theirs."""
    _half: i32
    _word: i64

    def __init__(self, first_page: i64) -> None:
        self.first_page = first_page
        self.tokens = b""
        self.parent = None
        self.only_child = None
        self.children = None
        self.num_pins = 0
        self._half = 0
        self._word = 0

    @property
    def num_co_owners(self) -> i32:
        """While PRIVATE: open sequences beyond the first that list the block; else 0."""
        if self.parent is not None:
            return 0
        return self._half

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
@mypyc_attr(native_class=True)
class Children:
    """Two or more children of a block by their tokens; in sorted order from the first search among neighbours on."""

    __slots__ = ("by_key", "num_partial", "_sorted_keys")

    by_key: Final[dict[bytes, Block]]
    num_partial: i64
    """How many of them are partial blocks; kept by the tree."""
    _sorted_keys: SortedKeys | None

    def __init__(self) -> None:
        self.by_key = {}
        self.num_partial = 0
        self._sorted_keys = None

    def add(self, key: bytes, child: Block) -> None:
        self.by_key[key] = child
        sorted_keys = self._sorted_keys
        if sorted_keys is not None:
            sorted_keys.add(key)

    def remove(self, key: bytes) -> None:
        del self.by_key[key]
        sorted_keys = self._sorted_keys
        if sorted_keys is not None:
            sorted_keys.remove(key)

    def sorted_keys(self) -> SortedKeys:
        sorted_keys = self._sorted_keys
        if sorted_keys is None:
            sorted_keys = SortedKeys(list(self.by_key))
            self._sorted_keys = sorted_keys
        return sorted_keys
