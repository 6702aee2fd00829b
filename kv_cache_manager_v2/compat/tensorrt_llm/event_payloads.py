"""KV events as TensorRT-LLM's serializer and its attention-DP ranks exchange them: values with its fields in its order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mypy_extensions import mypyc_attr

from ...base.checks import to_instance, to_int, to_text
from ...config.config_value import ConfigValue, given, to_tuple

EventBlockHash: TypeAlias = int | str
BlockHashLike: TypeAlias = EventBlockHash | bytes
BlockHashesLike: TypeAlias = BlockHashLike | Sequence[BlockHashLike]
EventTokenId: TypeAlias = int | str
MmKey: TypeAlias = tuple[bytes, int] | tuple[bytes, int, str | None]


def _take_hash(record: ConfigValue, field: str, may_be_none: bool = False) -> None:
    value = given(record, field)
    if isinstance(value, (str, bytes)) or (value is None and may_be_none):
        return
    name = f"{type(record).__name__}.{field}, unless a str or bytes{' or None' if may_be_none else ''},"
    object.__setattr__(record, field, to_int(value, name))


def _take_int(record: ConfigValue, field: str, may_be_none: bool = False) -> None:
    value = given(record, field)
    if value is not None or not may_be_none:
        object.__setattr__(record, field, to_int(value, f"{type(record).__name__}.{field}{' unless None,' if may_be_none else ''}"))


def _take_optional_text(record: ConfigValue, field: str) -> None:
    value = given(record, field)
    if value is not None:
        object.__setattr__(record, field, to_text(value, f"{type(record).__name__}.{field} unless None,"))


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class UniqueToken(ConfigValue):
    """A token id, or the hex digits of a multimodal digest."""

    token_id: EventTokenId
    token_extra_id: int = 0

    def __post_init__(self) -> None:
        if not isinstance(given(self, "token_id"), str):
            object.__setattr__(self, "token_id", to_int(given(self, "token_id"), "UniqueToken.token_id, unless a str,"))
        object.__setattr__(self, "token_extra_id", to_int(given(self, "token_extra_id"), "UniqueToken.token_extra_id"))


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class KVCacheCreatedData(ConfigValue):
    """How many blocks of a layer group each cache level has room for."""

    num_blocks_per_cache_level: Sequence[int]

    def __post_init__(self) -> None:
        counts = to_tuple(given(self, "num_blocks_per_cache_level"), "num_blocks_per_cache_level")
        listed = [to_int(count, "each of num_blocks_per_cache_level") for count in counts]
        object.__setattr__(self, "num_blocks_per_cache_level", listed)


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class KVCacheStoredBlockData(ConfigValue):
    """A block that can be reused: its name, its tokens, and where its page is.

    ``mm_keys``: for each run of tokens of a multimodal item in it the item's digest and the run's first token, counted from the item's
    beginning; with the item's identifier where there is one.
    """

    block_hash: EventBlockHash
    tokens: Sequence[UniqueToken]
    cache_level: int
    priority: int
    mm_keys: Sequence[MmKey] = ()
    cache_salt: str | None = None

    def __post_init__(self) -> None:
        _take_hash(self, "block_hash")
        _take_int(self, "cache_level")
        _take_int(self, "priority")
        _take_optional_text(self, "cache_salt")
        object.__setattr__(self, "tokens", list(to_tuple(given(self, "tokens"), "KVCacheStoredBlockData.tokens")))
        object.__setattr__(self, "mm_keys", list(to_tuple(given(self, "mm_keys"), "KVCacheStoredBlockData.mm_keys")))


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class KVCacheStoredData(ConfigValue):
    """Blocks of one path, each the next one's parent; ``parent_hash`` names the first one's, None where it begins a prompt."""

    parent_hash: EventBlockHash | None
    blocks: Sequence[KVCacheStoredBlockData]

    def __post_init__(self) -> None:
        _take_hash(self, "parent_hash", True)
        object.__setattr__(self, "blocks", list(to_tuple(given(self, "blocks"), "KVCacheStoredData.blocks")))


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class KVCacheRemovedData(ConfigValue):
    """Blocks that can be reused no more."""

    block_hashes: Sequence[EventBlockHash]

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_hashes", list(to_tuple(given(self, "block_hashes"), "KVCacheRemovedData.block_hashes")))


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class KVCacheEventDiff(ConfigValue):
    """An old and a new value."""

    old_value: int
    new_value: int

    def __post_init__(self) -> None:
        for field in ("old_value", "new_value"):
            object.__setattr__(self, field, to_int(given(self, field), f"KVCacheEventDiff.{field}"))


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class KVCacheUpdatedData(ConfigValue):
    """A block's page has another cache level or priority; None for what did not change."""

    block_hash: EventBlockHash
    cache_level: KVCacheEventDiff | None
    priority: KVCacheEventDiff | None

    def __post_init__(self) -> None:
        _take_hash(self, "block_hash")
        for field in ("cache_level", "priority"):
            if given(self, field) is not None:
                to_instance(given(self, field), KVCacheEventDiff, f"KVCacheUpdatedData.{field} unless None,")


EventData: TypeAlias = KVCacheCreatedData | KVCacheStoredData | KVCacheRemovedData | KVCacheUpdatedData


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class KVCacheEvent(ConfigValue):
    """One change of the published blocks of a layer group."""

    event_id: int
    data: EventData
    window_size: int
    hash_algo: str | None = None
    attention_dp_rank: int | None = None
    layer_group_id: int | None = None

    def __post_init__(self) -> None:
        _take_int(self, "event_id")
        _take_int(self, "window_size")
        _take_int(self, "attention_dp_rank", True)
        _take_int(self, "layer_group_id", True)
        _take_optional_text(self, "hash_algo")
        data = given(self, "data")
        if not isinstance(data, (KVCacheCreatedData, KVCacheStoredData, KVCacheRemovedData, KVCacheUpdatedData)):
            raise TypeError(f"KVCacheEvent.data must be the data of an event, not {type(data).__name__}")
