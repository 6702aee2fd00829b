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
    END         next node (8), next generation (8)                         the snapshot is whole; numbers below these were given

A page record replaces what was in its slot; of two with one node and one life cycle the one with the larger generation counts. Node
numbers begin with 1 and are never used again.
"""

import json
import struct
from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from ..device.checksum import hash_bytes

MAGIC: Final = b"KVCMDUR1"
ROOT: Final = 1
NODE: Final = 2
PAGE: Final = 3
FREE: Final = 4
CLEAR: Final = 5
END: Final = 6

PACKED: Final = 0
MIXED: Final = 1

_FRAME: Final = struct.Struct("<qI")
_LENGTH: Final = struct.Struct("<I")
_ROOT: Final = struct.Struct("<BqI")
_NODE: Final = struct.Struct("<BqqBI")
_PAGE: Final = struct.Struct("<BqqqHHI")
_FREE: Final = struct.Struct("<BqH")
_CLEAR: Final = struct.Struct("<BI")
_END: Final = struct.Struct("<Bqq")
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
    return _CLEAR.pack(CLEAR, len(scope)) + scope


def encode_clear_all() -> bytes:
    return _CLEAR.pack(CLEAR, 0)


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


def split_frames(data: bytes) -> tuple[list[bytes], int]:
    """The records of each whole frame, and the number of bytes behind the last one. ``data`` is what comes after `MAGIC`."""
    frames: list[bytes] = []
    position = 0
    while position + _FRAME.size <= len(data):
        checksum, num_bytes = _FRAME.unpack_from(data, position)
        end = position + _FRAME.size + num_bytes
        if end > len(data) or hash_bytes(data[position + 8 : end]) != checksum:
            break
        frames.append(data[position + _FRAME.size : end])
        position = end
    return frames, len(data) - position


@final
@mypyc_attr(native_class=True)
class StoredNode:
    """A block, or the root of a scope: then ``parent`` is 0 and the scope is `lora_id` and `salt`."""

    __slots__ = ("parent", "form", "tokens", "lora_id", "salt")

    parent: Final[int]
    form: Final[int]
    tokens: Final[bytes]
    lora_id: Final[int | None]
    salt: Final[int | str | None]

    def __init__(self, parent: int, form: int, tokens: bytes, lora_id: int | None = None, salt: int | str | None = None) -> None:
        self.parent = parent
        self.form = form
        self.tokens = tokens
        self.lora_id = lora_id
        self.salt = salt


@final
@mypyc_attr(native_class=True)
class StoredPage:
    __slots__ = ("node", "life_cycle", "generation", "checksums")

    node: Final[int]
    life_cycle: Final[int]
    generation: Final[int]
    checksums: Final[list[int]]

    def __init__(self, node: int, life_cycle: int, generation: int, checksums: list[int]) -> None:
        self.node = node
        self.life_cycle = life_cycle
        self.generation = generation
        self.checksums = checksums


@final
@mypyc_attr(native_class=True)
class IndexState:
    """What the records say, taken in order. ``pages``: by pool group and slot. Law: node numbers are below ``next_node``."""

    __slots__ = ("nodes", "pages", "next_node", "next_generation", "is_whole")

    nodes: Final[dict[int, StoredNode]]
    """Parents come before their children."""
    pages: Final[dict[tuple[int, int], StoredPage]]
    """In the order in which they were written."""
    next_node: int
    next_generation: int
    is_whole: bool
    """Whether an END has come."""

    def __init__(self) -> None:
        self.nodes = {}
        self.pages = {}
        self.next_node = 1
        self.next_generation = 1
        self.is_whole = False

    def apply(self, records: bytes) -> None:
        """`BadRecordError` where they are not records."""
        position = 0
        try:
            while position < len(records):
                position = self._apply_one(records, position)
        except (struct.error, IndexError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise BadRecordError(f"a record cannot be read: {error}") from error

    def _apply_one(self, records: bytes, position: int) -> int:
        kind = records[position]
        if kind == PAGE:
            return self._apply_page(records, position)
        if kind == NODE:
            node: int
            num_bytes: int
            _kind, node, parent, form, num_bytes = _NODE.unpack_from(records, position)
            position += _NODE.size
            tokens = _cut(records, position, num_bytes)
            if form not in (PACKED, MIXED) or len(tokens) == 0:
                raise BadRecordError(f"a node without tokens, or of form {form}")
            self._add_node(node, StoredNode(parent, form, tokens), parent)
            return position + num_bytes
        if kind == FREE:
            _kind, slot, pool_group = _FREE.unpack_from(records, position)
            self.pages.pop((pool_group, slot), None)
            return position + _FREE.size
        if kind == ROOT:
            _kind, node, num_bytes = _ROOT.unpack_from(records, position)
            position += _ROOT.size
            lora_id, salt = _to_scope(json.loads(_cut(records, position, num_bytes)))
            self._add_node(node, StoredNode(0, PACKED, b"", lora_id, salt), 0)
            return position + num_bytes
        if kind == CLEAR:
            num_bytes = _CLEAR.unpack_from(records, position)[1]
            position += _CLEAR.size
            self._clear(_to_scope(json.loads(_cut(records, position, num_bytes))) if num_bytes > 0 else None)
            return position + num_bytes
        if kind == END:
            next_node: int
            next_generation: int
            _kind, next_node, next_generation = _END.unpack_from(records, position)
            self.next_node = max(self.next_node, next_node)
            self.next_generation = max(self.next_generation, next_generation)
            self.is_whole = True
            return position + _END.size
        raise BadRecordError(f"{kind} is no kind of record")

    def _apply_page(self, records: bytes, position: int) -> int:
        count: int
        _kind, node, generation, slot, life_cycle, pool_group, count = _PAGE.unpack_from(records, position)
        position += _PAGE.size
        checksums = list(struct.unpack_from(f"<{count}q", records, position))
        # What lay there is gone, and a page that is written anew comes last.
        self.pages.pop((pool_group, slot), None)
        if slot < 0:
            raise BadRecordError(f"a page in slot {slot}")
        if node in self.nodes:
            self.pages[(pool_group, slot)] = StoredPage(node, life_cycle, generation, checksums)
        self.next_generation = max(self.next_generation, generation + 1)
        return position + 8 * count

    def _add_node(self, node: int, stored: StoredNode, parent: int) -> None:
        if node <= 0:
            raise BadRecordError(f"a node with the number {node}")
        self.next_node = max(self.next_node, node + 1)
        if parent == 0 and len(stored.tokens) == 0 or parent in self.nodes:
            self.nodes[node] = stored

    def _clear(self, scope: tuple[int | None, int | str | None] | None) -> None:
        """Forget all of a scope; None: of any."""
        gone: set[int] = set()
        for node, stored in self.nodes.items():
            if stored.parent in gone or (stored.parent == 0 and (scope is None or scope == (stored.lora_id, stored.salt))):
                gone.add(node)
        for node in gone:
            del self.nodes[node]
        for place in [place for place, page in self.pages.items() if page.node in gone]:
            del self.pages[place]

    def encode(self) -> list[bytes]:
        """The records of a snapshot, in pieces of a frame each: nodes first."""
        pieces: list[bytes] = []
        records: list[bytes] = []
        num_bytes = 0
        for node, stored in self.nodes.items():
            if stored.parent == 0:
                record = encode_root(node, stored.lora_id, stored.salt)
            else:
                record = encode_node(node, stored.parent, stored.tokens, stored.form)
            num_bytes += len(record)
            records.append(record)
            if num_bytes > _PIECE_BYTES:
                pieces.append(b"".join(records))
                records = []
                num_bytes = 0
        for (pool_group, slot), page in self.pages.items():
            record = encode_page(page.node, page.generation, slot, page.life_cycle, pool_group, page.checksums)
            num_bytes += len(record)
            records.append(record)
            if num_bytes > _PIECE_BYTES:
                pieces.append(b"".join(records))
                records = []
                num_bytes = 0
        records.append(_END.pack(END, self.next_node, self.next_generation))
        pieces.append(b"".join(records))
        return pieces


_PIECE_BYTES: Final = 1 << 20


def _cut(records: bytes, position: int, num_bytes: int) -> bytes:
    if position + num_bytes > len(records):
        raise BadRecordError("a record ends inside its bytes")
    return records[position : position + num_bytes]


def _to_scope(decoded: object) -> tuple[int | None, int | str | None]:
    if not isinstance(decoded, list) or len(decoded) != 2:
        raise BadRecordError("a scope is not two values")
    lora_id: object = decoded[0]
    salt: object = decoded[1]
    if lora_id is not None and not isinstance(lora_id, int) or salt is not None and not isinstance(salt, (int, str)):
        raise BadRecordError("a scope has values of other types than a scope's")
    return lora_id, salt
