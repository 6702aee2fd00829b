"""Blocks that are recorded for the first time: collected by the caller, encoded by the thread that writes the index."""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from .record_format import encode_node

WHOLE: Final = 2
"""In place of a form: the bytes are the whole record."""

_BEGIN_SHIFT: Final = 34
_LENGTH_SHIFT: Final = 2
_LENGTH_MASK: Final = (1 << 32) - 1
_FORM_MASK: Final = 3


@final
class NodeBatch:
    """Node records in the order in which they were added; not changed any more once it is in a queue."""

    __slots__ = ("_nodes", "_parents", "_places", "_tokens")

    def __init__(self) -> None:
        self._nodes = vec[i64]()
        self._parents = vec[i64]()
        self._places = vec[i64]()
        """By node: form (bits 0-1) | how many bytes of its tokens are its own (2-33) | where they begin."""
        self._tokens: Final[list[bytes]] = []

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, node: i64, parent: i64, tokens: bytes, begin: i64, num_bytes: i64, form: i64) -> None:
        """The node's bytes are ``num_bytes`` of ``tokens``, from ``begin`` on."""
        self._nodes = append(self._nodes, node)
        self._parents = append(self._parents, parent)
        self._places = append(self._places, begin << _BEGIN_SHIFT | num_bytes << _LENGTH_SHIFT | form)
        self._tokens.append(tokens)

    def encode(self) -> bytes:
        """All records, one behind the other."""
        records: list[bytes] = []
        for number in range(len(self._tokens)):
            place = self._places[number]
            begin = place >> _BEGIN_SHIFT
            form = place & _FORM_MASK
            own = self._tokens[number][begin : begin + (place >> _LENGTH_SHIFT & _LENGTH_MASK)]
            records.append(own if form == WHOLE else encode_node(self._nodes[number], self._parents[number], own, int(form)))
        return b"".join(records)
