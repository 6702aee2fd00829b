"""The families of models that can be placed: by the `model_type` of a `config.json`.

A family is a rule for the kinds of its layers (`layer_kinds`) and the shape of its recurrent states (`state_shapes`). Only known
families are
placed: fields of the same names mean other bytes elsewhere.
"""

import difflib
from typing import Any, Final

from .layer_kinds import BOTH, BOTH_SLIDING, CHUNKED, CONV, FULL, NOTHING, SLIDING, STATE, kinds_of_layers, window_of
from .layer_maker import LayerMaker
from .model_fields import ModelConfigError, ModelFields, shown
from .state_shapes import add_conv, add_state

_ALL_FULL: Final = (
    "apertus", "arcee", "baichuan", "bloom", "chatglm", "codegen", "codellama", "cohere", "dbrx", "deepseek", "dots1", "ernie4_5",
    "ernie4_5_moe", "exaone", "falcon", "flex_olmo", "gemma", "glm", "glm4", "glm4_moe", "gpt2", "gpt_bigcode", "gpt_neox", "gptj",
    "granite",
    "granitemoe", "granitemoeshared", "grok-1", "helium", "hunyuan_v1_dense", "hunyuan_v1_moe", "internlm", "internlm2", "internlm3",
    "llama",
    "minicpm", "minimax_m2", "mpt", "nanochat", "nemotron", "olmo", "olmo2", "olmoe", "openelm", "opt", "orion", "persimmon", "phi",
    "qwen", "qwen3_moe", "RefinedWeb", "RefinedWebModel", "seed_oss", "solar", "solar_open", "stablelm", "xverse", "yi",
)  # fmt: skip
_LATENT: Final = (
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "glm4_moe_lite", "glm_moe_dsa", "kimi_k2", "longcat_flash", "minicpm3", "mistral4",
    "youtu",
)  # fmt: skip
_OTHERS: Final[dict[str, tuple[str, str]]] = {
    # Windows.
    "mistral": ("window", ""), "mixtral": ("window", ""), "ministral": ("window", ""), "ministral3": ("window", ""), "phi3": ("window", ""),
    "phimoe": ("window", ""), "starcoder2": ("window", ""), "qwen2": ("upper window", ""), "qwen2_moe": ("upper window", ""),
    "qwen3": ("upper window", ""), "mimo": ("upper window", ""),
    "smollm3": ("upper window", ""), "gemma2": ("every 2", ""), "gpt_oss": ("every 2", ""),
    "gemma3_text": ("every 6", ""), "gemma3n_text": ("every 5", ""), "gemma4_text": ("every 6", ""), "cohere2": ("every 4", ""),
    "cohere2_moe": ("every 4", ""), "exaone4": ("every 4", ""), "exaone_moe": ("every 4", ""), "olmo3": ("every 4", ""),
    "mimo_v2": ("pattern", ""), "mimo_v2_flash": ("pattern", ""), "llama4_text": ("chunks", ""),
    # Heads that differ from layer to layer.
    "nemotron-nas": ("blocks", ""), "deci": ("blocks", ""),
    # Recurrent layers.
    "qwen3_next": ("interval", "delta"), "qwen3_5_text": ("interval", "delta"), "qwen3_5_moe_text": ("interval", "delta"),
    "olmo_hybrid": ("interval", "delta"), "kimi_linear": ("linear list", "kda"), "minimax": ("attention types", "lightning"),
    "minimax_text_01": ("attention types", "lightning"), "minimax_m1": ("attention types", "lightning"),
    "MiniMaxText01": ("attention types", "lightning"),
    "bamba": ("attention list", "mamba2"), "granitemoehybrid": ("attention list", "mamba2"), "falcon_h1": ("both", "mamba2"),
    "nemotron_h": ("full", "mamba2"), "zamba2": ("attention list", "mamba2"), "mamba2": ("states", "mamba2"),
    "jamba": ("period", "mamba1"), "mamba": ("states", "mamba1"), "falcon_mamba": ("states", "mamba1"),
    "lfm2": ("attention list", ""), "lfm2_moe": ("attention list", ""), "recurrent_gemma": ("full", "rglru"),
}  # fmt: skip
_SAME: Final = {
    "gemma3": "gemma3_text", "gemma3n": "gemma3n_text", "gemma4": "gemma4_text", "gemma4_unified": "gemma4_text",
    "gemma4_unified_text": "gemma4_text", "llama4": "llama4_text", "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text", "qwen2_vl": "qwen2", "qwen2_vl_text": "qwen2", "qwen2_5_vl": "qwen2", "qwen2_5_vl_text": "qwen2",
    "qwen3_vl": "qwen3", "qwen3_vl_text": "qwen3", "qwen3_vl_moe": "qwen3_moe", "qwen3_vl_moe_text": "qwen3_moe", "llava": "llama",
    "llava_next": "llama", "mistral3": "mistral", "glm4v_text": "glm4", "glm4v_moe_text": "glm4_moe", "kimi_k25": "kimi_k2",
    "qwen3_omni_moe": "qwen3_moe", "qwen3_omni_moe_text": "qwen3_moe", "qwen3_omni_moe_thinker": "qwen3_moe",
    "deepseek_vl_v2": "deepseek_v2", "internvl_chat": "llama",
}  # fmt: skip
_ADVICE: Final = {
    "deepseek_v4": "its layers store tokens compressed by compress_ratios, which pages of tokens do not",
    "mllama": "its cross_attention_layers store an image's keys, which no token has",
    "rwkv": "its recurrent state is not known here",
    "xlstm": "its recurrent state is not known here",
    "inkling": "its convolutions over windows of keys are not known here",
    "minimax_m3": "its sparse attention's index is not known here",
    "dots3_note": "its windowed layers have latents of another size",
}
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {
    # What transformers leaves out of a text_config, as it is the class's default.
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "sliding_window": 4096},
    "gemma3_text": {"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 4, "num_hidden_layers": 26, "sliding_window": 4096},
    "gemma3n_text": {
        "head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 2, "num_hidden_layers": 35, "sliding_window": 512,
        "num_kv_shared_layers": 15,
    },
    "gemma4_text": {"head_dim": 256, "global_head_dim": 512, "sliding_window": 512},
    "llama": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32},
    "mistral": {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8},
    "gpt_oss": {"head_dim": 64, "num_key_value_heads": 8, "sliding_window": 128},
    "llama4_text": {"head_dim": 128, "num_attention_heads": 40, "num_key_value_heads": 8, "num_hidden_layers": 48,
        "attention_chunk_size": 8192},
    "cohere2": {"sliding_window": 4096},
}  # fmt: skip
_TWICE_THE_HEADS: Final = ("mimo_v2", "mimo_v2_flash")
"""In layers with windows, where no swa_num_key_value_heads says how many: as transformers writes it."""
_LAYER_COUNTS: Final = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_transformer_layers")
_HEADS: Final = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_NOT_PLAIN: Final = (
    "lora_rank", "compress", "index", "latent", "state", "ssm", "mamba", "conv", "linear_", "recurrent", "rwkv", "delta", "cross_attention",
    "sparse", "lightning", "hybrid", "block_configs", "kv_shared", "attn_type", "chunk", "mla", "cla_", "engram", "global_head_dim", "swa_",
    "num_attention_groups", "attention_other", "gla_", "kda",
)  # fmt: skip
"""In names of fields: of compression, indexing, latents and states, and of layers with other heads."""
_PLAIN: Final = (
    "layer_types", "decoder_sparse_step", "pad_token_index", "image_token_index", "conv_kernel_size", "mlp_layer_types", "use_index_cache",
    "first_k_dense_replace", "sparse_step",
)  # fmt: skip
_NESTED: Final = ("text_config", "llm_config", "language_config", "thinker_config")


def known_families() -> list[str]:
    """All names that `model_type` or ``family`` may be."""
    return sorted({*_ALL_FULL, *_LATENT, *_OTHERS, *_SAME})


def select_fields(values: dict[str, Any], family: str | None) -> tuple[ModelFields, list[str]]:
    """The language model's fields, wherever they are nested, and what a report must say of them. ``family``: read it as one of these,
    whatever `model_type` says."""
    outer = values.get("model_type")
    found = values
    for _depth in range(len(_NESTED)):
        nested = [found[name] for name in _NESTED if isinstance(found.get(name), dict)]
        if len(nested) == 0:
            break
        found = nested[0]
    name = family if family is not None else found.get("model_type", outer)
    if name is None:
        raise ModelConfigError(
            f"there is no field model_type, so this is no model's config.json; its fields are {shown(sorted(values))}. Name one, or say "
            f"which family to read it as (family, or --family): {', '.join(_nearest('', found))}"
        )
    if not isinstance(name, str):
        raise ModelConfigError(f"model_type is {shown(name)}, not a string")
    same = _SAME.get(name, name)
    if found.get("is_encoder_decoder") is True:
        raise ModelConfigError(f"{name}: is_encoder_decoder is true; only decoders are placed")
    fields = ModelFields(name, {**_DEFAULTS.get(same, {}), **{key: value for key, value in found.items() if value is not None}})
    if fields.has("per_layer_config"):
        fields.values.pop("global_head_dim", None)  # each layer says its own, where it differs
    if same in _ALL_FULL or same in _LATENT or same in _OTHERS:
        return fields, []
    if family is not None and same not in _ADVICE:
        raise ModelConfigError(f"there is no family {family!r}; nearest: {', '.join(_nearest(family, found))}")
    reason = _ADVICE.get(same) or _why_not_plain(fields)
    if reason is not None:
        raise ModelConfigError(
            f"model_type {name!r} cannot be placed: {reason}. If its cache is that of a known family, --family NAME (family=) reads it as "
            f"that one"
        )
    return fields, [f"family {name!r} is not known: placed by its fields, as plain heads"]


def _why_not_plain(fields: ModelFields) -> str | None:
    """Why a family that is not known may store something else than the keys and values of its heads; None: it has plain heads."""
    layers = fields.inner("per_layer_config")
    own = [] if layers is None else [pair for one in layers.values.values() if isinstance(one, dict) for pair in one.items()]
    for name, value in [*fields.values.items(), *own]:
        if value not in (False, 0, "", []) and any([mark in name for mark in _NOT_PLAIN]) and name not in _PLAIN:
            return f"the family is not known, and its field {name} may mean that layers store something else than keys and values"
    if not any([fields.has(heads) for heads in _HEADS]):
        return f"the family is not known, and it has no field {' or '.join(_HEADS)}"
    if fields.has("sliding_window") and fields.flag("use_sliding_window", True) and not fields.has("layer_types"):
        return "the family is not known, and there is no field layer_types to say which layers have its sliding_window"
    return None


def add_layers(fields: ModelFields, maker: LayerMaker) -> int:
    """Add all layers that store something; returns the number of all layers."""
    name = _SAME.get(fields.family, fields.family)
    num_layers = _count_layers(fields)
    if num_layers > _MAX_LAYERS:
        raise fields.fail(f"num_hidden_layers is {num_layers}; at most {_MAX_LAYERS}")
    if name in _LATENT:
        num_layers = _add_latents(fields, maker, num_layers, [FULL] * num_layers, 2 if name == "longcat_flash" else 1)
        return num_layers
    if fields.has("compress_ratios") or fields.has("cross_attention_layers"):
        field = "compress_ratios" if fields.has("compress_ratios") else "cross_attention_layers"
        raise fields.fail(f"{field} cannot be placed: such layers store no page of each token", 0)
    rule, states = _OTHERS.get(name, ("full", ""))
    if rule == "blocks":
        _add_blocks(fields, maker, num_layers)
        return num_layers
    kinds = kinds_of_layers(fields, rule, num_layers)
    for layer_id, kind in enumerate(kinds):
        if kind in (STATE, BOTH, BOTH_SLIDING):
            if states == "":
                raise fields.fail("the shape of this family's recurrent state is not known", layer_id)
            add_state(fields, maker, states, layer_id)
        elif kind == CONV:
            add_conv(fields, maker, layer_id)
    if states == "kda" or fields.has("kv_lora_rank"):
        return _add_latents(fields, maker, num_layers, kinds, 1)
    for layer_id, kind in enumerate(kinds):
        if kind in (FULL, SLIDING, CHUNKED, BOTH, BOTH_SLIDING):
            _add_heads(fields, maker, layer_id, kind, num_layers)
    return num_layers


_MAX_LAYERS: Final = 10_000


def _count_layers(fields: ModelFields) -> int:
    listed = fields.items("layers_block_type") or fields.items("layer_types")
    if listed is not None and not any([fields.has(name) for name in _LAYER_COUNTS]):
        return len(listed)
    return fields.count(*_LAYER_COUNTS)


def _add_heads(of_model: ModelFields, maker: LayerMaker, layer_id: int, kind: str, num_layers: int) -> None:
    fields = of_model.of_layer(layer_id)
    window = window_of(fields, kind, layer_id)
    if kind == SLIDING and fields.has("swa_num_key_value_heads"):
        key_dim = fields.count("swa_head_dim")
        maker.add_heads(layer_id, fields.count("swa_num_key_value_heads"), key_dim, fields.count_or(key_dim, "swa_v_head_dim"), window)
        return
    head_dim = _head_dim(fields)
    num_kv_heads = _num_kv_heads(fields, layer_id, num_layers)
    if kind == SLIDING and fields.family in _TWICE_THE_HEADS:
        num_kv_heads *= 2
    if kind == FULL and fields.has("global_head_dim"):
        head_dim = fields.count("global_head_dim")
        num_kv_heads = fields.count_or(num_kv_heads, "num_global_key_value_heads")
    maker.add_heads(layer_id, num_kv_heads, head_dim, fields.count_or(head_dim, "v_head_dim"), window)


def _add_latents(fields: ModelFields, maker: LayerMaker, num_layers: int, kinds: list[str], per_layer: int) -> int:
    num_items = fields.count("kv_lora_rank") + (fields.optional_count("qk_rope_head_dim") or 0)
    index_dim = fields.optional_count("index_head_dim")
    frequency = fields.count_or(1, "index_topk_freq")
    offset = fields.optional_count("index_skip_topk_offset") or 1
    for layer_id, kind in enumerate(kinds):
        if kind == FULL:
            # With a frequency, layers in between use the index of the last one that has its own.
            is_indexed = index_dim is not None and max(layer_id - offset + 1, 0) % frequency == 0
            index = maker.index_key(index_dim) if index_dim is not None and is_indexed else None
            for part in range(per_layer):
                maker.add_latent(layer_id * per_layer + part, num_items, None, index)
        elif kind not in (STATE, CONV, NOTHING):
            raise fields.fail(f"{kind} attention over a latent cannot be placed", layer_id)
    return num_layers * per_layer


def _add_blocks(fields: ModelFields, maker: LayerMaker, num_layers: int) -> None:
    """Models found by a search, of which each layer has its own heads, or none."""
    blocks = fields.items("block_configs", num_layers)
    if blocks is None:
        raise fields.fail("there is no field block_configs")
    num_heads = fields.count("num_attention_heads")
    head_dim = _head_dim(fields)
    for layer_id, block in enumerate(blocks):
        attention = block.get("attention") if isinstance(block, dict) else None
        if not isinstance(attention, dict):
            raise fields.fail(f"block_configs has {shown(block)}, without an object attention", layer_id)
        if attention.get("no_op") is True or attention.get("replace_with_linear") is True:
            continue
        group = fields.to_count(attention.get("n_heads_in_group"), "block_configs.attention.n_heads_in_group", layer_id)
        if group == 0 or num_heads % group != 0:
            raise fields.fail(f"n_heads_in_group {group} does not divide num_attention_heads {num_heads}", layer_id)
        maker.add_heads(layer_id, num_heads // group, head_dim, head_dim, None)


def _num_kv_heads(fields: ModelFields, layer_id: int, num_layers: int) -> int:
    for name in ("num_key_value_heads", "num_kv_heads"):
        value = fields.values.get(name)
        if isinstance(value, list):
            heads = fields.items(name, num_layers)
            assert heads is not None
            count = fields.to_count(heads[layer_id], name, layer_id)
            if count == 0:
                raise fields.fail(f"{name} is 0; at least 1", layer_id)
            return count
    inner = fields.inner("attn_config")
    if inner is not None and inner.has("kv_n_heads"):
        return inner.count("kv_n_heads")
    if fields.flag("multi_query_attention", False) and fields.has("multi_query_group_num"):
        return fields.count("multi_query_group_num")
    is_new_falcon = fields.flag("new_decoder_architecture", False)
    if fields.flag("multi_query", False) and not is_new_falcon:
        return 1
    if fields.has("n_head_kv"):
        return fields.count("n_head_kv")
    return fields.count_or(_num_heads(fields), "num_key_value_heads", "num_kv_heads")


def _num_heads(fields: ModelFields) -> int:
    return fields.count(*_HEADS)


def _head_dim(fields: ModelFields) -> int:
    given = fields.optional_count("head_dim", "attention_head_dim", "kv_channels")
    if given is not None:
        return fields.count("head_dim", "attention_head_dim", "kv_channels")
    hidden = fields.count("hidden_size", "n_embd", "d_model", "hidden_dim")
    heads = _num_heads(fields)
    if hidden % heads != 0:
        raise fields.fail(f"hidden_size {hidden} is no multiple of num_attention_heads {heads}, and there is no head_dim")
    return hidden // heads


def _nearest(name: str, values: dict[str, Any]) -> list[str]:
    close = difflib.get_close_matches(name, known_families(), 3, 0.6)
    if "kv_lora_rank" in values:
        close.append("deepseek_v3")
    elif "linear_num_value_heads" in values:
        close.append("qwen3_next")
    elif values.get("sliding_window") is not None:
        close.append("mistral")
    else:
        close.append("llama")
    return list(dict.fromkeys(close))
