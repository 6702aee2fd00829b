"""The format of a log, by its content: how its records lie in the file, and what the first one that is known has."""

import csv
import json
import zlib
from collections.abc import Iterator
from typing import Any, Final, final


from ...models.binary_content import describe_binary
from ..bad_input import BadInputError
from .aiperf_reader import AIPERF_CONTENT, AiperfReader
from .converted_reader import ConvertedReader
from .hash_readers import BailianReader, MooncakeReader
from .length_readers import AZURE_COLUMNS, BURSTGPT_COLUMNS, LengthReader
from .log_error import LineError, shown
from .log_file import FORMATS, LogFile
from .log_reader import LogOptions, LogReader
from .text_readers import CONVERSATION_FIELDS, ENVELOPES, TOKEN_FIELDS, PromptReader, ShareGptReader

CONVERTED: Final = "kvcm convert"
MOONCAKE: Final = "Mooncake"
BAILIAN: Final = "Bailian"
AIPERF: Final = "AIPerf"
SHAREGPT: Final = "ShareGPT"
PROMPTS: Final = "prompts"
BATCH: Final = "OpenAI batch"
BURSTGPT: Final = "BurstGPT"
AZURE: Final = "Azure"
_LINES: Final = "lines"
_ITEMS: Final = "items"
_ROWS: Final = "rows"
_HEAD_BYTES: Final = 1024
_MAX_LINES: Final = 1000
"""That are looked at for one that is known."""


@final
class LogRecord:
    """One record with its line, or its number in the array; or why it is none."""

    __slots__ = ("number", "value", "error")

    def __init__(self, number: int, value: Any, error: str | None = None) -> None:
        self.number: Final = number
        self.value: Final = value
        self.error: Final = error


@final
class RecognisedLog:
    """A log whose format is known."""

    __slots__ = ("file", "format_name", "_container", "_columns")

    def __init__(self, file: LogFile) -> None:
        """`BadInputError` if it is no log of a known format."""
        self.file: Final = file
        what = describe_binary(_read_head(file))
        if what is not None:
            raise BadInputError(f"{file.path}: {what}, where a log was expected; accepted are {FORMATS}")
        first = _first_lines(file)
        begin = first[0] if len(first) > 0 else b""
        self._container: Final[str] = _container_of(file, begin, first[1:])
        self._columns: Final = tuple([name.strip() for name in next(csv.reader([_decode(begin)]))]) if self._container == _ROWS else ()
        self.format_name: Final[str] = self._recognise_columns() if self._container == _ROWS else self._recognise_records()

    def make_reader(self, options: LogOptions, is_dense: bool) -> LogReader:
        """``is_dense``: of Mooncake's format, whether ids get codes of their own (`IdTable`)."""
        if self.format_name == CONVERTED:
            return ConvertedReader()
        if self.format_name == MOONCAKE:
            return MooncakeReader(options, is_dense)
        if self.format_name == BAILIAN:
            return BailianReader(options)
        if self.format_name == AIPERF:
            return AiperfReader(options)
        if self.format_name == SHAREGPT:
            return ShareGptReader(options)
        if self.format_name == BURSTGPT:
            return LengthReader(options, BURSTGPT_COLUMNS)
        if self.format_name == AZURE:
            return LengthReader(options, AZURE_COLUMNS)
        return PromptReader(options)

    def records(self) -> Iterator[LogRecord]:
        """All records; empty lines are skipped."""
        if self._container == _ITEMS:
            number = 0
            for item in self.file.items():
                number += 1
                yield LogRecord(number, item)
            return
        line_number = 0
        for line in self.file.lines():
            line_number += 1
            stripped = line.strip()
            if len(stripped) == 0:
                continue
            if self._container == _LINES:
                yield parse_line(line_number, stripped)
            elif line_number > 1:
                yield self._parse_row(line_number, stripped)

    def _parse_row(self, number: int, line: bytes) -> LogRecord:
        try:
            row = next(csv.reader([_decode(line)]))
        except (csv.Error, UnicodeDecodeError) as error:
            return LogRecord(number, None, f"not csv: {error}")
        if len(row) != len(self._columns):
            return LogRecord(number, None, f"{len(row)} columns, and the first line names {len(self._columns)}")
        return LogRecord(number, dict(zip(self._columns, row)))

    def _recognise_columns(self) -> str:
        for name, columns in ((BURSTGPT, BURSTGPT_COLUMNS), (AZURE, AZURE_COLUMNS)):
            if all([column in self._columns for column in columns]):
                return name
        raise BadInputError(
            f"{self.file.path}: a csv file with the columns {shown(', '.join(self._columns))}; accepted are BurstGPT's "
            f"({', '.join(BURSTGPT_COLUMNS)}) and Azure's ({', '.join(AZURE_COLUMNS)}): rename yours, or write JSON lines with timestamp, "
            f"input_length and output_length"
        )

    def _recognise_records(self) -> str:
        keys: str | None = None
        hint = ""
        num_seen = 0
        for record in self.records():
            num_seen += 1
            if isinstance(record.value, dict):
                name = format_of(record.value)
                if name is not None:
                    return name
                if keys is None:
                    keys = ", ".join(sorted(record.value))
                    if "model_type" in record.value or "architectures" in record.value:
                        hint = f"; is it a model's config.json? kvcm replay LOG --model {self.file.path} takes it"
            if num_seen >= _MAX_LINES:
                break
        if keys is not None:
            what = "JSON lines" if self._container == _LINES else "a JSON array"
            raise BadInputError(
                f"{self.file.path}: {what} of objects with the fields {shown(keys)}, which no known format has{hint}; accepted are "
                f"{FORMATS}"
            )
        # Not one JSON object: its lines are reported one by one.
        return MOONCAKE


def format_of(record: dict[str, Any]) -> str | None:
    """The name of the format that a record has; None for no known one."""
    if "request_id" in record and "block_tokens" in record and "hash_ids" in record:
        return CONVERTED
    if any([isinstance(record.get(name), dict) for name in ENVELOPES]):
        return BATCH
    if "chat_id" in record and "hash_ids" in record:
        return BAILIAN
    if any([isinstance(record.get(name), list) for name in CONVERSATION_FIELDS]):
        return SHAREGPT
    has_length = "output_length" in record or "timestamp" in record or "delay" in record
    is_variant = "session_id" in record or "delay" in record or ("messages" in record and has_length)
    if is_variant and any([name in record for name in AIPERF_CONTENT]):
        return AIPERF
    if "text_input" in record or isinstance(record.get("turns"), list):
        return AIPERF
    if "hash_ids" in record:
        return MOONCAKE
    if "input_length" in record and "output_length" in record:
        return AIPERF
    if any([name in record for name in (*TOKEN_FIELDS, "prompt", "messages", "input")]):
        return PROMPTS
    return AIPERF if "text" in record or "texts" in record else None


def parse_line(number: int, line: bytes) -> LogRecord:
    """One line of JSON lines."""
    try:
        return LogRecord(number, json.loads(line.removeprefix(b"\xef\xbb\xbf")))
    except (ValueError, RecursionError) as error:
        # `UnicodeDecodeError` and `JSONDecodeError` are both of them; the text says where in the line.
        return LogRecord(number, None, f"not JSON: {error}")


def _read_head(file: LogFile) -> bytes:
    """Of what it is unpacked to. Empty if it ends early: its lines say that."""
    with file.open() as opened:
        try:
            return opened.read(_HEAD_BYTES)
        except (EOFError, OSError, zlib.error):
            return b""


def _first_lines(file: LogFile) -> list[bytes]:
    """The first two that are not empty."""
    found: list[bytes] = []
    for line in file.lines():
        stripped = line.strip()
        if len(stripped) > 0:
            found.append(stripped if len(found) > 0 else stripped.removeprefix(b"\xef\xbb\xbf"))
            if len(found) == 2:
                break
    return found


def _container_of(file: LogFile, begin: bytes, following: list[bytes]) -> str:
    if begin.startswith(b"["):
        inner = begin[1:].lstrip()[:1]
        return _ITEMS if inner in (b"", b"{", b"]") else _LINES
    if begin == b"{" and len(following) > 0 and following[0].startswith(b'"'):
        raise BadInputError(
            f"{file.path}: one JSON object over several lines, where one line for each request was expected; `jq -c .` writes it so"
        )
    if not begin.startswith(b"{") and b"," in begin and b"\x00" not in begin:
        return _ROWS
    return _LINES


def _decode(line: bytes) -> str:
    return line.decode("utf-8", "replace")


def require_record(record: LogRecord) -> dict[str, Any]:
    """Its object. `LineError` if it is none."""
    if record.error is not None:
        raise LineError(record.error)
    value = record.value
    if not isinstance(value, dict):
        raise LineError(f"a JSON {type(value).__name__} where an object with timestamp, input_length, ... belongs")
    return value
