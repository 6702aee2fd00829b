"""A `config.json` that cannot be placed: one line with the family, the layer and the field, and what works instead."""

import json
from pathlib import Path
from typing import Any

import pytest

from kv_cache_manager_v2.models.model_description import read_model
from kv_cache_manager_v2.models.model_fields import ModelConfigError
from unit.models.published_models import gqa, mla

LLAMA = gqa("llama", 4, 8, 2, 64)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({}, ["model_type", "--family", "llama"]),
        ({"model_type": 7}, ["model_type is 7"]),
        (gqa("lama", 4, 8, 2, 64, num_attention_heads=None), ["'lama'", "num_attention_heads", "--family"]),
        (gqa("brand_new", 4, 8, 2, 64, kv_lora_rank=512), ["brand_new", "kv_lora_rank", "--family"]),
        (gqa("brand_new", 4, 8, 2, 64, index_topk=64), ["brand_new", "index_topk"]),
        (gqa("brand_new", 4, 8, 2, 64, sliding_window=64), ["brand_new", "layer_types", "sliding_window"]),
        (gqa("minimax_m3", 4, 8, 2, 64), ["minimax_m3", "sparse attention"]),
        (gqa("llama", 4, 8, 2, 64, quantization_config={"kv_cache_scheme": {"num_bits": 3}}), ["kv_cache_scheme", "num_bits is 3"]),
        (gqa("llama", 4, 8, 2, 64, quantization_config={"kv_cache_quant_algo": "FP7"}), ["kv_cache_quant_algo", "'FP7'", "FP8"]),
        (gqa("deepseek_v4", 4, 8, 1, 512, compress_ratios=[0, 4]), ["deepseek_v4", "compress_ratios"]),
        (gqa("llama", 4, 8, 1, 512, compress_ratios=[0, 4]), ["llama", "layer 0", "compress_ratios"]),
        (gqa("mllama", 4, 8, 1, 512), ["mllama", "cross_attention_layers"]),
        (gqa("t5", 4, 8, 1, 64, is_encoder_decoder=True), ["is_encoder_decoder"]),
        ({key: value for key, value in LLAMA.items() if key != "num_attention_heads"} | {"model_type": "olmo2"}, ["olmo2",
            "num_attention_heads"]),
        (gqa("olmo2", 0, 8, 2, 64), ["num_hidden_layers is 0"]),
        (gqa("llama", 4, 8, 2, 64, num_key_value_heads="2"), ["num_key_value_heads is '2'"]),
        (gqa("llama", 4, 8, 2, 64, num_key_value_heads=[2, 2]), ["num_key_value_heads has 2 items for 4 layers"]),
        (gqa("llama", 4, 8, 2, 64, num_key_value_heads=[2, 2, 0, 2]), ["layer 2", "num_key_value_heads is 0"]),
        (gqa("llama", 4, 8, 2, 64, num_key_value_heads=-1), ["num_key_value_heads is -1"]),
        (gqa("llama", 10**9, 8, 2, 64), ["num_hidden_layers", "10000"]),
        (gqa("llama", 4, 7, 1, 64, head_dim=None, hidden_size=100), ["hidden_size 100", "num_attention_heads 7"]),
        (gqa("gpt_oss", 2, 8, 2, 64, layer_types=["full_attention", "spiral"]), ["gpt_oss", "layer 1", "layer_types", "spiral"]),
        (gqa("gpt_oss", 3, 8, 2, 64, layer_types=["full_attention"]), ["1 layers are described", "num_hidden_layers is 3"]),
        (gqa("llama", 2, 8, 2, 64, layer_types=["linear_attention"] * 2, num_hidden_layers=2) | {"model_type": "gpt_oss"}, ["layer 0",
            "state"]),
        (gqa("gemma2", 2, 8, 2, 64, sliding_window=0, layer_types=["sliding_attention"] * 2), ["layer 0", "sliding_window"]),
        (gqa("gemma4_text", 2, 8, 2, 64, num_kv_shared_layers=2), ["num_kv_shared_layers is 2"]),
        (gqa("bamba", 4, 8, 2, 64, attn_layer_indices=[9]), ["attn_layer_indices", "layer 9"]),
        (gqa("nemotron_h", 2, 8, 2, 64, hybrid_override_pattern="MX"), ["hybrid_override_pattern", "'X'"]),
        (mla("kimi_linear", 4), ["linear_attn_config"]),
        (gqa("nemotron-nas", 2, 8, 2, 64, block_configs=[{}, {}]), ["layer 0", "block_configs"]),
        (gqa("qwen3_next", 4, 8, 2, 64), ["linear_num_key_heads"]),
        (gqa("llama", 4, 8, 2, 64, hidden_size=True), []),
    ],
    ids=lambda value: str(value)[:50],
)  # fmt: skip
def test_what_cannot_be_placed_is_named(config: dict[str, Any], words: list[str]) -> None:
    if not words:
        assert read_model(config).bytes_per_token == 4 * 2 * 2 * 64 * 2  # a field that is not needed is not looked at
        return
    with pytest.raises(ModelConfigError) as caught:
        read_model(config)
    text = str(caught.value)
    assert "\n" not in text
    assert [word for word in words if word not in text] == [], text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"dtype": "int3"}, ["int3", "nvfp4"]),
        ({"tensor_parallel": 3}, ["layer 0", "num_key_value_heads is 2", "tensor_parallel=3"]),
        ({"tensor_parallel": 0}, ["tensor_parallel is 0"]),
        ({"pipeline_parallel": 5}, ["pipeline_parallel is 5", "4 layers"]),
        ({"pipeline_parallel": 2, "pipeline_stage": 2}, ["pipeline_stage is 2"]),
        ({"num_sink_tokens": -1}, ["num_sink_tokens is -1"]),
        ({"family": "lama"}, ["'lama'", "llama"]),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ModelConfigError) as caught:
        read_model(LLAMA, **arguments)
    assert [word for word in words if word not in str(caught.value)] == [], str(caught.value)


def test_a_refusal_names_no_family_of_another_layout() -> None:
    with pytest.raises(ModelConfigError) as caught:
        read_model(gqa("minimax_m3", 4, 8, 2, 64))
    assert "minimax_m2" not in str(caught.value)


def test_scales_want_sixteen_items() -> None:
    with pytest.raises(ModelConfigError, match="layer 0.*keys of 72 items.*nvfp4"):
        read_model(gqa("llama", 4, 8, 2, 72), "nvfp4")


def test_an_unknown_family_can_be_read_as_another() -> None:
    assert read_model(gqa("brand_new", 4, 8, 2, 64), family="llama").bytes_per_token == read_model(LLAMA).bytes_per_token


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ["not JSON", "config.json was expected"]),
        (b"{", ["not JSON"]),
        (b"\xff\xfe", ["not JSON but text as UTF-16"]),
        (b"PK\x03\x04....", ["not JSON but a zip file", "config.json was expected"]),
        (b"\xf1\x8b\x00", ["not JSON but a binary file (its first bytes are f1 8b 00)"]),
        (b'{"prompt": "a"}\n{"prompt": "b"}\n', ["JSON lines", "kvcm replay"]),
        (b"[" * 100_000, ["not JSON"]),
        (b"[1]", ["a JSON list", "model_type"]),
    ],
)
def test_files_that_are_no_configuration(content: bytes, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ModelConfigError) as caught:
        read_model(path)
    assert [word for word in (str(path), *words) if word not in str(caught.value)] == [], str(caught.value)


def test_folders_and_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match="a folder without a config.json"):
        read_model(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelConfigError, match="tokenizer.json"):
        read_model(tmp_path)
    with pytest.raises(ModelConfigError, match="No such file"):
        read_model(tmp_path / "none.json")
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert read_model(tmp_path).family == "llama"
