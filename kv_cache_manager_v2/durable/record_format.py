"""Format of the index of a durable level: what is in the slots of its files, as a log and a snapshot of the log.

    file     = MAGIC (8 bytes), frame*
    frame    = checksum (8 bytes, of what follows), number of bytes (4), record*
    record   = kind (1 byte), its fields

All numbers are little-endian. A frame is read whole or not at all: one that is torn, or has another checksum, ends the file. A snapshot
ends with END, so that one without it is known to be cut.

    kind        fields                                                     says
    ROOT        node (8), number of bytes (4), scope as JSON               prefixes of that scope begin at the node
    NODE        node (8), parent (8), form (1), number of bytes (4),       a block and its tokens. PACKED: 4 bytes each; MIXED: 4 bytes
                tokens                                                     each, or ``-number of bytes`` and a digest in full
    PAGE        node (8), generation (8), slot (8), life cycle (2),        the page of a block lies in that slot, with these checksums,
                pool group (2), number of checksums (4), checksums (8)     chunk by chunk, pool by pool
    FREE        slot (8), pool group (2)                                   nothing of use lies in that slot
    CLEAR       number of bytes (4), scope as JSON                         nothing of that scope is to be found again; empty: of any scope
    WEIGHTS     number of bytes (4), 8 bytes each                          what eviction policies have learned; the last one counts
    END         next node (8), next generation (8)                         the snapshot is whole; numbers below these were given
    ORDER       pool group (2), number of pages (4), for each: slot (8),   pages of these slots have these generations now, and are what
                generation (8), description (8)                            the policy has said (bits 0-38, `VictimQueue.describe_all`),
                                                                           so long after the page before (39-62)

A page record replaces what was in its slot; of two with one node and one life cycle the one with the larger generation counts. Node
numbers begin with 1 and are never used again. Generations are given when a write is planned, so they are in the order of the decisions; at
an orderly end pages get new ones, in the order in which they were used. A snapshot has ORDER behind END: what does not know it has read all
else.
"""

import json
import struct
from typing import Final

from mypy_extensions import i64, mypyc_attr

from ..device.checksum import hash_bytes

MAGIC: Final = b"KVCMDUR2"
ROOT: Final = 1
NODE: Final = 2
PAGE: Final = 3
FREE: Final = 4
CLEAR: Final = 5
END: Final = 6
WEIGHTS: Final = 7
ORDER: Final = 8

PACKED: Final = 0
MIXED: Final = 1

PASSED_SHIFT: Final = 39
DESCRIPTION_MASK: Final = (1 << PASSED_SHIFT) - 1
MOST_PASSED: Final = (1 << 23) - 1

_FRAME: Final = struct.Struct("<qI")
_LENGTH: Final = struct.Struct("<I")
_ROOT: Final = struct.Struct("<BqI")
_NODE: Final = struct.Struct("<BqqBI")
_PAGE: Final = struct.Struct("<BqqqHHI")
_FREE: Final = struct.Struct("<BqH")
_HEAD: Final = struct.Struct("<BI")
"""Of CLEAR and WEIGHTS, before their contents."""
_END: Final = struct.Struct("<Bqq")
_ORDER: Final = struct.Struct("<BHI")
_TOKEN: Final = struct.Struct("<i")


@mypyc_attr(native_class=False)
class BadRecordError(ValueError):
    """A frame has the right checksum, and what it says cannot be: it was not written by this format."""


def encode_root(node: i64, lora_id: int | None, salt: int | str | None) -> bytes:
    scope = _encode_scope(lora_id, salt)
    return _ROOT.pack(ROOT, node, len(scope)) + scope


def encode_node(node: i64, parent: i64, tokens: bytes, form: int) -> bytes:
    return _NODE.pack(NODE, node, parent, form, len(tokens)) + tokens


def encode_page(node: i64, generation: i64, slot: i64, life_cycle: i64, pool_group: i64, checksums: list[int]) -> bytes:
    head = _PAGE.pack(PAGE, node, generation, slot, life_cycle, pool_group, len(checksums))
    return head + struct.pack(f"<{len(checksums)}q", *checksums)


def encode_free(slot: i64, pool_group: i64) -> bytes:
    return _FREE.pack(FREE, slot, pool_group)


def encode_clear_scope(lora_id: int | None, salt: int | str | None) -> bytes:
    scope = _encode_scope(lora_id, salt)
    return _HEAD.pack(CLEAR, len(scope)) + scope


def encode_clear_all() -> bytes:
    return _HEAD.pack(CLEAR, 0)


def encode_weights(weights: bytes) -> bytes:
    return _HEAD.pack(WEIGHTS, len(weights)) + weights


def encode_end(next_node: i64, next_generation: i64) -> bytes:
    return _END.pack(END, next_node, next_generation)


def encode_order(pool_group: i64, words: list[int]) -> bytes:
    """``words``: three for each page."""
    return _ORDER.pack(ORDER, pool_group, len(words) // 3) + struct.pack(f"<{len(words)}q", *words)


def _encode_scope(lora_id: int | None, salt: int | str | None) -> bytes:
    return json.dumps([lora_id, salt]).encode()


def encode_mixed(tokens: list[int | bytes]) -> bytes:
    """Tokens of which some are digests."""
    parts: list[bytes] = []
    for token in tokens:
        if isinstance(token, bytes):
            parts.append(_TOKEN.pack(-len(token)))
            parts.append(token)
        else:
            parts.append(_TOKEN.pack(token))
    return b"".join(parts)


def decode_mixed(data: bytes) -> list[int | bytes]:
    tokens: list[int | bytes] = []
    position = 0
    while position < len(data):
        if position + 4 > len(data):
            raise BadRecordError("tokens end inside one")
        token: int = _TOKEN.unpack_from(data, position)[0]
        position += 4
        if token >= 0:
            tokens.append(token)
        else:
            if position - token > len(data):
                raise BadRecordError("tokens end inside a digest")
            tokens.append(data[position : position - token])
            position -= token
    return tokens


def frame(records: bytes) -> bytes:
    body = _LENGTH.pack(len(records)) + records
    return hash_bytes(body).to_bytes(8, "little", signed=True) + body


def split_frames(data: bytes, num_more: int) -> tuple[list[bytes], int, bool]:
    """The records of each whole frame, the number of bytes behind the last one, and whether none can follow. ``data``: what comes after
    `MAGIC`, or after other frames; ``num_more``: bytes of the file behind that."""
    frames: list[bytes] = []
    position = 0
    while position + _FRAME.size <= len(data):
        checksum, num_bytes = _FRAME.unpack_from(data, position)
        end = position + _FRAME.size + num_bytes
        if end > len(data):
            return frames, len(data) - position, end > len(data) + num_more
        if hash_bytes(data[position + 8 : end]) != checksum:
            return frames, len(data) - position, True
        frames.append(data[position + _FRAME.size : end])
        position = end
    return frames, len(data) - position, position < len(data) and num_more == 0


def decode_scope(data: bytes) -> tuple[int | None, int | str | None]:
    """The ``lora_id`` and the salt."""
    try:
        decoded: object = json.loads(data)
    except ValueError as error:
        raise BadRecordError(f"a scope cannot be read: {error}") from error
    if not isinstance(decoded, list) or len(decoded) != 2:
        raise BadRecordError("a scope is not two values")
    lora_id: object = decoded[0]
    salt: object = decoded[1]
    if lora_id is not None and not isinstance(lora_id, int) or salt is not None and not isinstance(salt, (int, str)):
        raise BadRecordError("a scope has values of other types than a scope's")
    return lora_id, salt
