"""Configuration files: what is written is read again, in JSON and YAML; what is wrong is named with its place."""

import json
from pathlib import Path
from typing import Any

import pytest

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BatchDesc,
    BufferConfig,
    DiskCacheTierConfig,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    KVCacheDesc,
    KVCacheManagerConfig,
    LayerId,
    RebalanceConfig,
    SnapshotPolicy,
    SsmLayerConfig,
    SwaScratchReuseConfig,
    config_from_model,
    load_config,
)
from kv_cache_manager_v2.models.config_file import config_content, config_from_content, config_text
from kv_cache_manager_v2.replay.cli import main
from unit.models.published_models import BY_HAND, CATALOGUE

SMALL = {
    "kv_cache_manager_v2": 1,
    "tokens_per_block": 4,
    "cache_tiers": [{"tier": "gpu", "quota": "1MiB"}],
    "layers": [{"layer_ids": [0, 1], "buffers": [{"role": "key", "size": 64}]}],
}


def everything() -> KVCacheManagerConfig:
    """Every field differs from its default; layers are not in the order of their ids."""
    batch = BatchDesc([KVCacheDesc(64, 32)] * 2, 16)
    return KVCacheManagerConfig(
        16,
        [
            GpuCacheTierConfig(1 << 30, EvictionPolicy.LRU), HostCacheTierConfig(2 << 30, EvictionPolicy.LRU),
            DiskCacheTierConfig(3 << 30, "/tmp", EvictionPolicy.LRU),
        ],
        [
            AttentionLayerConfig(LayerId(5), [BufferConfig("key", 64, 8), BufferConfig("value", 128)], 100, 2),
            SsmLayerConfig(LayerId(5), [BufferConfig("state", 4096)]),
            AttentionLayerConfig(LayerId(1), [BufferConfig("key", 64)]),
        ],
        max_util_for_resume=0.5, enable_partial_reuse=False, constraints=[batch], typical_step=batch, initial_pool_ratio=[1.0, 2.0, 3.0],
        swa_scratch_reuse=SwaScratchReuseConfig(), reuse_match_backoff=3, reserve_null_slot=True, enable_stats=False,
        block_times_sampling=0.5,
        snapshot_policy=SnapshotPolicy(every_num_blocks=4, at_close=True), max_state_replay_tokens=7, state_checkpoints=2,
        rebalance=RebalanceConfig(threshold=0.3), max_pinned_share=0.25, min_offload_priority=10, write_policy="through",
        max_sequence_length=4096,
    )  # fmt: skip


@pytest.mark.parametrize("ending", [".json", ".yaml", ".yml"])
def test_all_that_is_written_is_read(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"config{ending}"
    for config in (everything(), *[config_from_model(one.config, [GpuCacheTierConfig(1 << 30)], 32) for one in (*CATALOGUE,
        *BY_HAND)[::7]]):
        path.write_text(config_text(config, ending != ".json"))
        assert load_config(path) == config


@pytest.mark.parametrize("published", [*CATALOGUE, *BY_HAND], ids=lambda published: published.name)
def test_layers_of_one_shape_are_one_entry(published: Any) -> None:
    config = config_from_model(published.config, [GpuCacheTierConfig(1 << 30)], 32, "nvfp4")
    content = config_content(config)
    assert config_from_content(content) == config
    assert len(content["layers"]) <= 4


def test_defaults_and_sizes_are_left_to_the_reader() -> None:
    config = config_from_content(SMALL)
    buffers = [BufferConfig("key", 64)]
    assert config == KVCacheManagerConfig(
        4, [GpuCacheTierConfig(1 << 20)], [AttentionLayerConfig(LayerId(0), buffers), AttentionLayerConfig(LayerId(1), buffers)]
    )
    assert set(config_content(config)) == set(SMALL)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kv_cache_manager_v2": 2}, ["kv_cache_manager_v2 is 2", "reads 1"]),
        ({"tokens_per_blok": 4}, ["'tokens_per_blok'", "did you mean tokens_per_block"]),
        ({"cache_tiers": [{"tier": "tape", "quota": 1}]}, ["cache_tiers[0]", "'tape'", "gpu, host, disk"]),
        ({"cache_tiers": [{"tier": "gpu", "quota": "much"}]}, ["cache_tiers[0].quota", "'much'", "64MiB"]),
        ({"cache_tiers": [{"tier": "gpu"}]}, ["cache_tiers[0]", "no key quota"]),
        ({"cache_tiers": [{"tier": "gpu", "quota": 5, "eviction_policy": "best"}]}, ["cache_tiers[0]", "eviction_policy", "lru"]),
        ({"cache_tiers": {}}, ["cache_tiers is {}", "not a list"]),
        ({"layers": [{"layer_ids": [0], "buffers": [{"role": "key", "size": 0}]}]}, ["layers[0].buffers[0]", "size"]),
        ({"layers": [{"layer_ids": [0], "buffers": []}]}, ["layers[0]", "no buffers"]),
        ({"layers": [{"layer_ids": [0], "kind": "magic", "buffers": []}]}, ["layers[0]", "magic", "attention, state"]),
        ({"layers": [{"layer_ids": [0], "window": 5, "buffers": [{"role": "key", "size": 8}]}]}, ["layers[0]", "'window'"]),
        ({"layers": [5]}, ["layers[0] is 5", "not an object"]),
        ({"layers": [{"layer_ids": [0, 0], "buffers": [{"role": "key", "size": 8}]}]}, ["layers[1]", "layer_id 0"]),
        ({"rebalance": {"threshold": 7}}, ["rebalance", "threshold", "7"]),
        ({"typical_step": {"kv_caches": [{"capacity": 1}]}}, ["typical_step.kv_caches[0]", "history_length"]),
        ({"max_util_for_resume": "all"}, ["max_util_for_resume"]),
    ],
    ids=str,
)
def test_what_is_wrong_is_named_with_its_place(change: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**SMALL, **change}))
    with pytest.raises(ValueError) as caught:
        load_config(path)
    text = str(caught.value)
    assert [word for word in (str(path), *words) if word not in text] == [] and "\n" not in text, text


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("c.json", b"{", ["not JSON"]),
        ("c.yaml", b"a: [1", ["not YAML"]),
        ("c.yaml", b"model_type: llama\n", ["no key 'kv_cache_manager_v2'"]),
        ("c.json", b"[]", ["no key"]),
        ("none/c.json", None, ["No such file"]),
    ],
)
def test_files_that_are_none(name: str, content: bytes | None, words: list[str], tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError) as caught:
        load_config(path)
    assert [word for word in (str(path), *words) if word not in str(caught.value)] == [], str(caught.value)


def test_a_plan_is_saved_and_planned_and_served_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--length", "1024", "--json", "-"]
    plans = []
    for ending in ("json", "yaml"):
        path = str(tmp_path / f"plan.{ending}")
        assert main(["plan", "gemma-3-12b", "--gpu-memory", "8g", "--host-memory", "1g", "--save", path, *arguments]) == 0
        plans.append(json.loads(capsys.readouterr().out))
        assert load_config(path).tokens_per_block == 32
        assert main(["plan", path, *arguments]) == 0
        plans.append(json.loads(capsys.readouterr().out))
        assert main(["replay", "--model", path, "--limit", "10", "--quiet", "--json", "-"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert [tier["quota_bytes"] for tier in report["tiers"]] == [8 << 30, 1 << 30] and report["requests"] == 10
    assert plans[0]["levels"] == plans[1]["levels"] == plans[2]["levels"] == plans[3]["levels"]
    assert main(["plan", path, "--gpu-memory", "4g", *arguments]) == 0
    assert json.loads(capsys.readouterr().out)["levels"][0]["quota_bytes"] == 4 << 30


def test_wrong_usage_of_a_saved_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(SMALL))
    assert main(["plan", str(path), "--tp", "2"]) == 2
    assert "--tp is about a config.json" in capsys.readouterr().err
    assert main(["plan", str(path), "--tokens-per-block", "8"]) == 2
    assert "blocks of 4 tokens" in capsys.readouterr().err
    assert main(["plan", "gemma-3-12b"]) == 2
    assert "--gpu-memory" in capsys.readouterr().err
    path.write_text(json.dumps({**SMALL, "tokens_per_block": 0}))
    for command in (["plan", str(path)], ["replay", "--model", str(path)]):
        assert main(command) == 3
        errors = capsys.readouterr().err
        assert errors.count("\n") == 1 and errors.startswith(f"kvcm: {path}: ") and "tokens_per_block" in errors
