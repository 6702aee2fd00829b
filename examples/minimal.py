from kv_cache_manager_v2 import AttentionLayerConfig, BufferConfig, GpuCacheTierConfig, KVCacheManager, KVCacheManagerConfig, LayerId

buffers = [BufferConfig("key", 65536), BufferConfig("value", 65536)]  # bytes of one layer's block
layers = [AttentionLayerConfig(LayerId(i), buffers) for i in range(4)]
config = KVCacheManagerConfig(tokens_per_block=32, cache_tiers=[GpuCacheTierConfig(64 << 20)], layers=layers)
prompt = list(range(1000, 1100))

with KVCacheManager(config) as manager:
    with manager.create_kv_cache(input_tokens=prompt) as first:
        assert first.resume() and first.resize(capacity=100), manager.last_refusal  # room; the engine runs the prefill
        first.commit(prompt)  # the tokens are final: other prompts may reuse them from here on
        print("page indices for kernels:", first.get_base_page_indices(manager.get_layer_group_id(LayerId(0))).tolist())
    with manager.create_kv_cache(input_tokens=[*prompt, 7, 8, 9]) as second:
        print("tokens that need no prefill:", second.num_committed_tokens, "of 103")
