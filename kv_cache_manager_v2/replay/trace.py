"""Request logs as workloads: Mooncake's format and all others of `logs`, recognised by their content.

A line that breaks a rule becomes a `BadLine` with file, line number and reason; the caller decides whether to serve the rest (`scan`
finds every
bad line without serving any). Empty lines are skipped. Mooncake's format is read as a stream; the requests of the others are kept.
Lengths are bounded, so that one broken number cannot ask for all the memory of the machine.
"""

from collections.abc import Iterator, Sequence
from typing import Final, final


from ..base.value import Value
from .logs.hash_readers import BAILIAN_BLOCK_TOKENS, MOONCAKE_BLOCK_TOKENS, MooncakeReader
from .logs.log_error import LineError
from .logs.log_file import LogFile
from .logs.log_reader import LogOptions
from .logs.recognise import BAILIAN, MOONCAKE, RecognisedLog, require_record
from .read_progress import ReadProgress
from .workload import Request, Workload, WorkloadSummary

_LINES_BETWEEN_UPDATES: Final = 256


@final
class BadLine(Value):
    """A line that is not a request, and why."""

    __slots__ = ("path", "line_number", "reason")

    def __init__(self, path: str, line_number: int, reason: str) -> None:
        self.path: Final = path
        self.line_number: Final = line_number
        self.reason: Final = reason

    def __str__(self) -> str:
        return f"{self.path}:{self.line_number}: {self.reason}"


@final
class TraceScan(Value):
    """What a whole trace holds: totals of the good lines, the first bad ones in full, whether it is in time order."""

    __slots__ = ("summary", "num_bad_lines", "bad_lines", "is_sorted", "has_times", "has_sessions")

    MAX_KEPT: Final = 20

    def __init__(
        self,
        summary: WorkloadSummary | None = None,
        num_bad_lines: int = 0,
        bad_lines: Sequence[BadLine] = (),
        is_sorted: bool = True,
        has_times: bool = False,
        has_sessions: bool = False,
    ) -> None:
        self.summary: Final[WorkloadSummary] = WorkloadSummary() if summary is None else summary
        self.num_bad_lines = num_bad_lines
        self.bad_lines: Final[list[BadLine]] = list(bad_lines)
        self.is_sorted = is_sorted
        self.has_times = has_times
        """Some request has another time than the first one."""
        self.has_sessions = has_sessions
        """Some request is a later turn."""

    def add_bad_line(self, bad_line: BadLine) -> None:
        self.num_bad_lines += 1
        if len(self.bad_lines) < TraceScan.MAX_KEPT:
            self.bad_lines.append(bad_line)


@final
class TraceWorkload(Workload):
    """The good lines of a log file, at most ``limit`` requests of them. ``block_tokens``: per hash id; None: as the format has it."""

    __slots__ = ("path", "limit", "block_tokens", "_options", "_progress", "_file", "_log", "_scan", "_requests", "_has_wide_ids", "_notes")

    def __init__(
        self, path: str, limit: int | None = None, block_tokens: int | None = None, options: LogOptions | None = None,
        progress: ReadProgress | None = None,
    ) -> None:  # fmt: skip
        if block_tokens is not None and block_tokens <= 0:
            raise ValueError(f"block_tokens is {block_tokens}; a block of a trace has at least 1 token")
        if limit is not None and limit <= 0:
            raise ValueError(f"limit is {limit}; give a positive number of requests, or None for all")
        self.path: Final = path
        self.limit: Final = limit
        self.block_tokens: Final = block_tokens
        self._options: Final[LogOptions] = LogOptions(block_tokens=block_tokens) if options is None else options
        self._progress: Final = progress
        self._file: Final[LogFile] = LogFile(path)
        self._log: RecognisedLog | None = None
        self._scan: TraceScan | None = None
        self._requests: list[Request] | None = None
        self._has_wide_ids = False
        self._notes: list[str] = []

    @property
    def name(self) -> str:
        return self.path if self.path != "-" else "standard input"

    @property
    def format_name(self) -> str:
        return self._open_log().format_name

    def has_times(self) -> bool:
        """Whether some two requests have different times."""
        return self.scan().has_times

    @property
    def has_block_ids(self) -> bool:
        """Whether a segment of a prompt is a block of the log, with a hash id."""
        return self.format_name in (MOONCAKE, BAILIAN)

    @property
    def tokens_per_hash_id(self) -> int:
        """What was asked for, or the format's; a line may have its own."""
        if self.block_tokens is not None:
            return self.block_tokens
        return BAILIAN_BLOCK_TOKENS if self.format_name == BAILIAN else MOONCAKE_BLOCK_TOKENS

    def notes(self) -> list[str]:
        """What a report must say of the requests: what was made up, assumed, left out."""
        self.scan()
        return self._notes

    def scan(self) -> TraceScan:
        """Read up to the limit once, keep the totals; the same object every time."""
        if self._scan is None:
            scan = TraceScan()
            previous_ms = 0.0
            first_ms = -1.0
            keeps = self.format_name != MOONCAKE
            requests: list[Request] = []
            for item in self._lines(False):
                if isinstance(item, BadLine):
                    scan.add_bad_line(item)
                else:
                    scan.summary.add(item.num_prompt_tokens, item.num_output_tokens)
                    scan.is_sorted = scan.is_sorted and item.arrival_ms >= previous_ms
                    previous_ms = item.arrival_ms
                    first_ms = previous_ms if first_ms < 0.0 else first_ms
                    scan.has_times = scan.has_times or previous_ms != first_ms
                    scan.has_sessions = scan.has_sessions or item.after is not None
                    if keeps:
                        requests.append(item)
            if keeps:
                self._requests = requests
            self._scan = scan
        return self._scan

    def summary(self) -> WorkloadSummary:
        return self.scan().summary

    def requests(self) -> Iterator[Request]:
        scan = self.scan()
        found: Iterator[Request] = self._good_lines() if self._requests is None else iter(self._requests)
        if scan.is_sorted:
            return found
        # Ties keep the order of the file; ids follow the file, so that a request keeps its id whatever the order.
        return iter(sorted(found, key=_arrival))

    def _open_log(self) -> RecognisedLog:
        if self._log is None:
            self._log = RecognisedLog(self._file)
        return self._log

    def _good_lines(self) -> Iterator[Request]:
        for item in self._lines(self._has_wide_ids):
            if isinstance(item, Request):
                yield item

    def _lines(self, is_dense: bool) -> Iterator[Request | BadLine]:
        log = self._open_log()
        reader = log.make_reader(self._options, is_dense)
        num_requests = 0
        num_records = 0
        for record in log.records():
            if self.limit is not None and num_requests >= self.limit:
                break
            num_records += 1
            if self._progress is not None and num_records % _LINES_BETWEEN_UPDATES == 0 and self._scan is None:
                self._progress.update(f"reading {self.name}", self._file.position, self._file.num_bytes)
            try:
                made = reader.requests_of(require_record(record), num_requests)
            except LineError as error:
                yield BadLine(self.path, record.number, str(error))
                continue
            for request in made:
                if self.limit is None or num_requests < self.limit:
                    num_requests += 1
                    yield request
        if self._progress is not None:
            self._progress.stop()
        self._notes = reader.notes()
        if isinstance(reader, MooncakeReader):
            self._has_wide_ids = self._has_wide_ids or reader.ids.has_wide_ids


def _arrival(request: Request) -> float:
    return request.arrival_ms
