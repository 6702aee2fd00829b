"""The three events of the wire form, as values.

A scope is told by ``lora_name`` and ``cache_salt``: routers hash both, so blocks of one tenant or adapter are no hits of another's.
Routers expect, per medium and layer group, one removal for each store. `hashes` are the first 8 bytes of the blocks' SHA-256.
"""

from __future__ import annotations

from typing import Final, final


from ..base.value import Value


ExtraKeys = list[list[str | tuple[str, int]] | None]
"""Per block the multimodal digests in it, as hex digits with their position in the block, or None. Other producers' may be bare texts."""


class WireEvent(Value):
    """Base of the three classes below."""

    __slots__ = ()


@final
class BlockStored(WireEvent):
    """Blocks of one path are on ``medium`` now: ``block_size`` tokens each; the parent of the first one is ``parent_hash``."""

    __slots__ = (
        "hashes", "parent_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group", "kind", "window",
        "cache_salt",
    )  # fmt: skip

    def __init__(
        self,
        hashes: list[int],
        parent_hash: int | None,
        token_ids: list[int],
        block_size: int,
        lora_id: int | None,
        medium: str | None,
        lora_name: str | None,
        extra_keys: list[list[str | tuple[str, int]] | None] | None = None,
        group: int | None = None,
        kind: str | None = None,
        window: int | None = None,
        cache_salt: str | None = None,
    ) -> None:
        self.hashes: Final[list[int]] = hashes
        self.parent_hash: Final[int | None] = parent_hash
        self.token_ids: Final[list[int]] = token_ids
        self.block_size: Final[int] = block_size
        self.lora_id: Final[int | None] = lora_id
        self.medium: Final[str | None] = medium
        self.lora_name: Final[str | None] = lora_name
        self.extra_keys: Final[list[list[str | tuple[str, int]] | None] | None] = extra_keys
        """None: no block has any."""
        self.group: Final[int | None] = group
        self.kind: Final[str | None] = kind
        self.window: Final[int | None] = window
        self.cache_salt: Final[str | None] = cache_salt
        """Of the scope; a salt that is a number is written in digits."""

    def __repr__(self) -> str:
        return f"BlockStored({self.hashes}, parent={self.parent_hash}, tokens={self.token_ids}, medium={self.medium}, group={self.group})"


@final
class BlockRemoved(WireEvent):
    """Blocks are no longer on ``medium``."""

    __slots__ = ("hashes", "medium", "group")

    def __init__(self, hashes: list[int], medium: str | None, group: int | None = None) -> None:
        self.hashes: Final[list[int]] = hashes
        self.medium: Final[str | None] = medium
        self.group: Final[int | None] = group

    def __repr__(self) -> str:
        return f"BlockRemoved({self.hashes}, medium={self.medium}, group={self.group})"


@final
class AllBlocksCleared(WireEvent):
    """All blocks are gone. The first event of every stream, so that consumers drop what they knew before a restart."""

    __slots__ = ()

    def _arguments(self) -> tuple[object, ...]:
        return ()
