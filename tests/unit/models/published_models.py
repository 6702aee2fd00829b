"""Published models: what their `config.json` says of the cache, and what a token of it takes, from elsewhere.

Each row: a name; the fields, written by hand from the model's `config.json` on Hugging Face (only those that matter here); the bytes of
a token in full-attention layers and in windowed layers, with 16-bit keys and values; the windows; the bytes of a sequence's recurrent
states.

Rows of `CATALOGUE` have the bytes of a token that `kvcache-simulator` 0.1.3 (package index; its `models.yaml`, formulas of its own)
gives for the model of the same name. It adds windowed layers to the others; of sparse attention its indexer is counted apart, here with
8 bits and scales. Rows of `BY_HAND` are layers * (key items + value items) * 2 bytes, from the models' reports and cards. States are from
the shapes of the layers: (kernel - 1) * channels * 2 bytes, and heads * key size * value size * 4 bytes.
"""

from typing import Any, Final, NamedTuple


class Published(NamedTuple):
    name: str
    config: dict[str, Any]
    full: int
    windowed: int = 0
    window: int | None = None
    state: int = 0


def gqa(model_type: str, layers: int, heads: int, kv: int, dim: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": model_type, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": dim,
        "hidden_size": heads * dim, **more,
    }  # fmt: skip


def mla(model_type: str, layers: int, rank: int = 512, rope: int = 64, **more: Any) -> dict[str, Any]:
    return {
        "model_type": model_type, "num_hidden_layers": layers, "num_attention_heads": 128, "num_key_value_heads": 128, "hidden_size": 7168,
        "kv_lora_rank": rank, "qk_rope_head_dim": rope, "qk_nope_head_dim": 128, "v_head_dim": 128, **more,
    }  # fmt: skip


def qwen35(model_type: str, layers: int, heads: int, kv: int, value_heads: int) -> dict[str, Any]:
    text = gqa(
        model_type + "_text", layers, heads, kv, 256, full_attention_interval=4, linear_num_key_heads=16, linear_key_head_dim=128,
        linear_num_value_heads=value_heads, linear_value_head_dim=128, linear_conv_kernel_dim=4, mamba_ssm_dtype="float32",
    )  # fmt: skip
    return {"model_type": model_type, "text_config": text, "vision_config": {"hidden_size": 1152}}


def qwen35_state(linear_layers: int, value_heads: int) -> int:
    return linear_layers * (3 * (2 * 16 * 128 + value_heads * 128) * 2 + value_heads * 128 * 128 * 4)


def gemma4(layers: int, heads: int, kv: int, window: int, shared: int, period: int, global_kv: int | None) -> dict[str, Any]:
    types = ["full_attention" if (layer + 1) % period == 0 else "sliding_attention" for layer in range(layers)]
    text = gqa(
        "gemma4_text", layers, heads, kv, 256, global_head_dim=512, num_global_key_value_heads=global_kv, sliding_window=window,
        num_kv_shared_layers=shared, layer_types=types,
    )  # fmt: skip
    return {"model_type": "gemma4", "text_config": text}


def mimo(layers: int, heads: int, kv: int, full: int) -> dict[str, Any]:
    pattern = [0 if layer < full else 1 for layer in range(layers)]  # which ones does not matter here
    return gqa(
        "mimo_v2", layers, heads, kv, 192, v_head_dim=128, swa_num_key_value_heads=8, swa_head_dim=192, swa_v_head_dim=128,
        sliding_window_size=128, hybrid_layer_pattern=pattern,
    )  # fmt: skip


_QWEN25: Final = {"sliding_window": 131072, "use_sliding_window": False, "max_window_layers": 28}
# 21 of 78 layers have an index of their own: the first three, then every fourth.
_INDEX: Final = {"index_head_dim": 128, "index_n_heads": 64, "index_topk": 2048}

CATALOGUE: Final = (
    Published("llama-3.1-8b", gqa("llama", 32, 32, 8, 128), 131072),
    Published("llama-3.1-70b", gqa("llama", 80, 64, 8, 128), 327680),
    Published("llama-3.3-70b", gqa("llama", 80, 64, 8, 128), 327680),
    Published("qwen2.5-7b", gqa("qwen2", 28, 28, 4, 128, **_QWEN25), 57344),
    Published("qwen2.5-14b", gqa("qwen2", 48, 40, 8, 128, **_QWEN25), 196608),
    Published("qwen2.5-32b", gqa("qwen2", 64, 40, 8, 128, **_QWEN25), 262144),
    Published("qwen2.5-72b", gqa("qwen2", 80, 64, 8, 128, **_QWEN25), 327680),
    Published("qwen3-0.6b", gqa("qwen3", 28, 16, 8, 128), 114688),
    Published("qwen3-1.7b", gqa("qwen3", 28, 16, 8, 128), 114688),
    Published("qwen3-4b", gqa("qwen3", 36, 32, 8, 128), 147456),
    Published("qwen3-8b", gqa("qwen3", 36, 32, 8, 128), 147456),
    Published("qwen3-14b", gqa("qwen3", 40, 40, 8, 128), 163840),
    Published("qwen3-32b", gqa("qwen3", 64, 64, 8, 128), 262144),
    Published("qwen3-30b-a3b", gqa("qwen3_moe", 48, 32, 4, 128), 98304),
    Published("qwen3-235b-a22b", gqa("qwen3_moe", 94, 64, 4, 128), 192512),
    Published("cohere-command-r-v01", gqa("cohere", 40, 64, 64, 128), 1310720),
    Published("cohere-command-r-plus", gqa("cohere", 64, 96, 8, 128), 262144),
    Published(
        "cohere-command-r7b-12-2024", gqa("cohere2", 32, 32, 8, 128, sliding_window=4096, sliding_window_pattern=4), 32768, 98304, 4096
    ),
    Published(
        "cohere-command-a-03-2025", gqa("cohere2", 64, 96, 8, 128, sliding_window=4096, sliding_window_pattern=4), 65536, 196608, 4096
    ),
    Published("minimax-m2", gqa("minimax_m2", 62, 48, 8, 128), 253952),
    Published("deepseek-v3", mla("deepseek_v3", 61), 70272),
    Published("deepseek-r1", mla("deepseek_v3", 61), 70272),
    Published("kimi-k2.5", {"model_type": "kimi_k25", "text_config": mla("kimi_k2", 61)}, 70272),
    Published("deepseek-v3.2", mla("deepseek_v32", 61, **_INDEX), 70272 + 61 * 132),
    Published("glm-5", mla("glm_moe_dsa", 78, **_INDEX), 89856 + 78 * 132),
    Published("glm-5.2", mla("glm_moe_dsa", 78, index_topk_freq=4, index_skip_topk_offset=3, **_INDEX), 89856 + 21 * 132),
    Published("gemma-4-e2b", gemma4(35, 8, 1, 512, 20, 5, None), 3 * 2048, 12 * 1024, 512),
    Published("gemma-4-e4b", gemma4(42, 8, 2, 512, 18, 6, None), 4 * 4096, 20 * 2048, 512),
    Published("gemma-4-26b-a4b", gemma4(30, 16, 8, 1024, 0, 6, 2), 5 * 4096, 25 * 8192, 1024),
    Published("gemma-4-31b", gemma4(60, 32, 16, 1024, 0, 6, 4), 10 * 8192, 50 * 16384, 1024),
    Published("mimo-v2.5", mimo(48, 64, 4, 9), 9 * 4 * 320 * 2, 39 * 8 * 320 * 2, 128),
    Published("mimo-v2.5-pro", mimo(70, 128, 8, 10), 10 * 8 * 320 * 2, 60 * 8 * 320 * 2, 128),
    Published("qwen3.5-0.8b", qwen35("qwen3_5", 24, 8, 2, 16), 12288, state=qwen35_state(18, 16)),
    Published("qwen3.5-4b", qwen35("qwen3_5", 32, 16, 4, 32), 32768, state=qwen35_state(24, 32)),
    Published("qwen3.5-27b", qwen35("qwen3_5", 64, 24, 4, 48), 65536, state=qwen35_state(48, 48)),
    Published("qwen3.5-35b-a3b", qwen35("qwen3_5_moe", 40, 16, 2, 32), 20480, state=qwen35_state(30, 32)),
    Published("qwen3.5-122b-a10b", qwen35("qwen3_5_moe", 48, 32, 2, 64), 24576, state=qwen35_state(36, 64)),
    Published("qwen3.5-397b-a17b", qwen35("qwen3_5_moe", 60, 32, 2, 64), 30720, state=qwen35_state(45, 64)),
)
"""``full`` and ``windowed`` add up to the catalogue's figure, but for the indexers."""

CATALOGUE_SUMS: Final = {
    "cohere-command-r7b-12-2024": 131072, "cohere-command-a-03-2025": 262144, "gemma-4-e2b": 18432, "gemma-4-e4b": 57344,
    "gemma-4-26b-a4b": 225280, "gemma-4-31b": 901120, "mimo-v2.5": 222720, "mimo-v2.5-pro": 358400,
}  # fmt: skip
"""Of models with windows: the catalogue's figure, all layers together."""

_LLAMA4: Final = {"head_dim": 128, "attention_chunk_size": 8192}
_NEMOTRON_H: Final = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"

BY_HAND: Final = (
    Published("gpt2", {"model_type": "gpt2", "n_layer": 12, "n_head": 12, "n_embd": 768}, 12 * 2 * 768 * 2),
    Published("gpt-neox-20b", {"model_type": "gpt_neox", "num_hidden_layers": 44, "num_attention_heads": 64, "hidden_size": 6144},
        44 * 2 * 6144 * 2),
    Published("bloom-176b", {"model_type": "bloom", "n_layer": 70, "n_head": 112, "hidden_size": 14336}, 70 * 2 * 14336 * 2),
    Published("opt-30b", {"model_type": "opt", "num_hidden_layers": 48, "num_attention_heads": 56, "hidden_size": 7168}, 48 * 2 * 7168 * 2),
    Published(
        "falcon-7b", {"model_type": "falcon", "num_hidden_layers": 32, "num_attention_heads": 71, "hidden_size": 4544, "multi_query": True,
                      "new_decoder_architecture": False}, 32 * 2 * 64 * 2,
    ),
    Published(
        "falcon-40b", {"model_type": "falcon", "num_hidden_layers": 60, "num_attention_heads": 128, "num_kv_heads": 8, "hidden_size": 8192,
                       "multi_query": True, "new_decoder_architecture": True}, 60 * 2 * 8 * 64 * 2,
    ),
    Published("starcoder", {"model_type": "gpt_bigcode", "n_layer": 40, "n_head": 48, "n_embd": 6144, "multi_query": True},
        40 * 2 * 128 * 2),
    Published("starcoder2-15b", gqa("starcoder2", 40, 48, 4, 128, sliding_window=4096), 0, 40 * 2 * 4 * 128 * 2, 4096),
    Published("mpt-7b", {"model_type": "mpt", "n_layers": 32, "n_heads": 32, "d_model": 4096, "attn_config": {"attn_impl": "torch"}},
        32 * 2 * 4096 * 2),
    Published(
        "dbrx", {"model_type": "dbrx", "n_layers": 40, "n_heads": 48, "d_model": 6144, "attn_config": {"kv_n_heads": 8}},
        40 * 2 * 8 * 128 * 2
    ),
    Published(
        "chatglm3-6b", {"model_type": "chatglm", "num_layers": 28, "num_attention_heads": 32, "hidden_size": 4096, "kv_channels": 128,
                        "multi_query_attention": True, "multi_query_group_num": 2}, 28 * 2 * 2 * 128 * 2,
    ),
    Published("llava-1.5-7b", {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}}, 32 * 2 * 4096 * 2),
    Published("mistral-7b-v0.1", gqa("mistral", 32, 32, 8, 128, sliding_window=4096), 0, 32 * 2 * 8 * 128 * 2, 4096),
    Published("mistral-7b-v0.3", gqa("mistral", 32, 32, 8, 128, sliding_window=None), 32 * 2 * 8 * 128 * 2),
    Published("mixtral-8x7b", gqa("mixtral", 32, 32, 8, 128, sliding_window=None), 32 * 2 * 8 * 128 * 2),
    Published("phi-3-mini", gqa("phi3", 32, 32, 32, 96, sliding_window=2047), 0, 32 * 2 * 32 * 96 * 2, 2047),
    Published("gemma-2-9b", gqa("gemma2", 42, 16, 8, 256, sliding_window=4096), 21 * 2 * 8 * 256 * 2, 21 * 2 * 8 * 256 * 2, 4096),
    Published(  # as on the hub: what equals the class's defaults is left out
        "gemma-3-4b", {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34,
                                                               "sliding_window": 1024}},
        5 * 2 * 4 * 256 * 2, 29 * 2 * 4 * 256 * 2, 1024,
    ),
    Published(
        "gemma-3-12b", {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "hidden_size": 3840, "num_hidden_layers": 48,
                                                                "num_attention_heads": 16, "num_key_value_heads": 8,
                                                                "sliding_window": 1024}},
        8 * 2 * 8 * 256 * 2, 40 * 2 * 8 * 256 * 2, 1024,
    ),
    Published("gpt-oss-20b", gqa("gpt_oss", 24, 64, 8, 64, sliding_window=128), 12 * 2 * 8 * 64 * 2, 12 * 2 * 8 * 64 * 2, 128),
    Published("gpt-oss-120b", gqa("gpt_oss", 36, 64, 8, 64, sliding_window=128), 18 * 2 * 8 * 64 * 2, 18 * 2 * 8 * 64 * 2, 128),
    Published("llama-4-scout", {"model_type": "llama4", "text_config": gqa("llama4_text", 48, 40, 8, 128, **_LLAMA4)}, 12 * 4096,
        36 * 4096, 8192),
    Published("exaone-4-32b", gqa("exaone4", 64, 40, 8, 128, sliding_window=4096, sliding_window_pattern="LLLG"), 16 * 4096, 48 * 4096,
        4096),
    Published("olmo-3-7b", gqa("olmo3", 32, 32, 32, 128, sliding_window=4096), 8 * 16384, 24 * 16384, 4096),
    Published(
        "openelm-270m", {"model_type": "openelm", "num_transformer_layers": 16, "head_dim": 64,
                         "num_kv_heads": [3, 3, 3, 3, 3, 4, 4, 4, 4, 4, 4, 4, 5, 5, 5, 5]}, (5 * 3 + 7 * 4 + 4 * 5) * 2 * 64 * 2,
    ),
    Published("deepseek-v2-lite", mla("deepseek_v2", 27), 27 * 576 * 2),
    Published("minicpm3-4b", mla("minicpm3", 62, 256, 32), 62 * 288 * 2),
    Published("longcat-flash", mla("longcat_flash", 28), 56 * 576 * 2),
    Published(
        "qwen3-next-80b-a3b", gqa("qwen3_next", 48, 16, 2, 256, linear_num_key_heads=16, linear_key_head_dim=128, linear_num_value_heads=32,
                                  linear_value_head_dim=128, linear_conv_kernel_dim=4), 12 * 2 * 2 * 256 * 2, state=qwen35_state(36, 32),
    ),
    Published(
        "kimi-linear-48b", mla("kimi_linear", 27, linear_attn_config={"full_attn_layers": [4, 8, 12, 16, 20, 24, 27], "num_heads": 32,
                                                                      "head_dim": 128, "short_conv_kernel_size": 4}),
        7 * 576 * 2, state=20 * (3 * 3 * 32 * 128 * 2 + 32 * 128 * 128 * 4),
    ),
    Published(
        "minimax-text-01", gqa("minimax_text_01", 80, 64, 8, 128, attn_type_list=([0] * 7 + [1]) * 10), 10 * 2 * 8 * 128 * 2,
        state=70 * 64 * 128 * 128 * 4,
    ),
    Published(
        "nemotron-h-8b", gqa("nemotron_h", 52, 32, 8, 128, hybrid_override_pattern=_NEMOTRON_H, mamba_num_heads=128, mamba_head_dim=64,
                             ssm_state_size=128, n_groups=8, conv_kernel=4),
        4 * 2 * 8 * 128 * 2, state=24 * (3 * (128 * 64 + 2 * 8 * 128) * 2 + 128 * 64 * 128 * 4),
    ),
    Published(
        "bamba-9b", gqa("bamba", 32, 32, 8, 128, attn_layer_indices=[9, 18, 27], mamba_n_heads=128, mamba_d_head=64, mamba_d_state=128,
                        mamba_n_groups=1, mamba_d_conv=4, mamba_expand=2),
        3 * 2 * 8 * 128 * 2, state=29 * (3 * (128 * 64 + 2 * 128) * 2 + 128 * 64 * 128 * 4),
    ),
    Published(
        "falcon-h1-7b", gqa("falcon_h1", 44, 12, 2, 128, mamba_d_ssm=3072, mamba_n_heads=24, mamba_d_head=128, mamba_d_state=256,
                            mamba_n_groups=1, mamba_d_conv=4),
        44 * 2 * 2 * 128 * 2, state=44 * (3 * (3072 + 2 * 256) * 2 + 24 * 128 * 256 * 4),
    ),
    Published(
        "jamba-v0.1", gqa("jamba", 32, 32, 8, 128, attn_layer_period=8, attn_layer_offset=4, mamba_expand=2, mamba_d_state=16,
            mamba_d_conv=4,
                          intermediate_size=14336),
        4 * 2 * 8 * 128 * 2, state=28 * (8192 * 3 * 2 + 8192 * 16 * 4),
    ),
    Published(
        "falcon-mamba-7b", {"model_type": "falcon_mamba", "num_hidden_layers": 64, "hidden_size": 4096, "intermediate_size": 8192,
            "state_size": 16,
                            "conv_kernel": 4}, 0, state=64 * (8192 * 3 * 2 + 8192 * 16 * 4),
    ),
    Published(
        "lfm2-1.2b", gqa("lfm2", 16, 32, 8, 64, full_attn_idxs=[2, 5, 8, 10, 12, 14], conv_L_cache=3), 6 * 2 * 8 * 64 * 2,
        state=10 * 2048 * 2 * 2
    ),
    Published(
        "recurrentgemma-9b", gqa("recurrent_gemma", 38, 16, 1, 256, attention_window_size=2048, lru_width=4096, conv1d_width=4,
                                 block_types=["recurrent", "recurrent", "attention"]),
        0, 12 * 2 * 256 * 2, 2048, 26 * (4096 * 3 * 2 + 4096 * 4),
    ),
    Published(
        "layers-of-nemotron-nas", {"model_type": "nemotron-nas", "num_hidden_layers": 4, "num_attention_heads": 64, "hidden_size": 8192,
            "block_configs": [
            {"attention": {"n_heads_in_group": 8, "no_op": False}}, {"attention": {"n_heads_in_group": None, "no_op": True}},
            {"attention": {"n_heads_in_group": 16}}, {"attention": {"n_heads_in_group": None, "replace_with_linear": True}},
        ]}, (8 + 4) * 2 * 128 * 2,
    ),
)  # fmt: skip
