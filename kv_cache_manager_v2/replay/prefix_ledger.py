"""A ledger of published prefixes: what an unlimited cache could reuse, computed from segment codes alone, without the manager.

The ledger is a tree of segments. A request that is being served publishes its prompt and answer as it advances; a match is
the number of leading tokens that any request has published. Two token runs differ exactly where their segments do
(see `tokens`), so that number is exact. It is the yardstick of the report (hit rate against the possible) and of tests.

A segment may have been published in part: a trace's last block is cut, a running request has not reached its end. For
each place in the tree the ledger has the longest part that was published.
"""

from typing import Final, final


from .workload import Request

_ROOT: Final = 0


@final
class LedgerCursor:
    """The position up to which one request has published."""

    __slots__ = ("codes", "lengths", "node", "segment_ordinal", "num_tokens_before")

    def __init__(self, request: Request) -> None:
        self.codes: Final[list[int]] = request.codes_with_answer().tolist()
        self.lengths: Final[list[int]] = request.lengths_with_answer().tolist()
        self.node: int = _ROOT
        self.segment_ordinal = 0
        self.num_tokens_before = 0
        """Tokens of the segments before this one."""


@final
class PrefixLedger:
    """Everything that was ever published."""

    __slots__ = ("_children", "_published", "_num_nodes")

    def __init__(self) -> None:
        self._children: Final[dict[tuple[int, int, int], int]] = {}
        """(node, code, length) -> the node after that segment, which was published to its end."""
        self._published: Final[dict[tuple[int, int], int]] = {}
        """(node, code) -> tokens published of that segment, at most."""
        self._num_nodes = 1

    def match(self, request: Request) -> int:
        """Leading prompt tokens that are published; all but the last one, whose output the model must compute."""
        node = _ROOT
        matched = 0
        codes: list[int] = request.segment_codes.tolist()
        lengths: list[int] = request.segment_lengths.tolist()
        for code, length in zip(codes, lengths, strict=True):
            published = self._published.get((node, code), 0)
            if published < length:
                matched += published
                break
            matched += length
            child = self._children.get((node, code, length))
            if child is None:
                break
            node = child
        return min(matched, request.num_prompt_tokens - 1)

    def publish(self, cursor: LedgerCursor, num_tokens: int) -> None:
        """Publish the first ``num_tokens`` of the cursor's request. Never fewer than before."""
        while cursor.segment_ordinal < len(cursor.codes):
            code = cursor.codes[cursor.segment_ordinal]
            length = cursor.lengths[cursor.segment_ordinal]
            part = min(num_tokens - cursor.num_tokens_before, length)
            if part <= 0:
                return
            place = (cursor.node, code)
            if self._published.get(place, 0) < part:
                self._published[place] = part
            if part < length:
                return
            cursor.node = self._node_after(cursor.node, code, length)
            cursor.segment_ordinal += 1
            cursor.num_tokens_before += length

    def _node_after(self, node: int, code: int, length: int) -> int:
        key = (node, code, length)
        child = self._children.get(key)
        if child is None:
            child = self._num_nodes
            self._num_nodes += 1
            self._children[key] = child
        return child
