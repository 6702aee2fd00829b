"""Bytes per token, windows and states of published models, against figures from elsewhere (`published_models`)."""

import json
from pathlib import Path

import pytest

from kv_cache_manager_v2 import AttentionLayerConfig, GpuCacheTierConfig, SsmLayerConfig, config_from_model
from kv_cache_manager_v2.models.model_description import ModelDescription, read_model
from unit.models.published_models import BY_HAND, CATALOGUE, CATALOGUE_SUMS, Published


def full_bytes(model: ModelDescription, windowed: bool) -> int:
    return sum(
        buffer.size
        for layer in model.layers
        if isinstance(layer, AttentionLayerConfig) and (layer.window_size is not None) is windowed
        for buffer in layer.buffers
    )


@pytest.mark.parametrize("published", [*CATALOGUE, *BY_HAND], ids=lambda published: published.name)
def test_bytes_are_those_published(published: Published) -> None:
    model = read_model(published.config)
    assert full_bytes(model, windowed=False) == published.full
    assert full_bytes(model, windowed=True) == published.windowed
    windows = {layer.window_size for layer in model.layers if isinstance(layer, AttentionLayerConfig)} - {None}
    assert windows == ({published.window} if published.window is not None else set())
    assert model.bytes_per_token == published.full + published.windowed
    assert model.bytes_per_state == published.state


def test_windowed_models_add_up_to_the_catalogue() -> None:
    sums = {one.name: one.full + one.windowed for one in CATALOGUE if one.windowed > 0}
    assert sums == CATALOGUE_SUMS


def test_there_are_sixty() -> None:
    assert len({one.name for one in (*CATALOGUE, *BY_HAND)}) >= 60


@pytest.mark.parametrize("published", [*CATALOGUE, *BY_HAND], ids=lambda published: published.name)
def test_smaller_types_take_their_share(published: Published) -> None:
    """8 bits: half of it. 4 bits: a quarter, and one byte for 16 items, which is an eighth of 16 bits each. An indexer keeps its own."""
    index = sum(buffer.size for layer in read_model(published.config).layers for buffer in layer.buffers if buffer.role == "index_key")
    items = published.full + published.windowed - index
    assert read_model(published.config, "fp8").bytes_per_token == items // 2 + index
    assert read_model(published.config, "nvfp4").bytes_per_token == items // 4 + items // 32 + index
    assert read_model(published.config, "fp32").bytes_per_token == items * 2 + index
    assert read_model(published.config, "nvfp4").bytes_per_state == published.state


@pytest.mark.parametrize("published", [*CATALOGUE, *BY_HAND], ids=lambda published: published.name)
def test_stages_have_each_layer_once(published: Published) -> None:
    whole = read_model(published.config)
    stages = []
    for stage in (0, 1):
        try:
            stages.append(read_model(published.config, pipeline_parallel=2, pipeline_stage=stage))
        except ValueError as error:
            assert "stores anything" in str(error)  # all that is stored lies in the other stage
    assert sum((one.layers for one in stages), ()) == whole.layers
    heaviest = read_model(published.config, pipeline_parallel=2)
    assert heaviest.bytes_per_token == max(one.bytes_per_token for one in stages)


def test_ranks_share_heads_and_repeat_what_cannot_be_shared() -> None:
    by_name = {one.name: one for one in (*CATALOGUE, *BY_HAND)}
    llama = by_name["llama-3.1-8b"]
    assert read_model(llama.config, tensor_parallel=4).bytes_per_token == llama.full // 4
    # 8 heads for 16 ranks: each has one.
    assert read_model(llama.config, tensor_parallel=16).bytes_per_token == llama.full // 8
    deepseek = by_name["deepseek-v3"]
    assert read_model(deepseek.config, tensor_parallel=8).bytes_per_token == deepseek.full
    # 16 key heads and 32 value heads over 8 ranks; 8 groups of Mamba over 8, and 128 heads.
    qwen = by_name["qwen3-next-80b-a3b"]
    assert read_model(qwen.config, tensor_parallel=8).bytes_per_state * 8 == qwen.state
    nemotron = by_name["nemotron-h-8b"]
    assert read_model(nemotron.config, tensor_parallel=8).bytes_per_state * 8 == nemotron.state
    # 16 ranks: each keeps one of the 8 groups, and 8 heads.
    assert read_model(nemotron.config, tensor_parallel=16).bytes_per_state == 24 * (3 * (8 * 64 + 2 * 128) * 2 + 8 * 64 * 128 * 4)


def test_a_configuration_has_the_layers_with_their_ids(tmp_path: Path) -> None:
    folder = tmp_path / "Falcon-H1"
    folder.mkdir()
    config = next(one for one in BY_HAND if one.name == "falcon-h1-7b").config
    (folder / "config.json").write_text(json.dumps(config))
    found = config_from_model(folder, [GpuCacheTierConfig(1 << 30)], 16, max_sequence_length=1000)
    assert found.tokens_per_block == 16 and found.max_sequence_length == 1000
    # Each layer is both kinds under one id.
    assert [layer.layer_id for layer in found.layers] == [layer // 2 for layer in range(88)]
    assert found.layers[1].buffers[0].size == 2 * 128 * 2 * 16 or found.layers[0].buffers[0].size == 2 * 128 * 2 * 16
    assert sum(isinstance(layer, SsmLayerConfig) for layer in found.layers) == 44
    assert found == config_from_model(str(folder / "config.json"), [GpuCacheTierConfig(1 << 30)], 16, max_sequence_length=1000)
    assert found == config_from_model(config, [GpuCacheTierConfig(1 << 30)], 16, max_sequence_length=1000)


def test_sinks_are_kept_by_windowed_layers() -> None:
    config = next(one for one in BY_HAND if one.name == "gpt-oss-20b").config
    layers = [layer for layer in read_model(config, num_sink_tokens=4).layers if isinstance(layer, AttentionLayerConfig)]
    assert {(layer.window_size, layer.num_sink_tokens) for layer in layers} == {(128, 4), (None, None)}
    # gpt-oss begins with a window.
    assert [layer.window_size for layer in layers[:4]] == [128, None, 128, None]


def test_full_layers_lie_where_the_model_has_them() -> None:
    by_name = {one.name: one for one in (*CATALOGUE, *BY_HAND)}

    def full_of(name: str) -> list[int]:
        layers = read_model(by_name[name].config).layers
        return [layer.layer_id for layer in layers if isinstance(layer, AttentionLayerConfig) and layer.window_size is None]

    assert full_of("gemma-3-12b") == [5, 11, 17, 23, 29, 35, 41, 47]
    assert full_of("llama-4-scout")[:3] == [3, 7, 11]
    assert full_of("jamba-v0.1") == [4, 12, 20, 28]
    assert full_of("nemotron-h-8b") == [7, 18, 29, 40]
    assert full_of("kimi-linear-48b") == [3, 7, 11, 15, 19, 23, 26]
    assert full_of("qwen3-next-80b-a3b")[:2] == [3, 7]
