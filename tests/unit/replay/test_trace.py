"""The Mooncake reader: good lines become requests, each bad line is named with its reason."""

import json
from pathlib import Path

import pytest

from kv_cache_manager_v2.replay.logs.hash_readers import IdTable, request_of_record
from kv_cache_manager_v2.replay.logs.log_error import MAX_REQUEST_TOKENS
from kv_cache_manager_v2.replay.logs.recognise import parse_line, require_record
from kv_cache_manager_v2.replay.trace import TraceScan, TraceWorkload
from kv_cache_manager_v2.replay.workload import Request

GOOD = {"timestamp": 5, "input_length": 1030, "output_length": 7, "hash_ids": [4, 9, 2]}


def line_with(**changes: object) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def line_without(key: str) -> bytes:
    return json.dumps({name: value for name, value in GOOD.items() if name != key}).encode()


def parse_request(line: bytes, request_id: int, block_tokens: int = 512) -> Request:
    return request_of_record(require_record(parse_line(1, line)), request_id, block_tokens, IdTable(False))


def write_trace(folder: Path, *lines: bytes) -> str:
    path = folder / "trace.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    return str(path)


def test_a_line_becomes_a_request() -> None:
    request = parse_request(line_with(), 3)
    assert request.id == 3
    assert request.arrival_ms == 5.0
    assert request.segment_codes.tolist() == [4, 9, 2]
    # 1030 = 512 + 512 + 6
    assert request.segment_lengths.tolist() == [512, 512, 6]
    assert request.num_prompt_tokens == 1030
    assert request.num_output_tokens == 7
    # The last generated token is never an input.
    assert request.num_computed_tokens == 1036


def test_block_size_of_the_trace_can_be_another() -> None:
    request = parse_request(line_with(input_length=33, hash_ids=[1, 2, 3]), 0, 16)
    assert request.segment_lengths.tolist() == [16, 16, 1]


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"\xff\xfe{}",
        b"[1, 2]",
        b"[" * 100_000,
        line_without("timestamp"),
        line_without("input_length"),
        line_without("output_length"),
        line_without("hash_ids"),
        line_with(timestamp="now"),
        line_with(timestamp=-1),
        line_with(timestamp=float("nan")),
        line_with(timestamp=True),
        line_with(input_length=0, hash_ids=[]),
        line_with(input_length=1030.0),
        line_with(input_length=-5),
        line_with(input_length=10**300),
        line_with(output_length=-1),
        line_with(output_length=None),
        line_with(output_length=MAX_REQUEST_TOKENS),
        line_with(hash_ids="abc"),
        line_with(hash_ids=[1, 2]),
        line_with(hash_ids=[1, 2, 3, 4]),
        line_with(hash_ids=[1, 2, 3.0]),
        line_with(hash_ids=[1, 2, ""]),
        line_with(hash_ids=[1, 2, True]),
    ],
    ids=lambda line: repr(line[:60]),
)  # fmt: skip
def test_a_line_that_breaks_a_rule_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError):
        parse_request(line, 0)


def test_bad_lines_are_named_and_the_others_served(tmp_path: Path) -> None:
    path = write_trace(tmp_path, line_with(), b"", b"{", line_with(timestamp=6), line_with(input_length=0))
    workload = TraceWorkload(path)
    scan = workload.scan()
    assert scan.num_bad_lines == 2
    assert [(bad.path, bad.line_number) for bad in scan.bad_lines] == [(path, 3), (path, 5)]
    assert all(len(bad.reason) > 0 for bad in scan.bad_lines)
    assert scan.summary.num_requests == 2
    assert scan.summary.num_prompt_tokens == 2 * 1030
    assert scan.summary.num_output_tokens == 14
    assert scan.summary.longest_tokens == 1037
    assert [request.id for request in workload.requests()] == [0, 1]


def test_only_the_first_bad_lines_are_kept_but_all_are_counted(tmp_path: Path) -> None:
    scan = TraceWorkload(write_trace(tmp_path, *[b"{"] * 100)).scan()
    assert scan.num_bad_lines == 100
    assert len(scan.bad_lines) == TraceScan.MAX_KEPT


def test_the_limit_counts_good_lines_and_reads_no_further(tmp_path: Path) -> None:
    path = write_trace(tmp_path, b"{", line_with(), line_with(), line_with(), b"{")
    workload = TraceWorkload(path, 2)
    assert workload.summary().num_requests == 2
    assert workload.scan().num_bad_lines == 1
    assert len(list(workload.requests())) == 2


def test_requests_come_in_order_of_arrival_and_keep_their_ids(tmp_path: Path) -> None:
    path = write_trace(tmp_path, line_with(timestamp=9), line_with(timestamp=2), line_with(timestamp=9), line_with())
    assert [request.id for request in TraceWorkload(path).requests()] == [1, 3, 0, 2]


def test_an_empty_trace_has_no_requests(tmp_path: Path) -> None:
    workload = TraceWorkload(write_trace(tmp_path))
    assert workload.summary().num_requests == 0
    assert list(workload.requests()) == []


@pytest.mark.parametrize(("limit", "block_tokens"), [(0, 512), (-1, 512), (5, 0)])
def test_nonsensical_arguments_are_refused(limit: int, block_tokens: int) -> None:
    with pytest.raises(ValueError):
        TraceWorkload("x", limit, block_tokens)
