"""With a key of the fleet no one without it can guess names in a shared store, nor alter or forge values: these are misses, counted."""

import ctypes
import logging
import struct
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from shared_models import Rank

from kv_cache_manager_v2 import ReuseScope
from kv_cache_manager_v2.shared import MemoryStore
from kv_cache_manager_v2.shared.block_names import BlockName, name_blocks, name_root
from kv_cache_manager_v2.shared.page_record import RecordLayout

KEY = bytes(range(32))
TEXT = list(range(500, 533))


class Eavesdropped(MemoryStore):
    """Whose keys, and values by key, an intruder knows."""

    def __init__(self) -> None:
        super().__init__()
        self.stored: dict[bytes, bytes] = {}

    def put(self, key: bytes, value: bytes) -> None:
        self.stored[key] = value
        super().put(key, value)


def fill(store: Eavesdropped, **settings: Any) -> dict[bytes, bytes]:
    with Rank(store, **settings) as rank:
        rank.run(TEXT, ReuseScope(salt=7))
        rank.drain()
    return dict(store.stored)


def guessed_names() -> set[bytes]:
    """Of all prompts that begin like this one, in scopes of small salts: what someone computes who suspects the prompt."""
    packed = struct.pack("<32i", *TEXT[:32])
    blocks = [block for salt in range(100) for block in name_blocks(name_root(ReuseScope(salt=salt)), packed, 4)]
    return {urlsafe_b64encode(block.digest[:16]).rstrip(b"=") for block in blocks}


def test_names_cannot_be_guessed() -> None:
    without, with_key = fill(Eavesdropped()), fill(Eavesdropped(), key=KEY)
    assert len(without) == len(with_key) > 0
    assert all(key.rpartition(b"/")[2] in guessed_names() for key in without)
    assert not any(key.rpartition(b"/")[2] in guessed_names() for key in with_key)


def test_who_has_the_key_finds_what_the_fleet_has_stored() -> None:
    store = Eavesdropped()
    fill(store, key=KEY)
    scope = ReuseScope(salt=7)
    with Rank(store, key=KEY) as same, Rank(store, key=KEY[:16]) as other, Rank(store) as none:
        assert same.run(TEXT, scope) == 32 and other.run(TEXT, scope) == none.run(TEXT, scope) == 0
        assert [rank.level.statistics.corrupt_pages for rank in (same, other, none)] == [0, 0, 0]


def forged(value: bytes, position: int, key: bytes | None) -> bytes:
    """The value with another byte, by an intruder who knows the format, and has another key or none."""
    _magic, head_bytes, payload_bytes, life_cycle, form, num_tokens, identity, parent = struct.unpack_from("<8sIQHBxI32s32s", value)
    name = BlockName(parent, form, value[92 : 92 + num_tokens])
    layout = RecordLayout(identity, life_cycle, payload_bytes, 4, key)
    record = bytearray(head_bytes + payload_bytes)
    record[head_bytes:] = value[head_bytes:]
    record[head_bytes + position] ^= 1
    address = ctypes.addressof(ctypes.c_char.from_buffer(record))
    layout.write_head(memoryview(record)[: layout.num_bytes], address + (head_bytes - layout.head_bytes), name)
    return bytes(record)


@pytest.mark.parametrize("key", [None, KEY[:16], KEY[1:] + b"x"])
def test_what_others_have_altered_is_a_miss_that_is_counted(key: bytes | None) -> None:
    store = Eavesdropped()
    stored = fill(store, key=KEY)
    for name, value in stored.items():
        store.put(name, forged(value, 5, key) if key is not None else value[:200] + bytes([value[200] ^ 1]) + value[201:])
    with Rank(store, key=KEY) as rank:
        assert rank.run(TEXT, ReuseScope(salt=7)) == 0
        assert rank.level.statistics.corrupt_pages > 0


def test_values_under_each_others_names_are_misses() -> None:
    store = Eavesdropped()
    names = list(fill(store, key=KEY))
    values = [store.stored[name] for name in names]
    for name, value in zip(names, values[1:] + values[:1]):
        store.put(name, value)
    with Rank(store, key=KEY) as rank:
        assert rank.run(TEXT, ReuseScope(salt=7)) == 0
        assert rank.level.statistics.corrupt_pages > 0


def test_without_a_key_the_log_says_once_what_is_open(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        fill(Eavesdropped(), key=KEY)
        assert not [record for record in caplog.records if "has no key" in record.getMessage()]
        fill(Eavesdropped())
    assert len([record for record in caplog.records if "has no key" in record.getMessage()]) == 1


@pytest.mark.parametrize(
    "key, kind", [(b"short", ValueError), (b"", ValueError), (bytes(65), ValueError), ("a text of 32 letters ...........", TypeError)]
)
def test_wrong_keys_are_refused_and_not_shown(key: object, kind: type[Exception]) -> None:
    with pytest.raises(kind, match="key") as refused:
        Rank(MemoryStore(), key=key)
    assert "short" not in str(refused.value) and "letters" not in str(refused.value)
