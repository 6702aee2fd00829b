"""Which kind each layer of a model is: full, sliding or chunked attention, recurrent, both, or without a cache.

`layer_types` says so where it is given. Families without it have a rule, known from their code.
"""

from typing import Any, Final

from .model_fields import ModelFields, shown

FULL: Final = "full"
SLIDING: Final = "sliding"
CHUNKED: Final = "chunked"
STATE: Final = "state"
"""A recurrent layer."""
CONV: Final = "conv"
"""A convolution alone."""
BOTH: Final = "both"
"""Full attention and a recurrent state."""
BOTH_SLIDING: Final = "both, sliding"
NOTHING: Final = "nothing"

_KIND_OF_TYPE: Final = {
    "full_attention": FULL,
    "attention": FULL,
    "global_attention": FULL,
    "indexed_attention": FULL,
    "sliding_attention": SLIDING,
    "sliding_window_attention": SLIDING,
    "local_attention": SLIDING,
    "chunked_attention": CHUNKED,
    "linear_attention": STATE,
    "mamba": STATE,
    "recurrent": STATE,
    "conv": CONV,
    "hybrid": BOTH,
    "hybrid_sliding": BOTH_SLIDING,
    "mlp": NOTHING,
    "moe": NOTHING,
}
_KIND_OF_LETTER: Final = {"M": STATE, "*": FULL, "-": NOTHING, "E": NOTHING}


def kinds_of_layers(fields: ModelFields, rule: str, num_layers: int) -> list[str]:
    """One kind for each layer; the last ``num_kv_shared_layers`` of them read earlier ones' keys and store nothing."""
    kinds = _listed_kinds(fields, num_layers)
    if kinds is None:
        kinds = _kinds_by_rule(fields, rule, num_layers)
    if len(kinds) != num_layers:
        raise fields.fail(f"{len(kinds)} layers are described, and num_hidden_layers is {num_layers}")
    num_shared = fields.optional_count("num_kv_shared_layers") or 0
    if num_shared >= num_layers > 0 and num_shared > 0:
        raise fields.fail(f"num_kv_shared_layers is {num_shared} of {num_layers}: no layer would store anything")
    return kinds[: num_layers - num_shared] + [NOTHING] * num_shared


def window_of(fields: ModelFields, kind: str, layer_id: int) -> int | None:
    """Tokens of the layer's window; None: all tokens are read."""
    if kind == CHUNKED:
        return fields.count("attention_chunk_size")
    if kind not in (SLIDING, BOTH_SLIDING):
        return None
    window = fields.optional_count("sliding_window", "sliding_window_size", "attention_window_size", "window_size")
    if window is None or window == 0:
        raise fields.fail("its attention slides, and there is no field sliding_window", layer_id)
    return window


def _listed_kinds(fields: ModelFields, num_layers: int) -> list[str] | None:
    for name in ("layer_types", "layers_block_type"):
        types = fields.items(name)
        if types is not None:
            return [_kind_of_type(fields, name, value, layer_id) for layer_id, value in enumerate(types)]
    pattern = fields.text("hybrid_override_pattern")
    if pattern is not None:
        kinds: list[str] = []
        for layer_id, letter in enumerate(pattern):
            if letter not in _KIND_OF_LETTER:
                raise fields.fail(f"hybrid_override_pattern has {letter!r}; known are {' '.join(_KIND_OF_LETTER)}", layer_id)
            kinds.append(_KIND_OF_LETTER[letter])
        return kinds
    blocks = fields.items("block_types")
    if blocks is not None and len(blocks) > 0:
        period = [SLIDING if value == "attention" else _kind_of_type(fields, "block_types", value, 0) for value in blocks]
        return [period[layer_id % len(period)] for layer_id in range(num_layers)]
    return None


def _kind_of_type(fields: ModelFields, name: str, value: Any, layer_id: int) -> str:
    kind = _KIND_OF_TYPE.get(value) if isinstance(value, str) else None
    if kind is None:
        raise fields.fail(f"{name} is {shown(value)}; placed are {', '.join(_KIND_OF_TYPE)}", layer_id)
    return kind


def _kinds_by_rule(fields: ModelFields, rule: str, num_layers: int) -> list[str]:
    layers = range(num_layers)
    has_window = fields.has("sliding_window") and fields.flag("use_sliding_window", True)
    if rule == "window":
        return [SLIDING if has_window else FULL] * num_layers
    if rule == "upper window":
        first = fields.optional_count("max_window_layers") or 0
        slides = has_window and fields.flag("use_sliding_window", False)
        return [SLIDING if slides and layer_id >= first else FULL for layer_id in layers]
    if rule.startswith("every "):
        # The name of the rule has the period of families that do not give it: "every 6".
        pattern = fields.values.get("sliding_window_pattern")
        if isinstance(pattern, str):
            return [FULL if pattern[layer_id % len(pattern)] == "G" or layer_id == num_layers - 1 else SLIDING for layer_id in layers]
        period = fields.count_or(int(rule[6:]), "sliding_window_pattern")
        return [SLIDING if has_window and (layer_id + 1) % period != 0 else FULL for layer_id in layers]
    if rule == "chunks":
        rotated = fields.items("no_rope_layers")
        if rotated is not None and len(rotated) > 0:
            return [CHUNKED if value else FULL for value in rotated]
        period = fields.count_or(4, "no_rope_layer_interval")
        return [CHUNKED if (layer_id + 1) % period != 0 else FULL for layer_id in layers]
    if rule == "interval":
        period = fields.count_or(4, "full_attention_interval")
        return [STATE if (layer_id + 1) % period != 0 else FULL for layer_id in layers]
    if rule == "states":
        return [STATE] * num_layers
    if rule == "both":
        return [BOTH] * num_layers
    if rule == "attention list":
        chosen = fields.indices("attn_layer_indices", num_layers)
        if chosen is None:
            chosen = fields.indices("full_attn_idxs", num_layers)
        if chosen is None:
            raise fields.fail("there is no field layer_types, attn_layer_indices or full_attn_idxs to tell attention from the others")
        other = CONV if fields.has("conv_L_cache") else STATE
        return [FULL if layer_id in chosen else other for layer_id in layers]
    if rule == "period":
        period = fields.count("attn_layer_period")
        offset = fields.optional_count("attn_layer_offset") or 0
        return [FULL if layer_id % period == offset else STATE for layer_id in layers]
    if rule == "attention types":
        types = fields.items("attn_type_list")
        if types is None:
            raise fields.fail("there is no field layer_types or attn_type_list to tell attention from the others")
        return [FULL if value == 1 else STATE for value in types]
    if rule == "pattern":
        pattern_items = fields.items("hybrid_layer_pattern")
        if pattern_items is None:
            raise fields.fail("there is no field layer_types or hybrid_layer_pattern to tell windows from full attention")
        return [SLIDING if value == 1 else FULL for value in pattern_items]
    if rule == "linear list":
        return _kinds_of_linear_list(fields, num_layers)
    return [FULL] * num_layers


def _kinds_of_linear_list(fields: ModelFields, num_layers: int) -> list[str]:
    """Kimi Linear numbers its layers from 1 on."""
    linear = fields.inner("linear_attn_config")
    chosen = None if linear is None else linear.items("full_attn_layers")
    if chosen is None:
        raise fields.fail("there is no field linear_attn_config.full_attn_layers to tell attention from the others")
    return [FULL if layer_id + 1 in chosen else STATE for layer_id in range(num_layers)]
