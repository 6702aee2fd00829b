"""Request traces in the Mooncake format: JSON lines of ``timestamp, input_length, output_length, hash_ids``.

``timestamp`` is in milliseconds, lengths are in tokens, and ``hash_ids`` has one id per `block_tokens` (512) tokens of
the prompt; the last block may be cut. Equal ids mean equal tokens. Other fields are ignored.

The file is read as a stream. A line that breaks a rule becomes a `BadLine` with file, line number and reason; the caller decides
whether to serve the rest (`scan` finds every bad line without serving any). Empty lines are skipped.
Ids and lengths are bounded, so that one broken number cannot ask for all the memory of the machine.
"""

import json
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any, Final, final

import numpy as np
from mypy_extensions import mypyc_attr

from ..base.value import Value
from .tokens import NUM_SEGMENT_IDS
from .workload import Request, Workload, WorkloadSummary

BLOCK_TOKENS: Final = 512
MAX_REQUEST_TOKENS: Final = 1 << 24
"""A prompt with its answer is at most this long: far over any model's context."""


@final
@mypyc_attr(native_class=True)
class BadLine(Value):
    """A line that is not a request, and why."""

    __slots__ = ("path", "line_number", "reason")

    path: Final[str]
    line_number: Final[int]
    reason: Final[str]

    def __init__(self, path: str, line_number: int, reason: str) -> None:
        self.path = path
        self.line_number = line_number
        self.reason = reason

    def _arguments(self) -> tuple[object, ...]:
        return (self.path, self.line_number, self.reason)

    def __str__(self) -> str:
        return f"{self.path}:{self.line_number}: {self.reason}"


class _LineError(ValueError):
    """Why this line is no request."""


@final
@mypyc_attr(native_class=True)
class TraceScan(Value):
    """What a whole trace holds: totals of the good lines, the first bad ones in full, whether it is in time order."""

    __slots__ = ("summary", "num_bad_lines", "bad_lines", "is_sorted")

    MAX_KEPT: Final = 20

    summary: Final[WorkloadSummary]
    num_bad_lines: int
    bad_lines: Final[list[BadLine]]
    is_sorted: bool

    def __init__(
        self,
        summary: WorkloadSummary | None = None,
        num_bad_lines: int = 0,
        bad_lines: Sequence[BadLine] = (),
        is_sorted: bool = True,
    ) -> None:
        self.summary = WorkloadSummary() if summary is None else summary
        self.num_bad_lines = num_bad_lines
        self.bad_lines = list(bad_lines)
        self.is_sorted = is_sorted

    def _arguments(self) -> tuple[object, ...]:
        return (self.summary, self.num_bad_lines, self.bad_lines, self.is_sorted)

    def add_bad_line(self, bad_line: BadLine) -> None:
        self.num_bad_lines += 1
        if len(self.bad_lines) < TraceScan.MAX_KEPT:
            self.bad_lines.append(bad_line)


@final
@mypyc_attr(native_class=True)
class TraceWorkload(Workload):
    """The good lines of a trace file, at most ``limit`` of them."""

    __slots__ = ("path", "limit", "block_tokens", "_scan")

    path: Final[str]
    limit: Final[int | None]
    block_tokens: Final[int]

    def __init__(self, path: str, limit: int | None = None, block_tokens: int = BLOCK_TOKENS) -> None:
        if block_tokens <= 0:
            raise ValueError(f"block_tokens is {block_tokens}; a block of a trace has at least 1 token")
        if limit is not None and limit <= 0:
            raise ValueError(f"limit is {limit}; give a positive number of requests, or None for all")
        self.path = path
        self.limit = limit
        self.block_tokens = block_tokens
        self._scan: TraceScan | None = None

    @property
    def name(self) -> str:
        return self.path

    def scan(self) -> TraceScan:
        """Read up to the limit once, keep the totals; the same object every time."""
        if self._scan is None:
            scan = TraceScan()
            previous_ms = 0.0
            for item in self._lines():
                if isinstance(item, BadLine):
                    scan.add_bad_line(item)
                else:
                    scan.summary.add(item.num_prompt_tokens, item.num_output_tokens)
                    scan.is_sorted = scan.is_sorted and item.arrival_ms >= previous_ms
                    previous_ms = item.arrival_ms
            self._scan = scan
        return self._scan

    def summary(self) -> WorkloadSummary:
        return self.scan().summary

    def requests(self) -> Iterator[Request]:
        if self.scan().is_sorted:
            return self._good_lines()
        # Ties keep the order of the file; ids follow the file, so that a request keeps its id whatever the order.
        return iter(sorted(self._good_lines(), key=_arrival))

    def _good_lines(self) -> Iterator[Request]:
        for item in self._lines():
            if isinstance(item, Request):
                yield item

    def _lines(self) -> Iterator[Request | BadLine]:
        num_requests = 0
        with open(self.path, "rb") as file:
            for line_number, line in enumerate(file, start=1):
                if self.limit is not None and num_requests >= self.limit:
                    return
                stripped = line.strip()
                if len(stripped) == 0:
                    continue
                item = self._parsed(stripped, line_number, num_requests)
                if isinstance(item, Request):
                    num_requests += 1
                yield item

    def _parsed(self, line: bytes, line_number: int, request_id: int) -> Request | BadLine:
        try:
            return parse_request(line, request_id, self.block_tokens)
        except _LineError as error:
            return BadLine(self.path, line_number, str(error))


def parse_request(line: bytes, request_id: int, block_tokens: int = BLOCK_TOKENS) -> Request:
    """One line of a trace. A line that is none is a `ValueError` that says why."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        # `UnicodeDecodeError` and `JSONDecodeError` are both of them; the text says where in the line.
        raise _LineError(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise _LineError(f"a JSON {type(record).__name__} where an object with timestamp, input_length, ... belongs")
    arrival_ms = _milliseconds(record)
    input_tokens = _count(record, "input_length", 1)
    output_tokens = _count(record, "output_length", 0)
    if input_tokens + output_tokens > MAX_REQUEST_TOKENS:
        raise _LineError(
            f"{_shown(input_tokens)} + {_shown(output_tokens)} tokens: a request has at most {MAX_REQUEST_TOKENS}"
        )
    hash_ids = _required(record, "hash_ids")
    if not isinstance(hash_ids, list):
        raise _LineError(f"hash_ids is a {type(hash_ids).__name__}, not a list")
    num_blocks = -(-input_tokens // block_tokens)
    if len(hash_ids) != num_blocks:
        raise _LineError(
            f"{len(hash_ids)} hash_ids for input_length {input_tokens}: that many tokens are {num_blocks} blocks of "
            f"{block_tokens}"
        )
    for position, hash_id in enumerate(hash_ids):
        if type(hash_id) is not int or not 0 <= hash_id < NUM_SEGMENT_IDS:
            raise _LineError(f"hash_ids[{position}] is {_shown(hash_id)}, not an int from 0 to {NUM_SEGMENT_IDS - 1}")
    lengths = np.full(num_blocks, block_tokens, dtype=np.int64)
    lengths[-1] = input_tokens - (num_blocks - 1) * block_tokens
    return Request(request_id, arrival_ms, np.array(hash_ids, dtype=np.int64), lengths, output_tokens)


def _required(record: dict[str, Any], key: str) -> Any:
    if key not in record:
        raise _LineError(f"no {key!r}")
    return record[key]


def _count(record: dict[str, Any], key: str, least: int) -> int:
    value = _required(record, key)
    if type(value) is not int:
        raise _LineError(f"{key} is {_shown(value)}, not an int")
    if value < least:
        raise _LineError(f"{key} is {_shown(value)}; it is at least {least}")
    return int(value)


def _milliseconds(record: dict[str, Any]) -> float:
    value = _required(record, "timestamp")
    if type(value) not in (int, float):
        raise _LineError(f"timestamp is {_shown(value)}, not a number of milliseconds")
    try:
        milliseconds = float(value)
    except OverflowError:
        raise _LineError("timestamp is too large") from None
    if not isfinite(milliseconds) or milliseconds < 0.0:
        raise _LineError(f"timestamp is {_shown(value)}; it is a finite number of milliseconds from 0 on")
    return milliseconds


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _arrival(request: Request) -> float:
    return request.arrival_ms
