"""Tokens of multimodal items: a digest that stands for the item's content, and ids that no prompt has."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, Final, SupportsIndex, final


from ...base.checks import to_count, to_text
from ...base.given import Given
from ...base.value import Value

MAX_UUIDS: Final = 65536
"""Identifiers that are remembered for events; beyond it the one that was given longest ago is forgotten."""


@final
class MmItemContext(Value):
    """A digest token with the item's identifier, which KV events repeat. Two with one digest are equal: matches go by content."""

    __slots__ = ("digest", "uuid")

    def __init__(self, digest: Given[bytes], uuid: Given[str | None] = None) -> None:
        self.digest: Final[bytes] = to_digest(digest, "digest")
        self.uuid: Final[str | None] = None if uuid is None else to_text(uuid, "uuid")

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, MmItemContext) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"MmItemContext(digest={self.digest!r}, uuid={self.uuid!r})"


def to_digest(digest: object, name: str) -> bytes:
    if not isinstance(digest, bytes):
        raise TypeError(f"{name} must be bytes, not {type(digest).__name__}")
    if len(digest) == 0:
        raise ValueError(f"{name} is empty")
    return digest


def gen_multimodal_cache_key_tokens(
    id_offset: SupportsIndex,
    multi_modal_data_digest: Given[bytes],
    num_tokens: SupportsIndex,
    token_offset: SupportsIndex = 0,
    uuid: Given[str | None] = None,
) -> list[Any]:
    """Tokens ``[token_offset, token_offset + num_tokens)`` of a multimodal item, for matching.

    Token 0 is the digest, or a `MmItemContext` with it where there is a ``uuid``; token ``i`` is the id ``id_offset + i``, which no
    prompt has if ``id_offset`` is the size of the vocabulary. So a long item is prefilled by the chunk. `ValueError` for no tokens,
    an empty digest, or ids of 2**31 and more.
    """
    offset = int(to_count(id_offset, "id_offset"))
    digest = to_digest(multi_modal_data_digest, "multi_modal_data_digest")
    count = int(to_count(num_tokens, "num_tokens"))
    first = int(to_count(token_offset, "token_offset"))
    name = None if uuid is None else to_text(uuid, "uuid")
    if count == 0:
        raise ValueError("num_tokens is 0; give at least one")
    if offset + first + count > 2**31:
        raise ValueError(f"id_offset {offset}, token_offset {first} and {count} tokens give ids of 2**31 and more; ids are under it")
    tokens: list[Any] = []
    position = first
    if position == 0:
        tokens.append(digest if name is None else MmItemContext(digest, name))
        position = 1
    tokens.extend(range(offset + position, offset + first + count))
    return tokens


@final
class ItemNames:
    """The identifiers of items by digest, as the engine last gave them; for the events of their blocks."""

    __slots__ = ("_uuids",)

    def __init__(self) -> None:
        self._uuids: Final[OrderedDict[bytes, str]] = OrderedDict()

    def record(self, item: MmItemContext) -> None:
        if item.uuid is None:
            return
        self._uuids[item.digest] = item.uuid
        self._uuids.move_to_end(item.digest)
        if len(self._uuids) > MAX_UUIDS:
            self._uuids.popitem(last=False)

    def find(self, digest: bytes) -> str | None:
        return self._uuids.get(digest)

    def to_plain_tokens(self, tokens: Any) -> Any:
        """The same tokens with a digest for each item, whose identifier is recorded."""
        if not isinstance(tokens, (list, tuple)):
            return tokens
        plain: list[Any] = []
        for token in tokens:
            if isinstance(token, MmItemContext):
                self.record(token)
                plain.append(token.digest)
            else:
                plain.append(token)
        return plain


def has_items(tokens: object) -> bool:
    """Whether some token is a `MmItemContext`."""
    if not isinstance(tokens, (list, tuple)):
        return False
    return MmItemContext in set(map(type, tokens))
