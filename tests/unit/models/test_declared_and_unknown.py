"""What a checkpoint declares of its cache, and families that are not known: placed by their fields, or refused by the one that tells."""

import json
from pathlib import Path
from typing import Any

import pytest

from kv_cache_manager_v2 import AttentionLayerConfig, GpuCacheTierConfig, SsmLayerConfig, config_from_model
from kv_cache_manager_v2.models.model_description import read_model
from kv_cache_manager_v2.models.model_fields import ModelConfigError
from kv_cache_manager_v2.replay.cli import main
from unit.models.published_models import gqa

BITS_16 = 4 * 2 * 2 * 64 * 2  # 4 layers, keys and values, 2 heads of 64 items, 2 bytes


@pytest.mark.parametrize(
    ("declared", "dtype", "num_bytes"),
    [
        ({}, "bf16", BITS_16),
        ({"quantization_config": {"quant_method": "fp8"}}, "bf16", BITS_16),
        ({"quantization_config": {"kv_cache_scheme": None}}, "bf16", BITS_16),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8, "type": "float"}}}, "fp8", BITS_16 // 2),
        ({"quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}}, "fp8", BITS_16 // 2),
        ({"quantization_config": {"quantization": {"kv_cache_quant_algo": "FP8"}}}, "fp8", BITS_16 // 2),
        # Half a byte an item, and a byte of scale for each 16.
        ({"quantization_config": {"kv_cache_quant_algo": "NVFP4"}}, "nvfp4", BITS_16 // 4 + BITS_16 // 32),
        ({"quantization_config": {"kv_cache_quant_algo": None}}, "bf16", BITS_16),
    ],
    ids=str,
)
def test_a_declared_cache_is_taken(declared: dict[str, Any], dtype: str, num_bytes: int) -> None:
    model = read_model({**gqa("llama", 4, 8, 2, 64), **declared})
    assert (model.dtype, model.bytes_per_token) == (dtype, num_bytes)
    assert [dtype in note and "--dtype" in note for note in model.notes] == [True] * (dtype != "bf16")
    assert read_model({**gqa("llama", 4, 8, 2, 64), **declared}, "bf16").bytes_per_token == BITS_16
    assert read_model({"text_config": {**gqa("llama", 4, 8, 2, 64), **declared}}).bytes_per_token == num_bytes


def test_the_file_beside_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(gqa("llama", 4, 8, 2, 64)))
    (tmp_path / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}))
    assert read_model(tmp_path).bytes_per_token == read_model(tmp_path / "config.json").bytes_per_token == BITS_16 // 2
    config = config_from_model(tmp_path, [GpuCacheTierConfig(1 << 20)], 1)
    assert sum(buffer.size for layer in config.layers for buffer in layer.buffers) == BITS_16 // 2
    for options, text in (([], "grows by 1,024 bytes"), (["--dtype", "bf16"], "grows by 2,048 bytes")):
        assert main(["plan", str(tmp_path), "--gpu-memory", "1g", *options]) == 0
        output = capsys.readouterr().out
        assert text in output and ("hf_quant_config.json" in output) == (options == [])
    (tmp_path / "hf_quant_config.json").write_text("{")
    assert main(["plan", str(tmp_path), "--gpu-memory", "1g"]) == 3
    assert "hf_quant_config.json" in capsys.readouterr().err


def test_what_grows_and_what_windows_keep(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two of four layers slide: half of a token's bytes stay in windows of 128."""
    kinds = ["sliding_attention", "full_attention"] * 2
    (tmp_path / "config.json").write_text(json.dumps(gqa("gpt_oss", 4, 8, 2, 64, layer_types=kinds, sliding_window=128)))
    assert main(["plan", str(tmp_path), "--gpu-memory", "1g", "--json", "-"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["bytes_per_token"], figures["bytes_that_grow"]) == (BITS_16, BITS_16 // 2)
    assert figures["bytes_in_windows"] == BITS_16 // 2 * 128
    assert main(["plan", str(tmp_path), "--gpu-memory", "1g"]) == 0
    output = capsys.readouterr().out
    assert "grows by 1,024 bytes (1.0 KiB) per token\nin windows, at most 131,072 bytes (128.0 KiB) per sequence\n" in output


@pytest.mark.parametrize("changes", [{}, {"layer_types": ["sliding_attention", "full_attention"] * 2, "sliding_window": 64}])
def test_an_unknown_family_with_plain_heads_is_placed_by_its_fields(changes: dict[str, Any]) -> None:
    model = read_model(gqa("brand_new", 4, 8, 2, 64, **changes))
    assert model.bytes_per_token == BITS_16
    windows = [layer.sliding_window_size for layer in model.layers if isinstance(layer, AttentionLayerConfig)]
    assert windows == ([64, None] * 2 if changes else [None] * 4)
    assert model.notes == ("family 'brand_new' is not known: placed by its fields, as plain heads",)


def test_families_that_were_refused_for_their_name() -> None:
    for family in ("mimo", "solar_open", "qwen3_omni_moe_text"):
        assert read_model(gqa(family, 4, 8, 2, 64)).notes == ()
    youtu = {"model_type": "youtu", "num_hidden_layers": 4, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    assert read_model(youtu).bytes_per_token == 4 * 576 * 2
    omni = {"model_type": "qwen3_omni_moe", "thinker_config": {"text_config": gqa("qwen3_omni_moe_text", 4, 8, 2, 64)}}
    assert read_model(omni).bytes_per_token == BITS_16


def test_a_list_of_blocks_says_how_many_layers_there_are() -> None:
    """As transformers 5 writes Nemotron-H: no num_hidden_layers."""
    fields = gqa("nemotron_h", 4, 8, 2, 64, layers_block_type=["mamba", "attention", "moe", "mamba"], mamba_num_heads=4, mamba_head_dim=8,
        ssm_state_size=16, n_groups=1, conv_kernel=4)  # fmt: skip
    del fields["num_hidden_layers"]
    model = read_model(fields)
    assert [isinstance(layer, SsmLayerConfig) for layer in model.layers] == [True, False, True]
    assert [layer.layer_id for layer in model.layers] == [0, 1, 3]


def bytes_and_windows(config: dict[str, Any]) -> list[tuple[int, int | None]]:
    layers = [layer for layer in read_model(config).layers if isinstance(layer, AttentionLayerConfig)]
    return [(sum([buffer.size for buffer in layer.buffers]), layer.window_size) for layer in layers]


@pytest.mark.parametrize("family", ["gemma4_text", "gemma4_unified_text", "a_family_of_tomorrow"])
def test_layers_say_what_differs_from_the_model(family: str) -> None:
    """As transformers 5.24 writes it: by layer, "03" as well as 3; a layer that differs in nothing is not there."""
    kinds = ["sliding_attention", "full_attention"] * 2
    fields = gqa(family, 4, 8, 2, 64, layer_types=kinds, sliding_window=32)
    sliding = (2 * 2 * 64 * 2, 32)
    own = {"01": {"head_dim": 128}, "3": {"num_key_value_heads": 4, "head_dim": 128}}
    wanted = [sliding, (2 * 2 * 128 * 2, None), sliding, (2 * 4 * 128 * 2, None)]
    assert bytes_and_windows({**fields, "per_layer_config": own}) == wanted
    assert bytes_and_windows({**fields, "per_layer_config": {}}) == [sliding, (2 * 2 * 64 * 2, None)] * 2
    assert bytes_and_windows({**fields, "per_layer_config": {"2": {"sliding_window": 8}}})[2] == (sliding[0], 8)


def test_layers_that_cannot_be_told_are_refused() -> None:
    fields = gqa("a_family_of_tomorrow", 2, 8, 2, 64)
    for layers, words in (
        ([{"head_dim": 8}], "not an object"), ({"first": {"head_dim": 8}}, "'first'"), ({"0": 8}, "'0': 8"),
        ({"0": {"kv_lora_rank": 8}}, "kv_lora_rank"),
    ):  # fmt: skip
        with pytest.raises(ModelConfigError, match=words):
            read_model({**fields, "per_layer_config": layers})


def test_windows_of_mimo_have_twice_the_heads() -> None:
    """As transformers writes it; with swa_num_key_value_heads, as the checkpoint does, it is as many as that says."""
    kinds = ["full_attention", "sliding_attention"]
    fields = gqa("mimo_v2_flash", 2, 64, 4, 192, v_head_dim=128, layer_types=kinds, sliding_window=128)
    assert bytes_and_windows(fields) == [(4 * 320 * 2, None), (8 * 320 * 2, 128)]
    told = {"swa_num_key_value_heads": 6, "swa_head_dim": 192, "swa_v_head_dim": 128}
    assert bytes_and_windows({**fields, **told})[1] == (6 * 320 * 2, 128)


def test_a_family_of_another_layout_is_not_advised() -> None:
    """Its name is near to that of one, and the fields are not."""
    for family, near in (("minimax_m3", "minimax_m2"), ("deepseek_v4", "deepseek_v3")):
        for fields in (gqa(family, 2, 8, 2, 64), gqa("llama", 2, 8, 2, 64)):
            with pytest.raises(ModelConfigError, match="cannot be placed") as refusal:
                read_model(fields, family=family)
            assert near not in str(refusal.value)
    with pytest.raises(ModelConfigError, match="nearest: .*qwen3"):
        read_model(gqa("llama", 2, 8, 2, 64), family="qwen33")
