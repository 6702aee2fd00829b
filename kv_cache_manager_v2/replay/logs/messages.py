"""Chat messages as one text: role and content of each, in their order. No model's template: what they share stays the same."""

from typing import Any

from .log_error import LineError, object_of, shown


def text_of_message(message: Any, name: str = "a message") -> str:
    """Role, content and tool calls of one message."""
    fields = object_of(message, name)
    content = fields.get("content")
    parts = [f"<{fields.get('role', '')}>"]
    if isinstance(content, str):
        parts.append(content)
    elif isinstance(content, list):
        for part in content:
            text = part.get("text") if isinstance(part, dict) else part
            # Images and the like have no text; their kind stands for them.
            parts.append(text if isinstance(text, str) else f"<{part.get('type') if isinstance(part, dict) else part}>")
    elif content is not None:
        raise LineError(f"content is {shown(content)}, not a string or a list")
    if fields.get("tool_calls") is not None:
        parts.append(str(fields["tool_calls"]))
    return "".join(parts) + "\n"


def text_of_messages(messages: list[Any]) -> str:
    if len(messages) == 0:
        raise LineError("messages is empty")
    return "".join([text_of_message(message) for message in messages])
