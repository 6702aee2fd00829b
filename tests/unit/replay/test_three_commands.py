"""The three commands of README: from a config.json and a ShareGPT file to a page of hits by memory size."""

import json
from pathlib import Path

import pytest

from kv_cache_manager_v2 import GpuCacheTierConfig, HostDevice, KVCacheManager, config_from_model
from kv_cache_manager_v2.replay.cli import main
from unit.models.published_models import CATALOGUE


def test_a_model_and_a_log_become_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "Llama-3.1-8B"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(next(one.config for one in CATALOGUE if one.name == "llama-3.1-8b")))
    turns = [{"from": "human", "value": "question " * 40}, {"from": "gpt", "value": "answer " * 5}] * 3
    log = tmp_path / "ShareGPT.json"
    log.write_text(json.dumps([{"conversations": turns}] * 4))
    chats, page = tmp_path / "chats.jsonl.gz", tmp_path / "hits.html"
    assert main(["plan", str(model), "--tp", "2", "--gpu-memory", "40g", "--length", "8192"]) == 0
    # 131072 bytes a token over two ranks: 40 GiB are 80 sequences of 8192.
    assert "80 sequences" in capsys.readouterr().out
    assert main(["convert", str(log), str(chats)]) == 0
    served = ["replay", str(chats), "--model", str(model), "--tp", "2", "--memory", "64MiB", "--limit", "1000", "--report", str(page)]
    assert main([*served, "--report-sizes", "0.5,2", "--quiet"]) == 0
    assert "12" in capsys.readouterr().out
    assert "What more or less memory would bring" in page.read_text()


def test_a_rerun_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_from_model({"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 8}, [GpuCacheTierConfig(1 << 20)], 4)
    path = tmp_path / "calls.journal"
    with KVCacheManager(config, device=HostDevice(), journal=path) as manager, manager.create_kv_cache(input_tokens=[1, 2]):
        pass
    assert main(["rerun", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calls"] > 0
