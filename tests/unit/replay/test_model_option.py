"""`kvcm plan MODEL` and `kvcm replay --model MODEL`: presets, a config.json, its folder, and what is neither."""

import json
from pathlib import Path

import pytest

from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.replay.presets import PRESETS
from kv_cache_manager_v2.replay.served_model import ConfiguredModel
from unit.models.published_models import BY_HAND, CATALOGUE

BY_NAME = {one.name: one for one in (*CATALOGUE, *BY_HAND)}


def model_folder(folder: Path, name: str) -> str:
    target = folder / name
    target.mkdir()
    (target / "config.json").write_text(json.dumps(BY_NAME[name].config))
    return str(target)


def test_a_plan_of_a_folder_is_that_of_the_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """llama-3-8b and Llama 3.1 8B have the same cache; gemma-3-12b is a preset and a published model."""
    for preset, published in (("llama-3-8b", "llama-3.1-8b"), ("gemma-3-12b", "gemma-3-12b")):
        tables = []
        for model in (preset, model_folder(tmp_path, published)):
            assert main(["plan", model, "--gpu-memory", "16g", "--batch", "3"]) == 0
            tables.append(capsys.readouterr().out.split("\n", 1)[1])
        assert tables[0] == tables[1]


def test_ranks_and_types_fit_more(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model_folder(tmp_path, "llama-3.1-8b")
    assert main(["plan", folder + "/config.json", "--gpu-memory", "1g", "--tp", "2", "--dtype", "fp8", "--pp", "2", "--json", "-"]) == 0
    figures = json.loads(capsys.readouterr().out)
    # 131072 bytes, half the heads, half the layers, half the bytes.
    assert figures["bytes_per_token"] == 131072 // 8
    assert figures["model"] == "llama-3.1-8b, fp8, 1 of 2 ranks, stage 0 of 2"
    assert figures["longest_sequence"] == (1 << 30) // (131072 // 8)
    assert figures["levels"][0]["pool_groups"][0]["slot_bytes"] == 32 * 131072 // 8
    assert main(["plan", folder, "--gpu-memory", "1g", "--json", str(tmp_path / "plan.json")]) == 0
    assert "grows by 131,072 bytes (128.0 KiB) per token" in capsys.readouterr().out
    assert json.loads((tmp_path / "plan.json").read_text())["largest_batch"] == 1


@pytest.mark.parametrize("name", ["llama-3.1-8b", "deepseek-v3.2", "gemma-3-12b", "qwen3-next-80b-a3b", "falcon-mamba-7b", "falcon-h1-7b"])
def test_a_configured_model_is_served(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = model_folder(tmp_path, name)
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(
        json.dumps({"timestamp": number, "input_length": 40, "output_length": 3, "hash_ids": [0, 1,
            2 + number]}) + "\n" for number in range(2)
    ))
    arguments = ["replay", str(trace), "--trace-block", "16", "--verify", "--quiet", "--json", "-", "--device", "host", "--memory", "1MiB"]
    assert main([*arguments, "--model", folder, "--dtype", "nvfp4"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["model"] == f"{name}, nvfp4"
    assert report["mismatches"] == 0 and report["checked_bytes"] > 0 and report["requests"] == 2


def test_a_file_that_is_no_model_is_one_line_and_code_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "brand_new"}')
    output = tmp_path / "plan.json"
    for command in (["plan", str(path), "--gpu-memory", "1g", "--json", str(output)], ["replay", "--model", str(path), "--json",
        str(output)]):
        assert main(command) == 3
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1
        assert captured.err.startswith(f"kvcm: {path}: ") and "brand_new" in captured.err and "--family" in captured.err
        assert not output.exists()


def test_shrinking_keeps_a_multiple_of_eight_bytes() -> None:
    for preset in PRESETS.values():
        model = ConfiguredModel(preset.name, preset.layer_configs(1))
        assert model.layer_configs(32) == preset.layer_configs(32)
        assert model.bytes_per_token() == preset.bytes_per_token() and model.bytes_per_state() == preset.bytes_per_state()
        assert model.max_shrink == preset.max_shrink
        for shrink in (2, 3, 100, model.max_shrink):
            assert model.layer_configs(32, shrink) == preset.layer_configs(32, shrink)
            assert model.bytes_per_token(shrink) == preset.bytes_per_token(shrink)
            assert model.bytes_per_state(shrink) == preset.bytes_per_state(shrink)
    with pytest.raises(ValueError, match="shrink is 0"):
        model.layer_configs(32, 0)
