"""`KVCacheManager` as TensorRT-LLM's engine makes and calls it, around the library's own manager."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from types import TracebackType
from typing import Any, Final, SupportsIndex, final

from rawref import invalidate

from ...base.checks import to_bool, to_instance, to_instance_or_none, to_list
from ...base.finalizers import report_failure
from ...base.given import Given
from ...device.monotonic_clock import MonotonicClock
from ...device.cold_page_codec import ColdPageCodec
from ...device.port import Device
from ...manager import kv_cache, kv_cache_manager
from ...sequence.priority_callback import PriorityCallback
from .block_keys import compute_block_key
from .configuration import KVCacheManagerConfig
from .engine_queries import EngineQueries
from .engine_sequence import KVCache
from .event_queue import KVCacheEventManager
from .live_managers import register_manager, unregister_manager
from .multimodal_items import ItemNames, has_items
from .scope_tuple import to_core_scope
from .statistics_deltas import (
    KVCacheIterationStatsDelta,
    KVCacheStatsDelta,
    PoolGroupPeakBlockStats,
    ReusedBlocksByLevel,
    SsmSnapshotIterationStatsDelta,
)
from .statistics_ledger import StatisticsLedger

_ID_BOUND: Final = 1 << 62


def _to_core_id(sequence_id: object) -> int | None:
    """For messages; None, a number of the library's, for what is no number of 64 bits."""
    if isinstance(sequence_id, int) and not isinstance(sequence_id, bool) and -_ID_BOUND <= sequence_id < _ID_BOUND:
        return int(sequence_id)
    return None


def _require_hashable(sequence_id: object, name: str) -> None:
    try:
        hash(sequence_id)
    except (TypeError, ValueError):  # a writable memoryview is no bad value to the caller
        raise TypeError(f"{name} must be hashable, which a {type(sequence_id).__name__} is not") from None


@final
class KVCacheManager(EngineQueries):
    """Owns paged KV-cache memory, as TensorRT-LLM's engine calls it.

    ``cold_page_codec``: a `ColdPageCodec` of this library, which packs pages for host memory. ``device``: where level 0
    lives; None takes the default one.
    Errors as of the library's manager: `ValueError` for a quota that is too small, `OutOfMemoryError` where the device has not that
    much. One caller at a time.
    """

    __slots__ = ("_event_manager", "_names", "_ledger", "_clock", "_clock_seconds")

    def __init__(
        self,
        config: Given[KVCacheManagerConfig],
        event_manager: Given[KVCacheEventManager | None] = None,
        cold_page_codec: Given[ColdPageCodec | None] = None,
        *,
        device: Given[Device | None] = None,
    ) -> None:
        given_config = to_instance(config, KVCacheManagerConfig, "config")
        events = to_instance_or_none(event_manager, KVCacheEventManager, "event_manager")
        if device is not None and not isinstance(device, Device):
            raise TypeError(f"device must be a Device or None, not {type(device).__name__}")
        core_events = None if events is None else events.core
        core = kv_cache_manager.KVCacheManager(
            given_config.to_core(), device=device, event_manager=core_events, cold_page_codec=cold_page_codec
        )
        core._matches.counts_content = True
        self._core = core
        # The caller may change its own, for the next manager.
        self._config = deepcopy(given_config)
        self._event_manager: Final[KVCacheEventManager | None] = events
        self._names: Final[ItemNames] = ItemNames() if events is None else events.names
        shared = core._shared
        self._ledger: Final = StatisticsLedger(
            shared.storage,
            given_config.enable_stats,
            list(core.cache_tier_list),
            int(shared.state_life_cycle) if shared.has_state else None,
            core.tokens_per_block,
        )
        self._clock: Final = MonotonicClock()
        self._clock_seconds: float = self._clock.seconds()
        """Up to which the library's manager has been told of time."""
        register_manager(shared.guard)

    def __enter__(self) -> KVCacheManager:
        return self

    def __exit__(self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._core.__exit__(error_type, error, traceback)
        unregister_manager(self._core._shared.guard)

    def __del__(self) -> None:
        invalidate(self)
        try:
            core = getattr(self, "_core", None)
            if isinstance(core, kv_cache_manager.KVCacheManager):
                unregister_manager(core._shared.guard)
        except BaseException as error:
            report_failure(error, KVCacheManager)

    @property
    def event_manager(self) -> KVCacheEventManager | None:
        """The one that was given."""
        return self._event_manager

    def shutdown(self) -> None:
        """Wait for the device, then release all memory. Twice is fine. `LogicError` while sequences are open."""
        self._core.shutdown()
        unregister_manager(self._core._shared.guard)

    def clear_reusable_blocks(self) -> None:
        """Forget everything that is kept for reuse, as `KVCacheManager.clear_reusable_blocks`."""
        self._core.clear_reusable_blocks()

    # -- sequences ----------------------------------------------------------------------------------------------------

    def create_kv_cache(
        self,
        reuse_scope: object = None,
        input_tokens: Any = None,
        id: Any = None,
        custom_priority_callback: PriorityCallback | None = None,
        expected_prompt_length: SupportsIndex | None = None,
        text_only: Given[bool | None] = None,
        enable_request_stats: Given[bool] = False,
    ) -> KVCache:
        """A suspended sequence that holds the pages of the longest reusable prefix of ``input_tokens``.

        ``id``: anything hashable, and what messages call the sequence if it is a number; of excluded ids (`mark_stats_excluded`) nothing
        is counted. ``enable_request_stats``: whether `_KVCache.commit_pending_stats` returns its counts.
        """
        scope = to_core_scope(reuse_scope)
        _require_hashable(id, "id")
        is_text = self._config.text_only if text_only is None else to_bool(text_only, "text_only")
        is_reported = to_bool(enable_request_stats, "enable_request_stats")
        tokens = self._names.to_plain_tokens(input_tokens) if has_items(input_tokens) else input_tokens
        counts_in_total = id is None or not self._ledger.is_excluded(id)
        core = self._core.create_kv_cache(scope, tokens, _to_core_id(id), custom_priority_callback, expected_prompt_length, counts_in_total)
        num_content = int(self._core._matches.num_content)
        counts = self._ledger.open(core._state_for_batch(), id, 0 if tokens is None else len(tokens), is_reported)
        return KVCache(core, self, id, self._ledger, counts, self._names, num_content, is_text)

    def probe_reuse(self, reuse_scope: object = None, input_tokens: Any = None) -> int:
        """How many leading tokens could be reused now; holds nothing. Plans that were forgotten are carried out first."""
        tokens = self._names.to_plain_tokens(input_tokens) if has_items(input_tokens) else input_tokens
        return self._core.probe_reuse(to_core_scope(reuse_scope), tokens)

    def probe_first_new_block_key(self, reuse_scope: object, input_tokens: Any) -> bytes | None:
        """The key of the first block behind the reusable prefix; None if the tokens do not fill it."""
        num_reusable = self.probe_reuse(reuse_scope, input_tokens)
        size = self._core.tokens_per_block
        ordinal = num_reusable // size
        if input_tokens is None or (ordinal + 1) * size > len(input_tokens):
            return None
        tokens = input_tokens[: (ordinal + 1) * size]
        return compute_block_key(tokens, size, to_core_scope(reuse_scope), ordinal)

    def resize_batch(self, kv_caches: Sequence[KVCache], capacities: Sequence[int], history_lengths: Sequence[int] | None = None) -> int:
        """`_KVCache.resize` for a step of many sequences, in order; how many from the front succeeded."""
        count = self._core.resize_batch(_to_core_list(kv_caches), capacities, history_lengths)
        self._ledger.record_peaks()
        return count

    def commit_batch(self, kv_caches: Sequence[KVCache], tokens: Any) -> None:
        """`_KVCache.commit` of one token id for each of many sequences, in order."""
        self._core.commit_batch(_to_core_list(kv_caches), tokens)

    # -- shares of the pool groups ------------------------------------------------------------------------------------

    @property
    def need_adjustment(self) -> bool:
        """Whether `adjust` would serve the observed mix of sequences better; looks at the process's clock for the cool-down."""
        self._advance_clock()
        return self._core.need_adjustment

    def adjust(self) -> None:
        """Share the quota of every level anew between the pool groups, towards what sequences were seen to need."""
        self._advance_clock()
        self._core.adjust()

    def _advance_clock(self) -> None:
        now = self._clock.seconds()
        if now > self._clock_seconds:
            self._core.advance_clock(now - self._clock_seconds)
            self._clock_seconds = now

    # -- statistics ---------------------------------------------------------------------------------------------------

    def get_committed_stats(self) -> KVCacheStatsDelta:
        """All that sequences have committed so far."""
        return self._ledger.committed()

    def get_and_reset_iteration_stats(self) -> dict[int, KVCacheIterationStatsDelta]:
        """By layer group, what sequences have committed, and what was copied and dropped, since the last time."""
        return self._ledger.take_iteration()

    def get_and_reset_ssm_snapshot_iteration_stats(self) -> dict[int, SsmSnapshotIterationStatsDelta]:
        """The recurrent layer group's look-ups of snapshots since the last time."""
        return self._ledger.take_snapshots()

    def get_and_reset_iteration_suspend_resume_stats(self) -> tuple[int, int]:
        """Requests that the engine recorded since the last time: (suspended, resumed)."""
        return self._ledger.take_suspended_and_resumed()

    def get_and_reset_iteration_disk_prefetch_blocks(self) -> int:
        """Pages that `_KVCache.prefetch` brought up from a disk since the last time."""
        return self._ledger.take_prefetched()

    def get_and_reset_iteration_cached_tokens_by_level(self) -> list[int]:
        """Matched tokens of the sequences made since the last time, by the cache level that they were found on."""
        return self._ledger.take_cached_tokens()

    def get_and_reset_iteration_reused_blocks_by_level(self) -> dict[int, ReusedBlocksByLevel]:
        """By layer group, pages that sequences made since the last time found, by the cache level that they were on."""
        return self._ledger.take_reused()

    def get_and_reset_iteration_peak_block_stats(self, cache_level: SupportsIndex) -> list[PoolGroupPeakBlockStats]:
        """By pool group, the slots of that level when the most were locked or held since the last time."""
        return self._ledger.take_peaks(self._to_level(cache_level))

    def get_and_reset_iteration_peak_block_stats_by_level(self) -> list[list[PoolGroupPeakBlockStats]]:
        """The same of each level."""
        return [self._ledger.take_peaks(level) for level in range(len(self._core.cache_tier_list))]

    def record_request_suspended(self) -> None:
        """The engine has suspended a request."""
        self._ledger.record_suspended()

    def record_request_resumed(self) -> None:
        """The engine has resumed a request."""
        self._ledger.record_resumed()

    def mark_stats_excluded(self, kv_cache_id: Any) -> None:
        """Of sequences made with that id from now on nothing is counted; for dummies. None is ignored."""
        _require_hashable(kv_cache_id, "kv_cache_id")
        if kv_cache_id is not None:
            self._ledger.exclude(kv_cache_id)

    def clear_stats_excluded(self, kv_cache_id: Any) -> None:
        """Sequences made with that id from now on count again."""
        _require_hashable(kv_cache_id, "kv_cache_id")
        self._ledger.include(kv_cache_id)

    def is_stats_excluded(self, kv_cache_id: Any) -> bool:
        """Whether sequences made with that id do not count."""
        _require_hashable(kv_cache_id, "kv_cache_id")
        return self._ledger.is_excluded(kv_cache_id)

    def mark_stats_dirty(self, kv_cache_id: Any) -> None:
        """List the id in `get_dirty_stats_kv_cache_ids` until its sequence commits. None and excluded ids are ignored."""
        _require_hashable(kv_cache_id, "kv_cache_id")
        self._ledger.mark_dirty(kv_cache_id)

    def clear_stats_dirty(self, kv_cache_id: Any) -> None:
        """Take back `mark_stats_dirty`."""
        _require_hashable(kv_cache_id, "kv_cache_id")
        self._ledger.clear_dirty(kv_cache_id)

    def get_dirty_stats_kv_cache_ids(self) -> set[Any]:
        """Ids of open sequences that have something to commit, and those that were marked."""
        return self._ledger.list_dirty()


def _to_core_list(kv_caches: Sequence[KVCache]) -> list[kv_cache.KVCache]:
    found: list[kv_cache.KVCache] = []
    for handle in to_list(kv_caches, "kv_caches"):
        found.append(to_instance(handle, KVCache, "each of kv_caches").core)
    return found
