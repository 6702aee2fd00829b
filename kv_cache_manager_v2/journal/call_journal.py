"""The journal of a manager's calls: each record as `journal_format` says, written through `JournalWriter`."""

from __future__ import annotations

from typing import Any, Final, final

from librt.strings import write_i64_le
from mypy_extensions import i64

from ..config.config_codec import encode_value
from ..reuse.digest_table import DigestTable
from ..reuse.reuse_scope import ReuseScope
from ..reuse.token_packing import TOKEN_BYTES, has_digest, unpack_tokens
from .call_records import ASKED, CallRecords
from .journal_format import CLOSE, COMMIT, COMMIT_GIVEN, COMMIT_ONE, DIGEST_EVERY, GROW, MIXED, MOVE, RESIZE, RESTORED
from .journal_writer import JournalWriter

_MAX_SHORT_SERIAL: Final = 1 << 24
_MAX_SHORT_LENGTH: Final = 1 << 31


@final
class CallJournal(CallRecords):
    __slots__ = ("_writer", "_digests", "_priorities", "_prompts")

    def __init__(self, writer: JournalWriter, digests: DigestTable) -> None:
        self._writer: Final = writer
        self._digests: Final = digests
        """The manager's digests: what packed tokens that stand for digests mean."""
        self._priorities: Final[list[int]] = []
        """Priorities that the user's callback returned and no record has yet."""
        self._prompts: Final[dict[int, bytes]] = {}
        """By serial, the packed tokens that an open sequence was given, until it has committed them, or others."""

    def discard(self) -> None:
        self._priorities.clear()

    def priority(self, priority: int) -> None:
        self._priorities.append(priority)

    def record(self, operation: i64, *fields: Any) -> None:
        writer = self._writer
        writer.number(operation)
        for field in fields:
            if isinstance(field, int):
                writer.number(field)
            elif isinstance(field, str):  # ASKED
                self._list(self._priorities)
                self._priorities.clear()
            elif isinstance(field, bytes):
                self._tokens(field)
            elif isinstance(field, tuple):
                self._given_tokens(field[0], field[1])
            elif isinstance(field, list):
                self._list(field)
            elif isinstance(field, ReuseScope):
                writer.scope_part(field.lora_id)
                writer.scope_part(field.salt)
            else:
                writer.scope_part("" if field is None else encode_value(field))
        writer.end_record()

    def remember(self, serial: i64, packed: bytes) -> None:
        if len(packed) > 0 and not has_digest(packed):
            self._prompts[int(serial)] = packed

    def restored(self, records: bytes) -> None:
        self._writer.number(RESTORED)
        self._writer.raw(records)
        self._writer.flush()

    def grow(self, serial: i64, capacity: i64, history: i64) -> None:
        if serial < _MAX_SHORT_SERIAL and capacity < _MAX_SHORT_LENGTH:
            # As in `commit_one`, one store: a call for it would cost as much again.
            writer = self._writer
            write_i64_le(writer.buffer, GROW | serial << 8 | capacity << 32)
            num_records = writer.num_records + 1
            writer.num_records = num_records
            if num_records & (DIGEST_EVERY - 1) == 0:
                writer.pass_milestone()
        else:
            self.record(RESIZE, serial, ASKED, capacity, history, True)

    def move(self, serial: i64, capacity: i64, history: i64) -> None:
        writer = self._writer
        if capacity < _MAX_SHORT_LENGTH:
            write_i64_le(writer.buffer, MOVE | serial << 8)
            write_i64_le(writer.buffer, capacity | history << 32)
            writer.end_record()
        else:
            self.record(RESIZE, serial, ASKED, capacity, history, True)

    def resize(self, serial: i64, capacity: i64, history: i64, old_history: i64, result: bool) -> None:
        if not result or len(self._priorities) > 0:
            self.record(RESIZE, serial, ASKED, capacity, history, result)
        elif history == old_history:
            self.grow(serial, capacity, history)
        else:
            self.move(serial, capacity, history)

    def commit_one(self, serial: i64, token: i64) -> None:
        writer = self._writer
        if serial < _MAX_SHORT_SERIAL:
            write_i64_le(writer.buffer, COMMIT_ONE | serial << 8 | token << 32)
            num_records = writer.num_records + 1
            writer.num_records = num_records
            if num_records & (DIGEST_EVERY - 1) == 0:
                writer.pass_milestone()
        else:
            self.record(COMMIT, serial, 1, MIXED, token + 1)

    def commit(self, serial: i64, begin: i64, packed: bytes) -> None:
        if len(self._prompts) > 0 and self._commit_given(serial, begin, packed):
            return
        self.record(COMMIT, serial, packed)

    def _commit_given(self, serial: i64, begin: i64, packed: bytes) -> bool:
        """Whether the tokens are those that the sequence was given, which then need not be written again.

        False, and nothing is written, if that is not so; then it is not asked again.
        """
        prompt = self._prompts.get(int(serial))
        if prompt is None:
            return False
        given = prompt[begin * TOKEN_BYTES : begin * TOKEN_BYTES + len(packed)]
        num_given: i64 = len(given)
        is_given = num_given > 0 and (given == packed if num_given == len(packed) else packed.startswith(given))
        if not is_given or begin * TOKEN_BYTES + num_given == len(prompt):
            del self._prompts[int(serial)]
        rest = packed[num_given:]
        if not is_given or has_digest(rest):
            return False
        self.record(COMMIT_GIVEN, serial, num_given // TOKEN_BYTES, rest)
        return True

    def close(self, serial: i64, continues: i64) -> None:
        if len(self._prompts) > 0:
            self._prompts.pop(int(serial), None)
        self.record(CLOSE, serial, continues)

    def flush(self) -> None:
        self._writer.flush()
        if self._writer.error is not None:
            raise self._writer.error

    def end(self) -> None:
        self._writer.close()

    # -- fields -------------------------------------------------------------------------------------------------------

    def _list(self, items: list[Any]) -> None:
        """A count, and as many numbers or names."""
        self._writer.number(len(items))
        for item in items:
            if isinstance(item, int):
                self._writer.number(item)
            else:
                self._writer.buffer.write(item)

    def _given_tokens(self, tokens: Any, packed: bytes | None) -> None:
        """Digests are recorded as they were given: those that the manager does not know are in no table."""
        self._writer.number(0 if packed is None else 1)
        if packed is not None and has_digest(packed):
            self._writer.mixed_tokens([token if isinstance(token, bytes) else int(token) for token in tokens])
        elif packed is not None:
            self._writer.packed_tokens(packed)

    def _tokens(self, packed: bytes) -> None:
        if has_digest(packed):
            self._writer.mixed_tokens(unpack_tokens(packed, self._digests))
        else:
            self._writer.packed_tokens(packed)
