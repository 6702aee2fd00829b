"""The presets' sizes, by hand from the models' public shapes."""

import pytest

from kv_cache_manager_v2.replay.presets import MIN_BYTES_PER_TOKEN, PRESETS, LayerShape, StateShape

# layers * 2 (key, value) * heads * head size * 2 bytes
BYTES_PER_TOKEN = {
    "llama-3-8b": 32 * 2 * 8 * 128 * 2,
    "gemma-3-12b": 48 * 2 * 8 * 256 * 2,
    "gpt-oss-20b": 24 * 2 * 8 * 64 * 2,
    "qwen3-32b": 64 * 2 * 8 * 128 * 2,
    "qwen3-next": 12 * 2 * 2 * 256 * 2,
    "nemotron-h-8b": 4 * 2 * 8 * 128 * 2,
}
# recurrent layers * (3 kept inputs of the convolution's channels * 2 bytes + heads * head size * state size * 4 bytes)
BYTES_PER_STATE = {
    "qwen3-next": 36 * (3 * (2 * 16 * 128 + 32 * 128) * 2 + 32 * 128 * 128 * 4),
    "nemotron-h-8b": 24 * (3 * (128 * 64 + 2 * 8 * 128) * 2 + 128 * 64 * 128 * 4),
}


def attention_of(name: str) -> list[LayerShape]:
    return [layer for layer in PRESETS[name].layers if isinstance(layer, LayerShape)]


def test_every_preset_is_checked_here() -> None:
    assert set(PRESETS) == set(BYTES_PER_TOKEN)


@pytest.mark.parametrize("name", list(PRESETS))
def test_bytes_per_token(name: str) -> None:
    preset = PRESETS[name]
    assert preset.bytes_per_token() == BYTES_PER_TOKEN[name]
    configs = preset.layer_configs(32)
    assert preset.bytes_per_state() == BYTES_PER_STATE.get(name, 0)
    num_bytes = sum(buffer.size for config in configs for buffer in config.buffers)
    assert num_bytes == 32 * BYTES_PER_TOKEN[name] + BYTES_PER_STATE.get(name, 0)
    assert [config.layer_id for config in configs] == list(range(len(preset.layers)))


@pytest.mark.parametrize("name", list(PRESETS))
@pytest.mark.parametrize("shrink", [2, 3, 100, 10**6])
def test_shrink_keeps_a_multiple_of_eight_bytes(name: str, shrink: int) -> None:
    for full, config in zip(PRESETS[name].layer_configs(1), PRESETS[name].layer_configs(1, shrink), strict=True):
        for full_buffer, buffer in zip(full.buffers, config.buffers, strict=True):
            assert buffer.size % MIN_BYTES_PER_TOKEN == 0
            assert buffer.size == max(full_buffer.size // shrink // 8, 1) * 8


@pytest.mark.parametrize("name", list(PRESETS))
def test_max_shrink_is_as_small_as_it_gets(name: str) -> None:
    preset = PRESETS[name]
    num_attention = len([layer for layer in preset.layers if isinstance(layer, LayerShape)])
    assert preset.bytes_per_token(preset.max_shrink) == num_attention * 2 * MIN_BYTES_PER_TOKEN
    num_states = len(preset.layers) - num_attention
    assert preset.bytes_per_state(preset.max_shrink) == num_states * 2 * MIN_BYTES_PER_TOKEN


def test_recurrent_layers() -> None:
    """Every fourth layer of Qwen3-Next attends to everything; Nemotron-H's four do after 4, 9, 14 and 19 Mamba layers."""
    qwen = [isinstance(layer, StateShape) for layer in PRESETS["qwen3-next"].layers]
    assert qwen == [True, True, True, False] * 12
    nemotron = [isinstance(layer, StateShape) for layer in PRESETS["nemotron-h-8b"].layers]
    assert [index for index, is_state in enumerate(nemotron) if not is_state] == [4, 10, 16, 22]
    assert len(nemotron) == 24 + 4


def test_windows() -> None:
    gemma = [layer.sliding_window_size for layer in attention_of("gemma-3-12b")]
    assert gemma == [1024, 1024, 1024, 1024, 1024, None] * 8
    gpt_oss = [(layer.sliding_window_size, layer.num_sink_tokens) for layer in attention_of("gpt-oss-20b")]
    assert gpt_oss == [(128, 1), (None, None)] * 12
    assert {layer.sliding_window_size for layer in attention_of("llama-3-8b")} == {None}


def test_a_shrink_under_one_is_refused() -> None:
    with pytest.raises(ValueError):
        PRESETS["llama-3-8b"].layer_configs(32, 0)
