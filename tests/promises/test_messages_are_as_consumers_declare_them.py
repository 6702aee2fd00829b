"""What is published can be read by a consumer that knows nothing but the wire form as it is written down.

The structs below are typed out by hand, field by field and in order, as consumers have them. They are strict: a field that is not
named here, one of another type, or a position too few is refused. Only sockets and msgspec read what came.
"""

import hashlib
from pathlib import Path
from typing import Any

import pytest
from small_models import run_prompt
from router_process import wait_for_first
from tiered_models import Bench, tiered_config

from kv_cache_manager_v2 import HostDevice, KVCacheEventManager, ReuseScope, compute_block_hashes

pytest.importorskip("zmq", reason="the extra `events` is not installed")
pytest.importorskip("msgspec", reason="the extra `events` is not installed")

import msgspec  # noqa: E402
import zmq  # noqa: E402

from kv_cache_manager_v2 import KVCacheEventPublisher  # noqa: E402

TOPIC = "kv@pod@model"
END = (-1).to_bytes(8, "big", signed=True)
SIZE = 4  # tokens per block
NEEDED = 8  # the first so many entries of a BlockStored are there always


class BlockStored(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    cache_salt: str | None = None
    extra_keys: list[list[tuple[str, int]] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    pass


class MapBatch(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    ts: float
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]
    data_parallel_rank: int


class StoredInOrder(msgspec.Struct, tag="BlockStored", array_like=True, forbid_unknown_fields=True):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[list[str | tuple[str, int]] | None] | None
    group_idx: int | None
    kv_cache_spec_kind: str | None
    kv_cache_spec_sliding_window: int | None


class RemovedInOrder(msgspec.Struct, tag="BlockRemoved", array_like=True, forbid_unknown_fields=True):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None


class ClearedInOrder(msgspec.Struct, tag="AllBlocksCleared", array_like=True, forbid_unknown_fields=True):
    pass


class ArrayBatch(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    ts: float
    events: list[StoredInOrder | RemovedInOrder | ClearedInOrder]
    data_parallel_rank: int


BATCH: dict[str, type[MapBatch] | type[ArrayBatch]] = {"map": MapBatch, "array": ArrayBatch}
STORED = (BlockStored, StoredInOrder)
REMOVED = (BlockRemoved, RemovedInOrder)


def ask_for_all(publisher: Any) -> list[tuple[int, bytes]]:
    """Numbers and payloads of all batches so far, from the replay socket."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    try:
        socket.connect(publisher.replay_endpoint)
        socket.send_multipart([b"", (0).to_bytes(8, "big")])
        batches: list[tuple[int, bytes]] = []
        while True:
            assert socket.poll(20_000) > 0, "no answer to a request for a replay"
            empty, topic, number, payload = socket.recv_multipart()
            assert empty == b""
            if number == END:
                assert topic == payload == b""
                return batches
            assert topic == TOPIC.encode() and len(number) == 8
            batches.append((int.from_bytes(number, "big"), payload))
    finally:
        socket.close(linger=0)
        context.term()


def publish_history(dialect: str, windows: tuple[int | None, ...], rank: int = 0) -> list[bytes]:
    """A text that is used twice, two adapters', a tenant's, an image's; more than the first tier holds; then all is cleared."""
    events = KVCacheEventManager(10_000)
    settings: dict[str, Any] = {"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*", "topic": TOPIC}
    config = tiered_config(8 * len(windows), [("host", 12 * len(windows))], windows=windows)
    with Bench(config, HostDevice(), events) as bench:
        manager = bench.manager
        with KVCacheEventPublisher(
            events, dialect=dialect, data_parallel_rank=rank, lora_names={7: "polite"}, **settings
        ) as publisher:
            wait_for_first(publisher)
            run_prompt(manager, list(range(18))).close()
            events.flush_iteration_events()
            run_prompt(manager, list(range(26))).close()
            events.flush_iteration_events()
            run_prompt(manager, list(range(100, 112)), reuse_scope=ReuseScope(lora_id=7)).close()
            run_prompt(manager, list(range(150, 158)), reuse_scope=ReuseScope(lora_id=8)).close()
            run_prompt(manager, list(range(200, 212)), reuse_scope=ReuseScope(salt="tenant")).close()
            image: list[Any] = [b"an image's digest", *range(1000, 1007)]
            run_prompt(manager, image).close()
            for start in range(2000, 2600, 100):
                run_prompt(manager, list(range(start, start + 20))).close()
                events.flush_iteration_events()
            manager.clear_reusable_blocks()
            events.flush_iteration_events()
            decoder = msgspec.msgpack.Decoder(BATCH[dialect])
            while True:
                batches = ask_for_all(publisher)
                last = decoder.decode(batches[-1][1]).events[-1]
                if len(batches) > 1 and isinstance(last, (AllBlocksCleared, ClearedInOrder)):
                    break
            assert [number for number, _ in batches] == list(range(len(batches)))
    return [payload for _, payload in batches]


def decode(dialect: str, payloads: list[bytes], rank: int = 0) -> list[Any]:
    decoder = msgspec.msgpack.Decoder(BATCH[dialect])
    found: list[Any] = []
    time = 0.0
    for payload in payloads:
        batch = decoder.decode(payload)
        assert batch.data_parallel_rank == rank and batch.ts >= time
        time = batch.ts
        found.extend(batch.events)
    return found


@pytest.mark.parametrize("dialect", ["map", "array"])
@pytest.mark.parametrize("windows", [(None,), (None, 8)])
def test_strict_consumers_read_every_message(dialect: str, windows: tuple[int | None, ...]) -> None:
    rank = len(windows)
    events = decode(dialect, publish_history(dialect, windows, rank), rank)
    assert isinstance(events[0], (AllBlocksCleared, ClearedInOrder)), "the first event of a stream"
    there: set[tuple[str, int | None, int]] = set()
    known: set[int] = set()
    media = set()
    for event in events:
        if isinstance(event, STORED):
            assert event.block_size == SIZE and len(event.token_ids) == SIZE * len(event.block_hashes) > 0
            assert event.parent_block_hash is None or event.parent_block_hash in known, "a parent that nobody has heard of"
            known |= set(event.block_hashes)
            adapters: dict[int, Any] = {100: (7, "polite"), 150: (8, "lora-8")}
            assert (event.lora_id, event.lora_name) == adapters.get(event.token_ids[0] // 50 * 50, (None, None))
            salt = getattr(event, "cache_salt", None)
            if dialect == "array" and event.extra_keys is not None and isinstance((event.extra_keys[0] or [None])[0], str):
                salt = str((event.extra_keys[0] or [None])[0]).removeprefix("dynamo-cache-salt:")
            assert salt == ("tenant" if 200 <= event.token_ids[0] < 212 else None)
            assert event.medium in ("GPU", "CPU")
            media.add(event.medium)
            kinds = {0: ("full_attention", None), 1: ("sliding_window", 8), None: (None, None)}
            assert (event.kv_cache_spec_kind, event.kv_cache_spec_sliding_window) == kinds[event.group_idx]
            for block_hash in event.block_hashes:
                place = (event.medium, event.group_idx, block_hash)
                assert place not in there, "stored twice, and not removed in between"
                there.add(place)
        elif isinstance(event, REMOVED):
            for block_hash in event.block_hashes:
                there.remove((str(event.medium), event.group_idx, block_hash))
        else:
            there.clear()
        if not isinstance(event, (AllBlocksCleared, ClearedInOrder)):
            assert (event.group_idx is None) is (len(windows) == 1), "groups are told always or never"
            assert all(2**32 <= block_hash < 2**64 for block_hash in event.block_hashes)
    assert media == {"GPU", "CPU"} and not there
    assert sum(isinstance(event, REMOVED) for event in events) > 0


def read_as_dynamo(event: Any) -> Any:
    """Maps by their names; of arrays the positions, and a marked key for the salt. (tokens, LoRA, salt, digests)"""
    if isinstance(event, dict):
        keys, found = event.get("extra_keys"), (event["token_ids"], event.get("lora_name"), event.get("cache_salt"))
    else:
        keys, found = event[8], (event[3], event[7], None)
        for key in (keys or [None])[0] or []:
            if isinstance(key, str) and key.startswith("dynamo-cache-salt:"):
                found = (*found[:2], key.partition(":")[2])
    return (*found, [key[0] for block in keys or [] for key in block or [] if isinstance(key, list)])


def read_as_llm_d(event: Any) -> Any:
    """Arrays alone. It knows no salt."""
    if not isinstance(event, list):
        raise TypeError("not an array")
    return event[3], event[7], None, [key[0] for block in event[8] or [] for key in block or [] if isinstance(key, list)]


def read_as_aibrix(event: Any) -> Any:
    """Both; digests and salts it keeps as they are."""
    names: Any = (3, 7, 8) if isinstance(event, list) else ("token_ids", "lora_name", "extra_keys")
    tokens, lora, keys = [event[name] if name in event or isinstance(event, list) else None for name in names]
    assert keys is None or all(block is None or isinstance(block, list) for block in keys)
    return tokens, lora, None, None


READERS = {"Dynamo": read_as_dynamo, "llm-d": read_as_llm_d, "AIBrix": read_as_aibrix}


def test_the_page_says_which_consumer_reads_which_dialect() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "events.md").read_text()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")]
    said = {row[0].split(" ")[0]: row[1:] for row in rows if row[0].split(" ")[0] in READERS}
    assert set(said) == set(READERS)
    for name, read in READERS.items():
        dialects, salts, digests = said[name]
        for dialect in ("map", "array"):
            batches = [msgspec.msgpack.decode(payload) for payload in publish_history(dialect, (None,))]
            # A nil for the rank makes AIBrix drop the batch.
            assert all(len(batch) == 3 and type(batch[2]) is int for batch in batches)
            events = [event for batch in batches for event in batch[1]]
            stored = [event for event in events if (event[0] if dialect == "array" else event["type"]) == "BlockStored"]
            if f"`{dialect}`" not in dialects:
                with pytest.raises(TypeError):
                    read(stored[0])
                continue
            read_all = [read(event) for event in stored]
            assert {lora for _tokens, lora, _salt, _digests in read_all} == {None, "polite", "lora-8"}
            tenants = {salt for tokens, _lora, salt, _digests in read_all if 200 <= tokens[0] < 212}
            assert tenants == ({"tenant"} if salts == "yes" else {None})
            images = [found for _tokens, _lora, _salt, found in read_all if found]
            assert images == ([[b"an image's digest".hex()]] * len(images) if digests == "yes" else []), name
            assert bool(images) is (digests == "yes")


def test_names_and_texts_are_those_of_the_prompts() -> None:
    stored = [event for event in decode("map", publish_history("map", (None,))) if isinstance(event, STORED)]
    first = stored[0]
    # 18 tokens: four whole blocks in one event, the fifth is announced once it is whole, below the fourth.
    assert first.token_ids == list(range(16)) and first.parent_block_hash is None
    follower = next(event for event in stored if event.token_ids == list(range(16, 24)))
    assert follower.parent_block_hash == first.block_hashes[3]
    # The chain: SHA-256 of the parent's digest, then the tokens, 4 bytes each, little-endian; a name is its first 8 bytes.
    digest = bytes.fromhex(str(compute_block_hashes(range(4), SIZE)[0]))
    assert int.from_bytes(digest[:8], "big") == first.block_hashes[0]
    for ordinal in range(1, 6):
        tokens = range(SIZE * ordinal, SIZE * (ordinal + 1))
        digest = hashlib.sha256(digest + b"".join(token.to_bytes(4, "little") for token in tokens)).digest()
        assert int.from_bytes(digest[:8], "big") == (first.block_hashes + follower.block_hashes)[ordinal]
    image = next(event for event in stored if event.extra_keys is not None)
    assert image.extra_keys == [[(b"an image's digest".hex(), 0)], None] and image.token_ids[1:] == list(range(1000, 1007))
    assert all(0 <= token < 2**31 for token in image.token_ids)


def test_a_map_has_its_fields_in_order_and_leaves_out_what_is_none() -> None:
    for windows in ((None,), (None, 8)):
        for payload in publish_history("map", windows):
            for event in msgspec.msgpack.decode(payload)[1]:
                fields = list(event)
                assert fields[0] == "type"
                if event["type"] == "BlockStored":
                    order = ["type", *BlockStored.__struct_fields__]
                    assert fields[:NEEDED] == order[:NEEDED]
                    assert fields[NEEDED:] == [name for name in order[NEEDED:] if name in fields]
                    assert all(event[name] is not None for name in fields[NEEDED:])
                elif event["type"] == "BlockRemoved":
                    assert fields[1:] == ["block_hashes", "medium", "group_idx"][: len(fields) - 1]
                    assert all(value is not None for value in event.values())
                else:
                    assert event == {"type": "AllBlocksCleared"}
