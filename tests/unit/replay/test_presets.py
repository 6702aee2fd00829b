"""The presets' sizes, by hand from the models' public shapes."""

import pytest

from kv_cache_manager_v2.replay.presets import MIN_BYTES_PER_TOKEN, PRESETS

# layers * 2 (key, value) * heads * head size * 2 bytes
BYTES_PER_TOKEN = {
    "llama-3-8b": 32 * 2 * 8 * 128 * 2,
    "gemma-3-12b": 48 * 2 * 8 * 256 * 2,
    "gpt-oss-20b": 24 * 2 * 8 * 64 * 2,
    "qwen3-32b": 64 * 2 * 8 * 128 * 2,
}


def test_every_preset_is_checked_here() -> None:
    assert set(PRESETS) == set(BYTES_PER_TOKEN)


@pytest.mark.parametrize("name", list(PRESETS))
def test_bytes_per_token(name: str) -> None:
    preset = PRESETS[name]
    assert preset.bytes_per_token() == BYTES_PER_TOKEN[name]
    configs = preset.layer_configs(32)
    assert sum(buffer.size for config in configs for buffer in config.buffers) == 32 * BYTES_PER_TOKEN[name]
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
    assert preset.bytes_per_token(preset.max_shrink) == len(preset.layers) * 2 * MIN_BYTES_PER_TOKEN


def test_windows() -> None:
    gemma = [layer.sliding_window_size for layer in PRESETS["gemma-3-12b"].layers]
    assert gemma == [1024, 1024, 1024, 1024, 1024, None] * 8
    gpt_oss = [(layer.sliding_window_size, layer.num_sink_tokens) for layer in PRESETS["gpt-oss-20b"].layers]
    assert gpt_oss == [(128, 1), (None, None)] * 12
    assert {layer.sliding_window_size for layer in PRESETS["llama-3-8b"].layers} == {None}


def test_a_shrink_under_one_is_refused() -> None:
    with pytest.raises(ValueError):
        PRESETS["llama-3-8b"].layer_configs(32, 0)
