"""Blocks that are recorded for the first time: collected by the caller, encoded by the thread that writes the index."""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from .record_format import encode_node


@final
@mypyc_attr(native_class=True)
class NodeBatch:
    """Node records in the order in which they were added; not changed any more once it is in a queue."""

    __slots__ = ("_nodes", "_parents", "_forms", "_tokens")

    _nodes: vec[i64]
    _parents: vec[i64]
    _forms: vec[i64]
    _tokens: Final[list[bytes]]

    def __init__(self) -> None:
        self._nodes = vec[i64]()
        self._parents = vec[i64]()
        self._forms = vec[i64]()
        self._tokens = []

    def __len__(self) -> int:
        return len(self._tokens)

    def add(self, node: i64, parent: i64, tokens: bytes, form: i64) -> None:
        self._nodes = append(self._nodes, node)
        self._parents = append(self._parents, parent)
        self._forms = append(self._forms, form)
        self._tokens.append(tokens)

    def encode(self) -> bytes:
        """All records, one behind the other."""
        records: list[bytes] = []
        for number in range(len(self._tokens)):
            records.append(encode_node(self._nodes[number], self._parents[number], self._tokens[number], int(self._forms[number])))
        return b"".join(records)
