"""`KVCacheManager`: one per engine rank; owns the memory, the radix tree and the counters of all sequences.

    state      guaranteed                                 ways out
    OPEN       calls are served                           shutdown() -> CLOSED; a failed invariant -> BROKEN
    BROKEN     every call raises CorruptedError           shutdown() -> CLOSED, as far as it can
    CLOSED     all memory is released                     none

The whole public surface is in this file: each call goes through one door (``with guard as journal``), validates, lets one of the
parts below do the work, and records itself. One caller at a time, but for calls that only look and say "from any thread"; see
`CallGuard`.

    part             owns
    SharedState      storage, radix tree, guard, retention, leases and planned drops: all that sequences work with
    OpenSequences    the states of the open sequences
    PrefixMatches    how the longest reusable prefix is found
    LevelSizes       the quota of each level, and the demand that shares it between pool groups
    UsageReports     the statistics
    KernelAddresses  where kernels find each buffer
    MemoryLease      when the memory may go
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, final

from mypy_extensions import i64
from rawref import invalidate

from ..base.checks import (
    require_path,
    to_bool,
    to_count,
    to_index,
    to_index_mode,
    to_instance,
    to_instance_or_none,
    to_int,
    to_list,
    to_number,
    to_short_list,
    to_text,
)
from ..base.errors import BusyError, LogicError
from ..base.finalizers import report_failure, warn_of_leak
from ..base.given import Given
from ..base.handle import Handle
from ..base.ids import (
    GPU_LEVEL,
    PRIORITY_DEFAULT,
    PRIORITY_MAX,
    PRIORITY_MIN,
    CacheTier,
    DataRole,
    LayerGroupId,
    LayerId,
    LifeCycleId,
    MemAddress,
    PageIndexMode,
)
from ..base.package_log import PackageLog
from ..base.process_bound import bind_to_process, release_from_process
from ..config.config_codec import encode_config
from ..config.learned_prior import decode_prior
from ..config.manager_config import KVCacheManagerConfig
from ..config.retention import RetentionConfig
from ..device.cold_page_codec import ColdPageCodec
from ..device.port import Device
from ..device.external_device import ExternalDevice
from ..device.selection import default_device
from ..device.stream_order import StreamOrder
from ..durable.durable_level import DurableLevel
from ..events.removal_cause import CLEARED, SCOPE_INVALIDATED
from ..events.event_manager import KVCacheEventManager
from ..events.layer_group_facts import FULL_ATTENTION, MAMBA, SLIDING_WINDOW, LayerGroupFacts
from ..introspect.description import describe
from ..introspect.invariants import check_invariants
from ..journal.call_journal import CallJournal
from ..journal.call_records import ASKED, CallRecords
from ..journal.journal_format import (
    ADJUST,
    ADVANCE,
    CLEAR,
    CREATE,
    DEMOTE,
    HINT,
    INVALIDATE,
    KEEP,
    PROBE,
    RELEASE,
    RESIZE_LEVEL,
    RETAIN,
    TAKE,
    WARM,
)
from ..journal.journal_writer import JournalWriter
from ..layout.buffer_id import BufferId
from ..layout.life_cycle import LifeCycle
from ..layout.page_index import PageIndexConverter
from ..layout.pool_desc import AggregatedPageDesc, PoolGroupDesc
from ..layout.registry import LifeCycleRegistry
from ..reuse.match import Matcher
from ..reuse.radix_tree import RadixTree
from ..reuse.reuse_scope import ReuseScope, to_scope
from ..reuse.token_packing import TOKEN_BYTES, pack_beginning, pack_tokens
from ..sequence import residency
from ..sequence.call_guard import Reading
from ..sequence.finish_plan import FinishPlan
from ..sequence.given_tokens import GivenTokens
from ..sequence.priority_callback import PriorityCallback
from ..sequence.recurrent_state import begin_with
from ..sequence.kind_ranges import find_kinds
from ..sequence.retention_plan import EXPECTED, FOR_EVER, RetentionPlan, round_microseconds, to_duration
from ..sequence.sequence_state import Request, SequenceState
from ..sequence.shared_state import SharedState
from ..sequence.usage_recorder import make_usage_recorder
from ..sequence.whole_prefix import count_exact
from ..stats.block_times import BlockTimes
from ..stats.hint_result import HintResult
from ..stats.statistics_clock import StatisticsClock
from ..stats.manager_snapshot import ManagerSnapshot
from ..stats.storage_statistics import StorageStatistics
from ..stats.usage_statistics import UsageStatistics
from ..storage.page_fill import DebugFill
from ..storage.page_packer import describe_codec, lay_out_slots, to_codec
from ..storage.refusal import Refusal
from ..storage.room_count import list_slots_per_level
from ..storage.transfer_times import TransferTimes
from .arrival_waits import ArrivalWaits
from .batch_step import BatchStep
from .open_sequences import end_epoch, require_closed
from .copy_lists import CopyLists
from .capacity import clamp_sequence_length
from .durable_drain import UseOrder, drain_pages, record_weights
from .durable_opening import close_durable, open_durable
from .durable_restore import DurableRestore
from .restored_names import RestoredNames, to_names
from .kernel_addresses import KernelAddresses
from .kv_cache import KVCache
from .level_sizes import LevelSizes
from .memory_lease import MemoryLease
from .open_sequences import InvariantChecker, OpenSequences
from .memory_lease import open_storage, plan_levels
from .pool_view import PoolView, to_dtype
from .prefix_hints import apply_hint, to_priority
from .prefix_matches import PrefixMatches
from .transfer_lease import TransferLease
from .usage_reports import UsageReports

if TYPE_CHECKING:
    from ..reuse.token_forms import Tokens

_logger: Final = PackageLog("kv_cache_manager_v2")
_MAX_SECONDS: Final = 1e9
_MOST_POSITIONS: Final = 2**16
"""The longest ``snapshot_positions``: more snapshots than any sequence keeps; a range meant for something else would fill the memory."""
_PATIENCE_SECONDS: Final = 0.1
"""How long a thread that wants statistics waits for the end of another thread's call."""


@final
class KVCacheManager(Handle):
    """Owns paged KV-cache memory and decides which bytes belong to which token. See the module for its states.

    ``device``: where level 0 lives; None takes `default_device()`, or an `ExternalDevice` for external memory, which the manager then
    also closes. ``journal``: a
    file of its own to record every call in, for ``kvcm rerun``; it is made anew. ``debug_fill``: what freed pages, and pages as they
    are handed out, are filled with. ``event_manager``: is told when published blocks are stored, moved and removed. ``cold_page_codec``:
    packs pages on their way to host memory; the caller's, who keeps it as long as the manager. `ValueError` if
    the quota is too small for the configured constraints, `OutOfMemoryError` if the device has not that much, `OSError` if the
    journal cannot be made, `LogicError` if another manager writes it.
    """

    __slots__ = (
        "_config", "_life_cycles", "_device", "_event_manager", "_shared", "_addresses", "_memory", "_open_sequences", "_matches",
        "_levels", "_usage", "_reading", "_arrival_waits", "_batch_number", "_restored", "_is_released",
        "_lists", "_codec",
    )  # fmt: skip

    _codec: Final[ColdPageCodec | None]
    _lists: CopyLists | None
    """None where no worker copies."""
    _shared: Final[SharedState]
    """Parts that sequences need: storage, tree, and the guard, which is the door of every call."""
    _addresses: Final[KernelAddresses]
    _memory: Final[MemoryLease]
    _open_sequences: Final[OpenSequences]
    _matches: Final[PrefixMatches]
    _levels: Final[LevelSizes]
    _usage: Final[UsageReports]
    _reading: Final[Reading]
    """The door of calls that only look, from any thread; inside the guard's `readers`."""
    _arrival_waits: Final[ArrivalWaits]
    _batch_number: i64
    """Counts batch calls; each sequence remembers the last one that listed it."""
    _restored: DurableRestore | None
    """Blocks that the last process has left, until something is done with them."""

    def __init__(
        self,
        config: Given[KVCacheManagerConfig],
        *,
        device: Given[Device | None] = None,
        journal: Given[str | os.PathLike[str] | None] = None,
        debug_fill: Given[DebugFill | None] = None,
        event_manager: Given[KVCacheEventManager | None] = None,
        cold_page_codec: Given[ColdPageCodec | None] = None,
    ) -> None:
        self._is_released: bool = True  # there is no memory to release: `shutdown` is done, or the constructor is not
        config = to_instance(config, KVCacheManagerConfig, "config")
        given_device = _to_device(device)
        fill = _to_fill(debug_fill, config, given_device)
        path = _to_path(journal)
        self._event_manager: Final[KVCacheEventManager | None] = _to_event_manager(event_manager)
        self._codec = codec = to_codec(cold_page_codec, config)
        self._config: Final[KVCacheManagerConfig] = config
        self._life_cycles: Final[LifeCycleRegistry] = LifeCycleRegistry(config)
        layout = lay_out_slots(config, self._life_cycles, codec)
        slots_by_level = plan_levels(layout, config)
        self._device: Final[Device] = _make_device(config) if given_device is None else given_device
        writer: JournalWriter | None = None
        try:
            writer = None if path is None else _make_journal(path, config, b"" if codec is None else describe_codec(codec, layout))
            open_durable(self._device, config, layout, slots_by_level, None if codec is None else codec.identity)
            order = StreamOrder(self._device)
            storage, mover = open_storage(self._device, order, layout, slots_by_level, int(config.reserve_null_slot), fill, codec)
        except BaseException:
            close_durable(slots_by_level)
            if given_device is None:
                self._device.close()
            if writer is not None:
                writer.close()
            raise
        try:
            tree = RadixTree(storage, self._life_cycles, config.tokens_per_block)
            storage.set_owner(tree)
            records = CallRecords()
            if writer is not None:
                writer.follow(storage.digest)
                records = CallJournal(writer, tree.digests)
            matcher = Matcher(tree, self._life_cycles, config.tokens_per_block, config.enable_partial_reuse)
            self._shared = shared = SharedState(self._device, storage, mover, tree, matcher, self._life_cycles, config, records)
            self._addresses = KernelAddresses(storage, config.enable_swa_scratch_reuse)
            self._memory = MemoryLease(storage, mover, self._device, given_device is None)
            self._open_sequences = OpenSequences()
            self._matches = PrefixMatches(shared, config.reuse_match_backoff)
            recorder = make_usage_recorder(tree, self._life_cycles, config) if config.enable_stats else None
            self._levels = LevelSizes(shared, self._open_sequences, config)
            self._usage = UsageReports(shared, self._open_sequences, recorder)
            self._reading = Reading(shared.guard)
            self._arrival_waits = ArrivalWaits(shared)
            self._batch_number = 0
            self._restored = None
            self._start()
        except BaseException:
            if writer is not None:
                writer.close()
            raise

    def _start(self) -> None:
        """All parts are there: events and reports follow them, and what is on a durable level is found again."""
        config, shared = self._config, self._shared
        storage = shared.storage
        self._lists = None
        if config.copy_workers > 0:
            self._lists = CopyLists(self._device.list_copies(), storage, shared.traffic.mover, config.copy_workers)
        if self._event_manager is not None:
            first_page = storage.rows.first_page_of_blocks
            tiers = [tier.tier for tier in config.cache_tiers]
            storage.sink = self._event_manager.bind(_list_layer_groups(shared), first_page, config.tokens_per_block, tiers, shared.guard)
        bind_to_process(shared.guard)
        shared.guard.publisher = self._usage
        shared.guard.checker = InvariantChecker(shared, self._open_sequences)
        self._is_released = False
        if config.learned_prior is not None:
            storage.learning.model.begin_from(decode_prior(config.learned_prior, "learned_prior"))
        if storage.durable is not None:
            if storage.durable.is_read_only:
                storage.closed.close_for_writing(storage.last_level)
            self._restore(storage.durable)

    def _restore(self, durable: DurableLevel) -> None:
        """Find again what the last process has left."""
        restore = DurableRestore(self._shared, durable)
        try:
            found = restore.run()
            if self._shared.guard.is_recording:
                for piece in found.pieces():
                    self._shared.guard.journal.restored(piece)
            self._restored = restore
        except BaseException:
            self._release_memory()
            raise
        _logger.inform("the durable level in %s has %d blocks with %d pages", durable.folder.path, restore.num_blocks, restore.num_pages)
        if restore.has_unknown_weights:
            _logger.warning("the durable level in %s has weights of another release; LEARNED begins without", durable.folder.path)

    # -- life ----------------------------------------------------------------------------------------------------------

    def __enter__(self) -> KVCacheManager:
        return self

    def __exit__(self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None or self._shared.guard.is_foreign:
            self.shutdown()
            return
        # The user must see their own error: what prevents an orderly end is closed or logged.
        for kv_cache in self.open_kv_caches:
            try:
                kv_cache.close()
            except Exception:
                _logger.exception("closing %r after an error failed", kv_cache)
        try:
            self.shutdown()
        except Exception:
            _logger.exception("shutting down the manager after an error failed")

    def __del__(self) -> None:
        invalidate(self)
        # Compiled, arguments of a wrong type are refused before the constructor has set anything, and only `getattr` notices.
        shared = getattr(self, "_shared", None)
        if not isinstance(shared, SharedState) or self._is_released:
            return
        try:
            if not shared.guard.is_foreign:
                warn_of_leak("a KVCacheManager was dropped without shutdown()")
            self._release_memory()
        except BaseException as error:
            report_failure(error, KVCacheManager)

    def shutdown(self, drain_seconds: Given[float] = 60.0) -> None:
        """Wait for the device, then free all memory. Twice is fine. `LogicError` while sequences are open.

        With a durable level, published pages that it does not have yet are written to it first, parents before children, for
        ``drain_seconds`` at most; what is being written then is waited for.

        Where Ctrl-C cuts it off, other calls are refused from then on, and the next shutdown() goes on where this one stopped.
        In a process that was forked from the one that made the manager it frees nothing: all is the parent's.
        """
        seconds = to_number(drain_seconds, "drain_seconds")
        if not 0 <= seconds <= _MAX_SECONDS:
            raise ValueError(f"drain_seconds is {drain_seconds}; it must be from 0 to {_MAX_SECONDS:g}")
        if self._is_released:
            return
        guard = self._shared.guard
        if not (guard.is_shut_down or guard.is_broken or guard.is_foreign):
            with guard:
                self._restored = None
                require_closed(self._shared, self._open_sequences, "shutdown")
                durable = self._shared.storage.durable
                if durable is not None and not durable.is_read_only:
                    # How much is still written depends on the time that it takes.
                    self._shared.guard.journal.end()
                    order = UseOrder(self._shared)
                    drain_pages(self._shared, seconds)
                    record_weights(self._shared)
                    order.record()
                end_epoch(self._shared, self._open_sequences, None, CLEARED)
                if self._event_manager is not None:
                    self._event_manager._hand_over()
        self._release_memory()

    def _release_memory(self) -> None:
        release_from_process(self._shared.guard)
        self._shared.guard.shut_down()
        if self._shared.guard.is_foreign:
            self._is_released = True
            return
        self._shared.guard.journal.end()
        if sys.is_finalizing():
            # Worker threads are gone, and the CUDA driver may be: nothing can be waited for, and all memory ends with the process.
            self._is_released = True
            return
        # Each of these may be cut off by Ctrl-C, and is called again then: it does what is left.
        order = self._shared.order
        order.synchronize_all()
        self._arrival_waits.close()
        order.close()
        durable = self._shared.storage.durable
        if durable is not None:
            durable.close()
        self._memory.close()
        self._shared.tree.dissolve()
        self._is_released = True

    def clear_reusable_blocks(self) -> None:
        """Nothing that is kept for reuse or open now is ever matched again: the weights have changed, say.

        Open sequences, suspended ones too, and leases go on with their pages. What such a sequence commits from now on is its own and that
        of its forks: it publishes nothing, `publish_planned` offers nothing, and pages are free once their last holder is done with
        them. `rewind` makes it a sequence of the new epoch, which matches what was published since. Events and statistics say
        "cleared"; plans to drop published ends are void. Takes about 0.1 us for each cached block, 10 ms for 10^5.

        With a durable level it returns once that is safe on the disk. `StorageIOError` where the level's index records nothing more: all
        is forgotten in this process, and the next manager may find it again.
        """
        with self._shared.guard as journal:
            self._forget(None, CLEARED)
            journal.record(CLEAR)
        self._require_recorded("clear_reusable_blocks")

    def invalidate_reuse_scope(self, reuse_scope: Given[ReuseScope | None] = None) -> None:
        """`clear_reusable_blocks` for that scope alone: its adapter was loaded anew, say, or its tenant has left.

        Other scopes are left alone. Events and statistics say "scope_invalidated". A scope that has nothing is fine.

        With a durable level it returns once that is safe on the disk. `StorageIOError` where the level's index records nothing more: the
        scope is forgotten in this process, and the next manager may find it again.
        """
        with self._shared.guard as journal:
            scope = to_scope(reuse_scope)
            self._forget(scope, SCOPE_INVALIDATED)
            journal.record(INVALIDATE, scope)
        self._require_recorded(f"invalidate_reuse_scope({scope!r})")

    def _forget(self, scope: ReuseScope | None, cause: i64) -> None:
        """End the epoch of that scope, or of all, here and on the durable level."""
        end_epoch(self._shared, self._open_sequences, scope, cause)
        self._restored = None
        durable = self._shared.storage.durable
        if durable is not None:
            durable.clear(None if scope is None else (scope.lora_id, scope.salt))

    def _require_recorded(self, call: str) -> None:
        """After the call, which has done and recorded all that this process can do: `StorageIOError` where the level has not."""
        durable = self._shared.storage.durable
        if durable is not None:
            durable.require_recorded(call)

    def restored(self) -> list[bytes]:
        """The names of what a durable level has brought back, oldest first: of each page, and of what the policies had learned.

        A name is 16 bytes, and says which tokens of which scope, which layer group, where in the files, and when it was written: what
        managers of other ranks have under the same name leads to the same decisions. Empty without a durable level. `LogicError` once
        sequences were made, hints were given, levels were resized, or something was forgotten: see `keep_restored`.
        """
        with self._shared.guard:
            return self._names_of_restored("restored").names

    def keep_restored(self, names: Iterable[bytes]) -> int:
        """Drop everything that was brought back but what has these names: those that `restored` of all ranks have in common.

        Afterwards ranks whose managers are alike decide alike, though each had lost something else when the processes ended. Returns the
        number of pages that are left; what cannot be reached without others is dropped, too. To be called before the first sequence and
        all else that `restored` names, or it is a `LogicError`. `ValueError` for a name that `restored` does not have, `TypeError` for
        what is no bytes; then nothing has changed.
        """
        guard = self._shared.guard
        # Before the lock: what is iterated over may have code of its own.
        given = to_names(names)
        with guard as journal:
            found = self._names_of_restored("keep_restored")
            chosen = found.find(given)
            restore = self._restored
            if restore is None:
                return 0
            with self._shared.storage.changes:
                restore.keep(chosen, found.has_weights(given))
            journal.record(KEEP, given)
            return int(restore.num_pages)

    def _names_of_restored(self, call: str) -> RestoredNames:
        restore = self._restored
        if restore is None and self._shared.storage.durable is not None:
            raise LogicError(
                f"{call}() comes before the first sequence, hint, resize, adjustment and clearing: what was brought back is in use since. "
                "Call it right after the manager is made"
            )
        return RestoredNames(restore)

    def freeze(self) -> None:
        """Hide everything that is alive from the garbage collector: `gc.collect`, then `gc.freeze`.

        For once, when the engine is loaded and not serving yet: from then on a full collection looks at what came later. Cached blocks
        are hidden from it anyway; this is for the model, the engine and all else in the process. `gc.unfreeze` takes it back. No
        decision depends on it.
        """
        with self._shared.guard:
            pass
        gc.collect()
        gc.freeze()

    # -- sequences -----------------------------------------------------------------------------------------------------

    def probe_reuse(
        self, reuse_scope: Given[ReuseScope | None] = None, input_tokens: Tokens | None = None, include_planned: Given[bool] = False
    ) -> int:
        """How many leading tokens could be reused now; holds nothing. From any thread. ``include_planned``: also those of blocks that a
        sequence has planned (`KVCache.publish_planned`).

        `BusyError` while another thread's call runs; a call that another thread begins meanwhile waits. Pages that a disk is still
        reading count as there. Sequences that were dropped without `close` are closed first. Of a long list, the tokens far behind the
        first block that is not there are not looked at, and a wrong one among them is no error here.
        """
        tokens = () if input_tokens is None else input_tokens
        return self._probe(to_scope(reuse_scope), tokens, to_bool(include_planned, "include_planned"), "input_tokens")

    def probe_reuse_batch(
        self, prompts: Sequence[Tokens], reuse_scopes: Sequence[ReuseScope | None] | None = None, include_planned: Given[bool] = False
    ) -> list[int]:
        """`probe_reuse` of each prompt, as a scheduler asks that sorts its queue by what is there. ``reuse_scopes``: one for each."""
        texts: list[Any] = to_list(prompts, "prompts")
        with_planned = to_bool(include_planned, "include_planned")
        scopes: list[Any] = [None] * len(texts) if reuse_scopes is None else to_list(reuse_scopes, "reuse_scopes")
        if len(scopes) != len(texts):
            raise ValueError(f"reuse_scopes has {len(scopes)} entries for {len(texts)} prompts")
        found: list[int] = []
        for scope in [to_scope(scope, "each of reuse_scopes") for scope in scopes]:
            found.append(self._probe(scope, texts[len(found)], with_planned, f"prompts[{len(found)}]"))
        return found

    def _probe(self, scope: ReuseScope, tokens: Tokens, with_planned: bool, name: str) -> int:
        guard = self._shared.guard
        packed = b""
        while True:
            # Before the lock: the user's tokens may be objects with code of their own.
            packed = pack_beginning(tokens, packed, self._shared.tree.digests, name)
            is_whole = not isinstance(tokens, list) or len(packed) >= len(tokens) * TOKEN_BYTES
            with guard.readers, self._reading as journal:
                num_tokens = self._matches.count_tokens(scope, packed, with_planned, is_whole)
                if num_tokens >= 0:
                    if guard.is_recording:
                        journal.record(PROBE, scope, (tokens, packed), with_planned)
                    return int(num_tokens)

    def create_kv_cache(
        self,
        reuse_scope: Given[ReuseScope | None] = None,
        input_tokens: Tokens | None = None,
        id: SupportsIndex | None = None,
        custom_priority_callback: PriorityCallback | None = None,
        expected_prompt_length: SupportsIndex | None = None,
        count_in_statistics: Given[bool] = True,
        snapshot_positions: Sequence[SupportsIndex] = (),
        retention: Given[RetentionConfig | None] = None,
        exact: Given[bool] = False,
    ) -> KVCache:
        """A suspended sequence that holds the pages of the longest reusable prefix of ``input_tokens``.

        Afterwards committed = history = capacity = matched tokens, never more than the sequence can be resumed with on a level 0 of its
        own. Leave off the last prompt token if the model must recompute
        it. ``id`` is for messages and pictures only; default: a running number. ``custom_priority_callback(block_ordinal,
        life_cycle)`` gives each page a priority from 0 to 100 when it is made or reused (default 35).
        ``expected_prompt_length``: tokens from here on count as generated, in the statistics and for snapshots; default: the length
        of ``input_tokens``. ``count_in_statistics=False``: for dummy sequences, which no total should show and which should not steer
        `adjust`.
        ``snapshot_positions``: lengths at which the recurrent state, if there is any, is to be kept for reuse, beside those
        of the manager's `SnapshotPolicy`. ``retention``: priorities, and how long they hold, for ranges of the prompt and for what is
        generated; where the callback has a say as well, the higher priority counts.
        ``exact``: where a codec packs pages with loss, the match ends before the first page that was packed (`MatchedTokens.lossy_tokens`).

        `ValueError` for a token, length, position or priority out of range, `TypeError` for a value of another type, `LogicError` once
        shut down; what the callback raises is passed on. Then nothing has changed.
        """
        with self._shared.guard as journal:
            scope = to_scope(reuse_scope)
            shared = self._shared
            self._open_sequences.require_room(shared, 1, "create_kv_cache()")
            serial = self._open_sequences.next_serial
            sequence_id = serial if id is None else to_int(id, "id")
            _validate_callback(custom_priority_callback)
            terms = to_instance_or_none(retention, RetentionConfig, "retention")
            is_counted = to_bool(count_in_statistics, "count_in_statistics")
            packed = None if input_tokens is None else pack_tokens(input_tokens, shared.tree.digests, False, "input_tokens")
            num_input_tokens = 0 if packed is None else len(packed) // TOKEN_BYTES
            prompt_length = num_input_tokens
            if expected_prompt_length is not None:
                prompt_length = to_count(expected_prompt_length, "expected_prompt_length")
            positions = [
                to_count(position, "one of snapshot_positions")
                for position in to_short_list(snapshot_positions, "snapshot_positions", _MOST_POSITIONS)
            ]
            request = Request(serial, sequence_id, scope, custom_priority_callback, shared.windows)
            request.is_counted = is_counted
            is_exact = to_bool(exact, "exact")
            request.is_exact = is_exact and shared.storage.packs_with_loss
            request.prompt_length = prompt_length
            if terms is not None:
                _add_terms(request, terms, self._config.tokens_per_block)
            kv_cache = self._begin(request, input_tokens, packed, positions)
            length = 0 if expected_prompt_length is None else prompt_length + 1
            asks = custom_priority_callback is not None
            journal.remember(serial, b"" if packed is None else packed)
            journal.record(CREATE, ASKED, scope, (input_tokens, packed), asks, length, positions, terms, is_counted, is_exact)
            return kv_cache

    def _begin(self, request: Request, input_tokens: Tokens | None, packed: bytes | None, positions: list[int]) -> KVCache:
        """A sequence that holds what there is of its tokens. What the user's callback raises comes before anything changes."""
        shared = self._shared
        found = self._matches.find(request.scope, packed, True, True, request.is_exact)
        lossy_tokens = found.match.num_tokens - count_exact(shared, found)
        state = SequenceState(shared, request, self._device.default_stream())
        if request.priority_callback is not None:
            request.priorities = residency.ask_matched_priorities(state, found.match)
            shared.uses_priorities = True
        text = b"" if packed is None else packed
        with shared.storage.changes:
            residency.hold_match(state, found.match, self._matches.planned)
            state.request.lossy_tokens = lossy_tokens
            if shared.has_state:
                begin_with(state, found, text, int(request.prompt_length), positions, request.is_counted)
        try:
            if input_tokens is not None and packed is not None:
                request.given_end = state.num_committed
                if state.num_committed < len(text) // TOKEN_BYTES:
                    # A long prompt's tokens, kept, are memory that the next request's would otherwise get without a page fault.
                    request.given = GivenTokens(input_tokens, packed)
            self._restored = None
            usage = self._usage.recorder
            if usage is not None:
                usage.open_account(state, request.prompt_length, request.is_counted)
                usage.record_match(state, text, found.match, self._matches.num_untrimmed)
            return KVCache(state, self, self._open_sequences)
        except BaseException:
            residency.close(state)
            raise

    @property
    def open_kv_caches(self) -> list[KVCache]:
        """The handles of the open sequences that are still referenced somewhere, in the order of creation."""
        return [handle for handle in self._open_sequences.handles() if isinstance(handle, KVCache)]

    @property
    def open_leases(self) -> list[TransferLease]:
        """A handle for each lease that is not settled, in the order of their making; also for those that were forgotten."""
        return [TransferLease(self._shared, lease, is_looked_at=True) for lease in self._shared.claims.leases.open_leases()]

    async def ready(self, kv_cache: Given[KVCache]) -> None:
        """Wait, in an asyncio event loop, until `KVCache.ready` is true, and raise what that raises.

        The device wakes the loop: no thread is made, and no clock is looked at. Await it on the thread that calls the manager; any
        number of sequences at once, and cancel it as you like. A device that cannot wake anyone (one of the user's own) is waited for
        by the host. `ValueError` for another manager's sequence, `OSError` if the system has no descriptor left.
        """
        sequence = to_instance(kv_cache, KVCache, "kv_cache")
        if sequence.manager is not self:
            raise ValueError("kv_cache is a sequence of another manager")
        await self._arrival_waits.wait(sequence)

    def resize_batch(self, kv_caches: Sequence[KVCache], capacities: Sequence[int], history_lengths: Sequence[int] | None = None) -> int:
        """`KVCache.resize` for a step of many sequences, in order; how many from the front succeeded.

        Everything is validated before anything changes; only lack of room stops midway (and a priority callback of the user's
        that raises). ``history_lengths`` None keeps them.
        """
        with self._shared.guard:
            return self._batch("resize_batch", kv_caches).resize(capacities, history_lengths)

    def find_refusal(
        self, kv_caches: Sequence[KVCache], capacities: Sequence[int], history_lengths: Sequence[int] | None = None
    ) -> Refusal | None:
        """Why `resize_batch` with these arguments would stop midway now; None if all of them find room. Changes nothing.

        As `KVCache.find_refusal`; ``asked`` counts the slots for all sequences up to the refused one, ``free`` and ``evictable`` are those
        of now.
        """
        with self._shared.guard:
            return self._batch("find_refusal", kv_caches).find_refusal(capacities, history_lengths)

    def can_finish(
        self, sequences: Sequence[KVCache], remaining_tokens: Sequence[int], max_step: SupportsIndex | None = None
    ) -> FinishPlan:
        """Whether the sequences can be resumed one after the other, each grown and closed, the others suspended meanwhile.

        Each grows by its ``remaining_tokens`` beyond its capacity, in steps of at most ``max_step`` tokens (None: of any number), each of
        which begins where the last one ended: ``resize(old capacity + step, old capacity)``. Open sequences outside the list stay as they
        are; leased pages and quarantined slots are no room. The plan is true if there is an order, and has it; else it says what
        binds. Never a wrong yes; a wrong no only where windows, beams, forks, scratch slots, leases, twins or closed levels are. What a
        device may refuse is not foreseen. It takes a sum for each sequence, whatever its length.

        Changes nothing, and waits for nothing. `ValueError` for numbers that are out of range or not one for each sequence, and for a
        sequence that is listed twice or is another manager's; `LogicError` for a closed one.
        """
        with self._shared.guard:
            return self._batch("can_finish", sequences, "sequences").find_finish_order(remaining_tokens, max_step)

    def commit_batch(self, kv_caches: Sequence[KVCache], tokens: Tokens) -> None:
        """`KVCache.commit` of one token id for each of many sequences, in order: the end of a decode step.

        Everything is validated before anything changes: `ValueError` and `LogicError` as for `commit`; `LogicError` also for a
        sequence with beams, `TypeError` for a digest.
        """
        with self._shared.guard:
            self._batch("commit_batch", kv_caches).commit(tokens)

    def _batch(self, call: str, kv_caches: Sequence[KVCache], name: str = "kv_caches") -> BatchStep:
        self._batch_number += 1
        return BatchStep(self._shared, call, self._batch_number, kv_caches, name)

    # -- hints ---------------------------------------------------------------------------------------------------------

    def retain(
        self,
        input_tokens: Tokens,
        reuse_scope: Given[ReuseScope | None] = None,
        priority: SupportsIndex = PRIORITY_MAX,
        duration_seconds: Given[float | None] = None,
    ) -> HintResult:
        """Give the cached pages of a prefix a priority, for a while or until `release`: a session that waits for a tool, say.

        ``duration_seconds`` of `advance_clock`, or math.inf: until `release`. None: as long as EvictionPolicy.LEARNED expects, by what has
        come back so far; its time is the pages that requests release. Under another policy, or while too little was learned, that is
        until `release` (docs/eviction.md).

        No more than ``max_pinned_share`` of all slots can be retained so; what goes beyond is clipped. When nothing of a lower
        priority is left, retained pages are evicted all the same, the longest retained first. `ValueError` for a priority outside
        0 to 100 or a duration that is none.
        """
        duration = to_duration(duration_seconds, "duration_seconds")
        return self._hint(RETAIN, input_tokens, reuse_scope, to_priority(priority), duration)

    def release(self, input_tokens: Tokens, reuse_scope: Given[ReuseScope | None] = None) -> HintResult:
        """The cached pages of a prefix have the default priority again."""
        return self._hint(RELEASE, input_tokens, reuse_scope, int(PRIORITY_DEFAULT), FOR_EVER)

    def demote(self, input_tokens: Tokens, reuse_scope: Given[ReuseScope | None] = None) -> HintResult:
        """The cached pages of a prefix are not expected to be of use: the lowest priority."""
        return self._hint(DEMOTE, input_tokens, reuse_scope, int(PRIORITY_MIN), FOR_EVER)

    def prefetch(
        self, input_tokens: Tokens, reuse_scope: Given[ReuseScope | None] = None, target_level: SupportsIndex = GPU_LEVEL
    ) -> HintResult:
        """Bring the cached pages of a prefix up to a level before they are asked for. All of it or, clipped, nothing."""
        level = self._levels.require(target_level, "target_level")
        return self._hint(WARM, input_tokens, reuse_scope, level, FOR_EVER)

    def _hint(self, kind: int, input_tokens: Tokens, reuse_scope: object, value: int, duration: int) -> HintResult:
        with self._shared.guard as journal:
            scope = to_scope(reuse_scope)
            packed = pack_tokens(input_tokens, self._shared.tree.digests, False, "input_tokens")
            result = apply_hint(self._shared, kind, scope, packed, value, duration)
            self._restored = None
            journal.record(HINT, kind, scope, (input_tokens, packed), value, duration - EXPECTED, result.num_accepted)
            return result

    # -- the model as the manager sees it ------------------------------------------------------------------------------

    @property
    def init_config(self) -> KVCacheManagerConfig:
        """The configuration that it was made with; `resize` and `adjust` do not change it."""
        return self._config

    @property
    def cold_page_codec(self) -> ColdPageCodec | None:
        """What packs the pages of the levels below level 0; None: they are there as kernels wrote them."""
        return self._codec

    @property
    def device(self) -> Device:
        """Where level 0 lives: the one that was given, or `default_device()`."""
        return self._device

    @property
    def event_manager(self) -> KVCacheEventManager | None:
        """The one that was given when this manager was made."""
        return self._event_manager

    @property
    def tokens_per_block(self) -> int:
        """As configured."""
        return self._config.tokens_per_block

    @property
    def cache_tier_list(self) -> tuple[CacheTier, ...]:
        """The kind of each cache level, warmest first."""
        return tuple([tier.tier for tier in self._config.cache_tiers])

    @property
    def enable_partial_match(self) -> bool:
        """Whether the leading tokens of a block that differs later are reused."""
        return self._config.enable_partial_reuse

    @property
    def allow_seq_rebasing(self) -> bool:
        """Whether a commit swaps a private page for an equal published one, so that indices change."""
        return self._config.allow_seq_rebasing

    @property
    def layer_ids(self) -> list[LayerId]:
        """All layers, in the order of the configuration."""
        return list(dict.fromkeys([layer.layer_id for layer in self._config.layers]))

    @property
    def num_layers(self) -> int:
        """A layer that has attention and state counts once."""
        return len(self.layer_ids)

    @property
    def layer_grouping(self) -> tuple[tuple[LayerId, ...], ...]:
        """The layers of each layer group, by `LayerGroupId`."""
        return self._life_cycles.layer_grouping

    def get_layer_group_id(self, layer_id: SupportsIndex) -> LayerGroupId:
        """The group of the layer's attention, or of its state if it has no attention. `ValueError` for an unknown layer."""
        return self._life_cycles.get_layer_group_id(LayerId(to_int(layer_id, "layer_id")))

    def state_layer_group_id(self, layer_id: SupportsIndex) -> LayerGroupId:
        """The group of the layer's recurrent state, also where it has attention. `ValueError` for a layer without a state."""
        return self._life_cycles.get_state_layer_group_id(LayerId(to_int(layer_id, "layer_id")))

    def life_cycle_of_group(self, layer_group_id: SupportsIndex) -> LifeCycle:
        """How long the layers of that group need a block. `ValueError` for an unknown group."""
        return self._life_cycles[LifeCycleId(to_index(layer_group_id, "layer_group_id", len(self._life_cycles), "layer groups"))]

    @property
    def all_buffer_ids(self) -> list[BufferId]:
        """Every buffer of every layer, in the order of the configuration."""
        return [BufferId(layer.layer_id, buffer.role) for layer in self._config.layers for buffer in layer.buffers]

    # -- what kernels need ---------------------------------------------------------------------------------------------

    def get_mem_pool_base_address(
        self, layer_id: SupportsIndex, data_role: Given[DataRole], index_mode: Given[PageIndexMode | None] = None
    ) -> MemAddress:
        """Address that a page index of that mode counts from; default SHARED. `ValueError` without a mode if
        `swa_scratch_reuse` is configured; for an unknown buffer one that is a `KeyError` too."""
        self._require_open()
        return self._addresses.base_address(
            LayerId(to_int(layer_id, "layer_id")), data_role, None if index_mode is None else to_index_mode(index_mode, "index_mode")
        )

    def get_page_stride(self, layer_id: SupportsIndex, data_role: Given[DataRole]) -> int:
        """Bytes from one page index to the next."""
        return self._addresses.placement(LayerId(to_int(layer_id, "layer_id")), data_role).page_bytes

    def get_page_index_scale(self, layer_id: SupportsIndex, data_role: Given[DataRole]) -> int:
        """Sub-pages of the layer's group in one slot of the buffer's pool."""
        return self._addresses.placement(LayerId(to_int(layer_id, "layer_id")), data_role).scale

    def get_page_index_upper_bound(self, layer_id: SupportsIndex, data_role: Given[DataRole]) -> int:
        """One past the largest valid page index, counted from the SHARED base address."""
        return self._addresses.page_index_upper_bound(LayerId(to_int(layer_id, "layer_id")), data_role)

    def get_page_index_converter(self, layer_id: SupportsIndex, data_role: Given[DataRole]) -> PageIndexConverter:
        """From base page indices to the kernel's; constant for the manager's life."""
        return self._addresses.converter(LayerId(to_int(layer_id, "layer_id")), data_role)

    def supports_index_mode(self, mode: Given[PageIndexMode]) -> bool | None:
        """PER_LAYER always; SHARED always without scratch reuse, else None: ask the sequence."""
        to_index_mode(mode, "mode")
        if mode is PageIndexMode.SHARED and self._config.enable_swa_scratch_reuse:
            return None
        return True

    @property
    def pool_group_descs(self) -> tuple[PoolGroupDesc, ...]:
        """The pools of level 0: their addresses, how many slots each pool group has, and what a slot is made of."""
        self._require_open()
        return self._addresses.pool_group_descs(0)

    def get_pool_group_descs(self, level: SupportsIndex) -> tuple[PoolGroupDesc, ...]:
        """The pools of a level in memory: slot ``i`` of a page below level 0 (`KVCache.get_block_slots`) is at ``base_address + i *
        slot_bytes``.

        A slot below level 0 has the parts of one of level 0, pool after pool; with a ``cold_page_codec`` it is one packed page, in one
        pool. `ValueError` for a level on a disk.
        """
        self._require_open()
        number = self._levels.require(level, "level")
        if self.cache_tier_list[number] is CacheTier.DISK:
            raise ValueError(f"level is {number}, which is on a disk: its slots have no addresses")
        return self._addresses.pool_group_descs(number)

    def get_aggregated_pages(self, buffer_ids: Iterable[BufferId]) -> list[AggregatedPageDesc]:
        """The buffers as the fewest contiguous byte ranges, for transfers.

        Slot ``i`` of a range is ``base + stride * i + [0, size)``.

        Ordered by layer group, pool and place. A buffer named twice counts once; an unknown one is a `ValueError`, what is no
        `BufferId` a `TypeError`.
        """
        self._require_open()
        return self._addresses.aggregated_pages(buffer_ids)

    def pool_view(
        self,
        layer_id: SupportsIndex,
        data_role: Given[DataRole],
        dtype: Given[str] = "uint8",
        *,
        index_mode: Given[PageIndexMode | None] = None,
        by_slot: Given[bool] = False,
    ) -> PoolView:
        """``[num_pages, page_bytes]`` over the buffer's pool without a copy, for torch, numpy and CuPy; see `PoolView`.

        Row ``i`` is what the page index ``i`` of that mode stands for; default SHARED, or PER_LAYER with
        `swa_scratch_reuse`. With ``by_slot`` row ``i`` is the buffer in slot ``i``, so base page indices index it.
        ``dtype``: a name, also "bfloat16", "float8_e4m3fn" and "float8_e5m2"; rows have ``page_bytes / item size`` items.
        Touch an ACTIVE sequence's pages in the order of its stream, on the host device as soon as a call is back.
        """
        self._require_open()
        self._shared.guard.require_idle()
        return self._addresses.pool_view(
            self._memory,
            LayerId(to_int(layer_id, "layer_id")),
            data_role,
            to_dtype(dtype),
            None if index_mode is None else to_index_mode(index_mode, "index_mode"),
            to_bool(by_slot, "by_slot"),
        )

    def clamp_max_seq_len_for_mem(self, batch_size: SupportsIndex, token_num_upper_bound: SupportsIndex) -> int:
        """The longest sequence, up to the bound, that level 0 holds beside ``batch_size - 1`` sequences of one token.

        Grown by decoding, or by prefill in steps; 0 if there is not even room for one token.
        """
        self._require_open()
        size = to_count(batch_size, "batch_size")
        if size < 1:
            raise ValueError("batch_size is 0; it must be at least 1")
        bound = to_count(token_num_upper_bound, "token_num_upper_bound")
        slots = tuple([int(allocator.num_slots) for allocator in self._shared.storage.allocators[: self._shared.storage.num_pool_groups]])
        return clamp_sequence_length(self._shared.storage.layout, self._config, slots, int(size), int(bound))

    # -- the size of the levels, and time ------------------------------------------------------------------------------

    def get_quota(self, level: SupportsIndex) -> int:
        """Bytes of that cache level."""
        return self._levels.quota(self._levels.require(level, "level"))

    def resize(self, cache_level: SupportsIndex, quota: SupportsIndex, best_efforts: Given[bool] = False) -> bool:
        """Give a cache level another quota of bytes, with whatever is in it; the content survives as far as it fits.

        Droppable pages that do not fit are offloaded, or, on the last level, dropped; held ones are offloaded; what must stay at the end
        of a pool moves to its front, in stream order, so base page indices and scratch slots of active sequences may change: ask
        for them again. False, and nothing has changed, if what must stay does not fit (`last_refusal`). With ``best_efforts`` a
        level grows as far as the device has memory, at most to the quota; without, its `OutOfMemoryError` is raised. Waits
        for the device when a level shrinks. `ValueError` if the quota is under what the constraints need.
        """
        with self._shared.guard as journal:
            level = self._levels.require(cache_level, "cache_level")
            num_bytes = self._levels.require_quota(level, quota)
            grows_partly = to_bool(best_efforts, "best_efforts")
            result = self._levels.resize(level, num_bytes, grows_partly)
            self._restored = None
            journal.record(RESIZE_LEVEL, level, num_bytes, grows_partly, self._levels.quota(level), result)
            return result

    @property
    def need_adjustment(self) -> bool:
        """Whether `adjust` would serve the observed mix of sequences better: see `RebalanceConfig`."""
        self._require_open()
        return self._levels.need_adjustment

    def adjust(self) -> bool:
        """Share the quota of every level anew between the pool groups, in proportion to what sequences were seen to need.

        Whether a level has changed. Pages move as in `resize`. A level whose pages the device refuses to move keeps its shares: that
        is an error, `PageMoveError` or the device's own, where none has changed before it, else a warning in the log.
        """
        with self._shared.guard as journal:
            has_changed = self._levels.adjust()
            self._restored = None
            journal.record(ADJUST, has_changed)
            return has_changed

    # -- copies that workers execute -----------------------------------------------------------------------------------

    def take_copies(self, after: SupportsIndex) -> tuple[int, list[tuple[int, int, int, int, int]]]:
        """What the engine's workers copy before the kernels of the next step: the list's number, and (from level, from slot, to level, to
        slot, pool group) for each slot, to be executed one after the other.

        Once for each step, between its `KVCache.resize` and its launch. ``after``: the number of the last list that the caller took, 0
        before the first. Tokens of the step are committed after this call, so that no list names a page before the step that writes it.
        `CopyListError` if ``after`` is another number, or a list is lost; `LogicError` without `ExternalCacheTierConfig.copy_workers`.
        """
        with self._shared.guard as journal:
            lists = self._require_lists("take_copies")
            number, copies = lists.take(after)
            for state in self._open_sequences.states():
                # The step that follows writes what sequences have room for.
                state.request.written_end = state.capacity
            journal.record(TAKE, number - 1, len(copies))
            return number, copies

    def report_copies(self, number: SupportsIndex, worker: SupportsIndex, layout: Sequence[Sequence[int]]) -> None:
        """A worker, counted from 0, has executed that list; ``layout``: its slots, as `copy_layout` has them.

        `KVCache.ready` is true once all workers have reported; nothing else waits for reports, and no decision depends on them.
        `CopyListError`, and nothing has changed, for another layout, a list that was not taken, and one that was reported before. A list
        between that was not reported is lost: then this call and `take_copies` raise it until `reset_copies`.
        """
        with self._shared.guard:
            self._require_lists("report_copies").report(number, worker, layout)

    def reset_copies(self) -> int:
        """After a lost list: everything that is kept for reuse is forgotten, as pages may have other bytes than their tokens say.

        Returns the number after which lists go on, for `take_copies` and new workers. `LogicError` while sequences are open.
        """
        with self._shared.guard as journal:
            lists = self._require_lists("reset_copies")
            if len(self._open_sequences) > 0:
                raise LogicError(f"reset_copies() with {len(self._open_sequences)} open sequences, whose pages are doubtful; close() them")
            self._forget(None, CLEARED)
            journal.record(CLEAR)
            return lists.reset()

    @property
    def copy_layout(self) -> tuple[tuple[int, ...], ...]:
        """Slots that each worker has, by level and pool group; behind the last level, where there are several, two slots of each pool group
        through which full levels swap. Empty where no worker copies."""
        return () if self._lists is None else self._lists.layout

    def _require_lists(self, call: str) -> CopyLists:
        if self._lists is None:
            raise LogicError(f"{call}: no worker copies for this manager; give ExternalCacheTierConfig copy_workers")
        return self._lists

    def advance_clock(self, seconds: Given[float]) -> None:
        """Let time pass for durations and cool-downs (what is over has the default priority again): the library reads no clock,
        so that equal calls decide alike.

        `ValueError` unless ``0 <= seconds <= 1e9``.
        """
        guard = self._shared.guard
        with guard as journal:
            elapsed = to_number(seconds, "seconds")
            if not 0 <= elapsed <= _MAX_SECONDS:
                raise ValueError(f"seconds is {seconds}; time goes forward, by at most {_MAX_SECONDS:g} at once")
            microseconds = round_microseconds(elapsed)
            with self._shared.storage.changes:
                self._shared.claims.retention.advance(microseconds)
            journal.record(ADVANCE, microseconds)

    # -- statistics ----------------------------------------------------------------------------------------------------

    def get_statistics(self) -> UsageStatistics:
        """Everything since the manager was made. `LogicError` with ``enable_stats=False``. From any thread.

        Cheap enough for every step, but a value of its own each time. While another thread's call runs, that call takes the
        statistics at its end; if it lasts longer than 0.1 s they are the latest that were taken so. Sequences that were made with
        ``count_in_statistics=False`` are left out of all but transfers, drops and slots.
        """
        self._usage.require()
        try:
            with self._shared.guard.readers, self._reading:
                return self._usage.total()
        except BusyError:
            usage = self._wait_for_snapshot().usage
            assert usage is not None, "a manager without statistics was asked for them"
            return usage

    def get_iteration_statistics(self) -> UsageStatistics:
        """Everything since this was last called, or since the manager was made; the next iteration begins here.

        Peaks are those of the iteration. `LogicError` with ``enable_stats=False``.
        """
        with self._shared.guard:
            return self._usage.take_iteration()

    def get_storage_statistics(self, level: SupportsIndex = 0) -> list[StorageStatistics]:
        """One entry per pool group. From any thread, as `get_statistics`."""
        number = self._levels.require(level, "level")
        try:
            with self._shared.guard.readers, self._reading:
                return self._usage.slots(number)
        except BusyError:
            return self._wait_for_snapshot().levels[number]

    def record_block_times(self, clock: Given[StatisticsClock]) -> BlockTimes | None:
        """From now on look at the clock when something happens to a sampled block. None with ``block_times_sampling=0``.

        Called again it returns what is there, and the first clock stays. The result is read on the thread that calls the manager.
        `LogicError` with ``enable_stats=False``. No decision depends on it.
        """
        with self._shared.guard:
            return self._usage.record_block_times(clock)

    def time_transfers(self) -> TransferTimes:
        """From now on time, on the device, what is copied from one level to another. Called again it returns what is there.

        The result is read on the thread that calls the manager. `LogicError` with ``enable_stats=False``. No decision depends on it.
        """
        with self._shared.guard:
            self._usage.require()
            return self._shared.traffic.mover.time_transfers()

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def last_refusal(self) -> Refusal | None:
        """Why the latest call without room found none; None while every call has found room."""
        return self._shared.storage.last_refusal

    def state_digest(self) -> bytes:
        """8 bytes that depend on every decision so far: which slot, which victim, which match, which refusal.

        Ranks that were given the same calls have the same digest, compiled or interpreted and on any device.
        """
        self._shared.guard.require_idle()
        return self._shared.storage.digest.to_bytes()

    def flush_journal(self) -> None:
        """Hand everything recorded so far to the operating system; `LogicError` without a journal, or `OSError` why it ended."""
        self._shared.guard.require_idle()
        self._shared.guard.journal.flush()

    def check_invariants(self) -> None:
        """Evaluate all invariants from scratch; `CorruptedError` with the first that does not hold, or with the reason why the
        manager is broken already. For tests: it takes 5 us a cached block, compiled. From any thread; `BusyError` while another call
        runs."""
        self._shared.guard.end_interrupted()
        # Not as a call that changes something, whose end may wait for a disk.
        with self._shared.guard.readers, self._reading:
            check_invariants(self._shared, self._open_sequences.states())

    def describe(self) -> dict[str, Any]:
        """State dump, plain and JSON-able. For looking: it takes 11 us a cached block. From any thread; `BusyError` while another call
        runs."""
        with self._shared.guard.readers, self._reading:
            return describe(self._shared, self._open_sequences.states())

    # -- inside --------------------------------------------------------------------------------------------------------

    def _snapshot(self) -> ManagerSnapshot:
        """The figures of `get_statistics` and `get_storage_statistics`, and how many sequences are open, of one moment."""
        try:
            with self._shared.guard.readers, self._reading:
                return self._usage.take_snapshot()
        except BusyError:
            return self._wait_for_snapshot()

    def _look(self, look: Callable[[], None]) -> None:
        """Run it while no call runs, and none begins. `BusyError` while another thread's call runs."""
        with self._shared.guard.readers, self._reading:
            look()

    def _wait_for_snapshot(self) -> ManagerSnapshot:
        """While another thread's call runs: what it publishes at its end."""
        if not self._shared.guard.ask_for_snapshot().acquire(True, _PATIENCE_SECONDS):
            try:
                # It may have ended before it was asked.
                with self._shared.guard.readers, self._reading:
                    self._usage.publish()
            except BusyError:
                pass
        return self._usage.published

    def _shared_for_batch(self) -> SharedState:
        return self._shared

    def _require_idle(self) -> None:
        self._shared.guard.require_idle()

    def _require_open(self) -> None:
        self._shared.guard.require_open()


def _to_fill(given: object, config: KVCacheManagerConfig, device: Device | None) -> DebugFill | None:
    """External memory is on a device without memory, where nothing can be filled."""
    debug_fill = to_instance_or_none(given, DebugFill, "debug_fill")
    has_memory = not config.is_external if device is None else device.has_memory
    if has_memory and device is not None and config.is_external:
        raise ValueError(f"cache_tiers[0] is an ExternalCacheTierConfig, and device has memory: {device.name}; give an ExternalDevice")
    if debug_fill is not None and not has_memory:
        raise ValueError(f"debug_fill is {debug_fill.name}, and the device has no memory to fill; leave it out")
    return debug_fill


def _to_device(device: object) -> Device | None:
    if device is not None and not isinstance(device, Device):
        found = f"the class {device.__name__}" if isinstance(device, type) else type(device).__name__
        raise TypeError(f"device must be a Device or None, not {found}; make one: HostDevice(), or CudaDevice(0)")
    return device


def _make_device(config: KVCacheManagerConfig) -> Device:
    return ExternalDevice() if config.is_external else default_device()


def _to_path(journal: object) -> str | None:
    if journal is None:
        return None
    if isinstance(journal, str):
        return require_path(to_text(journal, "journal"), "journal", "file")
    if not isinstance(journal, os.PathLike):
        raise TypeError(f"journal must be a path or None, not {type(journal).__name__}")
    path: object = os.fspath(journal)
    return require_path(to_text(path, "journal"), "journal", "file")


def _make_journal(path: str, config: KVCacheManagerConfig, codec: bytes) -> JournalWriter:
    try:
        return JournalWriter(path, encode_config(config), codec)
    except BlockingIOError:
        raise LogicError(
            f"another manager, of this process or another one, writes its journal to {path}: give each manager (each rank) a path of its "
            "own, or shut that one down first"
        ) from None
    except OSError as error:
        text = f"the journal cannot be made: {error.strerror}; give journal= the path of a file that may be written"
        raise OSError(error.errno, text, path) from error


def _to_event_manager(event_manager: object) -> KVCacheEventManager | None:
    found = to_instance_or_none(event_manager, KVCacheEventManager, "event_manager")
    if found is not None:
        found.require_unbound()
    return found


def _validate_callback(custom_priority_callback: object) -> None:
    if custom_priority_callback is not None and not callable(custom_priority_callback):
        raise TypeError(f"custom_priority_callback must be callable or None, not {type(custom_priority_callback).__name__}")


def _add_terms(request: Request, terms: RetentionConfig, tokens_per_block: int) -> None:
    plan = RetentionPlan(terms, int(request.prompt_length), tokens_per_block, request.priority_callback)
    request.priority_callback = plan
    if plan.has_durations:
        request.retention = plan
    request.kinds = find_kinds(terms, int(request.prompt_length), tokens_per_block)


def _list_layer_groups(shared: SharedState) -> list[LayerGroupFacts]:
    """The layer groups, as events tell of them."""
    slots = list_slots_per_level(shared.storage)
    return [
        LayerGroupFacts(_kind_of(cycle), cycle.window_size, slots[life_cycle_id]) for life_cycle_id, cycle in enumerate(shared.life_cycles)
    ]


def _kind_of(cycle: LifeCycle) -> str:
    if not cycle.has_page_per_block:
        return MAMBA
    return FULL_ATTENTION if cycle.window_size is None else SLIDING_WINDOW
