"""Writer of messages as msgpack: `[timestamp, events, data parallel rank]`, the events in one of two dialects.

map      `{"type": tag, field: value, ...}`; fields that are None are left out, but for those that consumers always expect
array    `[tag, field 1, field 2, ...]`, all positions present; a salt, which has none, is a marked key of the event's first block

Which consumer reads which: docs/events.md.

Values are packed by msgspec; the containers around them here, so that the bytes equal those of vLLM's own classes.
"""

from typing import Any, Final, final


from ..base.fair_turns import FairTurns
from .wire_event import AllBlocksCleared, BlockRemoved, BlockStored, ExtraKeys, WireEvent

MAP: Final = "map"
ARRAY: Final = "array"
SALT_MARK: Final = "dynamo-cache-salt:"
"""Tells a salt from the other texts among a block's keys."""
DIALECTS: Final = (MAP, ARRAY)


@final
class WireWriter:
    """``pack``: msgspec's encoder. ``has_groups``: whether events name layer groups; the same for a whole stream."""

    __slots__ = ("_pack", "_dialect", "_has_groups", "_turns")

    def __init__(self, pack: Any, dialect: str, has_groups: bool) -> None:
        self._pack: Final = pack
        self._dialect: Final = dialect
        self._has_groups: Final = has_groups
        self._turns: Final = FairTurns()

    def write_batch(self, timestamp: float, events: list[WireEvent], rank: int) -> bytes:
        parts: list[bytes] = [b"\x93", self._pack_value(timestamp), _array_header(len(events))]
        for event in events:
            parts.append(self._write_map(event) if self._dialect == MAP else self._write_array(event))
            self._turns.pause()
        parts.append(self._pack_value(rank))
        return b"".join(parts)

    def _pack_value(self, value: object) -> bytes:
        packed: bytes = self._pack.encode(value)
        return packed

    def _write_map(self, event: WireEvent) -> bytes:
        fields: dict[str, object]
        if isinstance(event, BlockStored):
            fields = {
                "type": "BlockStored",
                "block_hashes": event.hashes,
                "parent_block_hash": event.parent_hash,
                "token_ids": event.token_ids,
                "block_size": event.block_size,
                "lora_id": event.lora_id,
                "medium": event.medium,
                "lora_name": event.lora_name,
            }
            if event.cache_salt is not None:
                fields["cache_salt"] = event.cache_salt
            if event.extra_keys is not None:
                fields["extra_keys"] = event.extra_keys
            if self._has_groups:
                fields["group_idx"] = event.group
                fields["kv_cache_spec_kind"] = event.kind
                if event.window is not None:
                    fields["kv_cache_spec_sliding_window"] = event.window
            # vLLM's class has so many optional fields that its header has two bytes for their number.
            return b"\xde" + len(fields).to_bytes(2, "big") + self._pack_fields(fields)
        if isinstance(event, BlockRemoved):
            fields = {"type": "BlockRemoved", "block_hashes": event.hashes, "medium": event.medium}
            if self._has_groups:
                fields["group_idx"] = event.group
        else:
            fields = {"type": "AllBlocksCleared"}
        return self._pack_value(fields)

    def _pack_fields(self, fields: dict[str, object]) -> bytes:
        parts: list[bytes] = []
        for name, value in fields.items():
            parts.append(self._pack_value(name))
            parts.append(self._pack_value(value))
        return b"".join(parts)

    def _write_array(self, event: WireEvent) -> bytes:
        fields: list[object]
        if isinstance(event, BlockStored):
            fields = ["BlockStored", event.hashes, event.parent_hash, event.token_ids, event.block_size]
            fields += [event.lora_id, event.medium, event.lora_name, mark_salt(event, SALT_MARK)]
            fields += [event.group, event.kind, event.window] if self._has_groups else [None, None, None]
        elif isinstance(event, BlockRemoved):
            fields = ["BlockRemoved", event.hashes, event.medium, event.group if self._has_groups else None]
        else:
            assert isinstance(event, AllBlocksCleared)
            fields = ["AllBlocksCleared"]
        return self._pack_value(fields)


def mark_salt(event: BlockStored, mark: str) -> ExtraKeys | None:
    """The event's keys, and the salt as one of the first block's."""
    keys = event.extra_keys
    if event.cache_salt is None:
        return keys
    rest: ExtraKeys = [None] * len(event.hashes) if keys is None else list(keys)
    rest[0] = [f"{mark}{event.cache_salt}", *(rest[0] or [])]
    return rest


def _array_header(count: int) -> bytes:
    if count < 16:
        return bytes([0x90 | count])
    if count < 1 << 16:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")
