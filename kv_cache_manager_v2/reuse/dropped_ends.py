"""First tokens of blocks that were dropped on request: behind their parents they stay content, which `reuse_match_backoff` counts from.

A note for each number of tokens that a backoff may take, the oldest of too many goes. A content key stands for the path above: two paths
with one key have their notes in common, so a match there may end some tokens later. The end of an epoch forgets all.
"""

from typing import Final, final

from librt.strings import read_i32_le
from mypy_extensions import i64

from .block import Block
from .block_tokens import key_of
from .content_key import block_key, mix_key
from .token_packing import TOKEN_BYTES, has_digest

_MOST_NOTES: Final = 10_000


@final
class DroppedEnds:
    __slots__ = ("_notes", "_block_bytes")

    def __init__(self, block_bytes: i64) -> None:
        self._notes: Final[dict[int, None]] = {}
        self._block_bytes: Final = block_bytes

    def note(self, block: Block, num_tokens: i64) -> None:
        """Remember up to ``num_tokens`` first tokens of a published block."""
        key = key_of(block, self._block_bytes)
        parent = block.parent
        assert parent is not None, "a plan dropped a block that is in no tree"
        if num_tokens == 0 or has_digest(key):
            return  # a digest's number is another digest's once no block has it
        note = block_key(parent, self._block_bytes)
        position: i64 = 0
        while position < num_tokens * TOKEN_BYTES and position < len(key):
            note = mix_key(note, i64(read_i32_le(key, position)))
            self._notes[int(note)] = None
            position += TOKEN_BYTES
        while len(self._notes) > _MOST_NOTES:
            del self._notes[next(iter(self._notes))]

    def count_tokens(self, parent: Block, rest: bytes) -> i64:
        """How many first tokens of ``rest`` such a block below ``parent`` began with."""
        position: i64 = 0
        if len(self._notes) > 0:
            note = block_key(parent, self._block_bytes)
            while position < len(rest):
                note = mix_key(note, i64(read_i32_le(rest, position)))
                if int(note) not in self._notes:
                    break
                position += TOKEN_BYTES
        return position // TOKEN_BYTES

    def clear(self) -> None:
        self._notes.clear()
