"""A snapshot of an index: the records that a state would be read from, made piece by piece."""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from .index_state import IS_GONE, IndexState
from .record_format import encode_end, encode_weights

_PIECE_BYTES: Final = 1 << 17
_RECORD_COST: Final = 8
"""Bytes that take as long as a record without any."""


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
    """Of the next node, behind them of the next page, of the end, and of the next page that is described."""
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
        num_pages: i64 = len(self._pages)
        end = num_nodes + num_pages
        position = self._position
        while position <= end + num_pages and num_bytes < _PIECE_BYTES:
            if position < num_nodes:
                node = self._nodes[position]
                record = state.node_record(node, self._parents[node])
            elif position < end:
                page = self._pages[position - num_nodes]
                record = state.page_record(page, self._page_nodes[page], self._has_checksums)
            elif position == end:
                record = encode_end(state.next_node, self._next_generation)
                if len(state.weights) > 0:
                    record = encode_weights(state.weights) + record
            else:
                record = state.order_record(self._pages[position - end - 1])
            records.append(record)
            num_bytes += len(record) + _RECORD_COST
            position += 1
        self._position = position
        self._is_done = position > end + num_pages
        return b"".join(records)


def encode_state(state: IndexState) -> list[bytes]:
    """The records of a snapshot of all of it, in pieces of a frame each: nodes first."""
    nodes = vec[i64]([node for node in range(state.num_nodes) if state.parents[node] != IS_GONE])
    return list_pieces(IndexSnapshot(state, nodes, state.parents, state.list_pages(), state.page_nodes, state.next_generation))


def list_pieces(snapshot: IndexSnapshot) -> list[bytes]:
    pieces: list[bytes] = []
    piece = snapshot.take_piece()
    while piece is not None:
        pieces.append(piece)
        piece = snapshot.take_piece()
    return pieces
