"""Three beams behind one prompt: they share its blocks, are reordered after each step, and end as one text."""

from kv_cache_manager_v2 import (
    AttentionLayerConfig, BufferConfig, GpuCacheTierConfig, KVCacheManager, KVCacheManagerConfig, LayerId
)  # fmt: skip

T = 32  # tokens per block
buffers = [BufferConfig("key", 2048 * T), BufferConfig("value", 2048 * T)]
layers = [AttentionLayerConfig(LayerId(i), buffers) for i in range(4)]
config = KVCacheManagerConfig(tokens_per_block=T, cache_tiers=[GpuCacheTierConfig(64 << 20)], layers=layers)
prompt = list(range(1000, 1100))

with KVCacheManager(config) as manager, manager.create_kv_cache(input_tokens=prompt) as sequence:
    assert sequence.resume(), manager.last_refusal
    assert sequence.resize(capacity=len(prompt))  # the engine runs the prefill, once
    sequence.commit(prompt)
    sequence.beam_width = 3
    group = manager.get_layer_group_id(LayerId(0))
    texts: list[list[int]] = [[], [], []]
    for step in range(10):
        length = len(prompt) + step
        assert sequence.resize(length + 1, length)  # room for one token of each beam; the engine runs the step
        texts = [text + [beam * 100 + step] for beam, text in enumerate(texts)]
        parents = [(step + beam) // 2 % 3 for beam in range(3)]  # from the scores: which beam each goes on from
        sequence.reorder_beams(parents)
        texts = [texts[parent] for parent in parents]
    for beam in range(3):
        print(f"beam {beam}: pages {sequence.get_base_page_indices(group, beam).tolist()}")
    best = 1
    sequence.commit(texts[best], beam_search_indices=[best] * len(texts[best]))
    sequence.beam_width = 1
    print("committed:", sequence.num_committed_tokens, "tokens, the last", sequence.committed_tokens[-10:])
