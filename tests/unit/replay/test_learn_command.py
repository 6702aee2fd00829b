"""`kvcm learn`: what one cache has learned another begins with, in blocks of the manager's size, and errors say what is wrong."""

import json
from pathlib import Path

import pytest

from kv_cache_manager_v2 import EvictionPolicy
from kv_cache_manager_v2.config.learned_prior import decode_prior
from kv_cache_manager_v2.replay.block_cache import BlockCache
from kv_cache_manager_v2.replay.block_requests import BlockRequests, divide_blocks, read_blocks
from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.replay.exit_codes import EXIT_BAD_INPUT, EXIT_OK, EXIT_USAGE
from kv_cache_manager_v2.replay.level_cache import LevelCache
from kv_cache_manager_v2.replay.trace import TraceWorkload

NUM_ROUNDS = 30
"""In each comes a prompt of four blocks that came in the round before last, and one that never comes again."""


def write_log(path: Path) -> str:
    lines = []
    for number in range(NUM_ROUNDS):
        for base in (100 * (number % 2), 1000 + 100 * number):
            ids = list(range(base, base + 4))
            lines.append(json.dumps({"timestamp": len(lines), "input_length": 2048, "output_length": 3, "hash_ids": ids}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def count_hits(cache: BlockCache | LevelCache, blocks: BlockRequests) -> int:
    for request, num_generated in zip(blocks.requests, blocks.num_generated, strict=True):
        cache.serve(request, num_generated)
    return int(cache.num_hits) if isinstance(cache, BlockCache) else sum(cache.num_hits)


def test_it_writes_what_a_cache_has_learned(tmp_path: Path) -> None:
    log, target = write_log(tmp_path / "log.jsonl"), tmp_path / "weights"
    assert main(["learn", log, "-o", str(target), "--blocks", "12,50%", "--quiet"]) == EXIT_OK
    weights = decode_prior(target.read_text(encoding="utf-8"), "it")
    blocks = read_blocks(TraceWorkload(log), 64)
    first = BlockCache(EvictionPolicy.LEARNED, 12, blocks)
    count_hits(first, blocks)
    # Two prompts that come back, and one for each round, of four blocks.
    assert blocks.num_blocks == 4 * (2 + NUM_ROUNDS)
    second = BlockCache(EvictionPolicy.LEARNED, 2 * (2 + NUM_ROUNDS), blocks, first.learned())
    count_hits(second, blocks)
    assert all(abs(read - learned) <= 0.5 / 1024 for read, learned in zip(weights, second.learned(), strict=True))
    assert any(weights)


def test_who_begins_with_it_keeps_what_comes_back(tmp_path: Path) -> None:
    """Between two uses of a prompt come three others: with room for three LRU never has it."""
    log, target = write_log(tmp_path / "log.jsonl"), tmp_path / "weights"
    assert main(["learn", log, "-o", str(target), "--blocks", "12", "--quiet"]) == EXIT_OK
    prior = decode_prior(target.read_text(encoding="utf-8"), "it")
    blocks = read_blocks(TraceWorkload(log), 64)
    begun = BlockRequests("begun", blocks.requests[:20], blocks.parents)
    assert count_hits(BlockCache(EvictionPolicy.LRU, 12, blocks), begun) == 0
    without = count_hits(BlockCache(EvictionPolicy.LEARNED, 12, blocks), begun)
    assert count_hits(BlockCache(EvictionPolicy.LEARNED, 12, blocks, prior), begun) > without
    assert count_hits(LevelCache(EvictionPolicy.LEARNED, [6, 6], blocks, 0.0, prior), begun) > without


def test_blocks_are_divided(tmp_path: Path) -> None:
    blocks = BlockRequests("three", [[0, 1], [0, 2]], [-1, 0, 0], [5, 6], block_tokens=64)
    small = divide_blocks(blocks, 32)
    assert small.requests == [[0, 1, 2, 3], [0, 1, 4, 5]] and small.parents == [-1, 0, 1, 2, 1, 4]
    assert small.block_tokens == 32 and small.num_generated == [5, 6]
    log = write_log(tmp_path / "log.jsonl")
    texts = []
    for tokens in (512, 128):
        target = tmp_path / f"{tokens}"
        assert main(["learn", log, "-o", str(target), "--blocks", "10%", "--tokens-per-block", str(tokens), "--quiet"]) == EXIT_OK
        texts.append(target.read_text(encoding="utf-8"))
    assert texts[0] != texts[1]


def test_what_cannot_be_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(tmp_path / "log.jsonl")
    for tokens in ("100", "1024"):
        assert main(["learn", log, "-o", str(tmp_path / "x"), "--tokens-per-block", tokens, "--quiet"]) == EXIT_USAGE
        assert f"--tokens-per-block {tokens}: {log} has blocks of 512 tokens, which is no multiple" in capsys.readouterr().err
    assert main(["learn", log, "-o", log, "--quiet"]) == EXIT_USAGE
    assert "that is the input" in capsys.readouterr().err
    assert main(["learn", str(tmp_path / "none"), "-o", str(tmp_path / "x"), "--quiet"]) == EXIT_BAD_INPUT
    assert "No such file" in capsys.readouterr().err
    assert main(["learn", log, "--limit", "1", "-o", str(tmp_path / "x"), "--quiet"]) == EXIT_BAD_INPUT
    assert "nothing was learned" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_a_comparison_begins_with_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, target = write_log(tmp_path / "log.jsonl"), tmp_path / "weights"
    assert main(["learn", log, "-o", str(target), "--blocks", "12", "--quiet"]) == EXIT_OK
    found = []
    for more in ([], ["--prior", str(target)]):
        call = ["compare-policies", log, "--blocks", "12", "--limit", "20", "--policies", "lru,learned", "--json", "-", "--quiet"]
        assert main([*call, *more]) == EXIT_OK
        found.append(json.loads(capsys.readouterr().out)["sources"][0]["rows"][0]["hit_rates"])
    assert found[0]["lru"] == found[1]["lru"] and found[0]["learned"] < found[1]["learned"]
    assert main(["compare-policies", log, "--prior", str(target), "--policies", "lru"]) == EXIT_USAGE
    assert "--prior is for learned" in capsys.readouterr().err
    assert main(["compare-policies", log, "--prior", str(target), "--json", str(target)]) == EXIT_USAGE
    assert "that is the input" in capsys.readouterr().err
    target.write_text(target.read_text(encoding="utf-8")[:-50], encoding="utf-8")
    wrong = (
        (target, f"{target} was cut or changed"), (tmp_path / "none", "none: No such file"), ("/dev/zero", "no text of kvcm learn"),
        ("", "kvcm: '': No such file"),
    )  # fmt: skip
    for prior, words in wrong:
        assert main(["compare-policies", log, "--prior", str(prior)]) == EXIT_BAD_INPUT
        assert words in capsys.readouterr().err


def test_a_comparison_divides_blocks_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = write_log(tmp_path / "log.jsonl")
    found = []
    for more in (["--blocks", "12"], ["--blocks", "192", "--tokens-per-block", "32"]):
        assert main(["compare-policies", log, "--policies", "lru", "--json", "-", "--quiet", *more]) == EXIT_OK
        found.append(json.loads(capsys.readouterr().out)["sources"][0]["rows"][0]["hit_rates"])
    assert found[0] == found[1]
