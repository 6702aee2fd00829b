"""Records of public calls, as the façade hands them over. This base keeps none of them; `CallJournal` writes them to a file.

So a call records itself without asking whether there is a journal. What a record says: `journal_format`.
"""

from __future__ import annotations

from typing import Any, Final

from mypy_extensions import i64

from ..base.errors import LogicError

ASKED: Final = "asked"


class CallRecords:
    __slots__ = ()

    def discard(self) -> None:
        """The call raises: priorities that it asked for belong to no record."""

    def priority(self, priority: int) -> None:
        """The user's callback returned it during the call."""

    def record(self, operation: i64, *fields: Any) -> None:
        """A call, with the fields of its record in the order of `journal_format`: numbers, packed tokens, lists, scopes, retention.

        `ASKED` stands for the priorities that it asked for, a pair for tokens as they were given and packed, or not given.
        """

    def remember(self, serial: i64, packed: bytes) -> None:
        """The sequence is made with these tokens, which it will probably commit."""

    def restored(self, records: bytes) -> None:
        """The index of the durable level, as the manager found it, before any call. The last ones end with END."""

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

    def close(self, serial: i64, continues: i64) -> None:
        """The sequence is closed, or its forgotten handle was, with that hint."""

    def flush(self) -> None:
        """Hand everything so far to the operating system; `LogicError` without a file, or `OSError` why it ended."""
        raise LogicError("this manager has no journal; give a path as journal= when it is made")

    def end(self) -> None:
        """No call follows. Twice is fine."""
