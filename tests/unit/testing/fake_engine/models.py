"""Small models for these tests, and prompts for them."""

import numpy as np

from kv_cache_manager_v2.config.batch_desc import BatchDesc, KVCacheDesc
from kv_cache_manager_v2.config.cache_tier_config import GpuCacheTierConfig
from kv_cache_manager_v2.config.layer_config import AttentionLayerConfig, BufferConfig, SsmLayerConfig
from kv_cache_manager_v2.config.manager_config import KVCacheManagerConfig
from kv_cache_manager_v2.config.scratch_reuse_config import SwaScratchReuseConfig

TOKENS_PER_BLOCK = 4


def attention(layer_id, window=None, sinks=None, key_size=32, value_size=32, override=None):
    buffers = [BufferConfig("key", key_size, override), BufferConfig("value", value_size, override)]
    return AttentionLayerConfig(layer_id, buffers, window, sinks)


def state(layer_id, size=40):
    return SsmLayerConfig(layer_id, [BufferConfig("conv", size), BufferConfig("ssm", 3 * size)])


def model(*layers, scratch=False):
    reuse = SwaScratchReuseConfig() if scratch else None
    # Room for the prompts of these tests all at once, in windowed groups too: nothing is to be refused or evicted here.
    batch = BatchDesc([KVCacheDesc(64, 0)] * 6)
    return KVCacheManagerConfig(
        tokens_per_block=TOKENS_PER_BLOCK,
        cache_tiers=[GpuCacheTierConfig(1 << 20)],
        layers=list(layers),
        constraints=[batch],
        swa_scratch_reuse=reuse,
    )


# One of everything: full and windowed layers, sinks, several sizes (9 bytes do not divide into 4 tokens, 2 are fewer
# than tokens), kernels with smaller blocks (2 tokens and 1), recurrent state, layers that have it beside
# attention, layer ids that are no ordinals.
MODELS = {
    "full": model(attention(0), attention(1)),
    "windows": model(attention(10, window=6), attention(20), attention(30, window=6), attention(40, window=1)),
    "sinks": model(attention(0, window=7, sinks=3), attention(1, window=5, sinks=6), attention(2, window=100, sinks=1)),
    "sizes": model(attention(0, key_size=9, value_size=2), attention(1, key_size=64, value_size=12), attention(2)),
    "overrides": model(attention(0, override=2), attention(1, window=5, override=1), attention(2, key_size=7)),
    "hybrid": model(state(0), attention(1, window=6), state(2, size=7), attention(3)),
    "both": model(attention(0, window=6), state(0), attention(1), state(1, size=24)),
}


def prompt(seed, length):
    return np.random.default_rng(seed).integers(0, 50000, length).astype(np.int32)
