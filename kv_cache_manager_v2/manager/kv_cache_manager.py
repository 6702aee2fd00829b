"""`KVCacheManager`: one per engine rank; owns the memory, the tree and the books of all sequences.

    state      guaranteed                                 ways out
    OPEN       calls are served                           shutdown() -> CLOSED; a failed invariant -> BROKEN
    BROKEN     every call raises CorruptedError           shutdown() -> CLOSED, as far as it can
    CLOSED     all memory is given back                   none

This module validates, guards and delegates. One caller at a time; see `CallGuard`.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final, SupportsIndex, final

from mypy_extensions import i64, mypyc_attr

from ..base.checks import to_count, to_int, validate_index_mode
from ..base.errors import LogicError
from ..base.ids import CacheTier, DataRole, LayerGroupId, LayerId, MemAddress, PageIndexMode
from ..config.manager_config import KVCacheManagerConfig
from ..device.port import Device
from ..device.selection import default_device
from ..device.stream_order import StreamOrder
from ..introspect.description import Picture, describe
from ..introspect.invariants import check_invariants
from ..layout.buffer_id import BufferId
from ..layout.page_index import PageIndexConverter
from ..layout.registry import LifeCycleRegistry
from ..layout.sizing import plan_slot_counts
from ..layout.slot_layout import SlotLayout, compute_slot_layout
from ..reuse.match import Match, Matcher
from ..reuse.radix_tree import RadixTree
from ..reuse.reuse_scope import EMPTY_SCOPE, ReuseScope
from ..reuse.token_packing import pack_tokens
from ..sequence import residency
from ..sequence.priority_callback import PriorityCallback
from ..sequence.resize import try_resize
from ..sequence.sequence_state import SequenceState
from ..sequence.shared_state import SharedState
from ..stats.storage_statistics import StorageStatistics
from ..storage.page_storage import PageStorage
from ..storage.refusal import Refusal
from .kernel_addresses import KernelAddresses
from .kv_cache import KVCache, validate_resize
from .open_sequences import OpenSequences

if TYPE_CHECKING:
    from ..reuse.token_packing import Tokens

_logger = logging.getLogger("kv_cache_manager_v2")


@final
@mypyc_attr(native_class=True)
class KVCacheManager:
    """Owns paged KV-cache memory and decides which bytes belong to which token. See the module for its states.

    ``device``: where level 0 lives; None takes `default_device()`, which the manager then also closes. `ValueError` if the
    quota is too small for the configured constraints, `OutOfMemoryError` if the device has not that much.
    """

    __slots__ = (
        "_config",
        "_device",
        "_owns_device",
        "_layout",
        "_life_cycles",
        "_shared",
        "_addresses",
        "_open_sequences",
        "_is_open",
    )

    _config: Final[KVCacheManagerConfig]
    _device: Final[Device]
    _owns_device: Final[bool]
    _layout: Final[SlotLayout]
    _life_cycles: Final[LifeCycleRegistry]
    _shared: Final[SharedState]
    _addresses: Final[KernelAddresses]
    _open_sequences: Final[OpenSequences]
    _is_open: bool

    def __init__(self, config: KVCacheManagerConfig, *, device: Device | None = None) -> None:
        self._is_open = False
        if not isinstance(config, KVCacheManagerConfig):
            raise TypeError(f"config must be a KVCacheManagerConfig, not {type(config).__name__}")
        self._config = config
        self._life_cycles = LifeCycleRegistry(config)
        self._layout = compute_slot_layout(config, self._life_cycles)
        num_slots = plan_slot_counts(self._layout, config, config.cache_tiers[0].quota, 0)
        self._owns_device = device is None
        self._device = default_device() if device is None else device
        try:
            num_null_slots = 1 if config.reserve_null_slot else 0
            order = StreamOrder(self._device)
            storage = PageStorage(self._device, order, self._layout, num_slots, num_null_slots)
        except BaseException:
            if self._owns_device:
                self._device.close()
            raise
        tree = RadixTree(storage, self._life_cycles, config.tokens_per_block)
        storage.set_owner(tree)
        matcher = Matcher(tree, self._life_cycles, config.tokens_per_block, config.enable_partial_reuse)
        self._shared = SharedState(
            self._device,
            storage,
            tree,
            matcher,
            self._life_cycles,
            config.tokens_per_block,
            config.max_util_for_resume,
            config.swa_scratch_reuse,
        )
        self._addresses = KernelAddresses(storage, config.enable_swa_scratch_reuse)
        self._open_sequences = OpenSequences()
        self._is_open = True

    # -- life ---------------------------------------------------------------------------------------------------------

    def __enter__(self) -> KVCacheManager:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.shutdown()
            return
        # The user's error is what he must see; what stands in the way of an orderly end is closed or logged.
        try:
            for handle in self._open_sequences.handles():
                if isinstance(handle, KVCache):
                    handle.close()
            self.shutdown()
        except Exception:
            _logger.exception("shutting down the manager after an error failed")

    def __del__(self) -> None:
        if self._is_open:
            warnings.warn("a KVCacheManager was dropped without shutdown()", ResourceWarning, stacklevel=2)
            self._release_memory()

    def clear_reusable_blocks(self) -> None:
        """Forget everything that is kept for reuse. `LogicError` while sequences are open."""
        guard = self._shared.guard
        guard.enter()
        try:
            self._require_open()
            self._require_no_sequences("clear_reusable_blocks")
            self._shared.tree.clear()
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    def shutdown(self) -> None:
        """Wait for the device, then give all memory back. Twice is fine. `LogicError` while sequences are open."""
        if not self._is_open:
            return
        guard = self._shared.guard
        if not guard.is_broken:
            guard.enter()
            try:
                self._require_no_sequences("shutdown")
                self._shared.tree.clear()
            except AssertionError as error:
                raise guard.fail(error) from error
            finally:
                guard.leave()
        self._release_memory()

    def _release_memory(self) -> None:
        self._is_open = False
        order = self._shared.order
        order.synchronize_all()
        order.close()
        self._shared.storage.close()
        if self._owns_device:
            self._device.close()

    def _require_open(self) -> None:
        if not self._is_open:
            raise LogicError("the manager is shut down")

    def _require_no_sequences(self, call: str) -> None:
        count = len(self._open_sequences)
        if count > 0:
            raise LogicError(f"{call}: {count} sequence{'s are' if count > 1 else ' is'} still open; close() them first")

    # -- sequences ----------------------------------------------------------------------------------------------------

    def create_kv_cache(
        self,
        reuse_scope: ReuseScope | None = None,
        input_tokens: Tokens | None = None,
        id: SupportsIndex | None = None,
        custom_priority_callback: PriorityCallback | None = None,
    ) -> KVCache:
        """A suspended sequence that holds the pages of the longest reusable prefix of ``input_tokens``.

        Afterwards committed = history = capacity = matched tokens. Leave off the last prompt token if the model must recompute
        it. ``id`` is for messages and pictures only; default: a running number. ``custom_priority_callback(block_ordinal,
        life_cycle)`` gives each page a priority from 0 to 100 when it is made or reused (default 35).
        """
        guard = self._shared.guard
        guard.enter()
        try:
            self._require_open()
            scope = _to_scope(reuse_scope)
            shared = self._shared
            serial = self._open_sequences.next_serial()
            sequence_id = serial if id is None else to_int(id, "id")
            match = self._find_match(scope, input_tokens)
            state = SequenceState(
                shared, serial, sequence_id, scope, self._device.default_stream(), custom_priority_callback
            )
            priorities: list[int] | None = None
            if custom_priority_callback is not None:
                priorities = residency.ask_matched_priorities(state, match)
            residency.hold_match(state, match)
            if priorities is not None:
                shared.uses_priorities = True
                residency.raise_matched_priorities(state, priorities)
            return KVCache(state, self, self._open_sequences)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    def probe_reuse(self, reuse_scope: ReuseScope | None = None, input_tokens: Tokens | None = None) -> int:
        """How many leading tokens could be reused now; holds nothing."""
        guard = self._shared.guard
        guard.enter()
        try:
            self._require_open()
            return int(self._find_match(_to_scope(reuse_scope), input_tokens).num_tokens)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    def _find_match(self, scope: ReuseScope, input_tokens: Tokens | None) -> Match:
        shared = self._shared
        if input_tokens is None:
            return Match([], 0)
        packed = pack_tokens(input_tokens, shared.tree.digests, False)
        return shared.matcher.find_longest(shared.tree.find_root(scope), packed)

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

        Everything is validated before anything changes; only lack of room stops midway. ``history_lengths`` None keeps them.
        """
        guard = self._shared.guard
        guard.enter()
        try:
            self._require_open()
            count = len(kv_caches)
            if len(capacities) != count or (history_lengths is not None and len(history_lengths) != count):
                raise ValueError(
                    f"resize_batch: {count} sequences, {len(capacities)} capacities"
                    + ("" if history_lengths is None else f", {len(history_lengths)} history lengths")
                )
            if len(set(kv_caches)) != count:
                raise ValueError("resize_batch: a sequence is listed twice")
            position: i64 = 0
            while position < count:
                state = kv_caches[position]._state_for_batch()
                if state.shared is not self._shared:
                    raise ValueError(f"resize_batch: sequence {state.id} belongs to another manager")
                validate_resize(
                    state,
                    to_count(capacities[position], "capacity"),
                    state.history if history_lengths is None else to_count(history_lengths[position], "history_length"),
                )
                position += 1
            position = 0
            while position < count:
                state = kv_caches[position]._state_for_batch()
                capacity = to_count(capacities[position], "capacity")
                history = state.history
                if history_lengths is not None:
                    history = to_count(history_lengths[position], "history_length")
                if not try_resize(state, capacity, history):
                    break
                position += 1
            return position
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    # -- the model as the manager sees it -----------------------------------------------------------------------------

    @property
    def layer_ids(self) -> list[LayerId]:
        """All layers, in the order of the configuration."""
        ids: list[LayerId] = []
        for layer in self._config.layers:
            if layer.layer_id not in ids:
                ids.append(layer.layer_id)
        return ids

    @property
    def num_layers(self) -> int:
        return len(self.layer_ids)

    @property
    def layer_grouping(self) -> tuple[tuple[LayerId, ...], ...]:
        """The layers of each layer group, by `LayerGroupId`."""
        return self._life_cycles.layer_grouping

    def get_layer_group_id(self, layer_id: SupportsIndex) -> LayerGroupId:
        return self._life_cycles.get_layer_group_id(LayerId(to_int(layer_id, "layer_id")))

    @property
    def all_buffer_ids(self) -> list[BufferId]:
        return [
            BufferId(layer.layer_id, buffer.role) for layer in self._config.layers for buffer in layer.buffers
        ]

    @property
    def tokens_per_block(self) -> int:
        return self._config.tokens_per_block

    @property
    def init_config(self) -> KVCacheManagerConfig:
        return self._config

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
        """Whether a commit swaps a private page for an equal published one. Always."""
        return True

    @property
    def device(self) -> Device:
        return self._device

    # -- what kernels need --------------------------------------------------------------------------------------------

    def get_mem_pool_base_address(
        self, layer_id: SupportsIndex, data_role: DataRole, index_mode: PageIndexMode | None = None
    ) -> MemAddress:
        """Address that a page index of that mode counts from; default SHARED. `ValueError` without a mode if
        `swa_scratch_reuse` is configured, or for an unknown buffer."""
        self._require_open()
        return self._addresses.base_address(LayerId(to_int(layer_id, "layer_id")), data_role, index_mode)

    def get_page_stride(self, layer_id: SupportsIndex, data_role: DataRole) -> int:
        """Bytes from one page index to the next."""
        return self._addresses.placement(LayerId(to_int(layer_id, "layer_id")), data_role).page_bytes

    def get_page_index_scale(self, layer_id: SupportsIndex, data_role: DataRole) -> int:
        """Sub-pages of the layer's group in one slot of the buffer's pool."""
        return self._addresses.placement(LayerId(to_int(layer_id, "layer_id")), data_role).scale

    def get_page_index_upper_bound(self, layer_id: SupportsIndex, data_role: DataRole) -> int:
        """One past the largest valid page index, counted from the SHARED base address."""
        return self._addresses.page_index_upper_bound(LayerId(to_int(layer_id, "layer_id")), data_role)

    def get_page_index_converter(self, layer_id: SupportsIndex, data_role: DataRole) -> PageIndexConverter:
        """From base page indices to the kernel's; constant for the manager's life."""
        return self._addresses.converter(LayerId(to_int(layer_id, "layer_id")), data_role)

    def supports_index_mode(self, mode: PageIndexMode) -> bool | None:
        """PER_LAYER always; SHARED always without scratch reuse, else None: ask the sequence."""
        validate_index_mode(mode)
        if mode is PageIndexMode.SHARED and self._config.enable_swa_scratch_reuse:
            return None
        return True

    # -- looking ------------------------------------------------------------------------------------------------------

    def get_storage_statistics(self, level: SupportsIndex = 0) -> list[StorageStatistics]:
        """One entry per pool group."""
        self._require_open()
        self._require_level(level)
        storage = self._shared.storage
        statistics: list[StorageStatistics] = []
        for pool_group in range(storage.num_pool_groups):
            statistics.append(storage.compute_statistics(pool_group))
        return statistics

    def get_quota(self, level: SupportsIndex) -> int:
        """Bytes of that cache level."""
        return self._config.cache_tiers[self._require_level(level)].quota

    @property
    def last_refusal(self) -> Refusal | None:
        """Why the latest call that found no room did not; None if none ever did."""
        return self._shared.storage.last_refusal

    def check_invariants(self) -> None:
        """Evaluate the rules of the books from scratch; `CorruptedError` with the first that does not hold. Slow."""
        self._require_open()
        check_invariants(self._shared, self._open_sequences.states())

    def describe(self) -> Picture:
        """A plain, JSON-able picture of the present state."""
        self._require_open()
        return describe(self._shared, self._open_sequences.states())

    def _require_level(self, level: SupportsIndex) -> int:
        number = to_int(level, "level")
        if not 0 <= number < len(self._config.cache_tiers):
            raise ValueError(f"level is {number}; there are {len(self._config.cache_tiers)} cache levels")
        return number


def _to_scope(scope: ReuseScope | None) -> ReuseScope:
    if scope is None:
        return EMPTY_SCOPE
    if not isinstance(scope, ReuseScope):
        raise TypeError(f"reuse_scope must be a ReuseScope or None, not {type(scope).__name__}")
    return scope
