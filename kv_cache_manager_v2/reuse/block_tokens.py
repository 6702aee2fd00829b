"""The tokens of published blocks: one bytes object for blocks that were published together.

A block's *key* is its tokens as packed int32, at most ``block_bytes`` of them; partial blocks have fewer. Full blocks that one commit
publishes below a block without children share bytes objects of up to `MAX_SHARED_BYTES`: a match compares such an object at once, and it
costs less than an object for each block. Other blocks have an object of their own: those that decoding fills or that are published beside
others, retained ones, and all that are published after a first digest. Blocks leave a path from its leaf on, so what of an object is
needed is its beginning: once that is half of it or less, the blocks that are left get a shorter one.

    tokens         block 0   block 1   block 2   block 3
    tokens_begin   0         128       256       384            with 32 tokens in a block
"""

from typing import Final

from mypy_extensions import i64

from .block import Block

MAX_SHARED_BYTES: Final = 999
"""The largest bytes object of several blocks. It is 33 bytes more, and glibc has up to 1,032 at hand without a search (its per-thread
cache); an object of 2 KiB costs 600 instructions to allocate and free."""


def key_of(block: Block, block_bytes: i64) -> bytes:
    """The key of a published block."""
    tokens = block.tokens
    if len(tokens) <= block_bytes:
        return tokens
    begin = block.tokens_begin
    return tokens[begin : begin + block_bytes]


def count_key_bytes(block: Block, block_bytes: i64) -> i64:
    num_bytes: i64 = len(block.tokens)
    return num_bytes if num_bytes < block_bytes else block_bytes


def share_tokens(blocks: list[Block], packed: bytes, position: i64, block_bytes: i64) -> None:
    """Share the tokens of full blocks, each below the one before, whose keys are those from ``position`` on."""
    max_bytes = MAX_SHARED_BYTES // block_bytes * block_bytes
    if max_bytes == 0:
        max_bytes = block_bytes
    end = position + len(blocks) * block_bytes
    tokens = b""
    begin: i64 = 0
    num_bytes: i64 = 0
    for block in blocks:
        if begin == num_bytes:
            num_bytes = end - position
            if num_bytes > max_bytes:
                num_bytes = max_bytes
            tokens = packed[position : position + num_bytes]
            position += num_bytes
            begin = 0
        block.tokens = tokens
        block.tokens_begin = begin
        begin += block_bytes


def own_tokens(block: Block, block_bytes: i64) -> bytes:
    """The block's key in a bytes object of its own, which stays the same object while the block is published."""
    key = key_of(block, block_bytes)
    block.tokens = key
    block.tokens_begin = 0
    return key


def shorten_tokens(tokens: bytes, num_bytes: i64, last: Block | None, block_bytes: i64) -> None:
    """Keeps the first ``num_bytes`` of ``tokens``, which is all that is still needed, by blocks up to ``last``."""
    if num_bytes == 0 or num_bytes * 2 > len(tokens):
        return
    shorter = tokens[:num_bytes]
    while num_bytes > 0 and last is not None:
        if last.tokens is tokens:
            last.tokens = shorter
        last = last.parent
        num_bytes -= block_bytes


def count_equal_bytes(block: Block, packed: bytes, position: i64, block_bytes: i64) -> i64:
    """How many bytes of whole blocks in ``packed``, from ``position`` on, the block's tokens are known to begin with, from its key on.

    A whole block is left at ``position``. 0 if the key is another; else the key at least, and mostly all that can be.
    """
    tokens = block.tokens
    begin = block.tokens_begin
    num_bytes: i64 = len(tokens) - begin
    if num_bytes < block_bytes:
        return 0
    if num_bytes > len(packed) - position:
        num_bytes = (len(packed) - position) // block_bytes * block_bytes
    # A slice of all of it would be a copy.
    if num_bytes == len(tokens) and packed[position : position + num_bytes] == tokens:
        return num_bytes
    while packed[position : position + num_bytes] != tokens[begin : begin + num_bytes]:
        num_bytes = num_bytes // (2 * block_bytes) * block_bytes
        if num_bytes == 0:
            return 0
    return num_bytes
