"""Four answers to one prompt: the prompt is computed once, its blocks are shared, each answer copies one block at most."""

from kv_cache_manager_v2 import (
    AttentionLayerConfig, BufferConfig, GpuCacheTierConfig, KVCacheManager, KVCacheManagerConfig, LayerId
)  # fmt: skip

T = 32  # tokens per block
buffers = [BufferConfig("key", 2048 * T), BufferConfig("value", 2048 * T)]
layers = [AttentionLayerConfig(LayerId(i), buffers) for i in range(4)]
config = KVCacheManagerConfig(tokens_per_block=T, cache_tiers=[GpuCacheTierConfig(64 << 20)], layers=layers)
prompt = list(range(1000, 1100))  # 4 blocks, the last one with 4 tokens


def slots_in_use(manager: KVCacheManager) -> int:
    statistics = manager.get_storage_statistics()[0]
    return statistics.total - statistics.free


with KVCacheManager(config) as manager, manager.create_kv_cache(input_tokens=prompt) as first:
    assert first.resume(), manager.last_refusal
    assert first.resize(capacity=len(prompt))  # the engine runs the prefill, once
    first.commit(prompt)
    samples = [first] + [first.fork() for _ in range(3)]
    print("after three forks:", slots_in_use(manager), "slots")
    for step in range(40):
        for number, sample in enumerate(samples):
            assert sample.resize(capacity=sample.capacity + 1)  # at the first step: a copy of the last block
            sample.commit([number * 100 + step])  # each draws tokens of its own
        if step == 0:
            print("after the first step:", slots_in_use(manager), "slots, for four last blocks and three shared ones")
    print("after 40 steps:", slots_in_use(manager), "slots; four sequences alone would have", 4 * 5)
    for sample in samples[1:]:
        sample.close()
