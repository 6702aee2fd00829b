"""KV events as values: what `KVCacheEventManager.get_latest_events` returns. Shapes and names are TensorRT-LLM's.

Each event is about one layer group. `to_json` gives the form that TensorRT-LLM's consumers read, and three additions: why a
block was removed, how many events were dropped before this one, and the salt of its reuse scope.
"""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from typing import Any, Final, final


from ..base.ids import TokenIdExt
from ..base.value import Value
from .block_digest import BlockHash


@final
class KVCacheEventDiff(Value):
    """An old and a new value."""

    __slots__ = ("old_value", "new_value")

    def __init__(self, old_value: int, new_value: int) -> None:
        self.old_value: Final[int] = old_value
        self.new_value: Final[int] = new_value

    def __repr__(self) -> str:
        return f"{self.old_value} -> {self.new_value}"

    def to_json(self) -> dict[str, Any]:
        """As plain values, in TensorRT-LLM's form."""
        return {"type": "event_diff", "new_value": self.new_value, "old_value": self.old_value}


class KVCacheEventData(Value, metaclass=ABCMeta):
    """The content of an event: one of the four classes below."""

    __slots__ = ()

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """As plain values, in TensorRT-LLM's form."""
        raise NotImplementedError("KVCacheEventData.to_json is for subclasses to define")

    def __repr__(self) -> str:
        fields = ", ".join([f"{name}={value!r}" for name, value in self.to_json().items() if name != "type"])
        return f"{type(self).__name__}({fields})"


@final
class KVCacheCreatedData(KVCacheEventData):
    """The blocks that each cache level could hold for this layer group, if it had the level to itself.

    The first event of a group, and once more whenever a level gets another size.
    """

    __slots__ = ("num_blocks_per_cache_level",)

    def __init__(self, num_blocks_per_cache_level: list[int]) -> None:
        self.num_blocks_per_cache_level: Final[list[int]] = num_blocks_per_cache_level

    def to_json(self) -> dict[str, Any]:
        return {"type": "created", "num_blocks_per_cache_level": list(self.num_blocks_per_cache_level)}


@final
class KVCacheStoredBlockData(Value):
    """A block that can be reused from now on: its hash, its tokens, and the level and priority of its page."""

    __slots__ = ("block_hash", "tokens", "cache_level", "priority")

    def __init__(self, block_hash: BlockHash, tokens: list[TokenIdExt], cache_level: int, priority: int) -> None:
        self.block_hash: Final[BlockHash] = block_hash
        self.tokens: Final[list[TokenIdExt]] = tokens
        """Token ids, and bytes for multimodal digests."""
        self.cache_level: Final[int] = cache_level
        self.priority: Final[int] = priority

    def __repr__(self) -> str:
        return (
            f"KVCacheStoredBlockData(block_hash={self.block_hash!r}, tokens={self.tokens}, cache_level={self.cache_level}, "
            f"priority={self.priority})"
        )

    def to_json(self) -> dict[str, Any]:
        """As plain values, in TensorRT-LLM's form."""
        tokens = [
            {"type": "unique_token", "token_id": token if isinstance(token, int) else token.hex(), "token_extra_id": 0}
            for token in self.tokens
        ]
        return {
            "type": "stored_block",
            "block_hash": self.block_hash,
            "tokens": tokens,
            "cache_level": self.cache_level,
            "priority": self.priority,
        }


@final
class KVCacheStoredData(KVCacheEventData):
    """Blocks of one path, each the parent of the next. ``parent_hash``: the first block's parent; None: the first block is at a root."""

    __slots__ = ("parent_hash", "blocks", "lora_id", "salt")

    def __init__(
        self, parent_hash: BlockHash | None, blocks: list[KVCacheStoredBlockData], lora_id: int | None = None, salt: int | str | None = None
    ) -> None:
        self.parent_hash: Final[BlockHash | None] = parent_hash
        self.blocks: Final[list[KVCacheStoredBlockData]] = blocks
        self.lora_id: Final[int | None] = lora_id
        self.salt: Final[int | str | None] = salt
        """Both of the reuse scope, and part of the hash."""

    def __repr__(self) -> str:
        scope = "".join([f", {name}={value!r}" for name, value in (("lora_id", self.lora_id), ("salt", self.salt)) if value is not None])
        return f"KVCacheStoredData(parent_hash={self.parent_hash!r}, blocks={self.blocks}{scope})"

    def to_json(self) -> dict[str, Any]:
        found: dict[str, Any] = {"type": "stored", "parent_hash": self.parent_hash, "blocks": [block.to_json() for block in self.blocks]}
        if self.lora_id is not None:
            found["lora_id"] = self.lora_id
        if self.salt is not None:
            found["cache_salt"] = str(self.salt)
        return found


@final
class KVCacheRemovedData(KVCacheEventData):
    """Blocks that can no longer be reused, and why: a name of `CAUSE_NAMES`."""

    __slots__ = ("block_hashes", "reason")

    def __init__(self, block_hashes: list[BlockHash], reason: str) -> None:
        self.block_hashes: Final[list[BlockHash]] = block_hashes
        self.reason: Final[str] = reason

    def to_json(self) -> dict[str, Any]:
        return {"type": "removed", "block_hashes": list(self.block_hashes), "reason": self.reason}


@final
class KVCacheUpdatedData(KVCacheEventData):
    """A stored block's page is on another cache level, or has another priority; None if unchanged."""

    __slots__ = ("block_hash", "cache_level", "priority")

    def __init__(self, block_hash: BlockHash, cache_level: KVCacheEventDiff | None, priority: KVCacheEventDiff | None) -> None:
        self.block_hash: Final[BlockHash] = block_hash
        self.cache_level: Final[KVCacheEventDiff | None] = cache_level
        self.priority: Final[KVCacheEventDiff | None] = priority

    def to_json(self) -> dict[str, Any]:
        return {
            "type": "updated",
            "block_hash": self.block_hash,
            "cache_level": None if self.cache_level is None else self.cache_level.to_json(),
            "priority": None if self.priority is None else self.priority.to_json(),
        }


@final
class KVCacheEvent(Value):
    """One change of one layer group's published blocks. ``event_id`` grows by one from event to event, dropped ones included."""

    __slots__ = (
        "event_id", "data", "window_size", "layer_group_id", "num_dropped", "attention_dp_rank", "hash_algo"
    )  # fmt: skip

    def __init__(
        self,
        event_id: int,
        data: KVCacheEventData,
        window_size: int | None,
        layer_group_id: int,
        num_dropped: int = 0,
        attention_dp_rank: int | None = None,
        hash_algo: str = "sha256",
    ) -> None:
        self.event_id: Final[int] = event_id
        self.data: Final[KVCacheEventData] = data
        self.window_size: Final[int | None] = window_size
        """Of the layer group; None for full attention."""
        self.layer_group_id: Final[int] = layer_group_id
        self.num_dropped: Final[int] = num_dropped
        """The number of events dropped directly before this one because the buffer was full."""
        self.attention_dp_rank: Final[int | None] = attention_dp_rank
        self.hash_algo: Final[str] = hash_algo

    def __repr__(self) -> str:
        dropped = f", num_dropped={self.num_dropped}" if self.num_dropped > 0 else ""
        return f"KVCacheEvent({self.event_id}, {self.data!r}, window_size={self.window_size}, " + (
            f"layer_group_id={self.layer_group_id}{dropped})"
        )

    def to_json(self) -> dict[str, Any]:
        """As plain values, in TensorRT-LLM's form."""
        found: dict[str, Any] = {
            "event_id": self.event_id,
            "data": self.data.to_json(),
            "window_size": self.window_size,
            "hash_algo": self.hash_algo,
            "layer_group_id": self.layer_group_id,
        }
        if self.num_dropped > 0:
            found["num_dropped"] = self.num_dropped
        if self.attention_dp_rank is not None:
            found["attention_dp_rank"] = self.attention_dp_rank
        return found
