"""One method per recorded call: what `journal_format` says about it, in code."""

from typing import Final, final

from librt.strings import write_i64_le
from mypy_extensions import i64, mypyc_attr

from ..reuse.token_packing import TOKEN_BYTES, has_digest
from .journal_format import (
    BEAM_WIDTH,
    CANCEL_DROP,
    ADJUST,
    ADVANCE,
    CLEAR,
    CLOSE,
    COMMIT,
    COMMIT_BEAMS,
    COMMIT_GIVEN,
    COMMIT_ONE,
    COMMIT_TREE,
    CREATE,
    DIGEST_EVERY,
    DROP,
    FORK,
    GROW,
    HINT,
    INVALIDATE,
    MIXED,
    MOVE,
    PLAN_DROP,
    PREFETCH,
    PROBE,
    REORDER,
    RESERVE,
    RESIZE,
    RESIZE_LEVEL,
    RESUME,
    SCRATCH,
    SETTLE,
    STOP,
    STREAM,
    SUSPEND,
)
from .journal_writer import JournalWriter

_MAX_SHORT_SERIAL: Final = 1 << 24
_MAX_SHORT_LENGTH: Final = 1 << 31

@final
@mypyc_attr(native_class=True)
class CallJournal:
    __slots__ = ("writer", "_priorities", "_prompts")

    writer: Final[JournalWriter]
    _priorities: Final[list[int]]
    """What the user's callback returned since `begin`."""
    _prompts: Final[dict[int, bytes]]
    """By serial, the packed tokens that an open sequence was given, until it has committed them, or others."""

    def __init__(self, writer: JournalWriter) -> None:
        self.writer = writer
        self._priorities = []
        self._prompts = {}

    def begin(self) -> None:
        """A call that may ask for priorities starts; what one that raised has asked before belongs to no record."""
        if len(self._priorities) > 0:
            self._priorities.clear()

    def priority(self, priority: int) -> None:
        self._priorities.append(priority)

    def _write_priorities(self) -> None:
        self.writer.number(len(self._priorities))
        for priority in self._priorities:
            self.writer.number(priority)

    def create(
        self,
        serial: i64,
        lora_id: int | str | None,
        salt: int | str | None,
        tokens: list[int | bytes] | None,
        packed: bytes | None,
        asks_priorities: bool,
        prompt_length: int | None,
        snapshot_positions: list[int],
        retention: str,
    ) -> None:
        """Either ``packed`` tokens without digests, or ``tokens``, or neither."""
        if packed is not None and len(packed) > 0:
            self._prompts[int(serial)] = packed
        self.writer.number(CREATE)
        self._write_priorities()
        self._text(lora_id, salt, tokens, packed)
        self.writer.number(1 if asks_priorities else 0)
        self.writer.number(0 if prompt_length is None else prompt_length + 1)
        self.writer.number(len(snapshot_positions))
        for position in snapshot_positions:
            self.writer.number(position)
        self.writer.scope_part(retention)
        self.writer.end_record()

    def probe(
        self, lora_id: int | str | None, salt: int | str | None, tokens: list[int | bytes] | None, packed: bytes | None
    ) -> None:
        self.writer.number(PROBE)
        self._text(lora_id, salt, tokens, packed)
        self.writer.end_record()

    def _text(
        self, lora_id: int | str | None, salt: int | str | None, tokens: list[int | bytes] | None, packed: bytes | None
    ) -> None:
        writer = self.writer
        writer.scope_part(lora_id)
        writer.scope_part(salt)
        if packed is not None:
            writer.number(1)
            writer.packed_tokens(packed)
        elif tokens is not None:
            writer.number(1)
            writer.mixed_tokens(tokens)
        else:
            writer.number(0)

    def resume(self, serial: i64, stream: int, result: bool) -> None:
        self.writer.operation(RESUME, serial)
        self._write_priorities()
        self.writer.number(stream)
        self.writer.number(1 if result else 0)
        self.writer.end_record()

    def prefetch(self, serial: i64, level: i64, result: bool) -> None:
        self.writer.operation(PREFETCH, serial)
        self.writer.number(level)
        self.writer.number(1 if result else 0)
        self.writer.end_record()

    def suspend(self, serial: i64) -> None:
        self.writer.operation(SUSPEND, serial)
        self.writer.end_record()

    def close(self, serial: i64) -> None:
        if len(self._prompts) > 0:
            self._prompts.pop(int(serial), None)
        self.writer.operation(CLOSE, serial)
        self.writer.end_record()

    def grow(self, serial: i64, capacity: i64, history: i64) -> None:
        """A resize that left the history as it is, asked for no priorities and returned True."""
        if serial < _MAX_SHORT_SERIAL and capacity < _MAX_SHORT_LENGTH:
            # As in `commit_one`, one store: a call for it would cost as much again.
            writer = self.writer
            write_i64_le(writer.buffer, GROW | serial << 8 | capacity << 32)
            num_records = writer.num_records + 1
            writer.num_records = num_records
            if num_records & (DIGEST_EVERY - 1) == 0:
                writer.pass_milestone()
        else:
            self.begin()
            self._long_resize(serial, capacity, history, True)

    def move(self, serial: i64, capacity: i64, history: i64) -> None:
        """A resize that asked for no priorities and returned True."""
        writer = self.writer
        if capacity < _MAX_SHORT_LENGTH:
            write_i64_le(writer.buffer, MOVE | serial << 8)
            write_i64_le(writer.buffer, capacity | history << 32)
            writer.end_record()
        else:
            self.begin()
            self._long_resize(serial, capacity, history, True)

    def resize(self, serial: i64, capacity: i64, history: i64, old_history: i64, result: bool) -> None:
        if not result or len(self._priorities) > 0:
            self._long_resize(serial, capacity, history, result)
        elif history == old_history:
            self.grow(serial, capacity, history)
        else:
            self.move(serial, capacity, history)

    def _long_resize(self, serial: i64, capacity: i64, history: i64, result: bool) -> None:
        writer = self.writer
        writer.operation(RESIZE, serial)
        self._write_priorities()
        writer.number(capacity)
        writer.number(history)
        writer.number(1 if result else 0)
        writer.end_record()

    def commit_one(self, serial: i64, token: i64) -> None:
        writer = self.writer
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

    def commit_given(self, serial: i64, begin: i64, packed: bytes) -> bool:
        """Whether what is committed at ``begin`` is what the sequence was given, which then need not be written again.

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
        writer = self.writer
        writer.operation(COMMIT_GIVEN, serial)
        writer.number(num_given // TOKEN_BYTES)
        writer.packed_tokens(rest)
        writer.end_record()
        return True

    def commit(self, serial: i64, tokens: list[int | bytes] | None, packed: bytes) -> None:
        """``tokens`` if there are digests among them, else ``packed`` says it all."""
        self.writer.operation(COMMIT, serial)
        self._tokens(tokens, packed)
        self.writer.end_record()

    def _tokens(self, tokens: list[int | bytes] | None, packed: bytes) -> None:
        if tokens is None:
            self.writer.packed_tokens(packed)
        else:
            self.writer.mixed_tokens(tokens)

    def commit_tree(
        self, serial: i64, positions: list[int], num_heads: i64, tokens: list[int | bytes] | None, packed: bytes
    ) -> None:
        self._picked_tokens(COMMIT_TREE, serial, positions, num_heads, tokens, packed)
        self.writer.end_record()

    def commit_beams(
        self, serial: i64, beams: list[int], num_heads: i64, tokens: list[int | bytes] | None, packed: bytes
    ) -> None:
        self._picked_tokens(COMMIT_BEAMS, serial, beams, num_heads, tokens, packed)
        self.writer.end_record()

    def _picked_tokens(
        self, operation: i64, serial: i64, picked: list[int], num_heads: i64, tokens: list[int | bytes] | None, packed: bytes
    ) -> None:
        self.writer.operation(operation, serial)
        self.writer.number(num_heads)
        self._numbers(picked)
        self._tokens(tokens, packed)

    def _numbers(self, numbers: list[int]) -> None:
        self.writer.number(len(numbers))
        for number in numbers:
            self.writer.number(number)

    def beam_width(self, serial: i64, width: i64) -> None:
        self.writer.operation(BEAM_WIDTH, serial)
        self.writer.number(width)
        self.writer.end_record()

    def reorder_beams(self, serial: i64, parents: list[int]) -> None:
        self.writer.operation(REORDER, serial)
        self._numbers(parents)
        self.writer.end_record()

    def stop_committing(self, serial: i64) -> None:
        self.writer.operation(STOP, serial)
        self.writer.end_record()

    def change_stream(self, serial: i64, stream: int) -> None:
        self.writer.operation(STREAM, serial)
        self.writer.number(stream)
        self.writer.end_record()

    def enable_scratch(self, serial: i64, enable: bool) -> None:
        self.writer.operation(SCRATCH, serial)
        self.writer.number(1 if enable else 0)
        self.writer.end_record()

    def fork(self, serial: i64) -> None:
        self.writer.operation(FORK, serial)
        self.writer.end_record()

    def plan_drop(self, serial: i64) -> None:
        self.writer.operation(PLAN_DROP, serial)
        self.writer.end_record()

    def drop(self, number: i64) -> None:
        self.writer.operation(DROP, number)
        self.writer.end_record()

    def cancel_drop(self, number: i64) -> None:
        self.writer.operation(CANCEL_DROP, number)
        self.writer.end_record()

    def reserve(self, serial: i64, begin: i64, end: i64) -> None:
        self.writer.operation(RESERVE, serial)
        self.writer.number(begin)
        self.writer.number(end)
        self.writer.end_record()

    def settle(self, number: i64, stream: int | None) -> None:
        self.writer.operation(SETTLE, number)
        self.writer.number(0 if stream is None else stream + 1)
        self.writer.end_record()

    def hint(
        self, kind: i64, lora_id: int | str | None, salt: int | str | None, tokens: list[int | bytes] | None, packed: bytes | None,
        value: i64, duration: i64, num_accepted: i64,
    ) -> None:  # fmt: skip
        self.writer.number(HINT)
        self.writer.number(kind)
        self._text(lora_id, salt, tokens, packed)
        self.writer.number(value)
        self.writer.number(duration)
        self.writer.number(num_accepted)
        self.writer.end_record()

    def advance_clock(self, microseconds: i64) -> None:
        self.writer.number(ADVANCE)
        self.writer.number(microseconds)
        self.writer.end_record()

    def resize_level(
        self, level: i64, quota: i64, best_efforts: bool, new_quota: i64, result: bool
    ) -> None:
        self.writer.number(RESIZE_LEVEL)
        self.writer.number(level)
        self.writer.number(quota)
        self.writer.number(1 if best_efforts else 0)
        self.writer.number(new_quota)
        self.writer.number(1 if result else 0)
        self.writer.end_record()

    def adjust(self, result: bool) -> None:
        self.writer.number(ADJUST)
        self.writer.number(1 if result else 0)
        self.writer.end_record()

    def invalidate(self, lora_id: int | None, salt: int | str | None) -> None:
        self.writer.number(INVALIDATE)
        self.writer.scope_part(lora_id)
        self.writer.scope_part(salt)
        self.writer.end_record()

    def clear(self) -> None:
        self.writer.number(CLEAR)
        self.writer.end_record()
