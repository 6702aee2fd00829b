"""A snapshot of an index: the records that a state would be read from, made piece by piece."""

from collections.abc import Iterator
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from .index_state import IS_GONE, IndexState
from .record_format import encode_end, encode_weights

_PIECE_BYTES: Final = 1 << 17
_RECORD_COST: Final = 8
"""Bytes that take as long as a record without any."""


@final
class IndexSnapshot:
    """Some nodes and pages of a state, in some order, to be encoded piece by piece: another thread may run in between.

    ``nodes``: ordinals, parents first. ``parents`` and ``page_nodes``: by ordinal, what they are from now on. Without ``has_checksums``
    no page is compared with its checksums when it is read.
    """

    __slots__ = ("_state", "_nodes", "_parents", "_pages", "_page_nodes", "_next_generation", "_has_checksums")

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
        self._state: Final = state
        self._nodes: Final = nodes
        self._parents: Final = parents
        self._pages: Final = pages
        self._page_nodes: Final = page_nodes
        self._next_generation: Final = next_generation
        self._has_checksums: Final = has_checksums

    def pieces(self) -> Iterator[bytes]:
        """The records, those of a frame at a time: nodes first."""
        records: list[bytes] = []
        num_bytes = 0
        for record in self._records():
            records.append(record)
            num_bytes += len(record) + _RECORD_COST
            if num_bytes >= _PIECE_BYTES:
                yield b"".join(records)
                records = []
                num_bytes = 0
        if len(records) > 0:
            yield b"".join(records)

    def _records(self) -> Iterator[bytes]:
        state = self._state
        for position in range(len(self._nodes)):
            node = self._nodes[position]
            yield state.node_record(node, self._parents[node])
        for position in range(len(self._pages)):
            page = self._pages[position]
            yield state.page_record(page, self._page_nodes[page], self._has_checksums)
        if len(state.weights) > 0:
            yield encode_weights(state.weights)
        yield encode_end(state.next_node, self._next_generation)
        for position in range(len(self._pages)):
            yield state.order_record(self._pages[position])


def encode_state(state: IndexState) -> list[bytes]:
    """The records of a snapshot of all of it, in pieces of a frame each: nodes first."""
    nodes = vec[i64]([node for node in range(state.num_nodes) if state.parents[node] != IS_GONE])
    return list(IndexSnapshot(state, nodes, state.parents, state.list_pages(), state.page_nodes, state.next_generation).pieces())
