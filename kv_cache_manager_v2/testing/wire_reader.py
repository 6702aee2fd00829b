"""Parser of messages into events, for consumers written in Python. Malformed bytes are a `ValueError`."""

from collections.abc import Mapping
from typing import Any, Final, final


from ..base.given import Given
from ..base.missing_package import missing_package
from ..base.value import Value
from ..publishing.wire_event import AllBlocksCleared, BlockRemoved, BlockStored, ExtraKeys, WireEvent
from ..publishing.wire_writer import SALT_MARK

_STORED_FIELDS: Final = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group_idx",
    "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
)  # fmt: skip
_REMOVED_FIELDS: Final = ("block_hashes", "medium", "group_idx")


@final
class WireBatch(Value):
    """The payload of one message."""

    __slots__ = ("timestamp", "events", "data_parallel_rank")

    def __init__(self, timestamp: float, events: list[WireEvent], data_parallel_rank: int | None) -> None:
        self.timestamp: Final[float] = timestamp
        self.events: Final[list[WireEvent]] = events
        self.data_parallel_rank: Final[int | None] = data_parallel_rank


def read_batch(payload: Given[bytes]) -> WireBatch:
    """Parse a batch of either dialect. `ValueError` says what is wrong with the bytes; unknown fields and tags are skipped."""
    try:
        import msgspec
    except ImportError as missing:
        raise missing_package("read_batch", "msgspec", missing) from missing
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise TypeError(f"payload must be bytes, not {type(payload).__name__}")
    try:
        batch: object = msgspec.msgpack.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"payload, {len(payload)} bytes, is no msgpack: {error}") from error
    if not isinstance(batch, list) or len(batch) < 2:
        raise ValueError(f"payload, {len(payload)} bytes, is {type(batch).__name__}; a batch is an array of timestamp, events and rank")
    timestamp: object = batch[0]
    if isinstance(timestamp, bool) or not isinstance(timestamp, (int, float)):
        raise ValueError(f"the timestamp is {timestamp!r}, not a number")
    items: object = batch[1]
    if not isinstance(items, list):
        raise ValueError(f"the events are a {type(items).__name__}, not an array")
    events: list[WireEvent] = []
    for item in items:
        event = _read_event(item)
        if event is not None:
            events.append(event)
    rank = _to_optional_int(batch[2], "data_parallel_rank") if len(batch) > 2 else None
    return WireBatch(float(timestamp), events, rank)


def _read_event(item: object) -> WireEvent | None:
    fields: dict[str, Any] = {}
    tag: object
    if isinstance(item, dict):
        for name, value in item.items():
            if isinstance(name, str):
                fields[name] = value
        tag = fields.get("type")
    elif isinstance(item, list) and len(item) > 0:
        tag = item[0]
        names = _STORED_FIELDS if tag == "BlockStored" else _REMOVED_FIELDS
        for name, value in zip(names, item[1:]):
            fields[name] = value
    else:
        raise ValueError(f"an event is a map or an array with a tag, not {type(item).__name__}")
    if not isinstance(tag, str):
        raise ValueError(f"an event has the tag {tag!r}")
    if tag == "AllBlocksCleared":
        return AllBlocksCleared()
    if tag == "BlockRemoved":
        group = _to_optional_int(fields.get("group_idx"), "group_idx")
        return BlockRemoved(_to_ints(fields, "block_hashes"), _to_optional_str(fields, "medium"), group)
    if tag == "BlockStored":
        return _read_stored(fields)
    return None


def _read_stored(fields: Mapping[str, Any]) -> BlockStored:
    hashes = _to_ints(fields, "block_hashes")
    tokens = _to_ints(fields, "token_ids")
    block_size = _to_optional_int(fields.get("block_size"), "block_size")
    if block_size is None or block_size < 1 or len(tokens) != block_size * len(hashes):
        raise ValueError(f"BlockStored has {len(hashes)} hashes, {len(tokens)} tokens, block_size {block_size}")
    keys, marked_salt = _to_extra_keys(fields.get("extra_keys"))
    salt = _to_optional_str(fields, "cache_salt")
    return BlockStored(
        hashes,
        _to_optional_int(fields.get("parent_block_hash"), "parent_block_hash"),
        tokens,
        block_size,
        _to_optional_int(fields.get("lora_id"), "lora_id"),
        _to_optional_str(fields, "medium"),
        _to_optional_str(fields, "lora_name"),
        keys,
        _to_optional_int(fields.get("group_idx"), "group_idx"),
        _to_optional_str(fields, "kv_cache_spec_kind"),
        _to_optional_int(fields.get("kv_cache_spec_sliding_window"), "kv_cache_spec_sliding_window"),
        marked_salt if salt is None else salt,
    )


def _to_ints(fields: Mapping[str, Any], name: str) -> list[int]:
    values: object = fields.get(name)
    if not isinstance(values, list):
        raise ValueError(f"{name} is {type(values).__name__}, not an array of integers")
    found: list[int] = []
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"{name} has {value!r} in it, not an integer")
        found.append(value)
    return found


def _to_optional_int(value: object, name: str) -> int | None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise ValueError(f"{name} is {value!r}, not an integer")
    return value


def _to_optional_str(fields: Mapping[str, Any], name: str) -> str | None:
    value: object = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{name} is {value!r}, not a string")
    return value


def _to_extra_keys(value: object) -> tuple[ExtraKeys | None, str | None]:
    """The keys, and the salt that is marked among them. Keys of other producers are skipped unless they are texts, alone or with a
    position."""
    salt: str | None = None
    if value is None:
        return None, None
    if not isinstance(value, list):
        raise ValueError(f"extra_keys is {value!r}, not an array")
    found: ExtraKeys = []
    for keys in value:
        if keys is None:
            found.append(None)
        elif isinstance(keys, list):
            kept: list[str | tuple[str, int]] = []
            for key in keys:
                if isinstance(key, str) and key.startswith(SALT_MARK):
                    salt = key[len(SALT_MARK) :]
                elif isinstance(key, str):
                    kept.append(key)
                elif isinstance(key, list) and len(key) == 2 and isinstance(key[0], str) and type(key[1]) is int:
                    kept.append((key[0], key[1]))
            found.append(kept if len(kept) > 0 else None)
        else:
            raise ValueError(f"extra_keys has {keys!r} in it")
    return (None if all([keys is None for keys in found]) else found), salt
