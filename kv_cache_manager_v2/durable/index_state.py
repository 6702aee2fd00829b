"""The state that the records of an index make, taken in order: nodes and pages in columns, a million of each without an object for any.

Nodes and pages are numbered in the order in which their records come (*ordinals*). What is forgotten again keeps its ordinal. The tokens
of the nodes of a frame lie behind each other: where they are blocks below each other the tree takes them as they are.

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
from mypy_extensions import i64

from .record_format import (
    CLEAR,
    END,
    FREE,
    MIXED,
    NODE,
    ORDER,
    PACKED,
    PAGE,
    ROOT,
    WEIGHTS,
    BadRecordError,
    decode_scope,
    encode_node,
    encode_order,
    encode_page,
    encode_root,
)



NO_PAGE: Final = -1
_LEAST_SLOTS: Final = 1024
_SLOTS_PER_PAGE: Final = 2


@final
class SlotTable:
    """Pages are numbers from 0 on. The dictionary has no slot twice, nor one that the column has a page for."""

    __slots__ = ("_pages", "_num_put", "_far")

    def __init__(self) -> None:
        self._pages = vec[i64]()
        """By slot: its page or NO_PAGE."""
        self._num_put: i64 = 0
        self._far: Final[dict[int, int]] = {}

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

    def find(self, slot: i64) -> i64:
        """The page of the slot, or NO_PAGE."""
        page: i64 = self._pages[slot] if slot < len(self._pages) else NO_PAGE
        if page == NO_PAGE and len(self._far) > 0:
            page = self._far.get(int(slot), NO_PAGE)
        return page

    def take(self, slot: i64) -> i64:
        """The page of the slot, which is free from now on; NO_PAGE if it was."""
        page = self.find(slot)
        if slot < len(self._pages):
            self._pages[slot] = NO_PAGE
        self._far.pop(int(slot), None)
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
_DIGITS: Final = 1 << 16

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
_ORDER_BYTES: Final = 7
_END_BYTES: Final = 17
_HEAD_BYTES: Final = 5
"""Bytes of CLEAR and WEIGHTS before their contents."""
_ROOT_BYTES: Final = 13


@final
class IndexState:
    """See the module. ``weights``: what policies had learned last; empty where nothing is known."""

    __slots__ = (
        "parents", "page_nodes", "generations", "scopes", "next_node", "next_generation", "is_whole", "weights", "_tokens", "_new_tokens",
        "_num_new_bytes", "numbers", "_node_places", "_node_sizes", "_num_ascending", "_other_numbers", "_descriptions",
        "slots", "_kinds", "_checksums", "_first_checksums", "_slot_tables",
    )  # fmt: skip

    def __init__(self) -> None:
        self.parents = vec[i64]()
        """By node: the ordinal of its parent, IS_ROOT or IS_GONE."""
        self.page_nodes = vec[i64]()
        """By page: the ordinal of its node, or IS_GONE."""
        self.scopes: Final[dict[int, tuple[int | None, int | str | None]]] = {}
        """By root: LoRA and salt."""
        self.next_node: i64 = 1
        self.next_generation: i64 = 1
        self.is_whole = False
        """Whether an END has come."""
        self.weights = b""
        self._tokens: Final[list[bytes]] = []
        """By frame."""
        self._new_tokens: list[bytes] = []
        """Of the frame whose records are being applied."""
        self._num_new_bytes: i64 = 0
        self.numbers = vec[i64]()
        """By node, as records name it."""
        self._node_places = vec[i64]()
        """By node: the frame that its tokens came in (upper half), and where they begin in the tokens of that."""
        self._node_sizes = vec[i64]()
        """By node: form (bit 0) | bytes of its tokens."""
        self._num_ascending: i64 = 0
        """So many nodes, from the first one on, have ascending numbers."""
        self._other_numbers: Final[dict[int, int]] = {}
        """Ordinals of the nodes behind those whose numbers ascend; few have such numbers, if any."""
        self._descriptions: Final[dict[int, int]] = {}
        """By page that has one."""
        self.generations = vec[i64]()
        self.slots = vec[i64]()
        self._kinds = vec[i64]()
        """By page: life cycle (bits 0-15) | pool group (16-31) | number of checksums (32-62)."""
        self._checksums = vec[i64]()
        self._first_checksums = vec[i64]()
        """By page: where its checksums begin."""
        self._slot_tables: Final[list[SlotTable]] = []
        """By pool group, as far as records name any."""

    # -- what is there ------------------------------------------------------------------------------------------------

    @property
    def num_nodes(self) -> i64:
        """Ordinals of nodes that were given."""
        return len(self.numbers)

    def tokens_of(self, node: i64) -> bytes:
        begin = self.begin_of(node)
        return self.tokens_beside(node)[begin : begin + self.count_bytes(node)]

    def tokens_beside(self, node: i64) -> bytes:
        """The tokens of all nodes that came in one frame with this one; its own are from `begin_of` on."""
        return self._tokens[self._node_places[node] >> 32]

    def begin_of(self, node: i64) -> i64:
        return self._node_places[node] & _HALF_MASK

    def follows(self, node: i64, before: i64) -> bool:
        """Whether the node's tokens are in memory right behind those of the one before it."""
        return self._node_places[node] == self._node_places[before] + self.count_bytes(before)

    def count_bytes(self, node: i64) -> i64:
        return self._node_sizes[node] >> 1

    def is_mixed(self, node: i64) -> bool:
        return self._node_sizes[node] & 1 == MIXED

    def list_pages(self) -> vec[i64]:
        """Ordinals of the pages that are there, in the order of their records."""
        pages = vec[i64]()
        for page in range(len(self.page_nodes)):
            if self.page_nodes[page] != IS_GONE:
                pages = append(pages, page)
        return pages

    def sort_pages(self, pages: vec[i64], times: vec[i64]) -> vec[i64]:
        """These by time, of which there is one for each page of all, below `next_generation`; those of an equal one in the order in which
        they are given.

        A million Python integers to sort would take a second and 70 MiB: digits of 16 bits are counted, the lowest first.
        """
        shift: i64 = 0
        while shift < 64 and self.next_generation >> shift > 0:
            ends = vec[i64]([0] * (_DIGITS + 1))
            for page in pages:
                ends[(times[page] >> shift & _DIGITS - 1) + 1] += 1
            for digit in range(_DIGITS):
                ends[digit + 1] += ends[digit]
            ordered = vec[i64]([0] * len(pages))
            for page in pages:
                digit_of = times[page] >> shift & _DIGITS - 1
                ordered[ends[digit_of]] = page
                ends[digit_of] += 1
            pages = ordered
            shift += 16
        return pages

    def description_of(self, page: i64) -> i64:
        """What the policy has said of the page, as the record has it; 0 for nothing."""
        return self._descriptions.get(int(page), 0)

    def life_cycle_of(self, page: i64) -> i64:
        return self._kinds[page] & _SHORT_MASK

    def pool_group_of(self, page: i64) -> i64:
        return self._kinds[page] >> 16 & _SHORT_MASK

    def count_checksums(self, page: i64) -> i64:
        return self._kinds[page] >> 32

    def checksum_of(self, page: i64, chunk: i64) -> i64:
        return self._checksums[self._first_checksums[page] + chunk]

    def node_record(self, node: i64, parent: i64) -> bytes:
        """With another parent than it was read with, perhaps."""
        if parent < 0:
            lora_id, salt = self.scopes[int(node)]
            return encode_root(self.numbers[node], lora_id, salt)
        form = MIXED if self.is_mixed(node) else PACKED
        return encode_node(self.numbers[node], self.numbers[parent], self.tokens_of(node), form)

    def page_record(self, page: i64, node: i64, has_checksums: bool) -> bytes:
        """The record of the page, perhaps of another node than it was read with."""
        checksums = [int(self.checksum_of(page, chunk)) if has_checksums else 0 for chunk in range(self.count_checksums(page))]
        return encode_page(
            self.numbers[node], self.generations[page], self.slots[page], self.life_cycle_of(page), self.pool_group_of(page), checksums
        )

    def order_record(self, page: i64) -> bytes:
        """Empty for a page that is not described."""
        description = self.description_of(page)
        if description == 0:
            return b""
        return encode_order(self.pool_group_of(page), [int(self.slots[page]), int(self.generations[page]), int(description)])

    # -- records ------------------------------------------------------------------------------------------------------

    def apply(self, records: bytes) -> None:
        """`BadRecordError` where they are not records; what came before them in ``records`` counts."""
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
        finally:
            self._tokens.append(b"".join(self._new_tokens))
            self._new_tokens = []
            self._num_new_bytes = 0

    def _apply_node(self, records: bytes, position: i64, end: i64) -> i64:
        _require_bytes(position + _AT_TOKENS, end)
        number = read_i64_le(records, position + _AT_NODE)
        num_bytes: i64 = i64(read_i32_le(records, position + _AT_LENGTH)) & _HALF_MASK
        form: i64 = records[position + _AT_FORM]
        if form != PACKED and form != MIXED or num_bytes == 0:
            raise BadRecordError(f"a node without tokens, or of form {form}")
        begin = position + _AT_TOKENS
        _require_bytes(begin + num_bytes, end)
        parent = self.find(read_i64_le(records, position + _AT_PARENT))
        if self._add_node(number, parent if parent != NO_ORDINAL else IS_GONE, num_bytes << 1 | form) != NO_ORDINAL:
            self._new_tokens.append(records[begin : begin + num_bytes])
            self._num_new_bytes += num_bytes
        return begin + num_bytes

    def _add_node(self, number: i64, parent: i64, size: i64) -> i64:
        """The ordinal; NO_ORDINAL for a node whose parent is not there."""
        if not 0 < number < _MOST_NUMBERS:
            raise BadRecordError(f"a node with the number {number}")
        if number >= self.next_node:
            self.next_node = number + 1
        elif self.find(number) != NO_ORDINAL:
            raise BadRecordError(f"a second node with the number {number}")
        if parent == IS_GONE:
            return NO_ORDINAL
        ordinal: i64 = len(self.numbers)
        if ordinal == self._num_ascending and (ordinal == 0 or number > self.numbers[ordinal - 1]):
            self._num_ascending = ordinal + 1
        else:
            self._other_numbers[int(number)] = int(ordinal)
        self.numbers = append(self.numbers, number)
        self.parents = append(self.parents, parent)
        frame: i64 = len(self._tokens)
        self._node_places = append(self._node_places, frame << 32 | self._num_new_bytes)
        self._node_sizes = append(self._node_sizes, size)
        return ordinal

    def find(self, number: i64) -> i64:
        """The ordinal of the node with that number that is there, or NO_ORDINAL."""
        ordinal = self._find_ascending(number)
        if (ordinal == NO_ORDINAL or self.parents[ordinal] == IS_GONE) and len(self._other_numbers) > 0:
            ordinal = self._other_numbers.get(int(number), NO_ORDINAL)
        return NO_ORDINAL if ordinal != NO_ORDINAL and self.parents[ordinal] == IS_GONE else ordinal

    def _find_ascending(self, number: i64) -> i64:
        """The ordinal of that number among those that ascend, or NO_ORDINAL."""
        numbers = self.numbers
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
        self._note_generation(generation)
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
            self.generations = append(self.generations, generation)
            self.slots = append(self.slots, slot)
            life_cycle: i64 = i64(read_i16_le(records, position + _AT_LIFE_CYCLE)) & _SHORT_MASK
            self._kinds = append(self._kinds, life_cycle | pool_group << 16 | count << 32)
            self._first_checksums = append(self._first_checksums, len(self._checksums))
            for chunk in range(count):
                self._checksums = append(self._checksums, read_i64_le(records, position + _AT_CHECKSUMS + 8 * chunk))
        return position + _AT_CHECKSUMS + 8 * count

    def _note_generation(self, generation: i64) -> None:
        if not 0 <= generation < _MOST_NUMBERS:
            raise BadRecordError(f"a page of generation {generation}")
        if generation >= self.next_generation:
            self.next_generation = generation + 1

    def _apply_order(self, records: bytes, position: i64, end: i64) -> i64:
        _require_bytes(position + _ORDER_BYTES, end)
        pool_group: i64 = i64(read_i16_le(records, position + 1)) & _SHORT_MASK
        begin = position + _ORDER_BYTES
        end_of_order = begin + 24 * (i64(read_i32_le(records, position + 3)) & _HALF_MASK)
        _require_bytes(end_of_order, end)
        while begin < end_of_order:
            slot = read_i64_le(records, begin)
            generation = read_i64_le(records, begin + 8)
            description = read_i64_le(records, begin + 16)
            if slot < 0 or description < 0:
                raise BadRecordError(f"an order of slot {slot} with the description {description}")
            self._note_generation(generation)
            page: i64 = self._slot_tables[pool_group].find(slot) if pool_group < len(self._slot_tables) else NO_PAGE
            if page != NO_PAGE:
                self.generations[page] = generation
                if description > 0:
                    self._descriptions[int(page)] = int(description)
            begin += 24
        return end_of_order

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
        if kind == ORDER:
            return self._apply_order(records, position, end)
        if kind == ROOT:
            _require_bytes(position + _ROOT_BYTES, end)
            said = _cut(records, position + _ROOT_BYTES, i64(read_i32_le(records, position + 9)))
            scope = decode_scope(said)
            ordinal = self._add_node(read_i64_le(records, position + 1), IS_ROOT, 0)
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
                self._free_slot(self.slots[page], self.pool_group_of(page))


def _require_bytes(position: i64, end: i64) -> None:
    if position > end:
        raise BadRecordError("a record ends inside its bytes")


def _cut(records: bytes, position: i64, num_bytes: i64) -> bytes:
    num_bytes &= _HALF_MASK
    _require_bytes(position + num_bytes, len(records))
    return records[position : position + num_bytes]
