"""Records of public calls, as the façade hands them over. This base keeps none of them; `CallJournal` writes them to a file.

So a call records itself without asking whether there is a journal. What a record says: `journal_format`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..base.errors import LogicError
from ..config.retention import RetentionConfig
from ..reuse.reuse_scope import ReuseScope

if TYPE_CHECKING:
    from ..reuse.token_forms import Tokens

ABSENT: Final = -1


@mypyc_attr(native_class=True)
class CallRecords:
    __slots__ = ()

    def discard(self) -> None:
        """The call raises: priorities that it asked for belong to no record."""

    def priority(self, priority: int) -> None:
        """The user's callback returned it during the call."""

    def record(
        self, operation: i64, first: i64 = ABSENT, second: i64 = ABSENT, third: i64 = ABSENT, fourth: i64 = ABSENT, fifth: i64 = ABSENT
    ) -> None:
        """A call whose record is numbers only: those that are given, in the order of the format."""

    def create(
        self,
        serial: i64,
        scope: ReuseScope,
        tokens: Tokens | None,
        packed: bytes | None,
        asks_priorities: bool,
        prompt_length: int | None,
        snapshot_positions: list[int],
        retention: RetentionConfig | None,
        is_counted: bool,
    ) -> None:
        """``packed``: what ``tokens`` are."""

    def probe(self, scope: ReuseScope, tokens: Tokens | None, packed: bytes | None, with_planned: bool) -> None:
        """``packed``: what ``tokens`` are."""

    def hint(
        self, kind: i64, scope: ReuseScope, tokens: Tokens, packed: bytes, value: i64, duration: i64, num_accepted: i64
    ) -> None:
        """``value``: the priority or level."""

    def invalidate(self, scope: ReuseScope) -> None:
        """All that was kept for the scope is forgotten."""

    def restored(self, records: bytes) -> None:
        """The index of the durable level, as the manager found it, before any call. The last ones end with END."""

    def keep(self, names: list[bytes]) -> None:
        """Keep of the restored prefixes only these."""

    def resume(self, serial: i64, stream: int, result: bool) -> None:
        """With the priorities that it asked for."""

    def resize(self, serial: i64, capacity: i64, history: i64, old_history: i64, result: bool) -> None:
        """With the priorities that it asked for."""

    def grow(self, serial: i64, capacity: i64, history: i64) -> None:
        """A resize that left the history as it is, asked for no priorities and returned True."""

    def move(self, serial: i64, capacity: i64, history: i64) -> None:
        """A resize that asked for no priorities and returned True."""

    def commit_one(self, serial: i64, token: i64) -> None:
        """A commit of one token id."""

    def commit(self, serial: i64, begin: i64, packed: bytes) -> None:
        """A commit of tokens from position ``begin`` on."""

    def publish_planned(self, serial: i64, packed: bytes, num_offered: i64) -> None:
        """Tokens that follow the committed ones, of which so many were offered."""

    def commit_last(self, serial: i64, packed: bytes) -> None:
        """A commit of tokens with ``is_end``, and the `stop_committing` that belongs to it."""

    def commit_picked(self, operation: i64, serial: i64, picked: vec[i64], num_heads: i64, packed: bytes) -> None:
        """A commit of nodes of a tree, or of tokens of several beams: where each token's bytes are."""

    def reorder(self, serial: i64, parents: vec[i64]) -> None:
        """Each beam goes on from another one."""

    def close(self, serial: i64, continues: i64) -> None:
        """The sequence is closed, or its forgotten handle was, with that hint."""

    def flush(self) -> None:
        """Hand everything so far to the operating system; `LogicError` without a file, or `OSError` why it ended."""
        raise LogicError("this manager has no journal; give a path as journal= when it is made")

    def end(self) -> None:
        """No call follows. Twice is fine."""
