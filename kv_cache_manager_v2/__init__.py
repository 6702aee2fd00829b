"""KV-cache manager for inference engines: paging, prefix reuse, sliding windows. The public names, nothing else."""

from .base.build_mode import is_compiled
from .base.errors import (
    CorruptedError,
    CudaError,
    CuError,
    KVCacheManagerError,
    LogicError,
    OutOfMemoryError,
    OutOfPagesError,
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
    GpuCacheTierConfig,
    HostCacheTierConfig,
)
from .config.layer_config import AttentionLayerConfig, BufferConfig, LayerConfig, SsmLayerConfig
from .config.manager_config import KVCacheManagerConfig
from .config.scratch_reuse_config import SwaScratchReuseConfig
from .device.host_device import HostDevice
from .device.port import CopyBatch, Device, HostKernel, MemoryAccess
from .device.selection import default_device
from .layout.buffer_id import BufferId
from .layout.life_cycle import AttnLifeCycle, LifeCycle, SsmLifeCycle
from .layout.registry import LifeCycleRegistry
from .layout.windows import compute_scratch_range
from .manager.kv_cache import KVCache
from .manager.kv_cache_manager import KVCacheManager
from .reuse.reuse_scope import ReuseScope
from .stats.storage_statistics import StorageStatistics
from .storage.refusal import Refusal

_KVCache = KVCache
"""The name that this class has in TensorRT-LLM."""

__version__ = "0.1.0"

__all__ = [
    "AttentionLayerConfig",
    "AttnLifeCycle",
    "BAD_PAGE_INDEX",
    "BatchDesc",
    "BeamIndex",
    "BlockOrdinal",
    "BufferConfig",
    "BufferId",
    "CacheLevel",
    "CacheTier",
    "CacheTierConfig",
    "CopyBatch",
    "CorruptedError",
    "CuError",
    "CudaError",
    "CudaStream",
    "DEFAULT_BEAM_INDEX",
    "DataRole",
    "Device",
    "DiskCacheTierConfig",
    "GPU_LEVEL",
    "GpuCacheTierConfig",
    "HalfOpenRange",
    "HostCacheTierConfig",
    "HostDevice",
    "HostKernel",
    "KVCache",
    "KVCacheDesc",
    "KVCacheManager",
    "KVCacheManagerConfig",
    "KVCacheManagerError",
    "LayerConfig",
    "LayerGroupId",
    "LayerId",
    "LifeCycle",
    "LifeCycleId",
    "LifeCycleRegistry",
    "LogicError",
    "MemAddress",
    "MemoryAccess",
    "OutOfMemoryError",
    "OutOfPagesError",
    "PageIndexMode",
    "Priority",
    "Refusal",
    "ReuseScope",
    "SlotId",
    "SsmLayerConfig",
    "SsmLifeCycle",
    "StorageStatistics",
    "SwaScratchReuseConfig",
    "TokenId",
    "TokenIdExt",
    "_KVCache",
    "__version__",
    "compute_scratch_range",
    "default_device",
    "is_compiled",
]
