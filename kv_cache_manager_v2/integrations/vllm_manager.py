"""`PagedKVCacheManager`: a `KVCacheManager` behind the calls that vLLM's scheduler makes on its own KV cache manager.

A request is a sequence from its first `allocate_slots` until `free`; preempting one closes it, and its blocks are found again by their
tokens. Blocks that a step computes are planned when it is scheduled (`KVCache.publish_planned`), so that requests of one step share: each
layer writes a step's keys and values before it reads any. They are committed when the next step begins: workers run steps in the order
in which they were scheduled, however many are in flight. Known tokens alone are planned and committed, never a draft or a placeholder, so
what is counted as computed never falls back behind them.

Most decode steps change nothing: a request goes to the manager only where a block is begun, or becomes full.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

from vllm.distributed.kv_events import AllBlocksCleared, BlockRemoved, BlockStored, KVCacheEvent
from vllm.v1.core.kv_cache_manager import KVCacheBlocks, KVCacheManager
from vllm.v1.core.kv_cache_utils import generate_block_hash_extra_keys, to_event_extra_keys
from vllm.v1.kv_cache_interface import KVCacheConfig, get_kv_cache_spec_kind, get_kv_cache_spec_sliding_window
from vllm.v1.metrics.stats import PrefixCacheStats
from vllm.v1.request import RequestStatus

from ..base.errors import LogicError
from ..base.ids import TokenIdExt
from ..base.package_log import PackageLog
from ..config.eviction_policy import EvictionPolicy
from ..events.kv_cache_event import KVCacheEvent as ManagerEvent
from ..manager.copy_lists import SlotCopy
from ..manager.kv_cache import KVCache
from ..publishing import wire_event
from ..publishing.wire_translator import WireTranslator
from ..reuse.reuse_scope import ReuseScope
from ..stats.miss_cause import MissCause
from .vllm_groups import find_states, make_manager
from .vllm_options import Metrics

KEYS_OF_SCOPES: Final = frozenset({"lora", "cache_salt"})
"""Of the keys that take part in vLLM's hash of a block those that `scope_of` has."""
_logger: Final = PackageLog("kv_cache_manager_v2")


class BlockIds(KVCacheBlocks):
    """Block ids of one request, a list for each KV cache group, without an object for each block."""

    def __init__(self, ids: tuple[list[int], ...], num_matched: int = 0) -> None:
        self.ids: Final = ids
        self.num_matched: Final = num_matched
        super().__init__(tuple(() for _ in ids))

    def get_block_ids(self, allow_none: bool = False, *, group_ids: Sequence[int] | None = None) -> tuple[list[int], ...] | None:
        ids = self.ids if group_ids is None else tuple(self.ids[group] for group in group_ids)
        return None if allow_none and not any(ids) else ids

    def get_unhashed_block_ids_all_groups(self) -> list[list[int]]:
        """For KV connectors: those that no match has filled."""
        return [[block for block in ids[self.num_matched :] if block > 0] for ids in self.ids]

    def new_empty(self) -> BlockIds:
        return BlockIds(tuple([] for _ in self.ids))


class _Running:
    """A request that has pages."""

    __slots__ = ("awaits_load", "continues", "kv_cache", "num_announced", "num_matched", "quiet_end")

    def __init__(self, kv_cache: KVCache, num_matched: int) -> None:
        self.kv_cache: Final = kv_cache
        self.num_matched: Final = num_matched
        """Blocks that the request found computed."""
        self.awaits_load = False
        """Whether a connector has yet to bring what the request counts as computed."""
        self.continues: bool | None = None
        """For `KVCache.close`, once it has ended."""
        self.num_announced = 0
        """Blocks whose ids the workers know."""
        self.quiet_end = 0
        """Up to this many tokens a step neither begins nor fills a block."""


class _Groups:
    """What vLLM asks of its coordinator, beside the calls that `PagedKVCacheManager` answers itself."""

    enable_partial_hash_hits = False

    def __init__(self, manager: PagedKVCacheManager, kv_cache_config: KVCacheConfig) -> None:
        self._manager: Final = manager
        self.single_type_managers: Final = [
            _Group(number, group.kv_cache_spec) for number, group in enumerate(kv_cache_config.kv_cache_groups)
        ]

    def get_num_blocks_to_allocate(self, request_id: str, num_tokens: int, **_keywords: Any) -> int:
        return self._manager.count_missing_blocks(request_id, num_tokens)


class _Group:
    def __init__(self, number: int, spec: Any) -> None:
        self.kv_cache_group_id: Final = number
        self.kv_cache_spec: Final = spec
        self.block_size: Final = spec.block_size


class PagedKVCacheManager(KVCacheManager):
    """Made by `ManagedScheduler`. The methods are those of vLLM's class, and mean what they mean there.

    ``shares_in_step``: off where a step's request may be preempted before the step has run. ``call_tokens``: of `find_call_tokens`.
    """

    def __init__(
        self,
        kv_cache_config: KVCacheConfig,
        *,
        max_model_len: int,
        max_in_flight_tokens: int,
        enable_caching: bool,
        drops_last_block: bool,
        watermark: float,
        has_events: bool,
        shares_in_step: bool,
        log_stats: bool,
        journal: str | None = None,
        metrics_port: int | None = None,
        policy: EvictionPolicy = EvictionPolicy.LEARNED,
        tiers: Sequence[int] = (),
        num_workers: int = 0,
        call_tokens: frozenset[int] = frozenset(),
    ) -> None:
        self.max_model_len = max_model_len
        self.enable_caching = enable_caching
        self.log_stats = log_stats
        self.prefix_cache_stats = PrefixCacheStats() if log_stats else None
        self.kv_cache_config = kv_cache_config
        self.num_kv_cache_groups = len(kv_cache_config.kv_cache_groups)
        self.mamba_shared_prefix_checkpoint = False
        self.coordinator: Any = _Groups(self, kv_cache_config)
        self.block_pool: Any = self
        self._journal: Final = journal
        self._manager: Final = make_manager(kv_cache_config, has_events, journal, policy, tiers, num_workers)
        self._table_groups: Final[list[int]] = [self._manager.get_layer_group_id(number) for number in range(self.num_kv_cache_groups)]
        """Of each KV cache group of vLLM the manager's layer group, whose base page indices are its block ids."""
        self._tokens_per_block: Final = self._manager.tokens_per_block
        self._max_in_flight_tokens: Final = max_in_flight_tokens
        self._drops_last_block: Final = drops_last_block
        self._watermark_blocks: Final = int(watermark * kv_cache_config.num_blocks)
        self._states: Final = find_states(kv_cache_config)
        """Of recurrent layers. A step reads a state before any request of the step has written one, so that none is shared within it."""
        self._shares_in_step: Final = shares_in_step and not self._states
        self._call_tokens: Final = call_tokens
        self._running: Final[dict[str, _Running]] = {}
        self._planned: list[tuple[_Running, Any, int]] = []
        """Requests with planned blocks, in the order of their planning: a reader comes behind its writer. The number is where they end."""
        self._zeroes_blocks: Final[bool] = kv_cache_config.needs_kv_cache_zeroing
        self._new_ids: list[int] = []
        self._lora_names: Final[dict[int, str]] = {}
        """Of adapters that had requests, for events."""
        self._translator: WireTranslator | None = None
        self._latest: Final[deque[tuple[Any, ...]]] = deque(maxlen=40)
        """Calls for `tell_failure`: the call, the request, and numbers."""
        self._events: Final = self._manager.event_manager
        self._metrics: Final = None if metrics_port is None else Metrics(self._manager, metrics_port)
        if self._events is not None:
            kinds = self._events.layer_group_kinds
            self._translator = WireTranslator(self._tokens_per_block, self._events.cache_tiers, kinds, self._lora_names)
        self.empty_kv_cache_blocks = BlockIds(tuple([] for _ in range(self.num_kv_cache_groups)))

    # -- a step --------------------------------------------------------------------------------------------------------

    def new_step_starts(self) -> None:
        self._commit_planned()

    def get_computed_blocks(self, request: Any, max_cache_hit_length: int | None = None) -> tuple[KVCacheBlocks, int, int]:
        """How many tokens, at most so many, need no computing. Nothing is held: `allocate_slots` follows before anything else happens."""
        if not self.prefix_cache_lookup_enabled(request):
            return self.empty_kv_cache_blocks, 0, 0
        scope = scope_of(request)
        # The last token is always computed.
        tokens = self._list_tokens(request, 0, request.num_tokens - 1 if max_cache_hit_length is None else max_cache_hit_length)
        self._latest.append(("get_computed_blocks", request.request_id, len(tokens)))
        num_found = self._manager.probe_reuse(scope, tokens, include_planned=True)
        if self._drops_last_block and num_found > 0:
            num_found = self._manager.probe_reuse(scope, tokens[: num_found - self._tokens_per_block], include_planned=True)
        return self.empty_kv_cache_blocks, num_found, self._find_junction(scope, tokens, num_found) if self._states else 0

    def _find_junction(self, scope: ReuseScope | None, tokens: Any, num_found: int) -> int:
        """Where the prompt leaves a cached prefix that has no state there: the scheduler ends a chunk there, and leaves one. 0 for none."""
        with self._manager.create_kv_cache(scope, tokens, count_in_statistics=False) as kv_cache:
            num_broken = kv_cache.statistics.prompts.missed_tokens.get(MissCause.WINDOW_BROKEN, 0)
        return num_found + num_broken - num_broken % self._tokens_per_block if num_broken >= self._tokens_per_block else 0

    def allocate_slots(
        self,
        request: Any,
        num_new_tokens: int,
        num_new_computed_tokens: int = 0,
        new_computed_blocks: KVCacheBlocks | None = None,
        num_lookahead_tokens: int = 0,
        num_external_computed_tokens: int = 0,
        delay_cache_blocks: bool = False,
        num_encoder_tokens: int = 0,
        full_sequence_must_fit: bool = False,
        reserved_blocks: int = 0,
        has_scheduled_reqs: bool = True,
        skip_zeroing_group_ids: tuple[int, ...] = (),
    ) -> KVCacheBlocks | None:
        num_local = request.num_computed_tokens + num_new_computed_tokens
        num_computed = num_local + num_external_computed_tokens
        num_needed = num_computed + num_new_tokens + num_lookahead_tokens
        running = self._running.get(request.request_id)
        if running is not None and num_needed <= running.quiet_end:
            return self.empty_kv_cache_blocks
        num_spared = reserved_blocks + (self._watermark_blocks if running is None and has_scheduled_reqs else 0)
        num_known = 0 if delay_cache_blocks else min(num_computed + num_new_tokens, request.num_tokens)
        self._latest.append(("allocate_slots", request.request_id, num_computed, num_needed, num_known))
        blocks = self._allocate(running, request, num_local, num_computed, num_needed, num_known, num_spared, full_sequence_must_fit)
        if delay_cache_blocks and blocks is not None:
            self._running[request.request_id].awaits_load = True
        return blocks

    def _allocate(
        self,
        running: _Running | None,
        request: Any,
        num_local: int,
        num_computed: int,
        num_needed: int,
        num_known: int,
        num_spared: int,
        full_sequence_must_fit: bool,
    ) -> KVCacheBlocks | None:
        """``num_local``: computed tokens that no connector has to bring. ``num_known``: tokens that the step leaves computed, and that
        are no drafts; 0 to publish nothing yet. ``num_spared``: blocks that a new request leaves free."""
        is_new = running is None
        if running is None:
            running = self._open(request, num_local)
            if running is None:
                return None
            if full_sequence_must_fit and not self._can_hold(running, request, num_computed):
                running.kv_cache.close()
                return None
        kv_cache = running.kv_cache
        if self.enable_caching:
            self._commit(running, request, num_local)
        size = self._tokens_per_block
        # Drafts in flight may be rejected, and the count of computed tokens falls back by them. Beside recurrent layers are none. Of a
        # prompt that a connector brings whole the last token is computed again.
        processed = min(num_computed, request.num_tokens - 1) if num_computed > num_local else num_computed
        history = max(kv_cache.history_length, processed - (0 if self._states else request.num_in_flight_tokens))
        capacity = -(-min(num_needed, self.max_model_len) // size) * size
        if capacity < kv_cache.capacity:
            capacity = kv_cache.capacity
        if not kv_cache.resize(capacity, history) or (is_new and self._count_free() < num_spared):
            if is_new:
                kv_cache.close()
            return None
        if is_new:
            self._running[request.request_id] = running
        running.quiet_end = capacity
        if self.enable_caching:
            if self._shares_in_step:
                self._plan(running, request, num_known)
            running.quiet_end = min(capacity, num_known // size * size + size - 1)
        return self._announce(running)

    def _open(self, request: Any, num_computed: int) -> _Running | None:
        """An active sequence that begins with ``num_computed`` matched tokens; None if there is no room."""
        if request.lora_request is not None:
            self._lora_names[request.lora_request.lora_int_id] = request.lora_request.lora_name
        # What is looked up beyond the match is looked up to count what is missed, and why. A preempted request is not counted again.
        is_counted = request.num_preemptions == 0
        tokens = self._list_tokens(request, 0, request.num_tokens - 1 if self._metrics is not None and is_counted else num_computed)
        kv_cache = self._create(request, tokens, is_counted)
        if kv_cache.num_committed_tokens > num_computed:
            kv_cache.close()
            kv_cache = self._create(request, tokens[:num_computed], is_counted)
        if kv_cache.num_committed_tokens != num_computed:
            found = kv_cache.num_committed_tokens
            kv_cache.close()
            raise RuntimeError(f"request {request.request_id}: {num_computed} tokens could be reused, now {found}")
        if not kv_cache.resume():
            kv_cache.close()
            return None
        return _Running(kv_cache, num_computed // self._tokens_per_block)

    def _create(self, request: Any, tokens: list[TokenIdExt], is_counted: bool) -> KVCache:
        length = request.num_prompt_tokens
        return self._manager.create_kv_cache(scope_of(request), tokens, expected_prompt_length=length, count_in_statistics=is_counted)

    def _can_hold(self, running: _Running, request: Any, num_computed: int) -> bool:
        """Whether all of the request fits; of windowed layers what the last step needs."""
        length = min(request.num_tokens, self.max_model_len)
        history = num_computed if self._states else max(num_computed, length - self._max_in_flight_tokens)
        return running.kv_cache.find_refusal(length, history) is None

    def _count_free(self) -> int:
        (slots,) = self._manager.get_storage_statistics()
        return slots.total - slots.unavailable

    def _list_tokens(self, request: Any, begin: int, end: int) -> list[TokenIdExt]:
        """The request's tokens. Where vLLM's hash of a block depends on an image or an embedding, so does the block's last token."""
        tokens: list[TokenIdExt] = request.all_token_ids[begin:end]
        if request.mm_features or request.prompt_embeds is not None:
            size, item = self._tokens_per_block, 0
            for last in range(begin - begin % size + size - 1, end, size):
                keys, item = generate_block_hash_extra_keys(request, last + 1 - size, last + 1, item)
                content = [key for key in keys or () if key[0] not in KEYS_OF_SCOPES]
                if content:
                    tokens[last - begin] = repr((tokens[last - begin], content)).encode()
        return tokens

    def _commit(self, running: _Running, request: Any, num_tokens: int) -> None:
        """Publish the request's known tokens up to ``num_tokens``, whose keys and values are there when the next step runs."""
        kv_cache = running.kv_cache
        begin = kv_cache.num_committed_tokens
        num_tokens = min(num_tokens, request.num_tokens)
        if begin < num_tokens:
            kv_cache.commit(self._list_tokens(request, begin, num_tokens))

    def _plan(self, running: _Running, request: Any, num_tokens: int) -> None:
        """Offer the blocks that the step fills to requests that are scheduled after this one."""
        kv_cache = running.kv_cache
        begin = kv_cache.num_committed_tokens
        end = num_tokens - num_tokens % self._tokens_per_block
        if begin < end and kv_cache.publish_planned(self._list_tokens(request, begin, end)) > 0:
            self._planned.append((running, request, end))

    def _commit_planned(self) -> None:
        """Publish what was planned by steps that have run; the scheduler counts a step's tokens as computed once it is scheduled."""
        planned, self._planned = self._planned, []
        for running, request, end in planned:
            if request.num_computed_tokens < end:
                self._planned.append((running, request, end))
            else:
                self._commit(running, request, end)

    def _announce(self, running: _Running) -> KVCacheBlocks:
        """The ids of the blocks that the workers do not know; known ones never change."""
        begin = running.num_announced
        running.num_announced = running.kv_cache.num_blocks
        if self._zeroes_blocks:
            self._record_new(running, max(begin, running.num_matched))
        return self.empty_kv_cache_blocks if begin == running.num_announced else BlockIds(self._list_ids(running.kv_cache, begin))

    def _record_new(self, running: _Running, begin: int) -> None:
        tables = enumerate(self._list_ids(running.kv_cache, begin))
        self._new_ids += [block for group, ids in tables if group not in self._states for block in ids if block > 0]

    def _list_ids(self, kv_cache: KVCache, begin: int) -> tuple[list[int], ...]:
        # Workers keep the lists and append to them, so groups do not share one.
        return tuple(
            [max(index, 0) for index in kv_cache.get_base_page_indices(group)[begin:]] for group in self._table_groups
        )

    # -- requests ------------------------------------------------------------------------------------------------------

    def free(self, request: Any) -> None:
        """Close the sequence. Whole blocks that it has computed stay to be matched."""
        self.free_blocks(self.pop_blocks_for_free(request))

    def pop_blocks_for_free(self, request: Any) -> list[Any]:
        """What `free_blocks` closes when the steps in flight are over."""
        self._latest.append(("free", request.request_id))
        self._commit_planned()
        running = self._running.pop(request.request_id, None)
        if running is None:
            return []
        self._planned = [planned for planned in self._planned if planned[0] is not running]
        if self.enable_caching and not running.awaits_load:
            self._commit(running, request, request.num_computed_tokens)
        if request.status == RequestStatus.FINISHED_STOPPED:
            # What was cut off or aborted says nothing: vLLM aborts requests at a stop string, agents among them.
            running.continues = not self._call_tokens.isdisjoint(request.output_token_ids)
        return [running]

    def free_blocks(self, blocks: Iterable[_Running]) -> None:
        """As of vLLM's block pool."""
        for running in blocks:
            running.kv_cache.close(running.continues)

    def get_blocks(self, request_id: str) -> KVCacheBlocks:
        running = self._running.get(request_id)
        return self.empty_kv_cache_blocks if running is None else BlockIds(self._list_ids(running.kv_cache, 0), running.num_matched)

    def cache_blocks(self, request: Any, num_computed_tokens: int) -> None:
        self._latest.append(("cache_blocks", request.request_id, num_computed_tokens))
        self._commit_planned()
        running = self._running.get(request.request_id)
        if running is not None:
            if running.awaits_load:
                # The last token of a prompt is computed again, and reads what is in its window.
                running.awaits_load, num_computed_tokens = False, min(num_computed_tokens, request.num_tokens - 1)
            if self.enable_caching:
                self._commit(running, request, num_computed_tokens)

    def estimate_cached_tokens(self, request: Any) -> int:
        running = self._running.get(request.request_id)
        return 0 if running is None else running.kv_cache.num_committed_tokens

    def count_missing_blocks(self, request_id: str, num_tokens: int) -> int:
        """How many blocks, of all groups, a request of this length needs beyond those that it has."""
        running = self._running.get(request_id)
        capacity = 0 if running is None else running.kv_cache.capacity
        num_missing = max(0, -(-(num_tokens - capacity) // self._tokens_per_block))
        num_states = len(self._states)
        return num_missing * (self.num_kv_cache_groups - num_states) + min(num_missing, 2) * num_states

    def remove_skipped_blocks(self, request_id: str, processed_computed_tokens: int, num_prompt_tokens: int | None = None) -> None:
        """Release what has left the window, before the next `allocate_slots` does."""
        running = self._running.get(request_id)
        if running is not None and processed_computed_tokens > running.kv_cache.history_length:
            running.kv_cache.resize(None, processed_computed_tokens)

    def truncate_computed_blocks(self, blocks: KVCacheBlocks, num_computed_tokens: int) -> KVCacheBlocks:
        # A look-up lists no blocks.
        return blocks

    def evict_blocks(self, block_ids: set[int]) -> None:
        raise LogicError("ManagedScheduler evicts no single blocks: only KV connectors whose loads a step waits for ask for that")

    # -- the whole cache -----------------------------------------------------------------------------------------------

    @property
    def usage(self) -> float:
        """The used share of the blocks; those that could be evicted count as free, as in vLLM."""
        (slots,) = self._manager.get_storage_statistics()
        return slots.unavailable / slots.total

    def reset_prefix_cache(self) -> bool:
        """Requests that run go on with their blocks, and publish nothing any more. False where a step that shares blocks has not run."""
        self._commit_planned()
        if self._planned:
            _logger.warning("Failed to reset prefix cache because %d requests have blocks that others await", len(self._planned))
            return False
        self._manager.clear_reusable_blocks()
        if self.prefix_cache_stats is not None:
            self.prefix_cache_stats.reset = True
        return True

    def take_events(self) -> list[KVCacheEvent]:
        """KV events in vLLM's classes."""
        translator = self._translator
        events = self._events
        if translator is None or events is None:
            return []
        events.flush_iteration_events()
        latest: list[ManagerEvent] = events.get_latest_events(0)
        found = translator.translate(latest)
        if translator.needs_snapshot:
            translator.begin_anew(events.snapshot())
            found = translator.events_of_state()
        return [self._to_event(event) for event in found]

    def _to_event(self, event: wire_event.WireEvent) -> KVCacheEvent:
        if isinstance(event, wire_event.BlockStored):
            group = self._to_group(event.group)
            spec = self.kv_cache_config.kv_cache_groups[group].kv_cache_spec
            tokens, keys = self._restore_contents(event)
            return BlockStored(
                block_hashes=event.hashes,
                parent_block_hash=event.parent_hash,
                token_ids=tokens,
                block_size=event.block_size,
                lora_id=event.lora_id,
                medium=event.medium,
                lora_name=event.lora_name,
                extra_keys=keys,
                group_idx=group,
                kv_cache_spec_kind=get_kv_cache_spec_kind(spec).value,
                kv_cache_spec_sliding_window=get_kv_cache_spec_sliding_window(spec),
            )
        if isinstance(event, wire_event.BlockRemoved):
            return BlockRemoved(block_hashes=event.hashes, medium=event.medium, group_idx=self._to_group(event.group))
        return AllBlocksCleared()

    def _restore_contents(self, event: Any) -> tuple[list[int], list[tuple[Any, ...] | None] | None]:
        """The event's token ids and extra keys as vLLM's own event has them: see `_list_tokens`."""
        tokens = list(event.token_ids)
        found: list[tuple[Any, ...] | None] = []
        for number, digests in enumerate(event.extra_keys or [()] * len(event.hashes)):
            keys: list[Any] = []
            for text, position in digests or ():
                tokens[number * event.block_size + position], content = ast.literal_eval(bytes.fromhex(text).decode())
                keys += content
            if number == 0 and event.parent_hash is None and event.cache_salt is not None:
                keys.append(("cache_salt", event.cache_salt))
            found.append(tuple(keys) if keys else None)
        return tokens, to_event_extra_keys(found)

    def _to_group(self, layer_group: int | None) -> int:
        return 0 if layer_group is None else self._table_groups.index(layer_group)

    # -- for workers ---------------------------------------------------------------------------------------------------

    def take_new_block_ids(self) -> list[int]:
        """Blocks that workers fill with zeros, where a block may come from a group of another precision."""
        ids, self._new_ids = self._new_ids, []
        return ids

    def record_blocks_for_zeroing(self, request_id: str, start_token: int) -> None:
        if self._zeroes_blocks:
            self._record_new(self._running[request_id], start_token // self._tokens_per_block)

    def take_copies(self, after: int) -> tuple[int, list[SlotCopy]]:
        """For `TieredConnector`, once a step: see `KVCacheManager.take_copies`."""
        return self._manager.take_copies(after)

    def report_copies(self, number: int, worker: int, layout: Sequence[Sequence[int]]) -> None:
        self._manager.report_copies(number, worker, layout)

    # Nothing else is copied, and states lie at block boundaries alone.

    def take_kv_cache_block_copies(self) -> tuple[list[Any], list[Any]]:
        return [], []

    def take_boundary_state_offloads(self) -> dict[str, list[tuple[int, int, int]]]:
        return {}

    def finalize_partial_tail_offloads(self, request: Any) -> list[tuple[int, int, int]]:
        return []

    def tell_failure(self) -> None:
        """Log what is there to look at after an exception: the state, and the latest calls, of which the last one failed."""
        call, request_id, *_ = self._latest[-1] if self._latest else ("none", None)
        digest, refusal = self._manager.state_digest().hex(), self._manager.last_refusal
        _logger.error("%s of request %s failed; state digest %s, last refusal: %s", call, request_id, digest, refusal)
        _logger.error("the latest calls: %s", "; ".join(" ".join(map(str, latest)) for latest in self._latest))
        if self._journal is not None:
            self._manager.flush_journal()
            _logger.error("all calls are in the journal %s", self._journal)

    def shutdown(self) -> None:
        """Close all sequences."""
        if self._metrics is not None:
            self._metrics.close()
        for running in self._running.values():
            running.kv_cache.close()
        self._running.clear()
        self._manager.shutdown()


def scope_of(request: Any) -> ReuseScope | None:
    """What vLLM's own cache tells apart: the adapter's name and path, since one id may name other weights later, and the salt."""
    lora = request.lora_request
    if lora is None:
        return None if request.cache_salt is None else ReuseScope(None, request.cache_salt)
    return ReuseScope(lora.lora_int_id, repr((lora.lora_name, lora.lora_path, request.cache_salt)))
