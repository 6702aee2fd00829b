"""The journal of a manager's calls: each record as `journal_format` says, written through `JournalWriter`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, final

from librt.strings import write_i64_le
from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..config.config_codec import encode_value
from ..config.retention import RetentionConfig
from ..reuse.digest_table import DigestTable
from ..reuse.reuse_scope import ReuseScope
from ..reuse.token_packing import TOKEN_BYTES, has_digest, unpack_tokens
from .call_records import ABSENT, CallRecords
from .journal_format import (
    CLOSE,
    COMMIT,
    COMMIT_GIVEN,
    COMMIT_LAST,
    COMMIT_ONE,
    CREATE,
    DIGEST_EVERY,
    GROW,
    HINT,
    INVALIDATE,
    KEEP,
    MIXED,
    MOVE,
    PROBE,
    PUBLISH_PLANNED,
    REORDER,
    RESIZE,
    RESTORED,
    RESUME,
)
from .journal_writer import JournalWriter

if TYPE_CHECKING:
    from ..reuse.token_forms import Tokens

_MAX_SHORT_SERIAL: Final = 1 << 24
_MAX_SHORT_LENGTH: Final = 1 << 31


@final
@mypyc_attr(native_class=True)
class CallJournal(CallRecords):
    __slots__ = ("_writer", "_digests", "_priorities", "_prompts")

    _writer: Final[JournalWriter]
    _digests: Final[DigestTable]
    """The manager's digests: what packed tokens that stand for digests mean."""
    _priorities: Final[list[int]]
    """Priorities that the user's callback returned and no record has yet."""
    _prompts: Final[dict[int, bytes]]
    """By serial, the packed tokens that an open sequence was given, until it has committed them, or others."""

    def __init__(self, writer: JournalWriter, digests: DigestTable) -> None:
        self._writer = writer
        self._digests = digests
        self._priorities = []
        self._prompts = {}

    def discard(self) -> None:
        self._priorities.clear()

    def priority(self, priority: int) -> None:
        self._priorities.append(priority)

    def record(
        self, operation: i64, first: i64 = ABSENT, second: i64 = ABSENT, third: i64 = ABSENT, fourth: i64 = ABSENT, fifth: i64 = ABSENT
    ) -> None:
        self._writer.number(operation)
        for number in (first, second, third, fourth, fifth):
            if number != ABSENT:
                self._writer.number(number)
        self._writer.end_record()

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
        writer = self._writer
        if packed is not None and len(packed) > 0 and not _is_mixed(tokens, packed):
            self._prompts[int(serial)] = packed
        writer.number(CREATE)
        self._take_priorities()
        self._scoped_tokens(scope, tokens, packed)
        writer.number(1 if asks_priorities else 0)
        writer.number(0 if prompt_length is None else prompt_length + 1)
        self._numbers(snapshot_positions)
        writer.scope_part("" if retention is None else encode_value(retention))
        writer.number(1 if is_counted else 0)
        writer.end_record()

    def probe(self, scope: ReuseScope, tokens: Tokens | None, packed: bytes | None, with_planned: bool) -> None:
        self._writer.number(PROBE)
        self._scoped_tokens(scope, tokens, packed)
        self._writer.number(1 if with_planned else 0)
        self._writer.end_record()

    def hint(
        self, kind: i64, scope: ReuseScope, tokens: Tokens, packed: bytes, value: i64, duration: i64, num_accepted: i64
    ) -> None:
        writer = self._writer
        writer.number(HINT)
        writer.number(kind)
        self._scoped_tokens(scope, tokens, packed)
        writer.number(value)
        writer.number(duration)
        writer.number(num_accepted)
        writer.end_record()

    def invalidate(self, scope: ReuseScope) -> None:
        self._writer.number(INVALIDATE)
        self._scope(scope)
        self._writer.end_record()

    def restored(self, records: bytes) -> None:
        self._writer.number(RESTORED)
        self._writer.raw(records)
        self._writer.flush()

    def keep(self, names: list[bytes]) -> None:
        self._writer.number(KEEP)
        self._writer.number(len(names))
        for name in names:
            self._writer.fixed(name)
        self._writer.end_record()

    def resume(self, serial: i64, stream: int, result: bool) -> None:
        self._writer.operation(RESUME, serial)
        self._take_priorities()
        self._writer.number(stream)
        self._writer.number(1 if result else 0)
        self._writer.end_record()

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
            self._long_resize(serial, capacity, history, True)

    def move(self, serial: i64, capacity: i64, history: i64) -> None:
        writer = self._writer
        if capacity < _MAX_SHORT_LENGTH:
            write_i64_le(writer.buffer, MOVE | serial << 8)
            write_i64_le(writer.buffer, capacity | history << 32)
            writer.end_record()
        else:
            self._long_resize(serial, capacity, history, True)

    def resize(self, serial: i64, capacity: i64, history: i64, old_history: i64, result: bool) -> None:
        if not result or len(self._priorities) > 0:
            self._long_resize(serial, capacity, history, result)
        elif history == old_history:
            self.grow(serial, capacity, history)
        else:
            self.move(serial, capacity, history)

    def _long_resize(self, serial: i64, capacity: i64, history: i64, result: bool) -> None:
        writer = self._writer
        writer.operation(RESIZE, serial)
        self._take_priorities()
        writer.number(capacity)
        writer.number(history)
        writer.number(1 if result else 0)
        writer.end_record()

    def commit_one(self, serial: i64, token: i64) -> None:
        writer = self._writer
        if serial < _MAX_SHORT_SERIAL:
            write_i64_le(writer.buffer, COMMIT_ONE | serial << 8 | token << 32)
            num_records = writer.num_records + 1
            writer.num_records = num_records
            if num_records & (DIGEST_EVERY - 1) == 0:
                writer.pass_milestone()
        else:
            writer.operation(COMMIT, serial)
            writer.number(1)
            writer.number(MIXED)
            writer.number(token + 1)
            writer.end_record()

    def publish_planned(self, serial: i64, packed: bytes, num_offered: i64) -> None:
        self._writer.operation(PUBLISH_PLANNED, serial)
        self._tokens(packed)
        self._writer.number(num_offered)
        self._writer.end_record()

    def commit(self, serial: i64, begin: i64, packed: bytes) -> None:
        if len(self._prompts) > 0 and self._commit_given(serial, begin, packed):
            return
        self._writer.operation(COMMIT, serial)
        self._tokens(packed)
        self._writer.end_record()

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
        writer = self._writer
        writer.operation(COMMIT_GIVEN, serial)
        writer.number(num_given // TOKEN_BYTES)
        writer.packed_tokens(rest)
        writer.end_record()
        return True

    def commit_last(self, serial: i64, packed: bytes) -> None:
        self._writer.operation(COMMIT_LAST, serial)
        self._tokens(packed)
        self._writer.end_record()

    def commit_picked(self, operation: i64, serial: i64, picked: vec[i64], num_heads: i64, packed: bytes) -> None:
        self._writer.operation(operation, serial)
        self._writer.number(num_heads)
        self._numbers([int(number) for number in picked])
        self._tokens(packed)
        self._writer.end_record()

    def reorder(self, serial: i64, parents: vec[i64]) -> None:
        self._writer.operation(REORDER, serial)
        self._numbers([int(parent) for parent in parents])
        self._writer.end_record()

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

    def _take_priorities(self) -> None:
        self._numbers(self._priorities)
        self._priorities.clear()

    def _numbers(self, numbers: list[int]) -> None:
        self._writer.number(len(numbers))
        for number in numbers:
            self._writer.number(number)

    def _scope(self, scope: ReuseScope) -> None:
        self._writer.scope_part(scope.lora_id)
        self._writer.scope_part(scope.salt)

    def _scoped_tokens(self, scope: ReuseScope, tokens: Tokens | None, packed: bytes | None) -> None:
        self._scope(scope)
        if tokens is None or packed is None:
            self._writer.number(0)
            return
        self._writer.number(1)
        if _is_mixed(tokens, packed) and isinstance(tokens, Sequence):
            self._writer.mixed_tokens([token if isinstance(token, bytes) else int(token) for token in tokens])
        else:
            self._writer.packed_tokens(packed)

    def _tokens(self, packed: bytes) -> None:
        if has_digest(packed):
            self._writer.mixed_tokens(unpack_tokens(packed, self._digests))
        else:
            self._writer.packed_tokens(packed)


def _is_mixed(tokens: Tokens | None, packed: bytes) -> bool:
    """Whether the tokens are recorded as they were given: digests that the manager does not know are in no table."""
    return isinstance(tokens, Sequence) and has_digest(packed)
