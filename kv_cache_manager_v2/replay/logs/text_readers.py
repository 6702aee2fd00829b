"""Logs of texts and tokens: ShareGPT conversations, batches of APIs, observations of proxies, vLLM's custom prompts, token ids."""

from typing import Any, Final, final


from ..workload import Request
from .log_error import LineError, count_of, list_of, object_of, required, shown, text_of, time_of
from .log_reader import LogOptions, LogReader, SessionTable
from .prompt_text import ANSWERERS, PromptText, split_answer
from .token_runs import Segments, TextCoder

CONVERSATION_FIELDS: Final = ("conversations", "conversation", "items")
MAX_TOKEN_ID: Final = (1 << 62) - 1
TOKEN_FIELDS: Final = ("prompt_token_ids", "token_ids", "input_ids", "tokens")
ENVELOPES: Final = ("body", "params")
"""Of a batch of OpenAI's and of Anthropic's API."""
_LENGTH_FIELDS: Final = ("output_length", "output_tokens", "completion_tokens")
_USAGE_FIELDS: Final = ("usage", "usageDetails", "usage_details")
_ANSWER_FIELDS: Final = ("completion", "response", "output", "answer")
_LIMIT_FIELDS: Final = ("max_completion_tokens", "max_tokens", "max_output_tokens")


@final
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
            if isinstance(role, str) and role.lower() in ANSWERERS and len(pending) > 0:
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
class PromptReader(LogReader):
    """A record is a call of an API: its prompts, as text, messages or tokens, are in it or in its `body`, `params` or `input`."""

    __slots__ = ("_options", "_coder", "_sessions", "_text", "_assumed", "_has_text", "_has_limits")

    def __init__(self, options: LogOptions) -> None:
        self._options: Final = options
        self._coder: Final[TextCoder] = options.make_coder()
        self._sessions: Final = SessionTable()
        self._text: Final = PromptText()
        self._assumed = 0
        self._has_text = False
        self._has_limits = False

    def requests_of(self, record: dict[str, Any], first_id: int) -> list[Request]:
        fields = record
        for name in ENVELOPES:
            if record.get(name) is not None:
                fields = object_of(record[name], name)
        has_envelope = fields is not record
        if isinstance(fields.get("input"), dict):
            fields = fields["input"]
        answer = next((record[name] for name in _ANSWER_FIELDS if record.get(name) is not None), None)
        if isinstance(fields.get("messages"), list) and not has_envelope:
            # What is in an envelope was sent: an assistant's message at its end is for the model to continue.
            messages, last = split_answer(fields["messages"])
            fields = {**fields, "messages": messages}
            answer = last if last is not None else answer
        arrival_ms = 0.0
        if record.get("timestamp") is not None:
            arrival_ms = time_of(record["timestamp"], "timestamp")
        requests: list[Request] = []
        for prompt in self._read_prompts(fields):
            if prompt.num_tokens == 0:
                raise LineError("the prompt is empty")
            num_output_tokens = self._num_output_tokens(record, fields, answer)
            requests.append(self._sessions.make_request(None, first_id + len(requests), arrival_ms, prompt, num_output_tokens))
        return requests

    def notes(self) -> list[str]:
        notes = self._text.note()
        if self._has_text:
            notes.append(self._options.describe_tokens())
        if self._has_limits:
            notes.append("answers are as long as the requests allow (max_tokens)")
        if self._assumed > 0:
            notes.append(f"{self._assumed} answers of unknown length count {self._options.output_tokens} tokens (--output-tokens)")
        return notes

    def _read_prompts(self, fields: dict[str, Any]) -> list[Segments]:
        """One, or several of a list of texts or of lists of tokens, which are prompts of their own."""
        for name in (*TOKEN_FIELDS, "prompt", "input"):
            tokens = fields.get(name)
            if isinstance(tokens, list) and (name in TOKEN_FIELDS or len(tokens) > 0 and type(tokens[0]) is int):
                return [self._read_tokens(tokens, name)]
            if isinstance(tokens, list) and len(tokens) > 0 and isinstance(tokens[0], list):
                return [self._read_tokens(list_of(one, name), name) for one in tokens]
        self._has_text = True
        if isinstance(fields.get("prompt"), dict):
            # The Responses API's name of a text that its server has.
            self._text.leave_out("prompt")
            fields = {name: value for name, value in fields.items() if name != "prompt"}
        found = required(fields, "messages", "prompt", "input", *TOKEN_FIELDS)
        is_several = isinstance(found, list) and all([isinstance(one, str) for one in found]) and len(found) > 0
        texts = [self._text.of_request(fields, one) for one in (found if is_several else [found])]
        return [self._coder.segments_of_text(text) for text in texts]

    def _read_tokens(self, tokens: list[Any], name: str) -> Segments:
        for position, token in enumerate(tokens):
            if type(token) is not int or not -MAX_TOKEN_ID <= token <= MAX_TOKEN_ID:
                raise LineError(f"{name}[{position}] is {shown(token)}, not a token id: an int from -(2**62 - 1) to 2**62 - 1")
        return self._coder.segments_of_tokens(tokens)

    def _num_output_tokens(self, record: dict[str, Any], fields: dict[str, Any], answer: object) -> int:
        """What was counted, or else the answer that is there, or else what the request allows."""
        places = [fields, record, *[place[name] for place in (record, answer) if isinstance(place, dict) for name in _USAGE_FIELDS
            if isinstance(place.get(name), dict)]]  # fmt: skip
        for place in places:
            for name in _LENGTH_FIELDS if place is fields or place is record else (*_LENGTH_FIELDS, "output"):
                if place.get(name) is not None:
                    return count_of(place[name], name, 0)
        tokens = record.get("output_token_ids")
        if isinstance(tokens, list):
            return len(tokens)
        if isinstance(answer, dict) and isinstance(answer.get("choices"), list) and len(answer["choices"]) > 0:
            choice = object_of(answer["choices"][0], "a choice")
            answer = choice.get("message", choice.get("text"))
        if isinstance(answer, (str, dict)):
            self._has_text = True
            return max(self._coder.count(answer if isinstance(answer, str) else self._text.of_message(answer)), 1)
        if "encoding_format" in fields or "dimensions" in fields or str(record.get("url")).endswith("/embeddings"):
            return 0
        for name in _LIMIT_FIELDS:
            if fields.get(name) is not None:
                self._has_limits = True
                return count_of(fields[name], name, 0)
        self._assumed += 1
        return self._options.output_tokens
