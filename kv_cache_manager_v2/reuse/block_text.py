"""The tokens of published blocks: one text for blocks that were published together.

A block's *key* is its tokens as packed int32, at most ``block_bytes`` of them; partial blocks have fewer. Full blocks that one commit
publishes below a block without children share texts of up to `MAX_TEXT_BYTES`: a match compares such a text at once, and it costs less than
a bytes object for each block. Other blocks have a text of their own: those that decoding fills or that are published beside others,
retained ones, and all that are published after a first digest. Blocks leave a path from its end on, so what a text is still needed for is
its beginning: once that is half of it or less, the blocks that are left get a shorter one.

    text         block 0   block 1   block 2   block 3
    text_begin   0         128       256       384            with 32 tokens in a block
"""

from typing import Final

from mypy_extensions import i64

from .block import Block

MAX_TEXT_BYTES: Final = 999
"""Of a text of several blocks. A bytes object is 33 bytes more, and glibc has up to 1,032 at hand without a search (its per-thread
cache); a text of 2 KiB costs 600 instructions to get and give back."""


def key_of(block: Block, block_bytes: i64) -> bytes:
    """Of a published block."""
    text = block.text
    if len(text) <= block_bytes:
        return text
    begin = block.text_begin
    return text[begin : begin + block_bytes]


def count_key_bytes(block: Block, block_bytes: i64) -> i64:
    num_bytes: i64 = len(block.text)
    return num_bytes if num_bytes < block_bytes else block_bytes


def share_texts(blocks: list[Block], packed: bytes, position: i64, block_bytes: i64) -> None:
    """Of full blocks, each below the one before, whose keys are those from ``position`` on."""
    max_bytes = MAX_TEXT_BYTES // block_bytes * block_bytes
    if max_bytes == 0:
        max_bytes = block_bytes
    end = position + len(blocks) * block_bytes
    text = b""
    begin: i64 = 0
    num_bytes: i64 = 0
    for block in blocks:
        if begin == num_bytes:
            num_bytes = end - position
            if num_bytes > max_bytes:
                num_bytes = max_bytes
            text = packed[position : position + num_bytes]
            position += num_bytes
            begin = 0
        block.text = text
        block.text_begin = begin
        begin += block_bytes


def own_text(block: Block, block_bytes: i64) -> bytes:
    """The block's key as its own text, which stays the same object while the block is published."""
    key = key_of(block, block_bytes)
    block.text = key
    block.text_begin = 0
    return key


def shorten_text(text: bytes, num_bytes: i64, last: Block | None, block_bytes: i64) -> None:
    """Only the first ``num_bytes`` of a text are still needed, by blocks up to ``last``."""
    if num_bytes == 0 or num_bytes * 2 > len(text):
        return
    shorter = text[:num_bytes]
    while num_bytes > 0 and last is not None:
        if last.text is text:
            last.text = shorter
        last = last.parent
        num_bytes -= block_bytes


def count_equal_bytes(block: Block, packed: bytes, position: i64, block_bytes: i64) -> i64:
    """How many bytes of whole blocks in ``packed``, from ``position`` on, the block's text is known to begin with, from its key on.

    A whole block is left at ``position``. 0 if the key is another; else the key at least, and mostly all that can be.
    """
    text = block.text
    begin = block.text_begin
    num_bytes: i64 = len(text) - begin
    if num_bytes < block_bytes:
        return 0
    if num_bytes > len(packed) - position:
        num_bytes = (len(packed) - position) // block_bytes * block_bytes
    # A slice of all of it would be a copy.
    if num_bytes == len(text) and packed[position : position + num_bytes] == text:
        return num_bytes
    while packed[position : position + num_bytes] != text[begin : begin + num_bytes]:
        num_bytes = num_bytes // (2 * block_bytes) * block_bytes
        if num_bytes == 0:
            return 0
    return num_bytes
