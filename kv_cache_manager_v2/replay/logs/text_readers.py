"""Logs of texts and tokens: ShareGPT conversations, OpenAI batches, vLLM's custom prompts, lists of token ids."""

from typing import Any, Final, final

from mypy_extensions import mypyc_attr

from ..workload import Request
from .log_error import LineError, count_of, list_of, object_of, required, shown, text_of, time_of
from .log_reader import LogOptions, LogReader, SessionTable
from .messages import text_of_message, text_of_messages
from .token_runs import Segments, TextCoder

_ANSWERERS: Final = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
CONVERSATION_FIELDS: Final = ("conversations", "conversation", "items")
MAX_TOKEN_ID: Final = (1 << 62) - 1
TOKEN_FIELDS: Final = ("prompt_token_ids", "token_ids", "input_ids", "tokens")
_LENGTH_FIELDS: Final = ("output_length", "output_tokens", "max_completion_tokens", "max_tokens", "max_output_tokens")


@final
@mypyc_attr(native_class=True)
class ShareGptReader(LogReader):
    """A record is a conversation: each answer in it is a request, whose prompt is all before it."""

    __slots__ = ("_options", "_coder", "_sessions", "_num_empty")

    def __init__(self, options: LogOptions) -> None:
        self._options: Final = options
        self._coder: Final[TextCoder] = options.make_coder()
        self._sessions: Final = SessionTable()
        self._num_empty = 0

    def requests_of(self, record: dict[str, Any], first_id: int) -> list[Request]:
        turns = list_of(required(record, *CONVERSATION_FIELDS), "conversations")
        prompts: list[Segments] = []
        answers: list[int] = []
        pending: list[str] = []
        for position, turn in enumerate(turns):
            name = f"turn {position}"
            fields = object_of(turn, name)
            role = required(fields, "from", "role", "user")
            value = fields.get("value", fields.get("content", fields.get("text")))
            text = text_of(value, f"value of {name}")
            if isinstance(role, str) and role.lower() in _ANSWERERS and len(pending) > 0:
                prompts.append(self._coder.segments_of_text("".join(pending)))
                answers.append(max(self._coder.count(text), 1))
                pending = []
            else:
                pending.append(f"<{role}>{text}\n")
        if len(prompts) == 0:
            self._num_empty += 1
        requests: list[Request] = []
        for position, prompt in enumerate(prompts):
            if position > 0:
                before = self._sessions.context(first_id)
                assert before is not None
                whole = Segments(before.codes, before.lengths)
                whole.extend(prompt)
                prompt = whole
            requests.append(self._sessions.make_request(first_id, first_id + position, 0.0, prompt, answers[position]))
        return requests

    def notes(self) -> list[str]:
        notes = [self._options.describe_tokens()]
        if self._num_empty > 0:
            notes.append(f"{self._num_empty} conversations without an answer were left out")
        return notes


@final
@mypyc_attr(native_class=True)
class PromptReader(LogReader):
    """A record is one prompt: text, messages or tokens, in it or in its `body` or `params`."""

    __slots__ = ("_options", "_coder", "_sessions", "_assumed", "_has_text", "_has_limits")

    def __init__(self, options: LogOptions) -> None:
        self._options: Final = options
        self._coder: Final[TextCoder] = options.make_coder()
        self._sessions: Final = SessionTable()
        self._assumed = 0
        self._has_text = False
        self._has_limits = False

    def requests_of(self, record: dict[str, Any], first_id: int) -> list[Request]:
        fields = record
        if record.get("body") is not None:
            fields = object_of(record["body"], "body")
        prompt = self._read_prompt(fields)
        if prompt.num_tokens == 0:
            raise LineError("the prompt is empty")
        arrival_ms = 0.0
        if record.get("timestamp") is not None:
            arrival_ms = time_of(record["timestamp"], "timestamp")
        return [self._sessions.make_request(None, first_id, arrival_ms, prompt, self._num_output_tokens(fields))]

    def notes(self) -> list[str]:
        notes: list[str] = []
        if self._has_text:
            notes.append(self._options.describe_tokens())
        if self._has_limits:
            notes.append("answers are as long as the requests allow (max_tokens)")
        if self._assumed > 0:
            notes.append(f"{self._assumed} answers of unknown length count {self._options.output_tokens} tokens (--output-tokens)")
        return notes

    def _read_prompt(self, fields: dict[str, Any]) -> Segments:
        for name in (*TOKEN_FIELDS, "prompt", "input"):
            tokens = fields.get(name)
            if isinstance(tokens, list) and (name in TOKEN_FIELDS or len(tokens) > 0 and type(tokens[0]) is int):
                for position, token in enumerate(tokens):
                    if type(token) is not int or not -MAX_TOKEN_ID <= token <= MAX_TOKEN_ID:
                        raise LineError(f"{name}[{position}] is {shown(token)}, not a token id: an int from -(2**62 - 1) to 2**62 - 1")
                return self._coder.segments_of_tokens(tokens)
        self._has_text = True
        if fields.get("messages") is not None:
            return self._coder.segments_of_text(text_of_messages(list_of(fields["messages"], "messages")))
        prompt = required(fields, "prompt", "input", "messages", *TOKEN_FIELDS)
        if isinstance(prompt, list):
            return self._coder.segments_of_text(
                "".join([part if isinstance(part, str) else text_of_message(part, "an item of prompt") for part in prompt])
            )
        return self._coder.segments_of_text(text_of(prompt, "prompt"))

    def _num_output_tokens(self, fields: dict[str, Any]) -> int:
        for name in _LENGTH_FIELDS:
            if fields.get(name) is not None:
                self._has_limits = self._has_limits or name.startswith("max_")
                return count_of(fields[name], name, 0)
        answer = fields.get("completion", fields.get("response"))
        if isinstance(answer, str):
            self._has_text = True
            return max(self._coder.count(answer), 1)
        tokens = fields.get("output_token_ids")
        if isinstance(tokens, list):
            return len(tokens)
        self._assumed += 1
        return self._options.output_tokens
