"""AIPerf's inputs: variants of Mooncake's format (sessions with delays, texts, messages, lengths alone), single and multi turn.

Rows of one `session_id` are turns. A row with `messages` (unless `message_mode` is "delta") or of `kvcm convert` has its whole prompt;
a row with `hash_ids` too, if it begins with the same id as the turn before; any other continues it: prompt, answer, and what the row has.
"""

from typing import Any, Final, final


from ..workload import Request
from .hash_readers import MOONCAKE_BLOCK_TOKENS, PROMPTS_ONLY, IdTable, block_tokens_of, lengths_of_blocks
from .log_error import LineError, count_of, list_of, object_of, required, shown, text_of, time_of
from .log_reader import LogOptions, LogReader, MadePrefixes, SessionTable
from .prompt_text import PromptText, split_answer
from .token_runs import Segments, TextCoder

_TEXTS: Final = ("text_input", "text", "texts")
_MEDIA: Final = ("image", "images", "audio", "audios", "video", "videos")
AIPERF_CONTENT: Final = ("hash_ids", *_TEXTS, "turns", "messages", "input_length")


@final
class AiperfReader(LogReader):
    """See the module."""

    __slots__ = (
        "_options", "_coder", "_ids", "_sessions", "_made", "_has_text", "_has_made", "_assumed", "_first_ids", "_has_whole_ids", "_text",
    )  # fmt: skip

    def __init__(self, options: LogOptions) -> None:
        self._options: Final = options
        self._coder: Final[TextCoder] = options.make_coder()
        self._ids: Final = IdTable(True, self._coder.table)
        self._sessions: Final = SessionTable()
        self._made: Final = MadePrefixes(options.shared_prefix, self._coder.table)
        self._has_text = False
        self._has_made = False
        self._has_whole_ids = False
        self._text: Final = PromptText()
        self._assumed = 0
        self._first_ids: Final[dict[object, Any]] = {}

    def requests_of(self, record: dict[str, Any], first_id: int) -> list[Request]:
        session = record.get("session_id")
        if session is not None and type(session) not in (int, str):
            raise LineError(f"session_id is {shown(session)}, not an int or a string")
        if record.get("turns") is None:
            return [self._turn(record, session, first_id)]
        # A file of whole conversations: each one's turns follow each other.
        turns = list_of(record["turns"], "turns")
        own = ("turns", first_id) if session is None else session
        return [self._turn(object_of(turn, "a turn"), own, first_id + number) for number, turn in enumerate(turns)]

    def _turn(self, record: dict[str, Any], session: object, first_id: int) -> Request:
        context = None if session is None else self._sessions.context(session)
        arrival_ms = self._sessions.arrival_ms(session)
        if record.get("timestamp") is not None:
            arrival_ms = time_of(record["timestamp"], "timestamp")
        delay_ms = 0.0
        if record.get("delay") is not None:
            delay_ms = time_of(record["delay"], "delay")
        prompt, is_whole, answer = self._read_prompt(record, session, first_id)
        given = record.get("output_length")
        if given is not None:
            output_tokens = count_of(given, "output_length", 0)
        elif answer is not None:
            output_tokens = max(self._coder.count(self._text.of_message(answer)), 1)
        else:
            self._assumed += 1
            output_tokens = self._options.output_tokens
        if context is not None and not is_whole:
            whole = Segments(context.codes, context.lengths)
            whole.extend(prompt)
            prompt = whole
        return self._sessions.make_request(session, first_id, arrival_ms, prompt, output_tokens, delay_ms)

    def notes(self) -> list[str]:
        notes = [PROMPTS_ONLY] if self._has_whole_ids else []
        notes.extend(self._text.note())
        if self._has_text:
            notes.append(self._options.describe_tokens())
        if self._has_made:
            notes.append(self._made.describe())
        if self._assumed > 0:
            notes.append(f"{self._assumed} answers of unknown length count {self._options.output_tokens} tokens (--output-tokens)")
        return notes

    def _read_prompt(self, record: dict[str, Any], session: object, number: int) -> tuple[Segments, bool, object]:
        """What the row has, whether that is the whole prompt, and the answer where it is there."""
        if record.get("messages") is not None:
            self._has_text = True
            messages, answer = split_answer(list_of(record["messages"], "messages"))
            return self._encode(self._text.of_request(record, messages), "messages"), record.get("message_mode") != "delta", answer
        for name in _TEXTS:
            if record.get(name) is not None:
                self._has_text = True
                media = [value for value in record if value in _MEDIA and record[value]]
                return self._encode(_join_texts(record[name], name) + self._text.of_media(record, media), name), False, None
        if record.get("input_length") is None:
            raise LineError(f"no {', '.join(AIPERF_CONTENT[:-1])} or {AIPERF_CONTENT[-1]}; it has {shown(', '.join(sorted(record)))}")
        input_tokens = count_of(required(record, "input_length"), "input_length", 1)
        if record.get("hash_ids") is None:
            self._has_made = True
            return self._made.make_prompt(number, input_tokens), False, None
        hash_ids = list_of(record["hash_ids"], "hash_ids")
        block_tokens = block_tokens_of(record, self._options.block_tokens or MOONCAKE_BLOCK_TOKENS)
        lengths = lengths_of_blocks(input_tokens, len(hash_ids), block_tokens)
        codes = self._ids.codes_of(hash_ids)
        is_whole = record.get("block_tokens") is not None or self._first_ids.get(session) == hash_ids[0]
        self._has_whole_ids = self._has_whole_ids or is_whole
        if session is not None:
            self._first_ids.setdefault(session, hash_ids[0])
        return Segments(codes, lengths), is_whole, None

    def _encode(self, text: str, name: str) -> Segments:
        if text == "":
            raise LineError(f"{name} is empty")
        return self._coder.segments_of_text(text)


def _join_texts(value: Any, name: str) -> str:
    """A text, a list of texts, or of objects with ``contents``."""
    if not isinstance(value, list):
        return text_of(value, name)
    parts = [list_of(required(item, "contents"), "contents") if isinstance(item, dict) else [item] for item in value]
    return "\n".join([text_of(text, name) for part in parts for text in part])
