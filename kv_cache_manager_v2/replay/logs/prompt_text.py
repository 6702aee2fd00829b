"""The prompt of a request as one text, for every API: chat, completions, responses, Anthropic's messages, embeddings.

Instructions and tools come first, then the messages: of each one its role and whatever else it has, as tool calls, results and reasoning.
No model's template: what two requests share stays the same. Images, sound and files are no text: a short stand-in, which differs where they
differ, is in their place. They and every field that is not known are counted, for the report to say.
"""

import json
import zlib
from typing import Any, Final, final


from .log_error import LineError, object_of, shown

ANSWERERS: Final = ("gpt", "assistant", "chatgpt", "bing", "bard", "model")
_BEFORE: Final = ("system", "instructions", "instruction", "tools", "functions", "response_format", "text", "output_config", "documents")
"""Fields of a request that come before its messages, in this order; ``text`` is the Responses API's format of the answer."""
_NO_TEXT: Final = frozenset(
    ("image", "image_url", "input_image", "image_file", "audio", "audio_url", "input_audio", "video", "video_url", "file", "input_file",
     "document", "computer_screenshot")
)  # fmt: skip
_OF_PARTS: Final = ("type", "cache_control", "role", "id", "status")
"""Fields of a message or a part that are no text of it."""
_SEALED: Final = ("signature", "encrypted_content")
"""Fields of reasoning that only its model can read."""
_MAX_NAMES: Final = 12
_SETTINGS: Final = frozenset(
    ("model", "max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "n",
     "best_of", "stop", "stop_sequences", "stop_token_ids", "seed", "stream", "stream_options", "user", "metadata", "logprobs",
     "top_logprobs", "prompt_logprobs", "logit_bias", "presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos", "echo",
     "tool_choice", "parallel_tool_calls", "store", "service_tier", "encoding_format", "dimensions", "reasoning_effort", "modalities",
     "truncation", "include", "background", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "verbosity", "priority",
     "cache_salt", "timestamp", "id", "custom_id", "method", "url", "request_id", "session_id", "created", "created_at", "object", "usage",
     "usageDetails", "usage_details", "completion", "response", "output", "answer", "output_length", "output_tokens", "output_token_ids",
     "completion_tokens", "prompt_tokens", "total_tokens", "message_mode", "delay", "input_length", "startTime", "endTime", "type", "name")
)  # fmt: skip
"""Fields of a request or of its record that say how it is answered, or what came of it."""


@final
class PromptText:
    """Makes the texts of a log's requests, and counts what is left out."""

    __slots__ = ("_left_out",)

    def __init__(self) -> None:
        self._left_out: Final[dict[str, int]] = {}

    def of_request(self, fields: dict[str, Any], messages: object) -> str:
        """``messages``: the request's own, in whichever field; a list, or a text."""
        parts = [f"<{name}>{self._text(fields[name], name)}\n" for name in _BEFORE if fields.get(name) not in (None, "", [])]
        parts.append(messages if isinstance(messages, str) else self.of_messages(messages))
        if isinstance(fields.get("suffix"), str):
            parts.append(f"<suffix>{fields['suffix']}")
        for name, value in fields.items():
            is_text = isinstance(value, (str, list, dict)) and len(value) > 0
            if is_text and name not in _BEFORE and name not in _SETTINGS and name not in ("messages", "prompt", "input", "suffix"):
                self.leave_out(name)
        return "".join(parts)

    def of_messages(self, messages: object) -> str:
        if not isinstance(messages, list):
            raise LineError(f"messages is {shown(messages)}, not a list or a string")
        if len(messages) == 0:
            raise LineError("messages is empty")
        return "".join([one if isinstance(one, str) else self.of_message(one) for one in messages])

    def of_message(self, message: object) -> str:
        fields = object_of(message, "a message")
        content = fields.get("content")
        if not (content is None or isinstance(content, (str, list))):
            raise LineError(f"content is {shown(content)}, not a string or a list")
        return f"<{fields.get('role', fields.get('type', ''))}>{self._parts(fields)}\n"

    def of_media(self, record: dict[str, Any], names: list[str]) -> str:
        """A stand-in for each of these fields."""
        for name in names:
            self.leave_out(name)
        return "".join([f"<{name} {zlib.crc32(json.dumps(record[name]).encode()):08x}>" for name in names])

    def leave_out(self, name: str) -> None:
        """Count a field of which the text has nothing."""
        self._left_out[name] = self._left_out.get(name, 0) + 1

    def note(self) -> list[str]:
        """What was left out, and of how many requests or messages; nothing if all is there."""
        names = [f"{name} ({count})" for name, count in sorted(self._left_out.items())]
        if len(names) > _MAX_NAMES:
            names = [*names[:_MAX_NAMES], f"and {len(names) - _MAX_NAMES} more fields"]
        return [f"left out, as it has no text or is not known, with how often: {', '.join(names)}"] if len(names) > 0 else []

    def _text(self, value: object, name: str) -> str:
        if isinstance(value, str):
            if not value.startswith("data:"):
                return value
            self.leave_out(name)
            return f"<{name} {zlib.crc32(value.encode('utf-8', 'surrogatepass')):08x}>"
        if isinstance(value, dict) and isinstance(value.get("type"), str):
            return self._part(value)
        if isinstance(value, list):
            return "".join([self._text(item, name) for item in value])
        return json.dumps(value)

    def _part(self, part: dict[str, Any]) -> str:
        kind = part["type"]
        if kind not in _NO_TEXT:
            return self._parts(part)
        self.leave_out(kind)
        return f"<{kind} {zlib.crc32(json.dumps(part).encode()):08x}>"

    def _parts(self, fields: dict[str, Any]) -> str:
        parts: list[str] = []
        for name, value in fields.items():
            if name in _SEALED and value is not None:
                self.leave_out(name)
            elif name not in _OF_PARTS and value is not None:
                parts.append(self._text(value, name))
        return "".join(parts)


def split_answer(messages: list[Any]) -> tuple[list[Any], object]:
    """The messages, and the last one apart where the assistant wrote it: it is the answer. None where there is no such one."""
    last = messages[-1] if len(messages) > 1 else None
    if isinstance(last, dict) and last.get("role") in ANSWERERS:
        return messages[:-1], last
    return messages, None
