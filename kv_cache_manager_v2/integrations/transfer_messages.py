"""Messages between two `TransferAgent`s: what each of them has, and how what a peer says is read."""

import hmac
import json
from typing import Any, Final

from . import page_offer

MAX_SHOWN: Final = 200
"""Characters of a peer's text that are kept."""


def encode_message(kind: str, number: str, secret: str, **fields: object) -> bytes:
    message = {"format": page_offer.FORMAT, "kind": kind, "number": number, "secret": secret, **fields}
    return json.dumps(message, separators=(",", ":")).encode()


def require_secret(expected: str, secret: str) -> None:
    if not isinstance(secret, str) or not hmac.compare_digest(expected.encode(), secret.encode()):
        raise ValueError("it has not the secret of what it is about")


def to_reason(message: dict[str, Any]) -> str:
    """What a peer gives as its reason; it is another machine's text, so no more than a line of it is kept."""
    return repr(str(message["why"]))[1:-1][:MAX_SHOWN]


def to_span(span: Any) -> tuple[int, str, int, int]:
    layer, role, first, end, _checksum = span
    return int(layer), str(role), int(first), int(end)
