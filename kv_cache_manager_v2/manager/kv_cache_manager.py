"""`KVCacheManager`: one per engine rank; owns the memory, the tree and the books of all sequences.

    state      guaranteed                                 ways out
    OPEN       calls are served                           shutdown() -> CLOSED; a failed invariant -> BROKEN
    BROKEN     every call raises CorruptedError           shutdown() -> CLOSED, as far as it can
    CLOSED     all memory is given back                   none

This module validates, guards and delegates. One caller at a time; see `CallGuard`.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, SupportsIndex, final

import rawref
from mypy_extensions import i64, mypyc_attr

from ..base.checks import to_bool, to_count, to_instance, to_int, to_list, to_text
from ..base.errors import LogicError
from ..base.given import Given
from ..base.finalizers import report_failure, warn_of_leak
from ..base.process_bound import bind_to_process, release_from_process
from ..config.config_codec import encode_config, encode_value
from ..config.manager_config import KVCacheManagerConfig
from ..config.retention import RetentionConfig
from ..device.port import Device
from ..device.selection import default_device
from ..device.stream_order import StreamOrder
from ..events.event_manager import KVCacheEventManager
from ..introspect.description import describe
from ..introspect.invariants import check_invariants
from ..journal.call_journal import CallJournal
from ..journal.journal_writer import JournalWriter
from ..layout.registry import LifeCycleRegistry
from ..layout.slot_layout import compute_slot_layout
from ..reuse.block_pool import count_full_blocks
from ..reuse.match import Matcher
from ..reuse.radix_tree import RadixTree
from ..reuse.reuse_scope import ReuseScope, to_scope
from ..reuse.state_match import StateMatch
from ..reuse.token_packing import TOKEN_BYTES, pack_tokens
from ..sequence import residency
from ..sequence.priority_callback import PriorityCallback
from ..sequence.recurrent_state import begin_with
from ..sequence.retention_plan import RetentionPlan
from ..sequence.sequence_state import SequenceState
from ..sequence.shared_state import SharedState
from ..sequence.usage_recorder import make_usage_recorder
from ..stats.demand import Demand
from ..stats.storage_statistics import StorageStatistics
from ..storage.debug_fill import DebugFill
from ..storage.refusal import Refusal
from ..storage.slot_statistics import compute_statistics
from .batch_step import BatchStep
from .event_groups import list_layer_groups
from .kernel_addresses import KernelAddresses
from .kv_cache import AbandonedSequence, KVCache
from .memory_lease import MemoryLease
from .open_sequences import OpenSequences
from .open_storage import open_storage, plan_levels
from .prefix_matches import PrefixMatches
from .transfer_lease import TransferLease

if TYPE_CHECKING:
    from ..reuse.token_forms import Tokens

_logger = logging.getLogger("kv_cache_manager_v2")


def _to_fill(debug_fill: object) -> DebugFill | None:
    if debug_fill is not None and not isinstance(debug_fill, DebugFill):
        raise TypeError(f"debug_fill must be a DebugFill or None, not {type(debug_fill).__name__}")
    return debug_fill


def _to_device(device: object) -> Device | None:
    if device is not None and not isinstance(device, Device):
        raise TypeError(f"device must be a Device or None, not {type(device).__name__}")
    return device


def _to_path(journal: object) -> str | None:
    if journal is None or isinstance(journal, str):
        return journal
    if not isinstance(journal, os.PathLike):
        raise TypeError(f"journal must be a path or None, not {type(journal).__name__}")
    path: object = os.fspath(journal)
    return to_text(path, "journal")


def _to_event_manager(event_manager: object) -> KVCacheEventManager | None:
    if event_manager is None:
        return None
    if not isinstance(event_manager, KVCacheEventManager):
        raise TypeError(f"event_manager must be a KVCacheEventManager or None, not {type(event_manager).__name__}")
    event_manager.require_unbound()
    return event_manager


def _to_terms(retention: object) -> RetentionConfig | None:
    if retention is not None and not isinstance(retention, RetentionConfig):
        raise TypeError(f"retention must be a RetentionConfig or None, not {type(retention).__name__}")
    return retention


def _validate_callback(custom_priority_callback: object) -> None:
    if custom_priority_callback is not None and not callable(custom_priority_callback):
        raise TypeError(f"custom_priority_callback must be callable or None, not {type(custom_priority_callback).__name__}")


@final
@mypyc_attr(native_class=True)
class KVCacheManager(PrefixMatches):
    """Owns paged KV-cache memory and decides which bytes belong to which token. See the module for its states.

    ``device``: where level 0 lives; None takes `default_device()`, which the manager then also closes. ``journal``: a
    file to record every call in, for ``kvcm rerun``; it is made anew. ``debug_fill``: what freed pages, and pages as they
    are handed out, are filled with. ``event_manager``: is told what becomes of published blocks. `ValueError` if the quota is
    too small for the configured constraints, `OutOfMemoryError` if the device has not that much, `OSError` if the journal
    cannot be made.
    """

    __slots__ = ("_owns_device", "_batch_number", "_event_manager", "_is_released")

    _owns_device: Final[bool]
    _event_manager: Final[KVCacheEventManager | None]
    _batch_number: i64
    """Counts batch calls; each sequence remembers the last one that listed it."""
    _is_released: bool
    """Whether there is no memory to release: `shutdown` is done, or the constructor is not."""

    def __init__(
        self,
        config: Given[KVCacheManagerConfig],
        *,
        device: Given[Device | None] = None,
        journal: Given[str | os.PathLike[str] | None] = None,
        debug_fill: Given[DebugFill | None] = None,
        event_manager: Given[KVCacheEventManager | None] = None,
    ) -> None:
        self._is_open = False
        self._is_released = True
        config = to_instance(config, KVCacheManagerConfig, "config")
        fill = _to_fill(debug_fill)
        own_device = _to_device(device)
        path = _to_path(journal)
        self._event_manager = _to_event_manager(event_manager)
        self._config = config
        self._life_cycles = LifeCycleRegistry(config)
        self._layout = compute_slot_layout(config, self._life_cycles)
        slots_by_level = plan_levels(self._layout, config)
        self._owns_device = own_device is None
        self._device = default_device() if own_device is None else own_device
        writer: JournalWriter | None = None
        try:
            if path is not None:
                writer = JournalWriter(path, encode_config(config))
            num_null_slots = 1 if config.reserve_null_slot else 0
            order = StreamOrder(self._device)
            storage, mover = open_storage(
                self._device, order, self._layout, slots_by_level, num_null_slots, fill
            )
        except BaseException:
            if self._owns_device:
                self._device.close()
            if writer is not None:
                writer.close()
            raise
        tree = RadixTree(storage, self._life_cycles, config.tokens_per_block)
        storage.set_owner(tree)
        matcher = Matcher(tree, self._life_cycles, config.tokens_per_block, config.enable_partial_reuse)
        self._shared = SharedState(self._device, storage, mover, tree, matcher, self._life_cycles, config)
        self._addresses = KernelAddresses(storage, config.enable_swa_scratch_reuse)
        self._open_sequences = OpenSequences()
        self._quotas = [tier.quota for tier in config.cache_tiers]
        self._demand = Demand(self._layout.num_pool_groups, config.rebalance.smoothing)
        self._last_adjustment_us = 0
        self._num_untrimmed = 0
        self._usage = make_usage_recorder(tree, self._life_cycles, config) if config.enable_stats else None
        self._iteration = None
        self._batch_number = 0
        self._lease = MemoryLease(storage, mover, self._device, self._owns_device)
        if writer is not None:
            writer.follow(storage.digest)
            self._shared.journal = CallJournal(writer)
        if self._event_manager is not None:
            storage.sink = self._event_manager.bind(
                list_layer_groups(self._shared),
                storage.rows.first_page_of_blocks,
                config.tokens_per_block,
                [tier.tier for tier in config.cache_tiers],
            )
        bind_to_process(self._shared.guard)
        self._is_released = False
        self._is_open = True

    # -- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> KVCacheManager:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or self._shared.guard.is_foreign:
            self.shutdown()
            return
        # The user's error is what he must see; what stands in the way of an orderly end is closed or logged.
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
        rawref.invalidate(self)
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

    def clear_reusable_blocks(self) -> None:
        """Forget everything that is kept for reuse. `LogicError` while sequences are open."""
        guard = self._shared.guard
        guard.enter()
        try:
            self._require_open()
            self._require_no_sequences("clear_reusable_blocks")
            guard.begin_change()
            self._shared.drop_plans.void_all()
            self._shared.tree.clear()
            guard.end_change()
            if self._shared.journal is not None:
                self._shared.journal.clear()
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    def freeze(self) -> None:
        """Make all blocks that the tiers have room for, and hide everything that is alive from the garbage collector.

        For once, when the engine is loaded and not serving yet: from then on a full collection looks at what came later and
        not at the cache, whose blocks would cost it some 0.2 us each. It is `gc.freeze`, so it is the whole process that is
        hidden; `gc.unfreeze` takes it back. A block takes about 0.2 us and 100 bytes to make. No decision depends on it.
        """
        guard = self._shared.guard
        guard.enter()
        try:
            self._require_open()
            self._shared.tree.pool.make(count_full_blocks(self._shared.storage))
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()
        gc.collect()
        gc.freeze()

    def shutdown(self) -> None:
        """Wait for the device, then give all memory back. Twice is fine. `LogicError` while sequences are open.

        Where Ctrl-C cuts it off, other calls are refused from then on, and the next shutdown() goes on where this one stopped.
        In a process that was forked from the one that made the manager it gives nothing back: all is the parent's.
        """
        if self._is_released:
            return
        guard = self._shared.guard
        if self._is_open and not guard.is_broken and not guard.is_foreign:
            guard.enter()
            try:
                self._require_no_sequences("shutdown")
                guard.begin_change()
                self._shared.drop_plans.void_all()
                self._shared.tree.clear()
                guard.end_change()
                if self._event_manager is not None:
                    self._event_manager.flush_iteration_events()
            except AssertionError as error:
                raise guard.fail(error) from error
            finally:
                guard.leave()
        self._release_memory()

    def _release_memory(self) -> None:
        self._is_open = False
        release_from_process(self._shared.guard)
        if self._shared.guard.is_foreign:
            self._is_released = True
            return
        if self._shared.journal is not None:
            self._shared.journal.writer.close()
        if sys.is_finalizing():
            # Worker threads are gone, and the CUDA driver may be: nothing can be waited for, and all memory ends with the process.
            self._is_released = True
            return
        # Each of these may be cut off by Ctrl-C, and is called again then: it does what is left.
        order = self._shared.order
        order.synchronize_all()
        order.close()
        self._lease.close()
        self._is_released = True

    def _require_no_sequences(self, call: str) -> None:
        for state in self._open_sequences.forgotten():
            AbandonedSequence(state, self._open_sequences).close_abandoned()
        count = len(self._open_sequences)
        if count > 0:
            raise LogicError(f"{call}: {count} sequence{'s are' if count > 1 else ' is'} still open; close() them first")
        count = len(self._shared.leases)
        if count > 0:
            raise LogicError(
                f"{call}: {count} transfer lease{'s are' if count > 1 else ' is'} still open; settle() them once the other side is "
                f"done, open_leases has them"
            )

    @property
    def open_leases(self) -> list[TransferLease]:
        """A handle for each lease that is not settled, in the order of their making; also for those that were forgotten."""
        return [TransferLease(self._shared, lease) for lease in self._shared.leases.open_leases()]

    # -- sequences ----------------------------------------------------------------------------------------------------

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
    ) -> KVCache:
        """A suspended sequence that holds the pages of the longest reusable prefix of ``input_tokens``.

        Afterwards committed = history = capacity = matched tokens. Leave off the last prompt token if the model must recompute
        it. ``id`` is for messages and pictures only; default: a running number. ``custom_priority_callback(block_ordinal,
        life_cycle)`` gives each page a priority from 0 to 100 when it is made or reused (default 35).
        ``expected_prompt_length``: tokens from here on count as generated, in the statistics and for snapshots; default: the length
        of ``input_tokens``. ``count_in_statistics=False``: for dummy sequences, which no total should show.
        ``snapshot_positions``: lengths at which the recurrent state, if there is any, is to be kept for reuse, beside those
        of the manager's `SnapshotPolicy`. ``retention``: priorities, and how long they hold, for ranges of the prompt and for what is
        generated; where the callback has a say as well, the higher priority counts.

        `ValueError` for a token, length, position or priority out of range, `TypeError` for a value of another type, `LogicError` once
        shut down; what the callback raises is passed on. Then nothing has changed.
        """
        guard = self._shared.guard
        guard.enter()
        try:
            self._require_open()
            scope = to_scope(reuse_scope)
            shared = self._shared
            serial = self._open_sequences.next_serial
            sequence_id = serial if id is None else to_int(id, "id")
            _validate_callback(custom_priority_callback)
            terms = _to_terms(retention)
            is_counted = to_bool(count_in_statistics, "count_in_statistics")
            packed = None if input_tokens is None else pack_tokens(input_tokens, shared.tree.digests, False)
            num_input_tokens = 0 if packed is None else len(packed) // TOKEN_BYTES
            prompt_length: i64 = num_input_tokens
            if expected_prompt_length is not None:
                prompt_length = to_count(expected_prompt_length, "expected_prompt_length")
            positions = [
                to_count(position, "one of snapshot_positions") for position in to_list(snapshot_positions, "snapshot_positions")
            ]
            state_match: StateMatch | None = None
            if shared.has_state:
                state_match = self._find_state_match(scope, packed)
                match = state_match.match
            else:
                match = self._find_match(scope, packed)
            journal = shared.journal
            if journal is not None:
                journal.begin()
            plan = self._plan_retention(terms, int(prompt_length), custom_priority_callback)
            callback = custom_priority_callback if plan is None else plan
            state = SequenceState(shared, serial, sequence_id, scope, self._device.default_stream(), callback)
            if plan is not None and plan.has_durations:
                state.retention = plan
            priorities: list[int] | None = None
            if callback is not None:
                priorities = residency.ask_matched_priorities(state, match)
            self._sample_demand()
            state.prompt_length = prompt_length
            residency.hold_match(state, match)
            if state_match is not None:
                begin_with(state, state_match, num_input_tokens, int(prompt_length), positions)
            if self._usage is not None:
                text = b"" if packed is None else packed
                self._usage.open_account(state, prompt_length, is_counted)
                self._usage.record_match(state, text, match, self._num_untrimmed)
            if priorities is not None:
                shared.uses_priorities = True
                residency.raise_matched_priorities(state, priorities)
            kv_cache = KVCache(state, self, self._open_sequences)
            if journal is not None:
                listed, packed = self._to_journal_tokens(input_tokens, packed)
                asks = custom_priority_callback is not None
                length = None if expected_prompt_length is None else int(prompt_length)
                kept = "" if terms is None else encode_value(terms)
                journal.create(serial, scope.lora_id, scope.salt, listed, packed, asks, length, positions, kept)
            return kv_cache
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    def _plan_retention(
        self, retention: RetentionConfig | None, prompt_length: int, callback: PriorityCallback | None
    ) -> RetentionPlan | None:
        if retention is None:
            return None
        return RetentionPlan(retention, prompt_length, self._config.tokens_per_block, callback)

    @property
    def open_kv_caches(self) -> list[KVCache]:
        """The handles of the open sequences that are still referenced somewhere, in the order of creation."""
        return [handle for handle in self._open_sequences.handles() if isinstance(handle, KVCache)]

    def resize_batch(
        self,
        kv_caches: Sequence[KVCache],
        capacities: Sequence[int],
        history_lengths: Sequence[int] | None = None,
    ) -> int:
        """`KVCache.resize` for a step of many sequences, in order; how many from the front succeeded.

        Everything is validated before anything changes; only lack of room stops midway (and a priority callback of the user's
        that raises). ``history_lengths`` None keeps them.
        """
        guard = self._shared.guard
        guard.enter()
        try:
            self._require_open()
            self._batch_number += 1
            step = BatchStep(self._shared, "resize_batch", self._batch_number, kv_caches)
            return step.resize(capacities, history_lengths)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    def commit_batch(self, kv_caches: Sequence[KVCache], tokens: Tokens) -> None:
        """`KVCache.commit` of one token id for each of many sequences, in order: the end of a decode step.

        Everything is validated before anything changes: `ValueError` and `LogicError` as for `commit`; `LogicError` also for a
        sequence with beams, `TypeError` for a digest.
        """
        guard = self._shared.guard
        guard.enter()
        try:
            self._require_open()
            self._batch_number += 1
            BatchStep(self._shared, "commit_batch", self._batch_number, kv_caches).commit(tokens)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    # -- looking ------------------------------------------------------------------------------------------------------

    def get_storage_statistics(self, level: SupportsIndex = 0) -> list[StorageStatistics]:
        """One entry per pool group."""
        guard = self._shared.guard
        guard.enter()
        try:
            self._require_open()
            number = self._require_level(level, "level")
            storage = self._shared.storage
            return [compute_statistics(storage, number, pool_group) for pool_group in range(storage.num_pool_groups)]
        finally:
            guard.leave()

    @property
    def event_manager(self) -> KVCacheEventManager | None:
        """The one that was given when this manager was made."""
        return self._event_manager

    @property
    def last_refusal(self) -> Refusal | None:
        """Why the latest call that found no room did not; None if none ever did."""
        return self._shared.storage.last_refusal

    def state_digest(self) -> bytes:
        """8 bytes that depend on every decision so far: which slot, which victim, which match, which refusal.

        Ranks that were given the same calls have the same digest, compiled or interpreted and on any device.
        """
        return self._shared.storage.digest.to_bytes()

    def flush_journal(self) -> None:
        """Hand everything recorded so far to the operating system; `LogicError` without a journal, or `OSError` why it ended."""
        journal = self._shared.journal
        if journal is None:
            raise LogicError("this manager has no journal; give a path as journal= when it is made")
        journal.writer.flush()
        if journal.writer.error is not None:
            raise journal.writer.error

    def check_invariants(self) -> None:
        """Evaluate the rules of the books from scratch; `CorruptedError` with the first that does not hold, or with the reason why the
        manager is broken already. Slow."""
        self._require_open()
        self._shared.guard.require_sound()
        check_invariants(self._shared, self._open_sequences.states())

    def describe(self) -> dict[str, Any]:
        """A plain, JSON-able picture of the present state."""
        guard = self._shared.guard
        guard.enter()
        try:
            self._require_open()
            return describe(self._shared, self._open_sequences.states())
        finally:
            guard.leave()
