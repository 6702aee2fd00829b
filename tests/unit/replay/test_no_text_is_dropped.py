"""No prompt text is dropped without a word: a marker in each field of each API's request is counted as tokens, or a note names the field.

And answers' lengths: counted by the log, of the answer that is there, or a setting that a note names.
"""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kv_cache_manager_v2.replay.logs.log_reader import LogOptions
from kv_cache_manager_v2.replay.tokens import make_tokens
from kv_cache_manager_v2.replay.trace import TraceWorkload

TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"x": {}}}}}]
CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
CHAT = {
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "name": "n", "content": [
            {"type": "text", "text": "t"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
            {"type": "input_audio", "input_audio": {"data": "AA", "format": "wav"}}, {"type": "file", "file": {"file_data": "AA"}},
        ]},
        {"role": "assistant", "content": None, "refusal": "r", "reasoning_content": "r", "tool_calls": CALLS},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "result"}]},
    ],
    "tools": TOOLS, "functions": [{"name": "g"}], "response_format": {"type": "json_schema", "json_schema": {"schema": {"title": "x"}}},
    "prediction": {"type": "content", "content": "p"}, "web_search_options": {"user_location": {"city": "c"}},
}  # fmt: skip
RESPONSES = {
    "instructions": "i", "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "t"}, {"type": "input_image", "image_url": "u"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "s"}], "encrypted_content": "e"},
        {"type": "function_call", "name": "f", "arguments": "{}", "call_id": "c"},
        {"type": "function_call_output", "call_id": "c", "output": "o"},
    ],
    "tools": [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {"x": {"description": "d"}}}}],
    "text": {"format": {"type": "json_schema", "schema": {"title": "x"}}}, "previous_response_id": "p", "conversation": "c",
    "prompt": {"id": "p", "variables": {"v": "w"}},
}  # fmt: skip
ANTHROPIC = {
    "system": [{"type": "text", "text": "s"}], "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "messages": [
        {"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "data": "AA"}}, {"type": "document", "source": {"data": "AA"}, "title": "t"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"}, {"type": "tool_use", "id": "t", "name": "f", "input": {"x": "y"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [
            {"type": "text", "text": "r"}, {"type": "image", "source": {"data": "AA"}}]}]},
    ],
    "mcp_servers": [{"name": "m"}],
}  # fmt: skip
APIS: dict[str, dict[str, Any]] = {
    "chat": CHAT,
    "chat batch": {"custom_id": "1", "url": "/v1/chat/completions", "body": CHAT},
    "responses": RESPONSES,
    "responses batch": {"custom_id": "1", "url": "/v1/responses", "body": RESPONSES},
    "anthropic": ANTHROPIC,
    "anthropic batch": {"custom_id": "1", "params": ANTHROPIC},
    "completions": {"prompt": "p", "suffix": "s"},
    "embeddings": {"model": "m", "input": "i", "encoding_format": "float"},
    "langfuse": {"input": {"messages": CHAT["messages"], "tools": TOOLS}, "output": {"role": "assistant", "content": "o"}},
    "aiperf messages": {"session_id": 1, "messages": CHAT["messages"], "tools": TOOLS},
    "aiperf turn": {"texts": [{"contents": ["a", "b"]}], "image": "u"},
}
NO_TEXT = {"role", "type", "id", "custom_id", "url", "model", "encoding_format", "status", "method", "format", "output"}
"""Fields that say what another one is. (``output`` of Langfuse is the answer; that of a tool is in the test of that API.)"""
MARKER = "MARKER" * 40


def places_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Each text in it."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict):
        for name, item in value.items():
            if not (name in NO_TEXT and isinstance(item, str)):
                yield from places_of(item, (*path, name))
    elif isinstance(value, list):
        for position, item in enumerate(value):
            yield from places_of(item, (*path, position))


PLACES = [(api, path) for api, record in APIS.items() for path in places_of(record) if not (api == "langfuse" and path[0] == "output")]


def read(folder: Path, *records: Any) -> TraceWorkload:
    path = folder / "log"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    log = TraceWorkload(str(path), options=LogOptions())
    assert log.scan().bad_lines == []
    return log


def replaced(record: Any, path: tuple[Any, ...], value: str) -> Any:
    changed = copy.deepcopy(record)
    place = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return changed


@pytest.mark.parametrize(("api", "path"), PLACES, ids=[f"{api}:{'.'.join(map(str, path))}" for api, path in PLACES])
def test_a_marker_is_counted_or_its_field_is_named(api: str, path: tuple[Any, ...], tmp_path: Path) -> None:
    before, after = read(tmp_path, APIS[api]), None
    num_before = before.summary().num_prompt_tokens
    changed = replaced(APIS[api], path, MARKER)
    after = read(tmp_path, changed)
    has_grown = after.summary().num_prompt_tokens >= num_before + len(MARKER) // 4 - 2
    notes = " ".join(after.notes())
    is_named = any(f"{name} (" in notes for name in [*path, *kinds_on(APIS[api], path)])
    assert has_grown or is_named, (num_before, after.summary().num_prompt_tokens, notes)


def kinds_on(record: Any, path: tuple[Any, ...]) -> list[str]:
    kinds = []
    for step in path:
        record = record[step]
        if isinstance(record, dict) and "type" in record:
            kinds.append(record["type"])
    return kinds


def test_there_are_places() -> None:
    assert len(PLACES) > 80 and {api for api, _ in PLACES} == set(APIS)


def test_different_images_share_no_prefix(tmp_path: Path) -> None:
    first, second = [
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "x" * 400}]}]}
        for url in ("data:image/png;base64,AAAA", "data:image/png;base64,BBBB")
    ]
    one, other, again = read(tmp_path, first, second, first).requests()
    assert one.segment_codes.tolist() == again.segment_codes.tolist() != other.segment_codes.tolist()
    assert make_tokens(one.segment_codes, one.segment_lengths)[0] != make_tokens(other.segment_codes, other.segment_lengths)[0]
    # Each has under 30 tokens of stand-in beside the 100 of text: megabytes of a picture are no prompt.
    assert 100 < one.num_prompt_tokens < 130


ASK = [{"role": "user", "content": "q" * 40}]
ANSWER = {"role": "assistant", "content": "a" * 400}


@pytest.mark.parametrize(
    ("record", "num_output_tokens", "note"),
    [
        # "<assistant>" + 400 + newline: 412 bytes, 103 tokens of 4.
        ({"messages": [*ASK, ANSWER]}, 103, ""),
        ({"messages": [*ASK, ANSWER], "timestamp": 5}, 103, ""),
        ({"body": {"messages": [*ASK, ANSWER], "max_tokens": 9}}, 9, "(max_tokens)"),
        ({"messages": ASK, "completion_tokens": 33}, 33, ""),
        ({"messages": ASK, "response": {"usage": {"completion_tokens": 34}, "choices": []}, "max_tokens": 99}, 34, ""),
        ({"messages": ASK, "response": {"choices": [{"message": ANSWER}]}}, 103, ""),
        ({"input": ASK, "output": ANSWER, "usage": {"input": 3, "output": 35, "total": 38}}, 35, ""),
        ({"input": {"messages": ASK}, "output": "a" * 400, "usageDetails": {"output": 36}}, 36, ""),
        ({"input": ASK, "output": "a" * 400}, 100, ""),
        ({"custom_id": "x", "params": {"messages": ASK, "max_tokens": 12}}, 12, "(max_tokens)"),
        ({"url": "/v1/embeddings", "body": {"input": "text"}}, 0, ""),
        ({"messages": ASK}, 256, "1 answers of unknown length count 256 tokens (--output-tokens)"),
        ({"text": "q" * 40}, 256, "1 answers of unknown length count 256 tokens (--output-tokens)"),
    ],
)
def test_lengths_of_answers(record: dict[str, Any], num_output_tokens: int, note: str, tmp_path: Path) -> None:
    log = read(tmp_path, record)
    (request,) = log.requests()
    assert request.num_output_tokens == num_output_tokens
    assert note in " ".join(log.notes()) and (note != "" or "unknown length" not in " ".join(log.notes()))


def test_an_answer_is_no_part_of_its_prompt(tmp_path: Path) -> None:
    with_answer, without = read(tmp_path, {"messages": [*ASK, ANSWER]}, {"messages": ASK}).requests()
    assert with_answer.num_prompt_tokens == without.num_prompt_tokens == 12  # "<user>" + 40 + newline


def test_single_and_multi_turn_of_aiperf(tmp_path: Path) -> None:
    single = read(tmp_path, {"text": "a" * 64}, {"texts": ["b" * 32, "c" * 31]})
    assert [one.num_prompt_tokens for one in single.requests()] == [16, 16]  # joined by a newline
    turns = [{"text": "a" * 64, "delay": 5}, {"texts": ["b" * 64], "delay": 7}]
    log = read(tmp_path, {"type": "multi_turn", "session_id": "s", "turns": turns}, {"turns": turns})
    first, second, third, fourth = log.requests()
    assert [one.num_prompt_tokens for one in (first, second, third, fourth)] == [16, 16 + 256 + 16] * 2
    assert [one.after for one in (first, second, third, fourth)] == [None, 0, None, 2] and second.delay_ms == 7


def test_texts_of_a_list_are_prompts_of_their_own(tmp_path: Path) -> None:
    log = read(tmp_path, {"prompt": ["a" * 64, "b" * 32], "max_tokens": 3}, {"input": [[1, 2, 3], [1, 2]], "dimensions": 8})
    assert [(one.id, one.num_prompt_tokens, one.num_output_tokens) for one in log.requests()] == [
        (0, 16, 3), (1, 8, 3), (2, 3, 0), (3, 2, 0),
    ]  # fmt: skip
