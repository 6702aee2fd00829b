"""What TensorRT-LLM's engine asks of a manager and the library answers as it is: base of the compatible `KVCacheManager`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, SupportsIndex, final


from ...base.checks import to_index, to_instance, to_int, to_list
from ...base.given import Given
from ...base.handle import Handle
from ...base.ids import (
    GPU_LEVEL,
    CacheTier,
    DataRole,
    LayerGroupId,
    LayerId,
    LifeCycleId,
    MemAddress,
    PageIndexMode,
    PoolGroupIndex,
)
from ...layout.buffer_id import BufferId
from ...layout.life_cycle import LifeCycle
from ...layout.page_index import PageIndexConverter
from ...layout.pool_desc import AggregatedPageDesc, PoolGroupDesc
from ...layout.registry import LifeCycleRegistry
from ...manager import kv_cache_manager
from ...stats.storage_statistics import StorageStatistics
from .configuration import KVCacheManagerConfig


class EngineQueries(Handle):
    __slots__ = ("_core", "_config")

    _core: kv_cache_manager.KVCacheManager
    _config: KVCacheManagerConfig

    @property
    def core(self) -> kv_cache_manager.KVCacheManager:
        """The library's own manager, for what TensorRT-LLM's API does not have."""
        return self._core

    # -- the model ----------------------------------------------------------------------------------------------------

    @property
    def init_config(self) -> KVCacheManagerConfig:
        """The configuration that it was made with."""
        return self._config

    @property
    def tokens_per_block(self) -> int:
        """As configured."""
        return self._core.tokens_per_block

    @property
    def cache_tier_list(self) -> tuple[CacheTier, ...]:
        """The kind of each cache level, warmest first."""
        return self._core.cache_tier_list

    @property
    def num_layers(self) -> int:
        """A layer that has attention and state counts once."""
        return self._core.num_layers

    @property
    def layer_ids(self) -> list[LayerId]:
        """All layers, in the order of the configuration."""
        return self._core.layer_ids

    @property
    def layer_grouping(self) -> tuple[tuple[LayerId, ...], ...]:
        """The layers of each layer group, by its id."""
        return self._core.layer_grouping

    def get_layer_group_id(self, layer_id: SupportsIndex) -> LayerGroupId:
        """The group of the layer's attention, or of its state if it has no attention. `ValueError` for an unknown layer."""
        return self._core.get_layer_group_id(layer_id)

    @property
    def all_buffer_ids(self) -> list[BufferId]:
        """Every buffer of every layer."""
        return self._core.all_buffer_ids

    @property
    def enable_partial_match(self) -> bool:
        """Whether a match may end inside a block."""
        return self._core.enable_partial_match

    @property
    def allow_seq_rebasing(self) -> bool:
        """Whether a commit swaps a private page for an equal published one."""
        return self._core.allow_seq_rebasing

    @property
    def commit_min_snapshot(self) -> bool:
        """As configured; of no effect, since only what a match at the commit's end needs is ever kept on purpose."""
        return self._config.commit_min_snapshot

    @property
    def enable_swa_scratch_reuse(self) -> bool:
        """Whether sequences may use scratch slots."""
        return self._config.enable_swa_scratch_reuse

    @property
    def _life_cycles(self) -> LifeCycles:
        return LifeCycles(self._core._life_cycles)

    # -- what kernels and transfers need ------------------------------------------------------------------------------

    def get_mem_pool_base_address(
        self, layer_id: SupportsIndex, data_role: Given[DataRole], index_mode: Given[PageIndexMode | None] = None
    ) -> MemAddress:
        """Address that a page index of that mode counts from. `KeyError`, which is a `ValueError` too, for an unknown buffer."""
        return self._core.get_mem_pool_base_address(layer_id, data_role, index_mode)

    def get_page_stride(self, layer_id: SupportsIndex, data_role: Given[DataRole]) -> int:
        """Bytes from one page index to the next."""
        return self._core.get_page_stride(layer_id, data_role)

    def get_page_index_scale(self, layer_id: SupportsIndex, data_role: Given[DataRole]) -> int:
        """Sub-pages of the layer's group in one slot of the buffer's pool."""
        return self._core.get_page_index_scale(layer_id, data_role)

    def get_page_index_upper_bound(self, layer_id: SupportsIndex, data_role: Given[DataRole]) -> int:
        """One past the largest valid page index."""
        return self._core.get_page_index_upper_bound(layer_id, data_role)

    def get_page_index_converter(self, layer_id: SupportsIndex, data_role: Given[DataRole]) -> PageIndexConverter:
        """From base page indices to the kernel's."""
        return self._core.get_page_index_converter(layer_id, data_role)

    def supports_index_mode(self, mode: Given[PageIndexMode]) -> bool | None:
        """PER_LAYER always; SHARED always without scratch reuse, else None: ask the sequence."""
        return self._core.supports_index_mode(mode)

    @property
    def pool_group_descs(self) -> tuple[PoolGroupDesc, ...]:
        """The pools of level 0, their addresses, and what a slot is made of."""
        return self._core.pool_group_descs

    def get_aggregated_pages(self, buffers: Iterable[BufferId]) -> list[AggregatedPageDesc]:
        """The buffers as the fewest contiguous byte ranges, for transfers."""
        named = [to_instance(buffer, BufferId, "each of buffers") for buffer in to_list(buffers, "buffers")]
        return self._core.get_aggregated_pages(named)

    # -- room ---------------------------------------------------------------------------------------------------------

    def resize(self, cache_level: SupportsIndex, quota: SupportsIndex, best_efforts: Given[bool] = False) -> bool:
        """Give a cache level another quota of bytes; False, and nothing has changed, if what must stay does not fit."""
        return self._core.resize(cache_level, quota, best_efforts)

    def get_quota(self, cache_level: SupportsIndex) -> int:
        """Bytes of that cache level."""
        return self._core.get_quota(self._to_level(cache_level))

    def get_storage_statistics(self, cache_level: SupportsIndex = GPU_LEVEL) -> list[StorageStatistics]:
        """One entry per pool group."""
        return self._core.get_storage_statistics(self._to_level(cache_level))

    def get_life_cycle_pool_group_indices(self, cache_level: SupportsIndex = GPU_LEVEL) -> list[PoolGroupIndex]:
        """The pool group of each layer group; the same on all levels."""
        self._to_level(cache_level)
        return [PoolGroupIndex(int(index)) for index in self._core._shared.storage.pool_group_of]

    def clamp_max_seq_len_for_mem(self, batch_size: SupportsIndex, token_num_upper_bound: SupportsIndex) -> int:
        """The longest sequence, up to the bound, that level 0 holds beside ``batch_size - 1`` sequences of one token."""
        return self._core.clamp_max_seq_len_for_mem(batch_size, token_num_upper_bound)

    def _to_level(self, cache_level: SupportsIndex) -> int:
        return to_index(cache_level, "cache_level", len(self._core.cache_tier_list), "cache levels")


@final
class LifeCycles:
    """What the engine looks up by `get_life_cycle`: how long each layer group needs a block."""

    __slots__ = ("_registry",)

    def __init__(self, registry: LifeCycleRegistry) -> None:
        self._registry = registry

    def get_life_cycle(self, life_cycle_id: Any) -> LifeCycle:
        return self._registry[LifeCycleId(to_int(life_cycle_id, "life_cycle_id"))]
