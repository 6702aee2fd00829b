"""The smallest use: one prompt, three decode steps, and a second prompt that reuses the first. No GPU needed."""

from kv_cache_manager_v2 import (
    AttentionLayerConfig, BufferConfig, GpuCacheTierConfig, KVCacheManager, KVCacheManagerConfig, LayerId
)  # fmt: skip

T = 32  # tokens per block
buffers = [BufferConfig("key", 2048 * T), BufferConfig("value", 2048 * T)]  # bytes per block, of one layer
layers = [AttentionLayerConfig(LayerId(i), buffers) for i in range(4)]
config = KVCacheManagerConfig(tokens_per_block=T, cache_tiers=[GpuCacheTierConfig(64 << 20)], layers=layers)
prompt = list(range(1000, 1100))

with KVCacheManager(config) as manager:
    with manager.create_kv_cache(input_tokens=prompt) as sequence:
        assert sequence.resume(), manager.last_refusal  # on the device's default stream
        assert sequence.resize(capacity=len(prompt))  # room for the prompt; the engine runs the prefill
        sequence.commit(prompt)  # the tokens are final; full blocks can be reused from here on
        for token in (7, 8, 9):
            assert sequence.resize(capacity=sequence.capacity + 1)  # the engine runs a decode step
            sequence.commit([token])
        indices = sequence.get_base_page_indices(manager.get_layer_group_id(LayerId(0)))
        print("pages of the sequence:", indices.tolist())
    with manager.create_kv_cache(input_tokens=prompt + [7, 8, 9, 10]) as second:
        print("tokens that need no prefill:", second.num_committed_tokens, "of", len(prompt) + 4)
