"""KV-cache manager for inference engines: paging, prefix reuse, sliding windows. The public names, nothing else."""

from importlib import import_module
from typing import TYPE_CHECKING, Final

from .base.build_mode import is_compiled
from .base.class_signature import give_signatures
from .base.errors import (
    BusyError,
    CopyListError,
    CorruptedError,
    CudaError,
    CuError,
    KVCacheManagerError,
    LoadFailed,
    LogicError,
    OutOfMemoryError,
    OutOfPagesError,
    PageMoveError,
    PlannedTokensLost,
    StorageIOError,
)
from .base.ids import (
    BAD_PAGE_INDEX,
    DEFAULT_BEAM_INDEX,
    GPU_LEVEL,
    BeamIndex,
    BlockOrdinal,
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
    SlotId,
    TokenId,
    TokenIdExt,
)
from .base.ranges import HalfOpenRange
from .config.batch_desc import BatchDesc, KVCacheDesc
from .config.cache_tier_config import (
    CacheTierConfig,
    DiskCacheTierConfig,
    ExternalCacheTierConfig,
    GpuCacheTierConfig,
    HostCacheTierConfig,
)
from .config.eviction_policy import EvictionPolicy
from .config.layer_config import AttentionLayerConfig, BufferConfig, LayerConfig, SsmLayerConfig
from .config.manager_config import KVCacheManagerConfig
from .config.model_id import ModelId
from .config.rebalance_config import RebalanceConfig
from .config.retention import RetentionConfig, TokenRangeRetention
from .config.scratch_reuse_config import SwaScratchReuseConfig
from .config.snapshot_policy import SnapshotPolicy
from .device.cold_page_codec import ColdPageCodec
from .device.cuda_device import CudaDevice
from .device.file_port import FilePort
from .device.external_device import ExternalDevice
from .device.host_device import HostDevice
from .device.copy_log import CopyLog
from .device.copy_worker import CopyWorker
from .device.port import CopyBatch, Device, HostKernel, MemoryAccess
from .device.selection import default_device
from .device.wakeup import Wakeup
from .events.block_digest import BlockHash
from .events.event_index import IndexedBlock, KVCacheEventIndex
from .events.event_manager import KVCacheEventManager
from .events.event_snapshot import KVCacheEventSnapshot
from .events.kv_cache_event import (
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheEventData,
    KVCacheEventDiff,
    KVCacheRemovedData,
    KVCacheStoredBlockData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)
from .layout.buffer_id import BufferId
from .layout.life_cycle import AttnLifeCycle, LifeCycle, SsmLifeCycle
from .layout.page_index import PageIndexConverter
from .layout.pool_desc import AggregatedPageDesc, ExpandedBuffer, PoolDesc, PoolGroupDesc
from .layout.registry import LifeCycleRegistry
from .layout.scratch_desc import ScratchDesc
from .layout.slot_desc import CoalescedBuffer, SlotDesc, SlotDescVariant
from .layout.windows import compute_scratch_range
from .manager.capacity import CapacityPlan, LevelCapacity, PoolGroupCapacity, plan_capacity
from .manager.committed_block_drop import CommittedBlockDrop
from .manager.kv_cache import KVCache, SequenceStatus
from .manager.transfer_lease import TransferLease
from .manager.kv_cache_manager import KVCacheManager
from .manager.pool_view import PoolView
from .reuse.block_hashes import compute_block_hashes, gen_multimodal_cache_key_tokens
from .metrics.prometheus_exporter import PrometheusExporter
from .metrics.statistics_log import StatisticsLog
from .reuse.reuse_scope import ReuseScope
from .sequence.finish_plan import FinishPlan
from .sequence.matched_tokens import MatchedTokens
from .sequence.priority_callback import PriorityCallback
from .stats.block_times import BlockTimes
from .stats.drop_reason import DropReason
from .stats.miss_cause import MissCause
from .stats.hint_result import HintResult
from .stats.statistics_clock import StatisticsClock
from .stats.storage_statistics import StorageStatistics
from .stats.time_histogram import TimeHistogram
from .stats.usage_statistics import (
    BlockStatistics,
    DropStatistics,
    PromptStatistics,
    TransferStatistics,
    UsageStatistics,
)
from .storage.page_fill import DebugFill
from .storage.refusal import Refusal
from .storage.transfer_times import TransferTimes

if TYPE_CHECKING:
    from .kernels.batch_page_table import BatchPageTable
    from .kernels.block_table import BlockTable
    from .kernels.csr_table import CsrTable
    from .kernels.decode_batch import DecodeBatch
    from .kernels.device_page_indices import DevicePageIndices
    from .kernels.offset_table import OffsetTable
    from .kernels.page_family import DensePages, PageFamily, StridedPages
    from .kernels.slot_mapping import SlotMapping
    from .models.config_file import load_config
    from .models.model_description import config_from_model
    from .publishing.event_publisher import KVCacheEventPublisher
    from .reuse.token_forms import Tokens
    from .publishing.wire_event import AllBlocksCleared, BlockRemoved, BlockStored, WireEvent

_ON_FIRST_USE: Final = {
    "AllBlocksCleared": "publishing.wire_event",
    "BatchPageTable": "kernels.batch_page_table",
    "BlockRemoved": "publishing.wire_event",
    "BlockStored": "publishing.wire_event",
    "BlockTable": "kernels.block_table",
    "CsrTable": "kernels.csr_table",
    "DecodeBatch": "kernels.decode_batch",
    "DensePages": "kernels.page_family",
    "DevicePageIndices": "kernels.device_page_indices",
    "KVCacheEventPublisher": "publishing.event_publisher",
    "OffsetTable": "kernels.offset_table",
    "PageFamily": "kernels.page_family",
    "SlotMapping": "kernels.slot_mapping",
    "StridedPages": "kernels.page_family",
    "Tokens": "reuse.token_forms",
    "WireEvent": "publishing.wire_event",
    "config_from_model": "models.model_description",
    "load_config": "models.config_file",
}
"""Where names are that serving does without, and that take longer to import than all the rest (numpy, for one)."""


def __getattr__(name: str) -> object:
    module = _ON_FIRST_USE.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{module}"), name)
    give_signatures([value])
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_ON_FIRST_USE})


_KVCache = KVCache
"""The name that this class has in TensorRT-LLM."""

__version__ = "0.1.0"

__all__ = [
    "AggregatedPageDesc",
    "AllBlocksCleared",
    "AttentionLayerConfig",
    "AttnLifeCycle",
    "BAD_PAGE_INDEX",
    "BatchDesc",
    "BatchPageTable",
    "BeamIndex",
    "BlockHash",
    "BlockOrdinal",
    "BlockRemoved",
    "BlockStatistics",
    "BlockStored",
    "BlockTable",
    "BlockTimes",
    "BufferConfig",
    "BufferId",
    "BusyError",
    "CacheLevel",
    "CacheTier",
    "CacheTierConfig",
    "CapacityPlan",
    "CoalescedBuffer",
    "ColdPageCodec",
    "CommittedBlockDrop",
    "CopyBatch",
    "CopyListError",
    "CopyLog",
    "CopyWorker",
    "CorruptedError",
    "CsrTable",
    "CuError",
    "CudaDevice",
    "CudaError",
    "CudaStream",
    "DEFAULT_BEAM_INDEX",
    "DataRole",
    "DebugFill",
    "DecodeBatch",
    "DensePages",
    "Device",
    "DevicePageIndices",
    "DiskCacheTierConfig",
    "DropReason",
    "DropStatistics",
    "EvictionPolicy",
    "ExternalCacheTierConfig",
    "ExternalDevice",
    "ExpandedBuffer",
    "FilePort",
    "FinishPlan",
    "GPU_LEVEL",
    "GpuCacheTierConfig",
    "HalfOpenRange",
    "HintResult",
    "HostCacheTierConfig",
    "HostDevice",
    "HostKernel",
    "IndexedBlock",
    "KVCache",
    "KVCacheCreatedData",
    "KVCacheDesc",
    "KVCacheEvent",
    "KVCacheEventData",
    "KVCacheEventDiff",
    "KVCacheEventIndex",
    "KVCacheEventManager",
    "KVCacheEventPublisher",
    "KVCacheEventSnapshot",
    "KVCacheManager",
    "KVCacheManagerConfig",
    "KVCacheManagerError",
    "KVCacheRemovedData",
    "KVCacheStoredBlockData",
    "KVCacheStoredData",
    "KVCacheUpdatedData",
    "LayerConfig",
    "LayerGroupId",
    "LayerId",
    "LevelCapacity",
    "LifeCycle",
    "LifeCycleId",
    "LifeCycleRegistry",
    "LoadFailed",
    "LogicError",
    "MatchedTokens",
    "MemAddress",
    "MemoryAccess",
    "MissCause",
    "ModelId",
    "OffsetTable",
    "OutOfMemoryError",
    "OutOfPagesError",
    "PageFamily",
    "PageIndexConverter",
    "PageIndexMode",
    "PageMoveError",
    "PlannedTokensLost",
    "PoolDesc",
    "PoolGroupCapacity",
    "PoolGroupDesc",
    "PoolGroupIndex",
    "PoolIndex",
    "PoolView",
    "Priority",
    "PriorityCallback",
    "PrometheusExporter",
    "PromptStatistics",
    "Refusal",
    "RebalanceConfig",
    "RetentionConfig",
    "ReuseScope",
    "ScratchDesc",
    "SequenceStatus",
    "SlotDesc",
    "SlotDescVariant",
    "SlotId",
    "SlotMapping",
    "SnapshotPolicy",
    "SsmLayerConfig",
    "SsmLifeCycle",
    "StorageIOError",
    "StatisticsClock",
    "StatisticsLog",
    "StorageStatistics",
    "StridedPages",
    "SwaScratchReuseConfig",
    "TimeHistogram",
    "TokenId",
    "TokenIdExt",
    "TokenRangeRetention",
    "Tokens",
    "TransferStatistics",
    "TransferTimes",
    "UsageStatistics",
    "Wakeup",
    "WireEvent",
    "_KVCache",
    "__version__",
    "compute_block_hashes",
    "config_from_model",
    "compute_scratch_range",
    "default_device",
    "TransferLease",
    "gen_multimodal_cache_key_tokens",
    "is_compiled",
    "load_config",
    "plan_capacity",
]

give_signatures([*globals().values()])
