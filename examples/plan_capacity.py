"""Will my batches fit? Answered before anything is allocated, here for a model with windowed and full layers."""

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BatchDesc,
    BufferConfig,
    GpuCacheTierConfig,
    KVCacheDesc,
    KVCacheManagerConfig,
    LayerId,
    plan_capacity,
)

T = 32
size = 8 * 64 * 2 * T  # 8 heads of 64 numbers of 2 bytes
buffers = [BufferConfig("key", size), BufferConfig("value", size)]
layers = [AttentionLayerConfig(LayerId(i), buffers, sliding_window_size=128 if i % 2 == 0 else None) for i in range(24)]
decode = KVCacheDesc(capacity=8192, history_length=8191)
config = KVCacheManagerConfig(T, [GpuCacheTierConfig(8 << 30)], layers, typical_step=BatchDesc([decode]))

plan = plan_capacity(config, BatchDesc([decode] * 32))
print(plan.table())
print("sequences of 8,192 tokens that decode together:", plan.max_batch_size(8192))
