"""Fifteen checks of `kvcm` from outside: what it prints is so. Each is a command, a log or a model, and a figure that is counted here."""

import gzip
import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from kv_cache_manager_v2.replay.cli import main

WORDS = [f"w{number:04d}" for number in range(4000)]


def kvcm(*arguments: object, code: int = 0) -> tuple[str, str]:
    """Output and errors. (That the package is this program `test_cli.py` asks a process.)"""
    with redirect_stdout(io.StringIO()) as output, redirect_stderr(io.StringIO()) as errors:
        assert main(list(map(str, arguments))) == code, errors.getvalue()
    return output.getvalue(), errors.getvalue()


def replay(*arguments: object) -> dict[str, Any]:
    output, _ = kvcm("replay", *arguments, "--json", "-", "--quiet")
    found: dict[str, Any] = json.loads(output)
    return found


def write_lines(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def write_sharegpt(folder: Path) -> Path:
    """Eight chats of four turns: each prompt repeats the answers before it."""
    chats = []
    for chat in range(8):
        turns = []
        for turn in range(4):
            begin = 400 * chat + 80 * turn
            turns.append({"from": "human", "value": " ".join(WORDS[begin : begin + 40])})
            turns.append({"from": "gpt", "value": " ".join(WORDS[begin + 40 : begin + 80])})
        chats.append({"id": str(chat), "conversations": turns})
    path = folder / "ShareGPT.json"
    path.write_text(json.dumps(chats))
    return path


def write_model(path: Path, **fields: Any) -> Path:
    """Four layers of eight heads of 128: 16,384 bytes a token at 16 bits."""
    plain = {
        "model_type": "llama", "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "hidden_size": 1024,
        "head_dim": 128, "torch_dtype": "bfloat16", "max_position_embeddings": 8192,
    }  # fmt: skip
    path.write_text(json.dumps(plain | fields))
    return path


def test_01_one_log_has_one_figure(tmp_path: Path) -> None:
    log, trace = write_sharegpt(tmp_path), tmp_path / "trace.jsonl.gz"
    kvcm("convert", log, trace)
    direct, converted = replay(log, "--memory", "unlimited"), replay(trace, "--memory", "unlimited")
    for name in ("requests", "prompt_tokens", "hit_tokens", "reusable_tokens", "generated_tokens"):
        assert direct[name] == converted[name] > 0, name


def test_02_no_text_of_a_prompt_is_dropped(tmp_path: Path) -> None:
    marker = " ".join(WORDS[:1000])
    chat = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    begin = replay(write_lines(tmp_path / "plain.jsonl", [chat]), "--memory", "unlimited")["prompt_tokens"]
    for name, field in (
        ("system", {"messages": [{"role": "system", "content": marker}, *chat["messages"]]}),  # type: ignore[misc]
        ("tools", {"tools": [{"type": "function", "function": {"name": "f", "description": marker}}]}),
        ("instructions", {"input": "hello", "messages": None, "instructions": marker}),
        ("anthropic", {"system": marker, "max_tokens": 5}),
    ):
        request = {key: value for key, value in (chat | field).items() if value is not None}
        tokens = replay(write_lines(tmp_path / f"{name}.jsonl", [request]), "--memory", "unlimited")["prompt_tokens"]
        assert tokens > begin + 500, name


def test_03_what_is_possible_is_a_property_of_the_log() -> None:
    one = replay("--workload", "shared-prompt", "--limit", 30, "--max-running", 1, "--memory", "unlimited")
    many = replay("--workload", "shared-prompt", "--limit", 30, "--max-running", 64, "--memory", "unlimited")
    assert one["reusable_tokens"] == many["reusable_tokens"] > 0
    for report in (one, many):
        assert report["hit_tokens"] + sum(report["missed_tokens"].values()) == report["prompt_tokens"]
        assert report["missed_tokens"].get("forgotten", 0) == 0


def test_04_the_optimum_is_beyond_no_memory_and_under_no_policy() -> None:
    output, _ = kvcm("compare-policies", "--workload", "chat", "--limit", 150, "--json", "-", "--quiet")
    source = json.loads(output)["sources"][0]
    assert source["block_tokens"] == 64
    sizes = [row["num_slots"] for row in source["rows"]]
    assert len(set(sizes)) == len(sizes) > 3 and max(sizes) < source["num_blocks"]
    for row in source["rows"]:
        rates = row["hit_rates"]
        assert max(rates[name] for name in ("lru", "learned", "arc")) <= rates["optimum"] + 1e-9 <= rates["infinite"] + 2e-9


def test_05_lengths_that_are_not_known_are_said(tmp_path: Path) -> None:
    turns = [{"text": " ".join(WORDS[100 * turn : 100 * turn + 50])} for turn in range(3)]
    log = write_lines(tmp_path / "aiperf.jsonl", [{"session_id": "a", "turns": turns}])
    report = replay(log, "--memory", "unlimited")
    assert report["requests"] == 3
    assert any("answer" in note or "output" in note or "length" in note for note in report["notes"]), report["notes"]


def test_06_a_replay_with_many_running_takes_the_managers_time() -> None:
    report = replay("--workload", "agents", "--limit", 80, "--max-running", 64, "--memory", "unlimited")
    calls = {call["name"]: call["total_seconds"] for call in report["calls"]}
    assert calls["can_finish"] < 0.5 * report["manager_seconds"]
    assert sum(calls.values()) <= report["wall_seconds"]


def test_07_a_cache_that_a_checkpoint_declares_is_planned(tmp_path: Path) -> None:
    declared = {"kv_cache_scheme": {"num_bits": 8, "type": "float"}, "quant_method": "compressed-tensors"}
    output, _ = kvcm("plan", write_model(tmp_path / "m.json", quantization_config=declared), "--gpu-memory", "1g")
    assert "grows by 8,192 bytes" in output and "kv_cache_scheme" in output
    output, _ = kvcm("plan", tmp_path / "m.json", "--gpu-memory", "1g", "--dtype", "bf16")
    assert "grows by 16,384 bytes" in output


def test_08_what_grows_and_what_windows_take_are_two_lines() -> None:
    """gpt-oss-20b: 12 of 24 layers have windows; 8 heads of 64, keys and values, 16 bits are 2,048 bytes a layer and token."""
    output, _ = kvcm("plan", "gpt-oss-20b", "--gpu-memory", "16g")
    assert "grows by 24,576 bytes (24.0 KiB) per token" in output and "in windows, at most" in output
    planned = json.loads(kvcm("plan", "gpt-oss-20b", "--gpu-memory", "16g", "--json", "-")[0])
    assert planned["bytes_that_grow"] == 12 * 2048 and planned["bytes_in_windows"] > 0


def test_09_an_unknown_family_is_placed_by_its_fields_or_refused(tmp_path: Path) -> None:
    output, _ = kvcm("plan", write_model(tmp_path / "m.json", model_type="brandnew"), "--gpu-memory", "1g")
    assert "family 'brandnew' is not known: placed by its fields" in output and "grows by 16,384 bytes" in output
    _, errors = kvcm("plan", write_model(tmp_path / "n.json", model_type="brandnew", kv_lora_rank=512), "--gpu-memory", "1g", code=3)
    assert "kv_lora_rank" in errors


def test_10_the_report_shows_the_whole_run_in_one_small_page(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    report = replay("--workload", "agents", "--limit", 40, "--memory", "3GiB", "--report", page, "--report-sizes", "2")
    text = page.read_text()
    assert len(text) < 1_000_000 and "prefers-color-scheme: dark" in text and "<script" not in text
    first, second, third = re.findall(r"<p>(.*?)</p>", text)[:3]
    assert f"{report['hit_rate']:.1%} of {report['prompt_tokens']:,} prompt tokens" in first
    assert f"{report['hit_tokens']:,}" in second and third.startswith("What would help most: ")
    # The first bar begins where the axis does: at no tokens.
    bars = [float(x) for x in re.findall(r'<rect fill="url\(#(?:hit|miss)-\d+\)" x="([\d.]+)" y', text)]
    assert min(bars) == float(re.search(r'class="grid" d="M([\d.]+),', text)[1])  # type: ignore[index]


def test_12_the_program_says_what_it_can() -> None:
    output, _ = kvcm()
    commands = re.findall(r"^    ([a-z][\w-]+)\s", output, re.MULTILINE)
    assert {"replay", "plan", "convert", "compare-policies", "selftest"} <= set(commands)
    assert "did you mean replay?" in kvcm("replya", code=2)[1]


def test_13_selftest_has_a_verdict() -> None:
    lines = kvcm("selftest")[0].splitlines()
    assert [line.split()[0] for line in lines] == ["version", "packages", "device", "replay", "verdict"]
    assert "8 requests" in lines[3] and "read back, all right" in lines[3] and "all is well" in lines[4]


def test_14_a_refusal_adds_up_to_the_slots(tmp_path: Path) -> None:
    """One prompt of 3,000 tokens, and memory for less."""
    log = write_lines(tmp_path / "long.jsonl", [{"timestamp": 0, "input_length": 3000, "output_length": 4, "hash_ids": [1, 2, 3, 4, 5, 6]}])
    _, errors = kvcm("replay", log, "--model", write_model(tmp_path / "m.json"), "--memory", "8MiB", "--quiet", code=1)
    found = re.search(r"of (\d+) there (\d+) are free, (\d+) evictable, (\d+) locked .* and (\d+) held", errors)
    assert found is not None, errors
    total, *parts = map(int, found.groups())
    assert total == sum(parts)


BROKEN = {
    "cut": ("log.jsonl", b'{"hash_ids": [1, 2'), "binary": ("log.jsonl", b"\x00\x01\x02"), "empty": ("log.jsonl", b""),
    "no-requests": ("log.json", b"[1, 2, 3]"), "cut-gzip": ("log.jsonl.gz", gzip.compress(b'{"timestamp": 0}')[:20]),
    "no-messages": ("log.jsonl", b'{"messages": 5}\n'), "no-csv": ("log.csv", b"a,b\n1,2\n"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "content"), BROKEN.values(), ids=BROKEN)
def test_15_what_is_broken_is_one_line_and_nothing_is_written(name: str, content: bytes, tmp_path: Path) -> None:
    log, out = tmp_path / name, tmp_path / "out.jsonl"
    log.write_bytes(content)
    for arguments in (["convert", log, out], ["replay", log, "--quiet"]):
        _, errors = kvcm(*arguments, code=3)
        assert len(errors.strip().splitlines()) <= 2 and str(log) in errors and "Traceback" not in errors, errors
    assert sorted(tmp_path.iterdir()) == [log]
