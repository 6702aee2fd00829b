"""First tokens of blocks that were dropped on request: behind their parents they stay content, which `reuse_match_backoff` counts from.

A note for each number of tokens that a backoff may take, the oldest of too many goes. A content key stands for the path above: two paths
with one key have their notes in common, so a match there may end some tokens later. The end of an epoch forgets all.
"""

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from .block import Block
from .block_tokens import key_of
from .content_key import block_key
from .prefix_hash import hash_block
from .token_packing import TOKEN_BYTES, has_digest

_MOST_NOTES: Final = 10_000


@final
@mypyc_attr(native_class=True)
class DroppedEnds:
    __slots__ = ("_notes", "_block_bytes")

    _notes: Final[dict[int, None]]
    _block_bytes: Final[i64]

    def __init__(self, block_bytes: i64) -> None:
        self._notes = {}
        self._block_bytes = block_bytes

    def note(self, block: Block, num_tokens: i64) -> None:
        """Remember up to ``num_tokens`` first tokens of a published block."""
        key = key_of(block, self._block_bytes)
        parent = block.parent
        assert parent is not None, "a plan dropped a block that is in no tree"
        if has_digest(key):
            return  # a digest's number is another digest's once no block has it
        above = block_key(parent, self._block_bytes)
        end: i64 = TOKEN_BYTES
        while end <= num_tokens * TOKEN_BYTES and end <= len(key):
            self._notes[hash_block(above, key[:end])] = None
            end += TOKEN_BYTES
        while len(self._notes) > _MOST_NOTES:
            del self._notes[next(iter(self._notes))]

    def count_tokens(self, parent: Block, rest: bytes) -> i64:
        """How many first tokens of ``rest`` such a block below ``parent`` began with."""
        end: i64 = 0
        if len(self._notes) > 0:
            above = block_key(parent, self._block_bytes)
            while end < len(rest) and hash_block(above, rest[: end + TOKEN_BYTES]) in self._notes:
                end += TOKEN_BYTES
        return end // TOKEN_BYTES

    def clear(self) -> None:
        self._notes.clear()
