"""The bytes of a batch: those of vLLM's own classes, readable in both dialects, and nothing that crashes a reader."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

msgspec = pytest.importorskip("msgspec", reason="the extra `events` is not installed")

from kv_cache_manager_v2.publishing.wire_event import AllBlocksCleared, BlockRemoved, BlockStored, WireEvent  # noqa: E402
from kv_cache_manager_v2.testing import read_batch  # noqa: E402
from kv_cache_manager_v2.publishing.wire_writer import WireWriter  # noqa: E402

# The batch below as vLLM's classes encode it.
VLLM_BYTES = bytes.fromhex(
    "93cb41da47fb4820000093de0008a474797065ab426c6f636b53746f726564ac626c6f636b5f68617368657391cf1122334455667788"
    "b1706172656e745f626c6f636b5f68617368cf0102030405060708a9746f6b656e5f6964739401020304aa626c6f636b5f73697a6504"
    "a76c6f72615f6964c0a66d656469756da3475055a96c6f72615f6e616d65c083a474797065ac426c6f636b52656d6f766564"
    "ac626c6f636b5f6861736865739101a66d656469756da343505581a474797065b0416c6c426c6f636b73436c656172656400"
)
EVENTS: list[WireEvent] = [
    BlockStored([0x1122334455667788], 0x0102030405060708, [1, 2, 3, 4], 4, None, "GPU", None),
    BlockRemoved([1], "CPU"),
    AllBlocksCleared(),
]


def write(events: list[WireEvent], dialect: str = "map", has_groups: bool = False, rank: int = 0) -> bytes:
    return WireWriter(msgspec.msgpack.Encoder(), dialect, has_groups).write_batch(1763700000.5, events, rank)


FIELDS = (
    "hashes", "parent_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys", "group", "kind", "window",
    "cache_salt",
)  # fmt: skip


def fields(event: Any) -> list[Any]:
    return [getattr(event, name, None) for name in FIELDS]


def test_the_bytes_are_those_of_vllm() -> None:
    assert len(VLLM_BYTES) == 208 and write(EVENTS) == VLLM_BYTES


def test_the_array_dialect_has_all_positions() -> None:
    assert msgspec.msgpack.decode(write(EVENTS, "array", rank=3)) == [
        1763700000.5,
        [
            ["BlockStored", [0x1122334455667788], 0x0102030405060708, [1, 2, 3, 4], 4, None, "GPU", None, None, None, None, None],
            ["BlockRemoved", [1], "CPU", None],
            ["AllBlocksCleared"],
        ],
        3,
    ]
    windowed = BlockStored([9], None, [1], 1, 3, "GPU", "fine", None, 1, "sliding_window", 8)
    assert msgspec.msgpack.decode(write([windowed, BlockRemoved([9], "GPU", 1)], "array", True))[1] == [
        ["BlockStored", [9], None, [1], 1, 3, "GPU", "fine", None, 1, "sliding_window", 8],
        ["BlockRemoved", [9], "GPU", 1],
    ]


def test_a_salt_is_told_in_both_dialects() -> None:
    salted = BlockStored([9, 10], None, [1, 2], 1, None, "GPU", None, [None, [("ab", 0)]], cache_salt="tenant")
    (told,) = msgspec.msgpack.decode(write([salted]))[1]
    assert told["cache_salt"] == "tenant" and told["extra_keys"] == [None, [["ab", 0]]]
    (told,) = msgspec.msgpack.decode(write([salted], "array"))[1]
    # There is no position for it: consumers of arrays find it among the first block's keys.
    assert told[8] == [["dynamo-cache-salt:tenant"], [["ab", 0]]]
    for dialect in ("map", "array"):
        assert read_batch(write([salted], dialect)).events == [salted]


def test_groups_are_told_always_or_never() -> None:
    stored = BlockStored([9], None, [1], 1, None, "GPU", None, None, 0, "full_attention", None)
    told, removed = msgspec.msgpack.decode(write([stored, BlockRemoved([9], "GPU", 0)], "map", True))[1]
    assert told["group_idx"] == 0 and told["kv_cache_spec_kind"] == "full_attention" and removed["group_idx"] == 0
    assert "kv_cache_spec_sliding_window" not in told
    untold = msgspec.msgpack.decode(write([stored, BlockRemoved([9], "GPU", 0)], "map", False))[1]
    assert all("group_idx" not in event for event in untold)


HASHES = st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=40)
TEXTS = st.one_of(st.none(), st.text(max_size=4))


@st.composite
def wire_events(draw: Any) -> WireEvent:
    kind = draw(st.sampled_from(["stored", "removed", "cleared"]))
    if kind == "cleared":
        return AllBlocksCleared()
    hashes = draw(HASHES)
    group = draw(st.integers(0, 3))
    if kind == "removed":
        return BlockRemoved(hashes, draw(TEXTS), group)
    size = draw(st.integers(1, 3))
    tokens = draw(st.lists(st.integers(0, 2**31 - 1), min_size=size * len(hashes), max_size=size * len(hashes)))
    keys = draw(st.one_of(st.none(), st.just([None] * (len(hashes) - 1) + [["cafe", ("beef", 2)]])))
    parent = draw(st.one_of(st.none(), st.integers(0, 2**64 - 1)))
    lora = draw(st.one_of(st.none(), st.integers(0, 9)))
    return BlockStored(hashes, parent, tokens, size, lora, draw(TEXTS), draw(TEXTS), keys, group, "mamba", None, draw(TEXTS))


@settings(max_examples=60, deadline=None)
@given(st.lists(wire_events(), max_size=20), st.sampled_from(["map", "array"]), st.integers(0, 7))
def test_what_is_written_is_read(events: list[WireEvent], dialect: str, rank: int) -> None:
    batch = read_batch(write(events, dialect, True, rank))
    assert batch.timestamp == 1763700000.5 and batch.data_parallel_rank == rank
    assert [type(event) for event in batch.events] == [type(event) for event in events]
    assert [fields(event) for event in batch.events] == [fields(event) for event in events]


ANYTHING = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(), st.text(max_size=5), st.binary(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.sampled_from(["type", "block_hashes", "token_ids", "block_size", "medium", "x"]), inner, max_size=5),
    ),
    max_leaves=20,
)
TAGS = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Other"])
EVENT_LIKE = st.one_of(
    st.tuples(TAGS, st.lists(ANYTHING, max_size=12)).map(lambda pair: [pair[0], *pair[1]]),
    st.tuples(TAGS, st.dictionaries(st.sampled_from(["block_hashes", "token_ids", "block_size", "group_idx"]), ANYTHING)).map(
        lambda pair: {"type": pair[0], **pair[1]}
    ),
)


def read_or_refuse(payload: bytes) -> None:
    try:
        read_batch(payload)
    except ValueError as error:
        assert str(error)


@settings(max_examples=200, deadline=None)
@given(st.one_of(st.binary(max_size=60), ANYTHING.map(msgspec.msgpack.encode)))
def test_any_bytes_are_read_or_refused(payload: bytes) -> None:
    read_or_refuse(payload)


@settings(max_examples=200, deadline=None)
@given(st.lists(EVENT_LIKE, max_size=4), ANYTHING)
def test_anything_like_a_batch_is_read_or_refused(events: list[Any], rank: Any) -> None:
    read_or_refuse(msgspec.msgpack.encode([1.0, events, rank]))


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 207), st.integers(0, 255))
def test_a_damaged_batch_is_read_or_refused(position: int, byte: int) -> None:
    read_or_refuse(VLLM_BYTES[:position] + bytes([byte]) + VLLM_BYTES[position + 1 :])
    read_or_refuse(VLLM_BYTES[:position])


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(ValueError, match="no msgpack"):
        read_batch(b"\x91" * 100_000)
