"""A router that comes late, or has missed batches, gets a snapshot over the wire, and goes on with the batch that follows it."""

import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from durable_models import Process, durable_config
from router_process import TOPIC, Router, stopped_at_the_end, wait_for_first
from shared_models import Rank, shared_config
from small_models import config_of, run_prompt

from kv_cache_manager_v2 import HostDevice, KVCacheEventManager, KVCacheManager, ReuseScope, compute_block_hashes
from kv_cache_manager_v2.shared import MemoryStore

zmq = pytest.importorskip("zmq", reason="the extra `events` is not installed")
msgspec = pytest.importorskip("msgspec", reason="the extra `events` is not installed")

from kv_cache_manager_v2 import KVCacheEventPublisher  # noqa: E402

END = [b"", b"", b"\xff" * 8, b""]
routers = pytest.fixture(stopped_at_the_end)


@pytest.fixture
def place() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        names = ("endpoint", "replay_endpoint", "snapshot_endpoint")
        yield {name: f"ipc://{folder}/{name}" for name in names}


def publish(events: Any, place: dict[str, str], **settings: Any) -> Any:
    publisher = KVCacheEventPublisher(events, topic=TOPIC, **{"heartbeat_seconds": 0.02, **place, **settings})
    wait_for_first(publisher)
    return publisher


def names(tokens: Any, medium: str = "GPU", scope: ReuseScope | None = None, group: str = "None") -> dict[str, list[int]]:
    hashes = compute_block_hashes(tokens, 4, scope, "sha256_64")
    return {f"{group}/{medium}": [block_hash for block_hash in hashes if isinstance(block_hash, int)]}


def engine(**settings: Any) -> Any:
    return KVCacheManager(config_of(**settings), device=HostDevice(), event_manager=KVCacheEventManager(10_000))


def serve(manager: Any, tokens: Any) -> None:
    run_prompt(manager, tokens).close()
    manager.event_manager.flush_iteration_events()


def ask_raw(publisher: Any, frames: list[bytes], endpoint: str) -> list[list[bytes]]:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(endpoint)
    socket.send_multipart(frames)
    answer = []
    while socket.poll(60_000):
        answer.append(socket.recv_multipart())
        if answer[-1] == END:
            break
    context.destroy(linger=0)
    return answer


def test_a_late_router_of_an_idle_engine_knows_all_and_follows(routers: list[Router], place: dict[str, str]) -> None:
    with engine(num_slots=64) as manager, publish(manager.event_manager, place, buffer_batches=0) as publisher:
        serve(manager, range(16))
        for _number in range(2):
            routers.append(Router(publisher, snapshots=True))
            routers[-1].expect(names(range(16)))
        serve(manager, range(100, 108))
        for router in routers:
            router.expect({"None/GPU": names(range(16))["None/GPU"] + names(range(100, 108))["None/GPU"]})
            facts = router.facts()
            assert facts["errors"] == [] and facts["first"] == "AllBlocksCleared" and facts["replays"] == 0


def test_heartbeats_have_numbers_and_show_the_loss_of_the_last_batch(place: dict[str, str]) -> None:
    with engine() as manager, publish(manager.event_manager, place) as publisher:
        context = zmq.Context()
        socket = context.socket(zmq.SUB)
        socket.connect(publisher.endpoint)
        socket.setsockopt(zmq.SUBSCRIBE, b"")
        numbers: list[int] = []
        while len(numbers) < 3:
            assert socket.poll(60_000)
            _topic, number, payload = socket.recv_multipart()
            assert msgspec.msgpack.decode(payload)[1:] == [[], 0]  # what any consumer reads as a batch without events
            numbers.append(int.from_bytes(number, "big"))
        assert numbers == list(range(numbers[0], numbers[0] + 3))
        context.destroy(linger=0)
    with engine() as manager, publish(manager.event_manager, place, heartbeat_seconds=None) as publisher:
        serve(manager, range(4))
        while publisher.next_sequence < 2:
            pass
        assert publisher.next_sequence == 2  # cleared, stored, and no more


def test_a_publisher_that_begins_anew_has_another_id(routers: list[Router], place: dict[str, str]) -> None:
    manager = engine()
    first = publish(manager.event_manager, place)
    routers.append(Router(first, snapshots=True))
    serve(manager, range(8))
    routers[0].expect(names(range(8)))
    first.close()
    manager.shutdown()
    with engine() as again, publish(again.event_manager, place, first_sequence="epoch") as second:
        assert second.publisher_id != first.publisher_id and len(second.publisher_id) == 32
        serve(again, range(50, 62))
        routers[0].expect(names(range(50, 62)))
        facts = routers[0].facts()
        assert facts["errors"] == [] and facts["restarts"] == 1


def test_a_snapshot_is_a_header_batches_and_an_end(place: dict[str, str]) -> None:
    with engine() as manager, publish(manager.event_manager, place, heartbeat_seconds=None, data_parallel_rank=0) as publisher:
        serve(manager, range(8))
        while publisher.next_sequence < 2:
            pass
        header, batch, end = ask_raw(publisher, [b"", b"snapshot"], publisher.snapshot_endpoint)
        number = (2).to_bytes(8, "big")
        assert header[:3] == batch[:3] == [b"", TOPIC.encode(), number] and end == END
        assert msgspec.msgpack.decode(header[3]) == {
            "publisher_id": publisher.publisher_id,
            "resume_sequence": 2,
            "num_batches": 1,
            "heartbeat_seconds": None,
            "data_parallel_rank": 0,
        }
        _timestamp, events, rank = msgspec.msgpack.decode(batch[3])
        assert [event["type"] for event in events] == ["AllBlocksCleared", "BlockStored"] and rank == 0
        only_header = ask_raw(publisher, [b"", b"identity"], publisher.snapshot_endpoint)
        assert len(only_header) == 2 and msgspec.msgpack.decode(only_header[0][3])["num_batches"] == 0
        for wrong in ([b"", b"all of it"], [b"x"], [b"", b"", b""], [b"snapshot", b""]):
            assert ask_raw(publisher, wrong, publisher.snapshot_endpoint) == [END]
        assert publisher.error is None


def test_misuse_is_a_clear_error(place: dict[str, str]) -> None:
    with engine() as manager:
        for wrong in (0, -1.0, float("nan"), float("inf"), 1e9):
            with pytest.raises(ValueError, match="heartbeat_seconds"):
                publish(manager.event_manager, place, heartbeat_seconds=wrong)
        with engine() as other, publish(other.event_manager, {"endpoint": "tcp://127.0.0.1:*"}) as publisher:
            taken = publisher.endpoint.replace("127.0.0.1", "*")
            with pytest.raises(zmq.ZMQError):
                publish(manager.event_manager, {"endpoint": "tcp://127.0.0.1:*", "snapshot_endpoint": taken})


# -- durable and shared copies --------------------------------------------------------------------------------------------


def first_message(publisher: Any) -> Any:
    """The first batch, as the replay socket remembers it."""
    return msgspec.msgpack.decode(ask_raw(publisher, [b"", bytes(8)], publisher.replay_endpoint)[0][3])[1]


@pytest.mark.parametrize("max_entries", [10_000, 2])
def test_the_first_batch_clears_and_tells_what_the_durable_level_brought_back(place: dict[str, str], max_entries: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = durable_config(folder)
        process = Process(config)
        for start in (0, 100, 200):
            process.run(list(range(start, start + 8)))
        process.end()
        events = KVCacheEventManager(max_entries)
        with KVCacheManager(config, device=HostDevice(), event_manager=events):
            with publish(events, place) as publisher:  # before any flush_iteration_events
                told = first_message(publisher)
                assert told[0] == {"type": "AllBlocksCleared"}
                assert {event["medium"] for event in told[1:]} == {"DISK"}
                restored = sorted(name for event in told[1:] for name in event["block_hashes"])
                expected = [name for start in (0, 100, 200) for name in names(range(start, start + 8))["None/GPU"]]
                assert restored == sorted(expected)
                assert publisher.num_batches_lost == 0


def test_events_that_were_lost_before_the_first_batch_leave_the_windows_known(place: dict[str, str]) -> None:
    events = KVCacheEventManager(1)
    with KVCacheManager(config_of(windows=(None, 8)), device=HostDevice(), event_manager=events) as manager:
        run_prompt(manager, range(8)).close()
        run_prompt(manager, range(50, 58)).close()
        with publish(events, place) as publisher:
            told = first_message(publisher)
            windows = {event["group_idx"]: event.get("kv_cache_spec_sliding_window") for event in told[1:]}
            assert windows == {0: None, 1: 8}


def shared_rank(store: Any, place: dict[str, str], **settings: Any) -> tuple[Rank, Any]:
    made: list[Any] = []

    def make(manager: Any) -> Any:
        made.append(publish(manager.event_manager, place))
        return made[0]

    rank = Rank(store, event_manager=KVCacheEventManager(10_000), publish=make, **settings)
    return rank, made[0]


def flush(rank: Rank) -> None:
    assert rank.manager.event_manager is not None
    rank.manager.event_manager.flush_iteration_events()


@pytest.mark.parametrize("windows", [(None,), (None, 8)])
def test_shared_copies_are_told_as_external(routers: list[Router], place: dict[str, str], windows: tuple[int | None, ...]) -> None:
    store = MemoryStore()
    text = list(range(17))
    scope = ReuseScope(salt="tenant")
    groups = ["None"] if len(windows) == 1 else ["0", "1"]
    rank, publisher = shared_rank(store, place, config=shared_config(windows))
    with publisher, rank:
        routers.append(Router(publisher, snapshots=True))
        rank.run(text, scope)
        rank.drain()
        flush(rank)
        expected: dict[str, list[int]] = {}
        for group in groups:
            # Of a window of 8 after 17 tokens, blocks 2 and 3 are offered: 10..17 are read, and the window's first block is 2.
            kept = slice(0, 4) if group != "1" else slice(2, 4)
            for medium in ("GPU", "EXTERNAL"):
                hashes = names(text[:16], medium, scope, group)[f"{group}/{medium}"]
                expected[f"{group}/{medium}"] = hashes[kept] if medium == "EXTERNAL" else hashes
        if len(windows) == 1:
            routers[0].expect(expected)
            late = Router(publisher, snapshots=True)
            routers.append(late)
            late.expect(expected)
            rank.forget()
            flush(rank)
            del expected["None/GPU"]
            routers[0].expect(expected)  # what clears the manager clears no store
            late.expect(expected)
            rank.level.close()  # nothing is loaded from there any more
            routers[0].expect({})
        else:
            routers[0].expect({**expected, "1/GPU": routers_state(rank, text, scope)})
        assert all(router.facts()["errors"] == [] for router in routers)


def routers_state(rank: Rank, text: list[int], scope: ReuseScope) -> list[int]:
    """The windowed group's blocks on the GPU, as the manager's own index has them."""
    assert rank.manager.event_manager is not None
    snapshot = rank.manager.event_manager.snapshot()
    found: list[int] = []
    for event in snapshot.events:
        if event.layer_group_id == 1 and hasattr(event.data, "blocks"):
            found += [int(block.block_hash[:16], 16) for block in event.data.blocks]
    return found


def test_shared_copies_that_are_gone_are_told_once(routers: list[Router], place: dict[str, str]) -> None:
    store = MemoryStore()
    text = list(range(17))
    with Rank(store) as writer:
        writer.run(text)
        writer.drain()
    rank, publisher = shared_rank(store, place, write_policy="off")
    with publisher, rank:
        routers.append(Router(publisher, snapshots=True))
        request = rank.begin(text)
        rank.wait(lambda: request.remote_tokens == 16)
        routers[0].expect(names(text[:16], "EXTERNAL"))  # found, so this engine can load them
        for key in store.keys()[2:]:
            store.discard(key)
        assert request.kv_cache.resume() and request.fetch()
        rank.wait(lambda: request.arrived_tokens == 8)
        routers[0].expect(names(text[:8], "EXTERNAL"))
        request.cancel_remote()
        request.kv_cache.close()
        assert routers[0].facts()["errors"] == []


def test_what_the_store_has_evicted_is_told_at_the_next_look_up(routers: list[Router], place: dict[str, str]) -> None:
    """Also of prompts that are not looked up, once their pages were not seen for `claim_seconds`; and it is stored anew."""
    store = MemoryStore()
    text, other = list(range(17)), list(range(100, 117))
    rank, publisher = shared_rank(store, place, claim_seconds=0.0)
    with rank, publisher:
        routers.append(Router(publisher, snapshots=True))
        rank.run(text)
        rank.run(other)
        rank.drain()
        rank.forget()
        both = {"None/EXTERNAL": names(text[:16], "EXTERNAL")["None/EXTERNAL"] + names(other[:16], "EXTERNAL")["None/EXTERNAL"]}
        flush(rank)
        routers[0].expect({"None/EXTERNAL": sorted(both["None/EXTERNAL"])})
        for key in store.keys():
            store.discard(key)
        request = rank.begin(text)  # asks for its own four pages, and for those that were not seen just now
        rank.wait(lambda: request.remote_tokens == 0)
        routers[0].expect({})
        request.cancel_remote()
        request.kv_cache.close()
        rank.run(text)
        rank.drain()
        flush(rank)
        routers[0].expect(names(text[:16], "EXTERNAL") | names(text[:16]))
        assert routers[0].facts()["errors"] == []


def test_a_page_that_is_here_is_stored_again_once_the_store_has_lost_it() -> None:
    store = MemoryStore()
    with Rank(store, claim_seconds=0.0) as rank:
        rank.run(list(range(17)))
        rank.drain()
        for key in store.keys():
            store.discard(key)
        rank.run([*range(17), 1])  # matches here: nothing is offered a second time
        rank.drain()
        assert store.keys() == []
        rank.run(list(range(100, 117)))  # its look-up finds out
        rank.drain()
        rank.run([*range(17), 2])
        rank.drain()
        assert len(store.keys()) == 8


def test_a_shared_level_refuses_the_publisher_of_another_manager(place: dict[str, str]) -> None:
    with engine() as other, publish(other.event_manager, place) as publisher:
        with pytest.raises(ValueError, match="publisher"):
            Rank(MemoryStore(), publish=lambda manager: publisher)
        with pytest.raises(TypeError, match="publisher"):
            Rank(MemoryStore(), publish=lambda manager: "routers")
