"""The kind of a file that should have been one JSON object, in a few words for a message."""

import json
from typing import Final

from .binary_content import describe_binary

_HEAD_BYTES: Final = 1024


def describe_no_json(data: bytes, error: Exception) -> str:
    """``error``: why it could not be read as JSON."""
    what = describe_binary(data[:_HEAD_BYTES])
    if what is not None:
        return f"not JSON but {what}"
    if _is_json_lines(data):
        return "not JSON but JSON lines, as a log of requests has, which kvcm replay and kvcm convert read"
    return f"not JSON ({error})"


def _is_json_lines(data: bytes) -> bool:
    lines = data.lstrip().split(b"\n", 1)
    if len(lines) < 2:
        return False
    try:
        return isinstance(json.loads(lines[0]), dict)
    except (ValueError, RecursionError):
        return False
