"""A model with recurrent layers: three prompts with a common beginning, and which of them finds it.

The first leaves nothing where the second will branch off; the second is told where, stops its prefill there and leaves a
snapshot of the recurrent state; the third begins with it. A fake engine checks every byte of keys, values and states.
"""

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BatchDesc,
    BufferConfig,
    GpuCacheTierConfig,
    HostDevice,
    KVCacheDesc,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    SsmLayerConfig,
)
from kv_cache_manager_v2.testing import FakeEngine, Step

config = KVCacheManagerConfig(
    tokens_per_block=32,
    cache_tiers=[GpuCacheTierConfig(4 << 20)],
    layers=[
        SsmLayerConfig(LayerId(0), [BufferConfig("conv", 1024), BufferConfig("ssm", 16384)]),
        SsmLayerConfig(LayerId(1), [BufferConfig("conv", 1024), BufferConfig("ssm", 16384)]),
        AttentionLayerConfig(LayerId(2), [BufferConfig("key", 8192), BufferConfig("value", 8192)]),
    ],
    typical_step=BatchDesc([KVCacheDesc(capacity=256, history_length=255)]),
)
device = HostDevice()
engine = FakeEngine(config, device)
system_prompt = list(range(64))

with KVCacheManager(config, device=device) as manager:
    for name, question in (("first", range(1000, 1032)), ("second", range(2000, 2040)), ("third", range(3000, 3005))):
        tokens = system_prompt + list(question)
        # The last token is left to compute: the next one comes from its output.
        with manager.create_kv_cache(input_tokens=tokens[:-1], expected_prompt_length=len(tokens)) as kv_cache:
            found = kv_cache.match_info
            kv_cache.resume()
            chunks = []
            position = kv_cache.num_committed_tokens
            while position < len(tokens):
                stop = kv_cache.next_snapshot_position
                end = len(tokens) if stop is None else min(stop, len(tokens))
                kv_cache.resize(end)
                engine.execute([Step(kv_cache, tokens[position:end], tokens[:position])])
                kv_cache.commit(tokens[position:end])
                chunks.append(f"{position}-{end}")
                position = end
            print(
                f"{name}: attention was there up to {found.attention_tokens}, state up to {found.state_tokens};"
                f" computed {', '.join(chunks)}"
            )
engine.close()
device.close()
print(f"{engine.num_checked_bytes:,} bytes checked, {engine.mismatches} wrong")
