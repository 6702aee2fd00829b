"""The smallest use: one prompt, a few decode steps, and a second prompt that reuses the first. No GPU needed."""

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    GpuCacheTierConfig,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
)

BLOCK = 32
layers = [
    AttentionLayerConfig(LayerId(i), [BufferConfig("key", 2048 * BLOCK), BufferConfig("value", 2048 * BLOCK)])
    for i in range(4)
]
config = KVCacheManagerConfig(tokens_per_block=BLOCK, cache_tiers=[GpuCacheTierConfig(64 << 20)], layers=layers)
prompt = list(range(1000, 1100))

with KVCacheManager(config) as manager:
    with manager.create_kv_cache(input_tokens=prompt) as sequence:
        assert sequence.resume(), manager.last_refusal  # on the device's default stream
        assert sequence.resize(capacity=len(prompt))  # room for the prompt; now run the prefill
        sequence.commit(prompt)
        for token in (7, 8, 9):  # one decode step each
            assert sequence.resize(capacity=sequence.capacity + 1)
            indices = sequence.get_base_page_indices(manager.get_layer_group_id(LayerId(0)))
            sequence.commit([token])
        print("pages of the sequence:", indices.tolist())
    with manager.create_kv_cache(input_tokens=prompt + [7, 8, 9, 10]) as second:
        print("tokens that need no prefill:", second.num_committed_tokens, "of", len(prompt) + 4)
