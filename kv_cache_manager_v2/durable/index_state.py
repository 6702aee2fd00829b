"""The state that the records of an index make, taken in order: nodes and pages in columns, a million of each without an object for any.

Nodes and pages are numbered in the order in which their records come (*ordinals*); the records stay where they are, in the frames that
were read, and a column says where. What is forgotten again keeps its ordinal.

Laws: a node that is there comes after its parent, which is there too, and its number is below ``next_node``; a page that is there belongs
to a node that is there.

Which page lies in each slot is a column too (`SlotTable`): with an object for each of a million pages other threads would wait for tens of
milliseconds whenever a table grows or goes. The column is at most as long as twice the number of records, and some; slots behind it are in
a dictionary, so that damaged records take no memory.
"""

import struct
from typing import Final, final

from librt.strings import read_i16_le, read_i32_le, read_i64_le
from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from .record_format import (
    CLEAR,
    END,
    FREE,
    MIXED,
    NODE,
    PACKED,
    PAGE,
    ROOT,
    WEIGHTS,
    BadRecordError,
    decode_scope,
    encode_end,
    encode_node,
    encode_page,
    encode_root,
    encode_weights,
)



NO_PAGE: Final = -1
_LEAST_SLOTS: Final = 1024
_SLOTS_PER_PAGE: Final = 2


@final
@mypyc_attr(native_class=True)
class SlotTable:
    """Pages are numbers from 0 on. The dictionary has no slot twice, nor one that the column has a page for."""

    __slots__ = ("_pages", "_num_put", "_far")

    _pages: vec[i64]
    """By slot: its page or NO_PAGE."""
    _num_put: i64
    _far: Final[dict[int, int]]

    def __init__(self) -> None:
        self._pages = vec[i64]()
        self._num_put = 0
        self._far = {}

    def put(self, slot: i64, page: i64) -> None:
        """Into a free slot."""
        pages = self._pages
        count: i64 = len(pages)
        self._num_put += 1
        if slot >= count:
            if slot >= _LEAST_SLOTS + _SLOTS_PER_PAGE * self._num_put:
                self._far[int(slot)] = int(page)
                return
            while count <= slot:
                pages = append(pages, NO_PAGE)
                count += 1
            self._pages = pages
        pages[slot] = page

    def take(self, slot: i64) -> i64:
        """The page of the slot, which is free from now on; NO_PAGE if it was."""
        pages = self._pages
        page: i64 = NO_PAGE
        if slot < len(pages):
            page = pages[slot]
            pages[slot] = NO_PAGE
        if page == NO_PAGE and len(self._far) > 0:
            page = self._far.pop(int(slot), NO_PAGE)
        return page


NO_ORDINAL: Final = -1
IS_ROOT: Final = -1
IS_GONE: Final = -2
_HALF_MASK: Final = (1 << 32) - 1
_SHORT_MASK: Final = (1 << 16) - 1
_MOST_SLOTS: Final = 1 << 44
_MOST_NUMBERS: Final = 1 << 60
"""The largest number of a node or a generation."""
_WEIGHT_BYTES: Final = 8

# Where the fields are, from the beginning of a record on.
_AT_NODE: Final = 1
_AT_PARENT: Final = 9
_AT_FORM: Final = 17
_AT_LENGTH: Final = 18
_AT_TOKENS: Final = 22
_AT_GENERATION: Final = 9
_AT_SLOT: Final = 17
_AT_LIFE_CYCLE: Final = 25
_AT_POOL_GROUP: Final = 27
_AT_COUNT: Final = 29
_AT_CHECKSUMS: Final = 33
_FREE_BYTES: Final = 11
_END_BYTES: Final = 17
_HEAD_BYTES: Final = 5
"""Bytes of CLEAR and WEIGHTS before their contents."""
_ROOT_BYTES: Final = 13


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
    """See the module. ``weights``: what policies had learned last; empty where nothing is known."""

    __slots__ = (
        "parents", "page_nodes", "scopes", "next_node", "next_generation", "is_whole", "weights", "_pieces", "_numbers", "_node_places",
        "_num_ascending", "_other_numbers", "_page_places", "_slot_tables",
    )  # fmt: skip

    parents: vec[i64]
    """By node: the ordinal of its parent, IS_ROOT or IS_GONE."""
    page_nodes: vec[i64]
    """By page: the ordinal of its node, or IS_GONE."""
    scopes: Final[dict[int, tuple[int | None, int | str | None]]]
    """By root: LoRA and salt."""
    next_node: i64
    next_generation: i64
    is_whole: bool
    """Whether an END has come."""
    weights: bytes
    _pieces: Final[list[bytes]]
    _numbers: vec[i64]
    _node_places: vec[i64]
    """Piece (upper half) and position of each node's record."""
    _num_ascending: i64
    """So many nodes, from the first one on, have ascending numbers."""
    _other_numbers: Final[dict[int, int]]
    """Ordinals of the nodes behind those whose numbers ascend; few have such numbers, if any."""
    _page_places: vec[i64]
    _slot_tables: Final[list[SlotTable]]
    """By pool group, as far as records name any."""

    def __init__(self) -> None:
        self.parents = vec[i64]()
        self.page_nodes = vec[i64]()
        self.scopes = {}
        self.next_node = 1
        self.next_generation = 1
        self.is_whole = False
        self.weights = b""
        self._pieces = []
        self._numbers = vec[i64]()
        self._node_places = vec[i64]()
        self._num_ascending = 0
        self._other_numbers = {}
        self._page_places = vec[i64]()
        self._slot_tables = []

    # -- what is there ------------------------------------------------------------------------------------------------

    @property
    def num_nodes(self) -> i64:
        """Ordinals of nodes that were given."""
        return len(self._numbers)

    def number_of(self, node: i64) -> i64:
        return self._numbers[node]

    def tokens_of(self, node: i64) -> bytes:
        place = self._node_places[node]
        piece = self._pieces[place >> 32]
        begin = (place & _HALF_MASK) + _AT_TOKENS
        return piece[begin : begin + i64(read_i32_le(piece, begin - _AT_TOKENS + _AT_LENGTH))]

    def is_mixed(self, node: i64) -> bool:
        place = self._node_places[node]
        piece = self._pieces[place >> 32]
        return piece[(place & _HALF_MASK) + _AT_FORM] == MIXED

    def list_pages(self) -> list[int]:
        """Ordinals of the pages that are there, in the order in which they were written."""
        return [page for page, node in enumerate(self.page_nodes) if node != IS_GONE]

    def generation_of(self, page: i64) -> i64:
        return self._page_field(page, _AT_GENERATION)

    def slot_of(self, page: i64) -> i64:
        return self._page_field(page, _AT_SLOT)

    def _page_field(self, page: i64, offset: i64) -> i64:
        place = self._page_places[page]
        return read_i64_le(self._pieces[place >> 32], (place & _HALF_MASK) + offset)

    def life_cycle_of(self, page: i64) -> i64:
        return self._short_page_field(page, _AT_LIFE_CYCLE)

    def pool_group_of(self, page: i64) -> i64:
        return self._short_page_field(page, _AT_POOL_GROUP)

    def _short_page_field(self, page: i64, offset: i64) -> i64:
        place = self._page_places[page]
        return i64(read_i16_le(self._pieces[place >> 32], (place & _HALF_MASK) + offset)) & _SHORT_MASK

    def count_checksums(self, page: i64) -> i64:
        place = self._page_places[page]
        return i64(read_i32_le(self._pieces[place >> 32], (place & _HALF_MASK) + _AT_COUNT))

    def checksum_of(self, page: i64, chunk: i64) -> i64:
        place = self._page_places[page]
        return read_i64_le(self._pieces[place >> 32], (place & _HALF_MASK) + _AT_CHECKSUMS + 8 * chunk)

    @property
    def nodes(self) -> dict[int, StoredNode]:
        """The nodes by number, parents before their children, for tools: made anew each time."""
        found: dict[int, StoredNode] = {}
        for node in range(self.num_nodes):
            parent = self.parents[node]
            if parent == IS_ROOT:
                lora_id, salt = self.scopes[int(node)]
                found[int(self._numbers[node])] = StoredNode(0, PACKED, b"", lora_id, salt)
            elif parent != IS_GONE:
                form = MIXED if self.is_mixed(node) else PACKED
                found[int(self._numbers[node])] = StoredNode(int(self._numbers[parent]), form, self.tokens_of(node))
        return found

    @property
    def pages(self) -> dict[tuple[int, int], StoredPage]:
        """The pages by pool group and slot, in the order in which it was written, for tools: made anew each time."""
        found: dict[tuple[int, int], StoredPage] = {}
        for page in self.list_pages():
            checksums = [int(self.checksum_of(page, chunk)) for chunk in range(self.count_checksums(page))]
            stored = StoredPage(
                int(self._numbers[self.page_nodes[page]]), int(self.life_cycle_of(page)), int(self.generation_of(page)), checksums
            )
            found[(int(self.pool_group_of(page)), int(self.slot_of(page)))] = stored
        return found

    def encode(self) -> list[bytes]:
        """The records of a snapshot, in pieces of a frame each: nodes first."""
        nodes = vec[i64]([node for node in range(self.num_nodes) if self.parents[node] != IS_GONE])
        pages = vec[i64](self.list_pages())
        return list_pieces(IndexSnapshot(self, nodes, self.parents, pages, self.page_nodes, self.next_generation))

    def node_record(self, node: i64, parent: i64) -> bytes:
        """With another parent than it was read with, perhaps."""
        if parent < 0:
            lora_id, salt = self.scopes[int(node)]
            return encode_root(self._numbers[node], lora_id, salt)
        place = self._node_places[node]
        piece = self._pieces[place >> 32]
        begin = place & _HALF_MASK
        number = self._numbers[parent]
        if read_i64_le(piece, begin + _AT_PARENT) == number:
            return piece[begin : begin + _AT_TOKENS + i64(read_i32_le(piece, begin + _AT_LENGTH))]
        return encode_node(self._numbers[node], number, self.tokens_of(node), MIXED if self.is_mixed(node) else PACKED)

    def page_record(self, page: i64, node: i64, has_checksums: bool) -> bytes:
        """The record of the page, perhaps of another node than it was read with."""
        place = self._page_places[page]
        piece = self._pieces[place >> 32]
        begin = place & _HALF_MASK
        number = self._numbers[node]
        count = i64(read_i32_le(piece, begin + _AT_COUNT))
        if has_checksums and read_i64_le(piece, begin + _AT_NODE) == number:
            return piece[begin : begin + _AT_CHECKSUMS + 8 * count]
        checksums = [int(self.checksum_of(page, chunk)) if has_checksums else 0 for chunk in range(count)]
        return encode_page(
            number, self.generation_of(page), self.slot_of(page), self.life_cycle_of(page), self.pool_group_of(page), checksums
        )

    # -- records ------------------------------------------------------------------------------------------------------

    def apply(self, records: bytes) -> None:
        """`BadRecordError` where they are not records; what came before them in ``records`` counts."""
        self._pieces.append(records)
        end: i64 = len(records)
        position: i64 = 0
        try:
            while position < end:
                kind: i64 = records[position]
                if kind == PAGE:
                    position = self._apply_page(records, position, end)
                elif kind == NODE:
                    position = self._apply_node(records, position, end)
                else:
                    position = self._apply_other(kind, records, position, end)
        except (struct.error, IndexError) as error:
            raise BadRecordError(f"a record cannot be read: {error}") from error

    def _apply_node(self, records: bytes, position: i64, end: i64) -> i64:
        _require_bytes(position + _AT_TOKENS, end)
        number = read_i64_le(records, position + _AT_NODE)
        num_bytes: i64 = i64(read_i32_le(records, position + _AT_LENGTH)) & _HALF_MASK
        form: i64 = records[position + _AT_FORM]
        if form != PACKED and form != MIXED or num_bytes == 0:
            raise BadRecordError(f"a node without tokens, or of form {form}")
        _require_bytes(position + _AT_TOKENS + num_bytes, end)
        parent = self.find(read_i64_le(records, position + _AT_PARENT))
        self._add_node(number, parent if parent != NO_ORDINAL else IS_GONE, position)
        return position + _AT_TOKENS + num_bytes

    def _add_node(self, number: i64, parent: i64, position: i64) -> i64:
        """The ordinal; NO_ORDINAL for a node whose parent is not there."""
        if not 0 < number < _MOST_NUMBERS:
            raise BadRecordError(f"a node with the number {number}")
        if number >= self.next_node:
            self.next_node = number + 1
        elif self.find(number) != NO_ORDINAL:
            raise BadRecordError(f"a second node with the number {number}")
        if parent == IS_GONE:
            return NO_ORDINAL
        ordinal: i64 = len(self._numbers)
        if ordinal == self._num_ascending and (ordinal == 0 or number > self._numbers[ordinal - 1]):
            self._num_ascending = ordinal + 1
        else:
            self._other_numbers[int(number)] = int(ordinal)
        self._numbers = append(self._numbers, number)
        self.parents = append(self.parents, parent)
        self._node_places = append(self._node_places, self._place(position))
        return ordinal

    def _place(self, position: i64) -> i64:
        piece: i64 = len(self._pieces) - 1
        return piece << 32 | position

    def find(self, number: i64) -> i64:
        """The ordinal of the node with that number that is there, or NO_ORDINAL."""
        ordinal = self._find_ascending(number)
        if (ordinal == NO_ORDINAL or self.parents[ordinal] == IS_GONE) and len(self._other_numbers) > 0:
            ordinal = self._other_numbers.get(int(number), NO_ORDINAL)
        if ordinal != NO_ORDINAL and self.parents[ordinal] == IS_GONE:
            return NO_ORDINAL
        return ordinal

    def _find_ascending(self, number: i64) -> i64:
        """The ordinal of that number among those that ascend, or NO_ORDINAL."""
        numbers = self._numbers
        end = self._num_ascending
        if end == 0 or number < numbers[0]:
            return NO_ORDINAL
        # Where no number was left out it is there, and never behind it.
        at = number - numbers[0]
        if at >= end:
            at = end - 1
        begin: i64 = 0
        end = at + 1
        while begin < end:
            if numbers[at] == number:
                return at
            if numbers[at] < number:
                begin = at + 1
            else:
                end = at
            at = (begin + end) // 2
        return NO_ORDINAL

    def _apply_page(self, records: bytes, position: i64, end: i64) -> i64:
        _require_bytes(position + _AT_CHECKSUMS, end)
        count: i64 = i64(read_i32_le(records, position + _AT_COUNT)) & _HALF_MASK
        _require_bytes(position + _AT_CHECKSUMS + 8 * count, end)
        slot = read_i64_le(records, position + _AT_SLOT)
        if not 0 <= slot < _MOST_SLOTS:
            raise BadRecordError(f"a page in slot {slot}")
        generation = read_i64_le(records, position + _AT_GENERATION)
        if not 0 <= generation < _MOST_NUMBERS:
            raise BadRecordError(f"a page of generation {generation}")
        pool_group: i64 = i64(read_i16_le(records, position + _AT_POOL_GROUP)) & _SHORT_MASK
        # What lay there is gone, and a page that is written anew comes last.
        self._free_slot(slot, pool_group)
        node = self.find(read_i64_le(records, position + _AT_NODE))
        if node != NO_ORDINAL:
            tables = self._slot_tables
            while len(tables) <= pool_group:
                tables.append(SlotTable())
            tables[pool_group].put(slot, len(self.page_nodes))
            self.page_nodes = append(self.page_nodes, node)
            self._page_places = append(self._page_places, self._place(position))
        if generation >= self.next_generation:
            self.next_generation = generation + 1
        return position + _AT_CHECKSUMS + 8 * count

    def _free_slot(self, slot: i64, pool_group: i64) -> None:
        if pool_group < len(self._slot_tables):
            page = self._slot_tables[pool_group].take(slot)
            if page != NO_PAGE:
                self.page_nodes[page] = IS_GONE

    def _apply_other(self, kind: i64, records: bytes, position: i64, end: i64) -> i64:
        if kind == FREE:
            _require_bytes(position + _FREE_BYTES, end)
            slot = read_i64_le(records, position + 1)
            if not 0 <= slot < _MOST_SLOTS:
                raise BadRecordError(f"slot {slot} is freed")
            self._free_slot(slot, i64(read_i16_le(records, position + 9)) & _SHORT_MASK)
            return position + _FREE_BYTES
        if kind == ROOT:
            _require_bytes(position + _ROOT_BYTES, end)
            said = _cut(records, position + _ROOT_BYTES, i64(read_i32_le(records, position + 9)))
            scope = decode_scope(said)
            ordinal = self._add_node(read_i64_le(records, position + 1), IS_ROOT, position)
            self.scopes[int(ordinal)] = scope
            return position + _ROOT_BYTES + len(said)
        if kind == CLEAR or kind == WEIGHTS:
            _require_bytes(position + _HEAD_BYTES, end)
            said = _cut(records, position + _HEAD_BYTES, i64(read_i32_le(records, position + 1)))
            if kind == CLEAR:
                self._clear(decode_scope(said) if len(said) > 0 else None)
            elif len(said) % _WEIGHT_BYTES != 0:
                raise BadRecordError(f"{len(said)} bytes of weights")
            else:
                self.weights = said
            return position + _HEAD_BYTES + len(said)
        if kind == END:
            _require_bytes(position + _END_BYTES, end)
            next_node = read_i64_le(records, position + 1)
            next_generation = read_i64_le(records, position + 9)
            if next_node > _MOST_NUMBERS or next_generation > _MOST_NUMBERS:
                raise BadRecordError(f"an end at node {next_node}, generation {next_generation}")
            if next_node > self.next_node:
                self.next_node = next_node
            if next_generation > self.next_generation:
                self.next_generation = next_generation
            self.is_whole = True
            return position + _END_BYTES
        raise BadRecordError(f"{kind} is no kind of record")

    def _clear(self, scope: tuple[int | None, int | str | None] | None) -> None:
        """Forget all of a scope; None: of any."""
        parents = self.parents
        for node in range(self.num_nodes):
            parent = parents[node]
            if parent == IS_ROOT:
                if scope is None or scope == self.scopes[int(node)]:
                    parents[node] = IS_GONE
            elif parent != IS_GONE and parents[parent] == IS_GONE:
                parents[node] = IS_GONE
        for page in range(len(self.page_nodes)):
            node = self.page_nodes[page]
            if node != IS_GONE and parents[node] == IS_GONE:
                self._free_slot(self.slot_of(page), self.pool_group_of(page))


_PIECE_BYTES: Final = 1 << 17


@final
@mypyc_attr(native_class=True)
class IndexSnapshot:
    """Some nodes and pages of a state, in some order, to be encoded piece by piece: another thread may run in between.

    ``nodes``: ordinals, parents first. ``parents`` and ``page_nodes``: by ordinal, what they are from now on. Without ``has_checksums``
    no page is compared with its checksums when it is read.
    """

    __slots__ = (
        "_state", "_nodes", "_parents", "_pages", "_page_nodes", "_next_generation", "_has_checksums", "_position", "_is_done",
    )  # fmt: skip

    _state: Final[IndexState]
    _nodes: Final[vec[i64]]
    _parents: Final[vec[i64]]
    _pages: Final[vec[i64]]
    _page_nodes: Final[vec[i64]]
    _next_generation: Final[i64]
    _has_checksums: Final[bool]
    _position: i64
    """Position of the next node, or behind them of the next page."""
    _is_done: bool

    def __init__(
        self,
        state: IndexState,
        nodes: vec[i64],
        parents: vec[i64],
        pages: vec[i64],
        page_nodes: vec[i64],
        next_generation: i64,
        has_checksums: bool = True,
    ) -> None:
        self._state = state
        self._nodes = nodes
        self._parents = parents
        self._pages = pages
        self._page_nodes = page_nodes
        self._next_generation = next_generation
        self._has_checksums = has_checksums
        self._position = 0
        self._is_done = False

    def take_piece(self) -> bytes | None:
        """The records of the next frame; None after the last one."""
        if self._is_done:
            return None
        state = self._state
        records: list[bytes] = []
        num_bytes: i64 = 0
        num_nodes: i64 = len(self._nodes)
        end: i64 = num_nodes + len(self._pages)
        position = self._position
        while position < end and num_bytes < _PIECE_BYTES:
            if position < num_nodes:
                node = self._nodes[position]
                record = state.node_record(node, self._parents[node])
            else:
                page = self._pages[position - num_nodes]
                record = state.page_record(page, self._page_nodes[page], self._has_checksums)
            records.append(record)
            num_bytes += len(record)
            position += 1
        self._position = position
        if position == end:
            if len(state.weights) > 0:
                records.append(encode_weights(state.weights))
            records.append(encode_end(state.next_node, self._next_generation))
            self._is_done = True
        return b"".join(records)


def list_pieces(snapshot: IndexSnapshot) -> list[bytes]:
    pieces: list[bytes] = []
    piece = snapshot.take_piece()
    while piece is not None:
        pieces.append(piece)
        piece = snapshot.take_piece()
    return pieces


def _require_bytes(position: i64, end: i64) -> None:
    if position > end:
        raise BadRecordError("a record ends inside its bytes")


def _cut(records: bytes, position: i64, num_bytes: i64) -> bytes:
    num_bytes &= _HALF_MASK
    if position + num_bytes > len(records):
        raise BadRecordError("a record ends inside its bytes")
    return records[position : position + num_bytes]
