"""The two functions of TensorRT-LLM's introspection module that its engine calls, for engines that ask the module, not the manager."""

from __future__ import annotations

from typing import SupportsIndex

from ...base.checks import to_instance
from ...base.given import Given
from ...base.ids import GPU_LEVEL, PoolGroupIndex
from ...stats.storage_statistics import StorageStatistics
from .engine_manager import KVCacheManager


def storage_statistics(manager: Given[KVCacheManager], cache_level: SupportsIndex = GPU_LEVEL) -> list[StorageStatistics]:
    """`KVCacheManager.get_storage_statistics`."""
    return to_instance(manager, KVCacheManager, "manager").get_storage_statistics(cache_level)


def life_cycle_pool_group_indices(manager: Given[KVCacheManager], cache_level: SupportsIndex = GPU_LEVEL) -> list[PoolGroupIndex]:
    """`KVCacheManager.get_life_cycle_pool_group_indices`."""
    return to_instance(manager, KVCacheManager, "manager").get_life_cycle_pool_group_indices(cache_level)
