"""Logs of lengths: the csv files of BurstGPT and of Azure's LLM inference traces. Which tokens prompts share is made up."""

from datetime import datetime, timezone
from typing import Any, Final, final


from ..workload import Request
from .log_error import LineError, required, shown, time_of
from .log_reader import LogOptions, LogReader, MadePrefixes, SessionTable
from .token_runs import CodeTable, Segments

BURSTGPT_COLUMNS: Final = ("Timestamp", "Request tokens", "Response tokens")
AZURE_COLUMNS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_SESSION: Final = "Session ID"


@final
class LengthReader(LogReader):
    """A record is a row; the three columns are its time, and the lengths of prompt and answer."""

    __slots__ = ("_columns", "_made", "_sessions", "_first_time", "_num_empty")

    def __init__(self, options: LogOptions, columns: tuple[str, str, str]) -> None:
        self._columns: Final = columns
        self._made: Final = MadePrefixes(options.shared_prefix, CodeTable())
        self._sessions: Final = SessionTable()
        self._first_time: float | None = None
        self._num_empty = 0

    def requests_of(self, record: dict[str, Any], first_id: int) -> list[Request]:
        time_column, input_column, output_column = self._columns
        arrival_ms = self._to_milliseconds(required(record, time_column), time_column)
        input_tokens = _to_count(required(record, input_column), input_column)
        output_tokens = _to_count(required(record, output_column), output_column)
        if input_tokens == 0:
            self._num_empty += 1
            return []
        session = record.get(_SESSION)
        if session == "":
            session = None
        prompt = self._made.make_prompt(first_id, input_tokens)
        context = None if session is None else self._sessions.context(session)
        if context is not None and input_tokens > context.num_tokens:
            # A turn's prompt has those before it.
            prompt = self._made.make_prompt(first_id, input_tokens - context.num_tokens)
            whole = Segments(context.codes, context.lengths)
            whole.extend(Segments(prompt.codes[-1:], [prompt.num_tokens]))
            prompt = whole
        return [self._sessions.make_request(session, first_id, arrival_ms, prompt, output_tokens)]

    def notes(self) -> list[str]:
        notes = [self._made.describe()]
        if self._num_empty > 0:
            notes.append(f"{self._num_empty} rows without prompt tokens were left out")
        return notes

    def _to_milliseconds(self, text: Any, column: str) -> float:
        """From the first row's time on; numbers are seconds."""
        try:
            seconds = time_of(float(text), column, "seconds")
        except ValueError as error:
            if isinstance(error, LineError):
                raise
            try:
                moment = datetime.fromisoformat(text.strip())
            except ValueError:
                raise LineError(f"{column} is {shown(text)}, not a number of seconds or a date and time") from None
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=timezone.utc)
            seconds = moment.timestamp()
        if self._first_time is None:
            self._first_time = seconds
        return max(seconds - self._first_time, 0.0) * 1000.0


def _to_count(text: Any, column: str) -> int:
    value = text.strip() if isinstance(text, str) else ""
    if value.endswith(".0"):
        value = value[:-2]
    if not (value.isascii() and value.isdigit() and len(value) <= 9):
        raise LineError(f"{column} is {shown(text)}, not a number of tokens")
    return int(value)
