"""TensorRT-LLM's KVCacheManagerV2 under its own names: an engine written for it imports this in its place.

docs/tensorrt-llm.md lists every name, and what is not offered. Nothing of the library imports this.
"""

from typing import Never

from ...base.errors import CorruptedError, CuError, LogicError, OutOfMemoryError, OutOfPagesError
from ...base.ids import (
    BAD_PAGE_INDEX,
    DEFAULT_BEAM_INDEX,
    GPU_LEVEL,
    BeamIndex,
    CacheLevel,
    CacheTier,
    CudaStream,
    DataRole,
    LayerGroupId,
    LayerId,
    LifeCycleId,
    MemAddress,
    PageIndexMode,
    PoolGroupIndex,
    PoolIndex,
    Priority,
    TokenId,
    TokenIdExt,
)
from ...base.ranges import HalfOpenRange
from ...device.cold_page_codec import ColdPageCodec as IKvCacheColdPageCodec
from ...layout.buffer_id import BufferId
from ...layout.life_cycle import AttnLifeCycle, SsmLifeCycle
from ...layout.page_index import PageIndexConverter
from ...layout.pool_desc import AggregatedPageDesc, ExpandedBuffer, PoolDesc, PoolGroupDesc
from ...layout.scratch_desc import ScratchDesc
from ...layout.slot_desc import CoalescedBuffer, SlotDesc, SlotDescVariant
from ...manager.kv_cache import SequenceStatus as KvCacheStatus
from ...stats.storage_statistics import StorageStatistics
from . import _introspection
from .block_keys import sequence_to_blockchain_keys
from .cold_pages import create_default_kv_cache_cold_page_codec
from .configuration import (
    AttentionLayerConfig,
    BatchDesc,
    BufferConfig,
    CacheTierConfig,
    DiskCacheTierConfig,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    KVCacheDesc,
    KVCacheManagerConfig,
    LayerConfig,
    SsmLayerConfig,
    SwaScratchReuseConfig,
)
from .engine_manager import KVCacheManager
from .engine_sequence import KVCache as _KVCache
from .event_payloads import (
    BlockHashesLike,
    BlockHashLike,
    EventBlockHash,
    EventTokenId,
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheEventDiff,
    KVCacheRemovedData,
    KVCacheStoredBlockData,
    KVCacheStoredData,
    KVCacheUpdatedData,
    MmKey,
    UniqueToken,
)
from .event_queue import AttentionDpGatherFn, KVCacheEventManager
from .live_managers import num_live_managers, poison_reason, take_poison
from .multimodal_items import MmItemContext, gen_multimodal_cache_key_tokens
from .plain_names import (
    BACKEND,
    CACHE_LEVEL1,
    NDEBUG,
    IndexSeq,
    LayerType,
    PageStatus,
    SlidingWindowSize,
    exact_div,
    refuse_name,
    typed_range,
)
from .planned_drop import PlannedDropHandle
from .scope_tuple import ReuseScope
from .statistics_deltas import (
    _KV_CACHE_ITERATION_STATS_DELTA_FIELDS,
    KVCacheIterationStatsDelta,
    KVCacheStatsDelta,
    PoolGroupPeakBlockStats,
    ReusedBlocksByLevel,
    SsmSnapshotIterationStatsDelta,
)

_Status = KvCacheStatus
_cpp_introspection = _introspection
"""Not None: the engine then hands tokens over as int32 views."""


def __getattr__(name: str) -> Never:
    refuse_name(f"module {__name__!r}", name)


__all__ = [
    "AggregatedPageDesc",
    "AttentionDpGatherFn",
    "AttentionLayerConfig",
    "AttnLifeCycle",
    "BACKEND",
    "BAD_PAGE_INDEX",
    "BatchDesc",
    "BeamIndex",
    "BlockHashLike",
    "BlockHashesLike",
    "BufferConfig",
    "BufferId",
    "CACHE_LEVEL1",
    "CacheLevel",
    "CacheTier",
    "CacheTierConfig",
    "CoalescedBuffer",
    "CorruptedError",
    "CuError",
    "CudaStream",
    "DEFAULT_BEAM_INDEX",
    "DataRole",
    "DiskCacheTierConfig",
    "EventBlockHash",
    "EventTokenId",
    "ExpandedBuffer",
    "GPU_LEVEL",
    "GpuCacheTierConfig",
    "HalfOpenRange",
    "HostCacheTierConfig",
    "IKvCacheColdPageCodec",
    "IndexSeq",
    "KVCacheCreatedData",
    "KVCacheDesc",
    "KVCacheEvent",
    "KVCacheEventDiff",
    "KVCacheEventManager",
    "KVCacheIterationStatsDelta",
    "KVCacheManager",
    "KVCacheManagerConfig",
    "KVCacheRemovedData",
    "KVCacheStatsDelta",
    "KVCacheStoredBlockData",
    "KVCacheStoredData",
    "KVCacheUpdatedData",
    "KvCacheStatus",
    "LayerConfig",
    "LayerGroupId",
    "LayerId",
    "LayerType",
    "LifeCycleId",
    "LogicError",
    "MemAddress",
    "MmItemContext",
    "MmKey",
    "NDEBUG",
    "OutOfMemoryError",
    "OutOfPagesError",
    "PageIndexConverter",
    "PageIndexMode",
    "PageStatus",
    "PlannedDropHandle",
    "PoolDesc",
    "PoolGroupDesc",
    "PoolGroupIndex",
    "PoolGroupPeakBlockStats",
    "PoolIndex",
    "Priority",
    "ReuseScope",
    "ReusedBlocksByLevel",
    "ScratchDesc",
    "SlidingWindowSize",
    "SlotDesc",
    "SlotDescVariant",
    "SsmLayerConfig",
    "SsmLifeCycle",
    "SsmSnapshotIterationStatsDelta",
    "StorageStatistics",
    "SwaScratchReuseConfig",
    "TokenId",
    "TokenIdExt",
    "UniqueToken",
    "_KVCache",
    "_KV_CACHE_ITERATION_STATS_DELTA_FIELDS",
    "_Status",
    "_cpp_introspection",
    "_introspection",
    "create_default_kv_cache_cold_page_codec",
    "exact_div",
    "gen_multimodal_cache_key_tokens",
    "num_live_managers",
    "poison_reason",
    "sequence_to_blockchain_keys",
    "take_poison",
    "typed_range",
]
