"""The recurrent states of one sequence, by kind of layer, as serving engines keep them.

A convolution over K inputs keeps the last K - 1. Mamba 1 and 2, gated delta nets, Kimi delta attention, lightning attention, and
gated linear recurrences (RG-LRU).
"""

from typing import Final

from .layer_maker import LayerMaker
from .model_fields import ModelFields

_STATE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}


def add_state(fields: ModelFields, maker: LayerMaker, shape: str, layer_id: int) -> None:
    """Add the state of one layer. ``shape``: its kind, as in `families`."""
    num_bytes = _state_bytes(fields)
    if shape == "delta":
        _add_delta(fields, maker, layer_id, num_bytes)
    elif shape == "kda":
        _add_kda(fields, maker, layer_id, num_bytes)
    elif shape == "lightning":
        heads = maker.share(layer_id, fields.count("num_attention_heads"), "num_attention_heads")
        head_dim = fields.count_or(fields.count("hidden_size") // fields.count("num_attention_heads"), "head_dim")
        maker.add_state(layer_id, 0, heads * head_dim * head_dim, num_bytes)
    elif shape == "mamba2":
        _add_mamba2(fields, maker, layer_id, num_bytes)
    elif shape == "mamba1":
        # The intermediate_size of Jamba is that of its MLPs, and it has mamba_expand.
        expanded = fields.count_or(2, "mamba_expand", "expand") * fields.count("hidden_size")
        inner = expanded if fields.has("mamba_expand") else fields.count_or(expanded, "intermediate_size")
        channels = maker.share(layer_id, inner, "the inner size")
        kernel = fields.count_or(4, "mamba_d_conv", "conv_kernel")
        maker.add_state(layer_id, channels * (kernel - 1), channels * fields.count_or(16, "mamba_d_state", "state_size"), num_bytes)
    else:
        assert shape == "rglru"
        width = maker.share(layer_id, fields.count("lru_width", "hidden_size"), "lru_width")
        maker.add_state(layer_id, width * (fields.count_or(4, "conv1d_width") - 1), width, num_bytes)


def add_conv(fields: ModelFields, maker: LayerMaker, layer_id: int) -> None:
    """A short convolution without a recurrent state."""
    channels = maker.share(layer_id, fields.count("hidden_size"), "hidden_size")
    maker.add_state(layer_id, channels * (fields.count("conv_L_cache") - 1), 0, 0)


def _add_delta(fields: ModelFields, maker: LayerMaker, layer_id: int, num_bytes: int) -> None:
    key_heads = maker.share(layer_id, fields.count("linear_num_key_heads"), "linear_num_key_heads")
    value_heads = maker.share(layer_id, fields.count("linear_num_value_heads"), "linear_num_value_heads")
    key_dim = fields.count("linear_key_head_dim")
    value_dim = fields.count("linear_value_head_dim")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    kernel = fields.count_or(4, "linear_conv_kernel_dim")
    maker.add_state(layer_id, channels * (kernel - 1), value_heads * key_dim * value_dim, num_bytes)


def _add_kda(fields: ModelFields, maker: LayerMaker, layer_id: int, num_bytes: int) -> None:
    linear = fields.inner("linear_attn_config")
    if linear is None:
        raise fields.fail("there is no field linear_attn_config", layer_id)
    heads = maker.share(layer_id, linear.count("num_heads"), "linear_attn_config.num_heads")
    head_dim = linear.count("head_dim")
    kernel = linear.count_or(4, "short_conv_kernel_size")
    maker.add_state(layer_id, 3 * heads * head_dim * (kernel - 1), heads * head_dim * head_dim, num_bytes)


def _add_mamba2(fields: ModelFields, maker: LayerMaker, layer_id: int, num_bytes: int) -> None:
    all_heads = fields.count("mamba_num_heads", "mamba_n_heads", "n_mamba_heads", "num_heads")
    if fields.optional_count("mamba_d_ssm") is not None:
        head_dim = fields.count("mamba_d_ssm") // all_heads
    elif fields.family == "mamba2" or fields.has("mamba_head_dim"):
        head_dim = fields.count("mamba_head_dim", "head_dim")
    elif type(fields.values.get("mamba_d_head")) is int:
        head_dim = fields.count("mamba_d_head")
    else:
        head_dim = fields.count_or(2, "mamba_expand", "expand") * fields.count("hidden_size") // all_heads
    heads = maker.share(layer_id, all_heads, "the number of Mamba heads")
    groups = maker.share_groups(fields.count_or(1, "n_groups", "mamba_n_groups", "mamba_ngroups"))
    state = fields.count("ssm_state_size", "mamba_d_state", "state_size")
    kernel = fields.count_or(4, "conv_kernel", "mamba_d_conv")
    maker.add_state(layer_id, (heads * head_dim + 2 * groups * state) * (kernel - 1), heads * head_dim * state, num_bytes)


def _state_bytes(fields: ModelFields) -> int:
    for name in ("mamba_ssm_dtype", "mamba_ssm_cache_dtype"):
        dtype = fields.text(name)
        if dtype is not None:
            if dtype not in _STATE_BYTES:
                raise fields.fail(f"{name} is {dtype!r}; known are {', '.join(_STATE_BYTES)}")
            return _STATE_BYTES[dtype]
    return 4
