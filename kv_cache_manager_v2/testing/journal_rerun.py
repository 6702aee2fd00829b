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


from ..base.errors import CorruptedError, KVCacheManagerError, OutOfPagesError
from ..base.ids import BlockOrdinal
from ..base.value import Value
from ..config.cache_tier_config import DiskCacheTierConfig
from ..config.config_codec import decode_config, decode_retention
from ..config.manager_config import KVCacheManagerConfig
from ..config.retention import RetentionConfig
from ..device.external_device import ExternalDevice
from ..device.port import Device
from ..journal import journal_format as form
from ..layout.life_cycle import LifeCycle
from ..manager.committed_block_drop import CommittedBlockDrop
from ..manager.kv_cache import KVCache
from ..manager.kv_cache_manager import KVCacheManager
from ..manager.transfer_lease import TransferLease
from ..reuse.reuse_scope import ReuseScope
from ..sequence.priority_callback import PriorityCallback
from ..sequence.retention_plan import EXPECTED, FOR_EVER
from .journal_reader import JournalError, JournalReader, TornJournalError
from .recorded_codec import RecordedCodec
from .recorded_folder import write_folder


_CALLS_BETWEEN_UPDATES: Final = 64
_RESULTS: Final = ("r", "c", "y")
_HANDLES: Final = ("q", "3", "7", "d", "l")
_FIXED_BYTES: Final = {"3": 3, "4": 4, "7": 7, "k": 4}
_NO_ARGUMENT: Final = object()


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


def rerun_to(path: Path, device: Device, num_calls: int | None, progress: Callable[[int, int], None] | None = None) -> dict[str, Any]:
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


def rerun(path: Path, device: Device, check_invariants: bool = False, progress: Callable[[int, int], None] | None = None) -> RerunResult:
    """``progress`` gets the bytes done and all bytes, now and then. `JournalError` if the journal cannot be read, `RerunMismatch` at the
    first difference, `OSError` from the file."""
    reader = JournalReader(path.read_bytes())
    run = _Rerun(reader, device, check_invariants)
    run.progress = progress
    return run.run()


@final
class _Rerun:
    """One journal on its way through a new manager."""

    __slots__ = (
        "reader", "device", "check_invariants", "manager", "sequences", "plans", "leases", "num_created", "serial", "streams",
        "priorities", "num_calls", "num_digests", "num_torn_bytes", "prompts", "stop_after", "dump", "progress", "folder",
    )  # fmt: skip

    manager: Final[KVCacheManager]
    num_created: int
    serial: int
    """Of the sequence that the present call is about."""

    def __init__(self, reader: JournalReader, device: Device, check_invariants: bool) -> None:
        self.reader: Final = reader
        self.device = device
        self.check_invariants: Final = check_invariants
        self.folder: TemporaryDirectory[str] | None = None
        """Where the durable level is, if there is one: never that of the manager that was recorded."""
        try:
            config = decode_config(reader.config)
            codec = RecordedCodec(reader.codec) if len(reader.codec) > 0 else None
            if config.is_external and device.has_memory:
                self.device = ExternalDevice()
            pieces = reader.restored()
            tier = config.cache_tiers[len(config.cache_tiers) - 1]
            if isinstance(tier, DiskCacheTierConfig) and tier.durable:
                self.folder = _make_folder(tier)
                config = _move_last_tier(config, tier, self.folder.name)
                write_folder(device, config, pieces, codec)
            self.manager = KVCacheManager(config, device=self.device, cold_page_codec=codec)
        except BaseException as error:
            self.remove_folder()
            if isinstance(error, (ValueError, TypeError)) and not isinstance(error, JournalError):
                raise JournalError(f"the configuration in the journal cannot be used: {error}") from error
            raise
        self.sequences: Final[dict[int, KVCache]] = {}
        self.plans: Final[list[CommittedBlockDrop]] = []
        self.leases: Final[dict[int, TransferLease]] = {}
        self.num_created = self.serial = 0
        self.streams: Final[dict[int, int]] = {}
        self.priorities: list[int] = []
        self.num_calls = 0
        self.num_digests = 0
        self.num_torn_bytes = 0
        self.prompts: Final[dict[int, list[int | bytes]]] = {}
        """What open sequences were given, which their commits may refer to."""
        self.stop_after: int | None = None
        """Calls after which to end; None for all."""
        self.dump: dict[str, Any] = {}
        """Of the manager, after the last call."""
        self.progress: Callable[[int, int], None] | None = None

    def run(self) -> RerunResult:
        try:
            while not self.reader.is_at_end and (self.stop_after is None or self.num_calls < self.stop_after):
                num_calls, num_bytes_left = self.num_calls, self.reader.num_bytes_left
                if self.progress is not None and num_calls % _CALLS_BETWEEN_UPDATES == 0:
                    self.progress(int(self.reader.position), int(self.reader.position) + num_bytes_left)
                try:
                    self.apply(self.reader.number())
                except TornJournalError:
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
            for lease in self.manager.open_leases:
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
        if operation not in form.CALLS:
            raise JournalError(f"byte {reader.position}: {operation} is no operation")
        name, kinds = form.CALLS[operation]
        self.priorities = []
        # All fields of a record are read before anything is done.
        fields = [self.field(kind) for kind in kinds]
        recorded = fields.pop() if kinds[-1:] in _RESULTS else None
        # Through Any, as a user's code does: mypyc passes numbers wrongly to setters that are declared wider.
        target: Any = self if name[0] == "." else fields.pop(0) if kinds[:1] in _HANDLES else self.manager
        arguments = [field for field in fields if field is not _NO_ARGUMENT]
        found: Any = True
        try:
            if name[-1] == "=":
                setattr(target, name[:-1], arguments[0])
            else:
                found = getattr(target, name.lstrip("."))(*arguments)
        except OutOfPagesError:
            if recorded is None:
                raise
            found = False
        if isinstance(found, KVCache):
            self.sequences[self.num_created] = found
            self.num_created += 1
            found = True
        elif isinstance(found, CommittedBlockDrop):
            self.plans.append(found)
        elif isinstance(found, TransferLease):
            self.leases[found.number] = found
        if recorded is not None:
            self.compare("result", recorded, found)

    def field(self, kind: str) -> Any:
        """The next field of a record, as `journal_format.CALLS` names its kind."""
        reader = self.reader
        if kind == "y":
            return True
        if kind == "t":
            return reader.tokens()
        if kind == "o":
            return reader.tokens() if reader.number() else None
        if kind == "s":
            return self.scope()
        if kind == "T":
            text = str(reader.scope_part())
            return decode_retention(text) if text else None
        number = int(reader.fixed(_FIXED_BYTES[kind])) if kind in _FIXED_BYTES else int(reader.number())
        if kind in "q37":
            self.serial = number
            return self.opened(self.sequences.get(number), f"sequence {number}")
        if kind == "l":
            return self.opened(self.leases.get(number), f"lease {number}")
        if kind == "d":
            return self.opened(self.plans[number] if number < len(self.plans) else None, f"plan {number} to drop committed blocks")
        if kind == "p":
            self.priorities = [int(reader.number()) for _ in range(number)]
            self.priorities.reverse()
            return _NO_ARGUMENT
        if kind == "N":
            return [int(reader.number()) for _ in range(number)]
        if kind == "K":
            return [reader.raw(form.NAME_BYTES) for _ in range(number)]
        if kind == "k":
            return [number]
        if kind in "br":
            return number != 0
        if kind == "h":
            return None if number == 0 else number == 1
        if kind == "z":
            return self.stream(number)
        if kind == "Z":
            return None if number == 0 else self.stream(number - 1)
        if kind == "L":
            return None if number == 0 else number - 1
        if kind == "a":
            return self.next_priority if number else None
        return number / 1_000_000 if kind == "u" else number

    def opened(self, handle: object, name: str) -> object:
        if handle is None:
            raise JournalError(f"byte {self.reader.position}: {name} is not open")
        return handle

    # -- calls whose records are not their arguments -------------------------------------------------------------------

    def create(
        self,
        scope: ReuseScope,
        tokens: list[int | bytes] | None,
        callback: PriorityCallback | None,
        length: int | None,
        positions: list[int],
        terms: RetentionConfig | None,
        is_counted: bool,
        is_exact: bool,
    ) -> KVCache:
        if tokens is not None:
            self.prompts[self.num_created] = tokens
        return self.manager.create_kv_cache(scope, tokens, None, callback, length, is_counted, positions, terms, is_exact)

    def close(self, kv_cache: KVCache, continues: bool | None) -> None:
        kv_cache.close(continues)
        del self.sequences[self.serial]
        self.prompts.pop(self.serial, None)

    def commit_given(self, kv_cache: KVCache, count: int, more: list[int | bytes]) -> None:
        begin = kv_cache.num_committed_tokens
        tokens = self.prompts.get(self.serial, [])[begin : begin + count]
        if len(tokens) < count:
            raise JournalError(f"byte {self.reader.position}: sequence {self.serial} was not given {begin + count} tokens")
        kv_cache.commit(tokens + more)

    def mark_packed(self, kv_cache: KVCache, first_block: int) -> None:
        kv_cache._mark_packed(first_block)

    def commit_last(self, kv_cache: KVCache, tokens: list[int | bytes]) -> None:
        kv_cache.commit(tokens, is_end=True)

    def commit_tree(self, kv_cache: KVCache, num_heads: int, positions: list[int], tokens: list[int | bytes]) -> None:
        kv_cache.commit_tree(tokens, positions, num_heads)

    def commit_beams(self, kv_cache: KVCache, num_heads: int, beams: list[int], tokens: list[int | bytes]) -> None:
        kv_cache.commit(tokens, beams, num_heads)

    def hint(self, kind: int, scope: ReuseScope, tokens: list[int | bytes] | None, value: int, duration: int) -> int:
        text = [] if tokens is None else tokens
        if kind == form.RETAIN:
            microseconds = duration + EXPECTED
            seconds = None if microseconds == EXPECTED else inf if microseconds == FOR_EVER else microseconds / 1_000_000
            return self.manager.retain(text, scope, value, seconds).num_accepted
        if kind == form.RELEASE:
            return self.manager.release(text, scope).num_accepted
        if kind == form.DEMOTE:
            return self.manager.demote(text, scope).num_accepted
        return self.manager.prefetch(text, scope, value).num_accepted

    def resize_level(self, level: int, quota: int, best_efforts: bool, new_quota: int, result: bool) -> None:
        # With best efforts the recording machine's memory decided: the outcome is asked for, not the wish.
        found = self.manager.resize(level, new_quota if best_efforts and result else quota, best_efforts)
        self.compare("result", result, found)

    def take_copies(self, after: int, num_copies: int) -> None:
        _, copies = self.manager.take_copies(after)
        self.compare("number of copies", num_copies, len(copies))

    # -- fields --------------------------------------------------------------------------------------------------------

    def scope(self) -> ReuseScope:
        lora_id, salt = self.reader.scope_part(), self.reader.scope_part()
        if isinstance(lora_id, str):
            raise JournalError(f"byte {self.reader.position}: a LoRA id is no text")
        return ReuseScope(lora_id, salt)

    def stream(self, recorded: int) -> int:
        stream = self.streams.get(recorded)
        if stream is None:
            stream = self.device.create_stream() if self.streams else self.device.default_stream()
            self.streams[recorded] = stream
        return stream

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
