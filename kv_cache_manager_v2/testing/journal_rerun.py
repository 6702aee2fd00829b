"""Runs a journal again: the same calls on a new manager, and the digest of all decisions compared on the way.

The streams of the record are handles of a process that is gone; each distinct one becomes a stream of the new device. The
user's priorities come from the record.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, final

from mypy_extensions import mypyc_attr

from ..base.errors import CorruptedError, KVCacheManagerError, OutOfPagesError
from ..base.ids import BlockOrdinal
from ..base.value import Value
from ..config.cache_tier_config import DiskCacheTierConfig
from ..config.config_codec import decode_config, decode_retention
from ..config.manager_config import KVCacheManagerConfig
from ..device.external_device import ExternalDevice
from ..device.port import Device
from ..journal import journal_format as form
from ..journal.journal_reader import JournalError, JournalReader, TornJournalError
from ..layout.life_cycle import LifeCycle
from ..manager.committed_block_drop import CommittedBlockDrop
from ..manager.durable_opening import write_folder
from ..manager.kv_cache import KVCache
from ..manager.kv_cache_manager import KVCacheManager
from ..manager.transfer_lease import TransferLease
from ..reuse.reuse_scope import ReuseScope
from ..sequence.retention_plan import EXPECTED, FOR_EVER


_CALLS_BETWEEN_UPDATES: Final = 64


@dataclass(frozen=True)
class RerunResult(Value):
    """``num_digests`` points at which the decisions were compared and found equal; ``digest`` is the last one.

    ``num_torn_bytes`` at the end are the beginning of a record whose rest was never written; 0 if the journal ends with a whole one.
    """

    num_calls: int
    num_digests: int
    digest: bytes
    num_torn_bytes: int = 0


class RerunMismatch(Exception):
    """The same calls led to another decision: after which call, and what was recorded and found."""


def rerun_to(
    path: Path, device: Device, num_calls: int | None, progress: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    """The state dump of the manager after so many calls of the journal, or after the last; errors as from `rerun`.

    `ValueError` if the journal has fewer calls.
    """
    run = _Rerun(JournalReader(path.read_bytes()), device, False)
    run.stop_after = num_calls
    run.progress = progress
    run.run()
    if num_calls is not None and run.num_calls < num_calls:
        raise ValueError(f"the journal has {run.num_calls} calls, fewer than {num_calls}")
    return run.dump


def rerun(
    path: Path, device: Device, check_invariants: bool = False, progress: Callable[[int, int], None] | None = None
) -> RerunResult:
    """``progress`` gets the bytes done and all bytes, now and then. `JournalError` if the journal cannot be read, `RerunMismatch` at the
    first difference, `OSError` from the file."""
    reader = JournalReader(path.read_bytes())
    run = _Rerun(reader, device, check_invariants)
    run.progress = progress
    return run.run()


@final
@mypyc_attr(native_class=True)
class _Rerun:
    """One journal on its way through a new manager."""

    __slots__ = (
        "reader", "device", "check_invariants", "manager", "sequences", "plans", "leases", "num_created", "streams",
        "priorities", "num_calls", "num_digests", "num_torn_bytes", "prompts", "stop_after", "dump", "progress", "folder",
    )  # fmt: skip

    reader: Final[JournalReader]
    device: Device
    check_invariants: Final[bool]
    manager: Final[KVCacheManager]
    sequences: Final[dict[int, KVCache]]
    plans: Final[list[CommittedBlockDrop | None]]
    leases: Final[dict[int, TransferLease]]
    num_created: int
    streams: Final[dict[int, int]]
    priorities: list[int]
    num_calls: int
    num_digests: int
    num_torn_bytes: int
    prompts: Final[dict[int, list[int | bytes]]]
    """What open sequences were given, which their commits may refer to."""
    stop_after: int | None
    """Calls after which to end; None for all."""
    dump: dict[str, Any]
    """Of the manager, after the last call."""
    progress: Callable[[int, int], None] | None
    folder: TemporaryDirectory[str] | None
    """Where the durable level is, if there is one: never that of the manager that was recorded."""

    def __init__(self, reader: JournalReader, device: Device, check_invariants: bool) -> None:
        self.reader = reader
        self.device = device
        self.check_invariants = check_invariants
        self.folder = None
        try:
            config = decode_config(reader.config)
            if config.takes_no_copies and device.has_memory:
                self.device = ExternalDevice()
            pieces = reader.restored()
            tier = config.cache_tiers[len(config.cache_tiers) - 1]
            if isinstance(tier, DiskCacheTierConfig) and tier.durable:
                self.folder = _make_folder(tier)
                config = _move_last_tier(config, tier, self.folder.name)
                write_folder(device, config, pieces)
            self.manager = KVCacheManager(config, device=self.device)
        except BaseException as error:
            self.remove_folder()
            if isinstance(error, (ValueError, TypeError)) and not isinstance(error, JournalError):
                raise JournalError(f"the configuration in the journal cannot be used: {error}") from error
            raise
        self.sequences = {}
        self.plans = []
        self.leases = {}
        self.num_created = 0
        self.streams = {}
        self.priorities = []
        self.num_calls = 0
        self.num_digests = 0
        self.num_torn_bytes = 0
        self.prompts = {}
        self.stop_after = None
        self.dump = {}
        self.progress = None

    def run(self) -> RerunResult:
        try:
            while not self.reader.is_at_end and (self.stop_after is None or self.num_calls < self.stop_after):
                num_calls, num_bytes_left = self.num_calls, self.reader.num_bytes_left
                if self.progress is not None and num_calls % _CALLS_BETWEEN_UPDATES == 0:
                    self.progress(int(self.reader.position), int(self.reader.position) + num_bytes_left)
                try:
                    self.apply(self.reader.number())
                except TornJournalError:
                    # All fields of a record are read before anything is done.
                    self.num_calls, self.num_torn_bytes = num_calls, num_bytes_left
                    break
                except CorruptedError:
                    raise
                except (KVCacheManagerError, ValueError, TypeError) as error:
                    if isinstance(error, JournalError):
                        raise
                    raise RerunMismatch(f"call {self.num_calls} went well when it was recorded: {error}") from error
                if self.check_invariants:
                    self.manager.check_invariants()
            self.dump = self.manager.describe()
            return RerunResult(self.num_calls, self.num_digests, self.manager.state_digest(), self.num_torn_bytes)
        finally:
            for kv_cache in self.sequences.values():
                kv_cache.close()
            for lease in self.leases.values():
                lease.settle()
            self.manager.shutdown(0)
            self.remove_folder()
            for stream in self.streams.values():
                if stream != self.device.default_stream():
                    self.device.destroy_stream(stream)

    def remove_folder(self) -> None:
        if self.folder is not None:
            self.folder.cleanup()
            self.folder = None

    def apply(self, operation: int) -> None:
        reader = self.reader
        if operation == form.DIGEST:
            self.compare("digest", reader.raw(form.DIGEST_BYTES).hex(), self.manager.state_digest().hex())
            self.num_digests += 1
            return
        self.num_calls += 1
        if operation == form.CREATE:
            self.create()
        elif operation == form.GROW:
            self.move(self.sequence(int(reader.fixed(3))), int(reader.fixed(4)), None)
        elif operation == form.MOVE:
            self.move(self.sequence(int(reader.fixed(7))), int(reader.fixed(4)), int(reader.fixed(4)))
        elif operation == form.COMMIT_ONE:
            self.sequence(int(reader.fixed(3))).commit([int(reader.fixed(4))])
        elif operation == form.PROBE:
            scope, tokens = self.text()
            self.manager.probe_reuse(scope, tokens, bool(reader.number()))
        elif operation == form.SETTLE:
            number = int(reader.number())
            if number not in self.leases:
                raise JournalError(f"byte {reader.position}: lease {number} is not open")
            stream = reader.number()
            self.leases.pop(number).settle(None if stream == 0 else self.stream(stream - 1))
        elif operation == form.DROP:
            self.plan().drop()
        elif operation == form.CANCEL_DROP:
            self.plan().cancel()
        elif operation == form.HINT:
            self.hint()
        elif operation == form.ADVANCE:
            self.manager.advance_clock(int(reader.number()) / 1_000_000)
        elif operation == form.RESIZE_LEVEL:
            self.resize_level()
        elif operation == form.ADJUST:
            self.compare("result", bool(reader.number()), self.manager.adjust())
        elif operation == form.CLEAR:
            self.manager.clear_reusable_blocks()
        elif operation == form.KEEP:
            self.manager.keep_restored([reader.raw(form.NAME_BYTES) for _ in range(reader.number())])
        elif operation == form.INVALIDATE:
            self.manager.invalidate_reuse_scope(self.scope())
        else:
            self.apply_to_sequence(operation, int(reader.number()))

    def apply_to_sequence(self, operation: int, serial: int) -> None:
        reader = self.reader
        # Through Any, as a user's code does: mypyc passes numbers wrongly to setters that are declared wider.
        kv_cache: Any = self.sequence(serial)
        if operation == form.RESUME:
            self.read_priorities()
            stream = self.stream(reader.number())
            self.compare("result", bool(reader.number()), kv_cache.resume(stream))
        elif operation == form.PREFETCH:
            level = int(reader.number())
            self.compare("result", bool(reader.number()), kv_cache.prefetch(level))
        elif operation == form.REWIND:
            count = int(reader.number())
            self.compare("result", int(reader.number()), kv_cache.rewind(count))
        elif operation == form.SUSPEND:
            kv_cache.suspend()
        elif operation == form.CLOSE:
            self.sequences.pop(serial).close(self.read_hint())
            self.prompts.pop(serial, None)
        elif operation == form.RESIZE:
            self.read_priorities()
            capacity, history = reader.number(), reader.number()
            self.compare("result", bool(reader.number()), kv_cache.resize(capacity, history))
        elif operation == form.COMMIT:
            kv_cache.commit(reader.tokens())
        elif operation == form.PUBLISH_PLANNED:
            tokens = reader.tokens()
            self.compare("result", int(reader.number()), kv_cache.publish_planned(tokens))
        elif operation == form.COMMIT_LAST:
            kv_cache.commit(reader.tokens(), is_end=True)
        elif operation == form.COMMIT_GIVEN:
            kv_cache.commit(self.given_tokens(serial, kv_cache.num_committed_tokens) + reader.tokens())
        elif operation == form.STOP:
            kv_cache.stop_committing(self.read_hint())
        elif operation == form.STREAM:
            kv_cache.cuda_stream = self.stream(reader.number())
        elif operation == form.SCRATCH:
            kv_cache.enable_swa_scratch_reuse = bool(reader.number())
        elif operation == form.FORK:
            is_made = bool(reader.number())
            try:
                self.sequences[self.num_created] = kv_cache.fork()
                self.num_created += 1
                self.compare("result", is_made, True)
            except OutOfPagesError:
                self.compare("result", is_made, False)
        elif operation == form.RESERVE:
            lease = kv_cache.reserve_transfer(reader.number(), reader.number())
            self.leases[lease.number] = lease
        else:
            self.apply_to_beams(operation, kv_cache)

    def apply_to_beams(self, operation: int, kv_cache: Any) -> None:
        """Calls that are about several continuations of one sequence, and plans to drop its published end."""
        reader = self.reader
        if operation == form.COMMIT_TREE:
            num_heads = reader.number()
            positions = self.numbers()
            kv_cache.commit_tree(reader.tokens(), positions, num_heads)
        elif operation == form.COMMIT_BEAMS:
            num_heads = reader.number()
            beams = self.numbers()
            kv_cache.commit(reader.tokens(), beams, num_heads)
        elif operation == form.BEAM_WIDTH:
            width, is_changed = int(reader.number()), bool(reader.number())
            try:
                kv_cache.beam_width = width
                self.compare("result", is_changed, True)
            except OutOfPagesError:
                self.compare("result", is_changed, False)
        elif operation == form.REORDER:
            kv_cache.reorder_beams(self.numbers())
        elif operation == form.PLAN_DROP:
            self.plans.append(kv_cache.plan_committed_block_drop())
        else:
            raise JournalError(f"byte {reader.position}: {operation} is no operation")

    def read_hint(self) -> bool | None:
        hint = self.reader.number()
        return None if hint == 0 else hint == 1

    def given_tokens(self, serial: int, begin: int) -> list[int | bytes]:
        count = int(self.reader.number())
        tokens = self.prompts.get(serial, [])[begin : begin + count]
        if len(tokens) < count:
            raise JournalError(f"byte {self.reader.position}: sequence {serial} was not given {begin + count} tokens")
        return tokens

    def move(self, kv_cache: KVCache, capacity: int, history: int | None) -> None:
        self.priorities = []
        self.compare("result", True, kv_cache.resize(capacity, history))

    def numbers(self) -> list[int]:
        return [int(self.reader.number()) for _ in range(self.reader.number())]

    def plan(self) -> CommittedBlockDrop:
        number = int(self.reader.number())
        plan = self.plans[number] if number < len(self.plans) else None
        if plan is None:
            raise JournalError(f"byte {self.reader.position}: there is no plan {number} to drop committed blocks")
        return plan

    def hint(self) -> None:
        kind = self.reader.number()
        scope, tokens = self.text()
        value, duration, num_accepted = self.reader.number(), self.reader.number(), self.reader.number()
        text = [] if tokens is None else tokens
        if kind == form.RETAIN:
            microseconds = duration + EXPECTED
            seconds = None if microseconds == EXPECTED else inf if microseconds == FOR_EVER else microseconds / 1_000_000
            answer = self.manager.retain(text, scope, value, seconds)
        elif kind == form.RELEASE:
            answer = self.manager.release(text, scope)
        elif kind == form.DEMOTE:
            answer = self.manager.demote(text, scope)
        else:
            answer = self.manager.prefetch(text, scope, value)
        self.compare("result", num_accepted, answer.num_accepted)

    def resize_level(self) -> None:
        level, quota, best_efforts = self.reader.number(), self.reader.number(), bool(self.reader.number())
        new_quota, result = self.reader.number(), bool(self.reader.number())
        # With best efforts the recording machine's memory decided: the outcome is asked for, not the wish.
        found = self.manager.resize(level, new_quota if best_efforts and result else quota, best_efforts)
        self.compare("result", result, found)

    def create(self) -> None:
        self.read_priorities()
        scope, tokens = self.text()
        callback = self.next_priority if self.reader.number() else None
        prompt_length = self.reader.number()
        positions = [self.reader.number() for _ in range(self.reader.number())]
        retention = str(self.reader.scope_part())
        is_counted = bool(self.reader.number())
        self.sequences[self.num_created] = self.manager.create_kv_cache(
            scope,
            tokens,
            custom_priority_callback=callback,
            expected_prompt_length=None if prompt_length == 0 else prompt_length - 1,
            snapshot_positions=positions,
            retention=decode_retention(retention) if retention else None,
            count_in_statistics=is_counted,
        )
        if tokens is not None:
            self.prompts[self.num_created] = tokens
        self.num_created += 1

    def scope(self) -> ReuseScope:
        lora_id, salt = self.reader.scope_part(), self.reader.scope_part()
        if isinstance(lora_id, str):
            raise JournalError(f"byte {self.reader.position}: a LoRA id is no text")
        return ReuseScope(lora_id, salt)

    def text(self) -> tuple[ReuseScope, list[int | bytes] | None]:
        scope = self.scope()
        return scope, self.reader.tokens() if self.reader.number() else None

    def sequence(self, serial: int) -> KVCache:
        kv_cache = self.sequences.get(serial)
        if kv_cache is None:
            raise JournalError(f"byte {self.reader.position}: sequence {serial} is not open")
        return kv_cache

    def stream(self, recorded: int) -> int:
        stream = self.streams.get(recorded)
        if stream is None:
            stream = self.device.create_stream() if self.streams else self.device.default_stream()
            self.streams[recorded] = stream
        return stream

    def read_priorities(self) -> None:
        self.priorities = [int(self.reader.number()) for _ in range(self.reader.number())]
        self.priorities.reverse()

    def next_priority(self, ordinal: BlockOrdinal, life_cycle: LifeCycle) -> int:
        if not self.priorities:
            raise RerunMismatch(f"call {self.num_calls} asks for a priority that it did not ask for when recorded")
        return self.priorities.pop()

    def compare(self, what: str, recorded: object, found: object) -> None:
        if recorded != found:
            raise RerunMismatch(f"after call {self.num_calls} the {what} is {found}, recorded was {recorded}")


def _make_folder(tier: DiskCacheTierConfig) -> TemporaryDirectory[str]:
    """On the same disk, where that can be written here."""
    place = tier.path if os.access(tier.path, os.W_OK) and os.path.isdir(tier.path) else None
    return TemporaryDirectory(prefix="rerun-", dir=place)


def _move_last_tier(config: KVCacheManagerConfig, tier: DiskCacheTierConfig, path: str) -> KVCacheManagerConfig:
    return replace(config, cache_tiers=[*config.cache_tiers[:-1], replace(tier, path=path, more_paths=())])
