"""Logs of all formats: recognised by their content, read into requests that share what their texts, ids or turns share."""

import gzip
import importlib.util
import io
import json
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest
import zstandard

from kv_cache_manager_v2.replay.bad_input import BadInputError
from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.replay.logs.log_reader import LogOptions
from kv_cache_manager_v2.replay.tokens import answer_segment, make_tokens
from kv_cache_manager_v2.replay.trace import TraceWorkload
from kv_cache_manager_v2.replay.workload import Request


def jsonl(*records: Any) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


def chat(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"id": "x", "conversations": [{"from": role, "value": text} for role, text in turns]}


SYSTEM = "You are a helpful assistant. " * 12  # 348 bytes
CHATS = [
    chat(("system", SYSTEM), ("human", "a" * 100), ("gpt", "b" * 80), ("human", "c" * 60), ("gpt", "d" * 44)),
    chat(("system", SYSTEM), ("human", "other"), ("gpt", "e" * 4)),
    chat(("human", "nothing follows")),
]
BURST = (
    b"Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    b"5,ChatGPT,472,18,490,Conversation log\n45.5,GPT-4,1087,230,1317,API log\n"
)
AZURE = b"TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,374,44\n2023-11-16 18:17:04.0319600,396,109\n"
HASHED = {"timestamp": 5, "input_length": 1030, "output_length": 7, "hash_ids": [4, 9, 2]}
LOGS: dict[str, tuple[bytes, str, int]] = {
    "mooncake": (jsonl(HASHED, HASHED), "Mooncake", 2),
    "wide ids": (jsonl({**HASHED, "hash_ids": [2**63, 1, 2]}, {**HASHED, "hash_ids": ["a", "b", 1]}), "Mooncake", 2),
    "bailian": (
        jsonl(
            {"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 33, "output_length": 4, "type": "text", "turn": 1,
             "hash_ids": [1, 2, 3]},
            {"chat_id": 160, "parent_chat_id": 159, "timestamp": 62.5, "input_length": 40, "output_length": 4, "type": "text", "turn": 2,
             "hash_ids": [1, 2, 9]},
        ), "Bailian", 2,
    ),
    "aiperf hashes": (jsonl({"session_id": "s", **HASHED}, {"session_id": "s", "delay": 10, "input_length": 5, "output_length": 2}),
        "AIPerf", 2),
    "aiperf texts": (
        jsonl({"session_id": "s", "text_input": "hello there", "output_length": 3, "timestamp": 1},
              {"session_id": "s", "text_input": "and again", "output_length": 3, "delay": 500}), "AIPerf", 2,
    ),
    "aiperf lengths": (jsonl({"timestamp": 1, "input_length": 50, "output_length": 3}), "AIPerf", 1),
    "aiperf messages": (
        jsonl({"session_id": 1, "messages": [{"role": "user", "content": "hello"}], "output_length": 3, "timestamp": 1}), "AIPerf", 1,
    ),
    "sharegpt": (json.dumps(CHATS, indent=1).encode(), "ShareGPT", 3),
    "sharegpt lines": (jsonl(*CHATS), "ShareGPT", 3),
    "burstgpt": (BURST, "BurstGPT", 2),
    "azure": (AZURE, "Azure", 2),
    "batch": (
        jsonl({"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
               "body": {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 11}}), "OpenAI batch", 1,
    ),
    "custom": (jsonl({"prompt": "What is the capital of France?", "output_tokens": 5}, {"prompt": "What?"}), "prompts", 2),
    "tokens": (jsonl({"prompt_token_ids": [1, 2, 3], "output_tokens": 5}, {"input_ids": [2**31, 5], "output_token_ids": [1]}), "prompts",
        2),
}  # fmt: skip


def read(folder: Path, content: bytes, **options: Any) -> TraceWorkload:
    path = folder / "log"
    path.write_bytes(content)
    return TraceWorkload(str(path), options=LogOptions(**options))


def tokens_of(request: Request) -> list[int]:
    tokens: list[int] = make_tokens(request.segment_codes, request.segment_lengths).tolist()
    return tokens


def shared(first: Request, second: Request) -> int:
    pairs = zip(tokens_of(first), tokens_of(second), strict=False)
    return next((index for index, (one, other) in enumerate(pairs) if one != other), min(first.num_prompt_tokens, second.num_prompt_tokens))


@pytest.mark.parametrize("name", LOGS)
def test_formats_are_recognised(name: str, tmp_path: Path) -> None:
    content, format_name, num_requests = LOGS[name]
    log = read(tmp_path, content)
    assert (log.format_name, log.scan().num_bad_lines) == (format_name, 0)
    assert len(list(log.requests())) == num_requests == log.summary().num_requests
    assert [tokens_of(one) for one in log.requests()] == [tokens_of(one) for one in log.requests()]


@pytest.mark.parametrize("name", LOGS)
def test_packed_logs_and_the_standard_input_are_the_same(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = LOGS[name][0]
    expected = list(read(tmp_path, content).requests())
    assert list(read(tmp_path, gzip.compress(content)).requests()) == expected
    assert list(read(tmp_path, zstandard.compress(content)).requests()) == expected
    half = len(content) // 2
    frames = zstandard.compress(content[:half]) + zstandard.compress(content[half:])
    assert list(read(tmp_path, frames).requests()) == expected
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    log = TraceWorkload("-")
    assert list(log.requests()) == expected == list(log.requests())


def figures_of(path: str, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["replay", path, "--quiet", "--json", "-", "--model", "llama-3-8b", *options]) == 0
    report = json.loads(capsys.readouterr().out)
    names = ("requests", "prompt_tokens", "hit_tokens", "reusable_tokens", "generated_tokens", "computed_tokens", "steps", "notes")
    return {name: report[name] for name in names}


@pytest.mark.parametrize("name", LOGS)
def test_one_log_has_one_figure(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Directly, compressed and converted: the same times, lengths and turns, the same shared tokens of prompts and answers, the same
    hits and notes."""
    log = read(tmp_path, LOGS[name][0])
    target = tmp_path / "out.jsonl.gz"
    assert main(["convert", log.path, str(target), "--quiet", "--json", "-", "--block", "4"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["format"] == LOGS[name][1] and figures["requests"] == LOGS[name][2]
    assert list(log.requests()) == list(TraceWorkload(str(target)).requests())
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(LOGS[name][0]))
    direct = figures_of(log.path, capsys)
    assert direct == figures_of(str(packed), capsys) == figures_of(str(target), capsys)
    assert direct["notes"] == figures["notes"] and direct["requests"] == LOGS[name][2]


@pytest.mark.parametrize("seed", range(6))
def test_converted_chats_have_the_same_figures(seed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Texts of few words, so that prompts meet within blocks; also where memory is short, and converted a second time."""
    random = Random(seed)
    chats = []
    for _ in range(12):
        turns = [("system", "You are " + random.choice("ab") * 90)]
        for _ in range(random.randint(1, 4)):
            turns.append(("human", "".join(random.choices(("hello ", "there "), k=random.randint(1, 30)))))
            turns.append(("gpt", random.choice("xy") * random.randint(1, 150)))
        chats.append(chat(*turns))
    log = read(tmp_path, jsonl(*chats))
    first, second = str(tmp_path / "first.jsonl"), str(tmp_path / "second.jsonl")
    assert main(["convert", log.path, first, "--quiet"]) == 0 and main(["convert", first, second, "--quiet", "--block", "64"]) == 0
    requests = list(log.requests())
    assert requests == list(TraceWorkload(first).requests()) == list(TraceWorkload(second).requests())
    for options in ((), ("--max-running", "1"), ("--max-running", "2", "--memory", "64MiB")):
        direct = figures_of(log.path, capsys, *options)
        assert direct["hit_tokens"] > 0
        assert direct == figures_of(first, capsys, *options) == figures_of(second, capsys, *options)


def test_a_converted_log_that_lost_a_line_is_served(tmp_path: Path) -> None:
    """The second turn follows a request that is not there: it starts at its own time, with the answer that it holds."""
    log = read(tmp_path, LOGS["sharegpt"][0])
    target = tmp_path / "out.jsonl"
    assert main(["convert", log.path, str(target), "--quiet"]) == 0
    target.write_bytes(b"".join(target.read_bytes().splitlines(keepends=True)[1:]))
    rest = list(TraceWorkload(str(target)).requests())
    assert [(one.id, one.after) for one in rest] == [(1, None), (2, None)]
    assert [tokens_of(one) for one in rest] == [tokens_of(one) for one in log.requests()][1:]


CONVERTED = {"request_id": 3, "timestamp": 0, "input_length": 5, "output_length": 1, "hash_ids": [0], "block_tokens": 16, "codes": [7],
    "lengths": [5]}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"codes": [-1]}, "codes has -1, not an int from 0 to 1073741823"),
        ({"lengths": [0]}, "lengths has 0, not an int from 1 to 536870911"),
        ({"lengths": [4]}, "1 codes and 1 lengths, in all 4; input_length is 5"),
        ({"codes": [1, 2]}, "2 codes and 1 lengths, in all 5; input_length is 5"),
        ({"request_id": 1 << 29}, "request_id 536870912 is over 536870911"),
        ({"codes": None}, "no 'codes'; it has "),
        ({"after": "x"}, "after is 'x', not an int"),
    ],
)
def test_a_converted_line_that_does_not_fit(change: dict[str, Any], reason: str, tmp_path: Path) -> None:
    log = read(tmp_path, jsonl({**CONVERTED, "request_id": 0}, {**CONVERTED, **change}))
    assert [reason in bad.reason for bad in log.scan().bad_lines] == [True]


def test_a_request_id_is_there_once(tmp_path: Path) -> None:
    log = read(tmp_path, jsonl(CONVERTED, CONVERTED))
    assert [bad.reason for bad in log.scan().bad_lines] == ["request_id 3 is there twice"]


def test_a_conversation_grows_by_answer_and_question(tmp_path: Path) -> None:
    first, second, other = read(tmp_path, LOGS["sharegpt"][0]).requests()
    # "<system>" + 348 + newline, "<human>" + 100 + newline: 465 bytes are 117 tokens of 4; the answer's 80 bytes 20.
    assert (first.num_prompt_tokens, first.num_output_tokens, first.after) == (117, 20, None)
    assert (second.after, second.num_output_tokens) == (first.id, 11)
    # "<human>" + 60 + newline: 68 bytes, 17 tokens.
    assert second.num_prompt_tokens == 117 + 20 + 17
    assert second.segment_codes.tolist()[: len(first.segment_codes)] == first.segment_codes.tolist()
    assert answer_segment(first.id) in second.segment_codes.tolist()
    # 357 bytes are in common: 89 tokens, of which 80 are whole runs.
    assert shared(first, other) == 80
    assert [note for note in read(tmp_path, LOGS["sharegpt"][0]).notes() if "1 conversations without an answer" in note] != []


def test_texts_that_continue_share_all_of_the_shorter_one(tmp_path: Path) -> None:
    texts = ["x" * 90, "x" * 90, "x" * 90 + "tail" * 30, "x" * 90 + "none" * 30]
    one, same, longer, other = read(tmp_path, jsonl(*[{"prompt": text} for text in texts]), bytes_per_token=1).requests()
    assert shared(one, same) == 90
    assert shared(one, longer) == 90
    # Both continue the short run; the second one to do so has a run of its own.
    assert shared(longer, other) == 80


def test_token_ids_share_runs(tmp_path: Path) -> None:
    base = list(range(2**33, 2**33 + 40))
    log = read(tmp_path, jsonl({"token_ids": base}, {"token_ids": [*base, 7]}, {"token_ids": [*base[:20], 1, 2]}))
    one, longer, branch = log.requests()
    assert (shared(one, longer), shared(one, branch)) == (40, 16)


def test_wide_ids_and_strings_are_ids(tmp_path: Path) -> None:
    rows = [[2**64, 1], [2**64, "x"], ["x", 1], [1, 2**64]]
    log = read(tmp_path, jsonl(*[{**HASHED, "input_length": 1024, "hash_ids": row} for row in rows]))
    codes = [request.segment_codes.tolist() for request in log.requests()]
    assert codes == [[0, 1], [0, 2], [2, 1], [1, 0]]
    # Small ids stay as they are.
    assert [request.segment_codes.tolist() for request in read(tmp_path, LOGS["mooncake"][0]).requests()] == [[4, 9, 2]] * 2


def test_sessions_of_aiperf(tmp_path: Path) -> None:
    first, second = read(tmp_path, LOGS["aiperf texts"][0]).requests()
    # 11 bytes are 3 tokens, 9 bytes 3; the answer has 3.
    assert (first.num_prompt_tokens, second.num_prompt_tokens) == (3, 3 + 3 + 3)
    assert (second.after, second.delay_ms, second.arrival_ms) == (first.id, 500.0, 1.0)
    rows = [
        {"session_id": 1, **HASHED, "timestamp": 0},
        {"session_id": 1, "input_length": 1536, "output_length": 1, "hash_ids": [4, 9, 8]},  # begins alike: the whole prompt
        {"session_id": 2, **HASHED, "timestamp": 0},
        {"session_id": 2, "input_length": 512, "output_length": 1, "hash_ids": [77]},  # does not: what is new
        {"session_id": 3, "messages": [{"role": "user", "content": "a" * 50}], "output_length": 1},
        {"session_id": 3, "messages": [{"role": "user", "content": "b" * 50}], "output_length": 1},
        {"session_id": 4, "message_mode": "delta", "messages": [{"role": "user", "content": "a" * 50}], "output_length": 1},
        {"session_id": 4, "message_mode": "delta", "messages": [{"role": "user", "content": "b" * 50}], "output_length": 1},
    ]
    lengths = [request.num_prompt_tokens for request in read(tmp_path, jsonl(*rows)).requests()]
    # "<user>" + 50 + newline: 57 bytes, 15 tokens.
    assert lengths == [1030, 1536, 1030, 1030 + 7 + 512, 15, 15, 15, 15 + 1 + 15]


def test_bailian_counts_seconds_and_sixteen_tokens(tmp_path: Path) -> None:
    first, second = read(tmp_path, LOGS["bailian"][0]).requests()
    assert (first.arrival_ms, first.segment_lengths.tolist()) == (61114.0, [16, 16, 1])
    assert (second.after, shared(first, second)) == (first.id, 32)


def test_lengths_alone_are_said_to_be_made_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = read(tmp_path, BURST)
    assert [request.arrival_ms for request in log.requests()] == [0.0, 40500.0]
    assert [(one.num_prompt_tokens, one.num_output_tokens) for one in log.requests()] == [(472, 18), (1087, 230)]
    assert [one.arrival_ms for one in read(tmp_path, AZURE).requests()] == pytest.approx([0.0, 52.0])
    rows = b"".join(b"%d,m,100,5,105,x\n" % second for second in range(200))
    many = read(tmp_path, BURST.split(b"\n")[0] + b"\n" + rows, shared_prefix=0.3)
    requests = list(many.requests())
    common = [shared(requests[0], other) for other in requests[1:]]
    # 30 of 100 tokens are one of a few prefixes; half of the requests have the first one.
    assert set(common) == {0, 30} and 60 <= max(common.count(30), common.count(0)) <= 199
    assert main(["replay", many.path, "--quiet", "--shared-prefix", "0"]) == 0
    output = capsys.readouterr().out
    assert "made up" in output and "hit tokens" in output


def test_turns_of_burstgpt_continue(tmp_path: Path) -> None:
    header = b"Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    log = read(tmp_path, header + b"0,s,1,m,100,20,120,x\n9,s,1,m,150,20,170,x\n10,,1,m,0,0,0,x\n")
    first, second = log.requests()
    assert second.after == first.id and shared(first, second) == 100 and second.num_prompt_tokens == 150
    assert any("1 rows without prompt tokens" in note for note in log.notes())


def test_a_parquet_file_is_read_as_its_rows_are_in_json_lines(tmp_path: Path) -> None:
    """Messages are lists of structs; a column that only some rows have is null in the others."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    from pyarrow import Table, parquet

    rows: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": "one " * 40}], "max_tokens": 7},
        {"messages": [{"role": "user", "content": "one " * 40}, {"role": "assistant", "content": "two"}]},
    ]
    parquet.write_table(Table.from_pylist(rows), tmp_path / "log.parquet")
    expected = list(read(tmp_path, jsonl(*rows)).requests())
    content = (tmp_path / "log.parquet").read_bytes()
    assert len(expected) == 2 and list(read(tmp_path, content).requests()) == expected
    with pytest.raises(BadInputError, match="a parquet file that ends early or is damaged"):
        list(read(tmp_path, content[:-20]).requests())


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("other columns", b"time,prompt_len,answer_len\n1,2,3\n", ["csv", "prompt_len", "ContextTokens", "Request tokens"]),
        ("unknown fields", jsonl({"question": "?", "answer": "!"}), ["answer, question", "Mooncake", "ShareGPT"]),
        ("unknown array", json.dumps([{"question": "?"}]).encode(), ["JSON array", "question"]),
        ("cut gzip", gzip.compress(jsonl(*[HASHED] * 5_000))[:-9], ["gzip", "ends early", "zcat"]),
        ("damaged gzip", gzip.compress(b"x" * 1000)[:12] + b"\x00" * 40, ["gzip", "damaged"]),
        ("cut zst", zstandard.compress(jsonl(*[{**HASHED, "timestamp": n} for n in range(900)]))[:900], ["zst", "ends early"]),
        ("cut array", json.dumps(CHATS).encode()[:-40], ["array", "cut off"]),
        ("parquet", b"PAR1" + bytes(100), ["parquet", "pyarrow" if importlib.util.find_spec("pyarrow") is None else "damaged"]),
        ("program", b"\x7fELF" + bytes(100), ["a program", "Mooncake"]),
        ("UTF-16", "{}\n".encode("utf-16"), ["UTF-16", "iconv"]),
        ("packed random", gzip.compress(b"\xf1\x8b\x00\n" * 9), ["a binary file", "f1 8b 00 0a", "Mooncake"]),
        ("other bytes", b"\xf1\x8b\x81\xff\n" * 9, ["a binary file", "f1 8b 81 ff"]),
        ("config.json", json.dumps({"model_type": "llama", "hidden_size": 8}).encode(), ["config.json", "--model"]),
        ("object", json.dumps({"a": 1, "b": 2}, indent=1).encode(), ["one JSON object", "jq"]),
        ("latin-1", b'[{"conversations": "\xff\xfe"}]', ["UTF-8"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_log_is_said_in_one_line(
    name: str, content: bytes, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)
    target = tmp_path / "out.jsonl"
    for command in (["convert", str(path), str(target), "--quiet"], ["replay", str(path), "--json", str(target), "--quiet"]):
        assert main(command) == 3, name
        errors = capsys.readouterr().err
        assert errors.count("\n") == 1 and errors.startswith(f"kvcm: {path}: "), errors
        assert [word for word in words if word not in errors] == [], errors
        assert sorted(tmp_path.iterdir()) == [path]  # nothing half written


def test_a_folder_and_a_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path)]) == 3
    assert "a folder" in capsys.readouterr().err
    (tmp_path / "trace.jsonl").write_bytes(b"")
    assert main(["convert", str(tmp_path), "-"]) == 3
    assert "trace.jsonl" in capsys.readouterr().err
    assert main(["convert", str(tmp_path / "none"), "-"]) == 3
    assert "No such file" in capsys.readouterr().err


BAD_LINES: dict[str, tuple[bytes, bytes, str]] = {
    "mooncake": (LOGS["mooncake"][0], jsonl({**HASHED, "hash_ids": [1, 2, None]}), "hash_ids[2] is None"),
    "bailian": (LOGS["bailian"][0], jsonl({"chat_id": 1}), "no 'timestamp'"),
    "aiperf": (LOGS["aiperf texts"][0], jsonl({"session_id": 1, "output_length": 1}),
        "no hash_ids, text_input, text, texts, turns, messages or input_length"),
    "sharegpt": (LOGS["sharegpt lines"][0], jsonl({"conversations": [{"from": "human", "value": 5}]}), "value of turn 0 is 5"),
    "burstgpt": (BURST, b"1,2\n", "2 columns"),
    "azure": (AZURE, b"yesterday,1,2\n", "TIMESTAMP is 'yesterday'"),
    "batch": (LOGS["batch"][0], jsonl({"body": 5}), "body is 5, not an object"),
    "custom": (LOGS["custom"][0], jsonl({"prompt": ""}), "the prompt is empty"),
    "no messages": (LOGS["custom"][0], jsonl({"messages": 5}), "messages is 5, not a list or a string"),
    "cut line": (LOGS["mooncake"][0], b'{"hash_ids": [1, 2\n', "not JSON: "),
    "no object": (LOGS["mooncake"][0], b"[1, 2, 3]\n", "a JSON list where an object with timestamp"),
    "tokens": (LOGS["tokens"][0], jsonl({"prompt_token_ids": [1, "x"]}), "prompt_token_ids[1] is 'x', not a token id"),
}


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_line_that_does_not_fit_is_named_with_what_is_accepted(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad, words = BAD_LINES[name]
    path = tmp_path / "log"
    path.write_bytes(good + bad + good.split(b"\n", 1)[-1 if name in ("burstgpt", "azure") else 0])
    target = tmp_path / "out"
    assert main(["convert", str(path), str(target), "--quiet"]) == 3
    errors = capsys.readouterr().err
    number = good.count(b"\n") + 1
    assert errors.startswith(f"{path}:{number}: ") and words in errors and "accepted are" in errors
    assert not target.exists()
    assert main(["convert", str(path), str(target), "--quiet", "--skip-bad"]) == 0
    assert target.exists()


class Words:
    """A tokenizer of words."""

    def encode(self, text: str) -> list[int]:
        return [hash(word) & 0xFFFF for word in text.split()]


def test_a_tokenizer_counts_its_own_tokens(tmp_path: Path) -> None:
    log = read(tmp_path, jsonl({"prompt": "one two three four", "completion": "five six"}), tokenizer=Words())
    (request,) = log.requests()
    assert (request.num_prompt_tokens, request.num_output_tokens) == (4, 2)
    assert "given tokenizer" in log.notes()[0]


def test_a_real_tokenizer_from_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One token for each word, as words split at spaces are its whole vocabulary."""
    tokenizers = pytest.importorskip("tokenizers", reason="the extra tokenizer is not installed")
    words = {word: number for number, word in enumerate(["[UNK]", "one", "two", "three", "four", "five", "six"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    log, target = tmp_path / "log.jsonl", tmp_path / "out.jsonl"
    log.write_bytes(jsonl({"prompt": "one two three four", "completion": "five six"}))
    for name in (tmp_path, tmp_path / "tokenizer.json"):
        assert main(["convert", str(log), str(target), "--quiet", "--tokenizer", str(name)]) == 0
        (line,) = target.read_text().splitlines()
        assert (json.loads(line)["input_length"], json.loads(line)["output_length"]) == (4, 2)
    capsys.readouterr()
    (tmp_path / "tokenizer.json").write_text("{}")
    assert main(["convert", str(log), str(target), "--quiet", "--tokenizer", str(tmp_path)]) == 3
    assert "tokenizer.json" in capsys.readouterr().err


def test_without_the_package_a_tokenizer_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "log"
    path.write_bytes(LOGS["custom"][0])
    assert main(["replay", str(path), "--tokenizer", str(tmp_path / "none.json")]) == 3
    errors = capsys.readouterr().err
    assert "tokenizers" in errors or "tokenizer.json" in errors


def test_the_limit_counts_requests(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(LOGS["sharegpt"][0])
    assert TraceWorkload(str(path), limit=1).summary().num_requests == 1
    assert TraceWorkload(str(path), limit=2).summary().num_requests == 2
