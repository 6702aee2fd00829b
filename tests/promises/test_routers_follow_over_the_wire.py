"""A router in another process knows what an engine has: from its start or later on, over gaps, and over restarts of either side."""

import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
from router_process import TOPIC, Router, stopped_at_the_end, wait_for_first
from small_models import config_of, run_prompt

from kv_cache_manager_v2 import HostDevice, KVCacheEventManager, KVCacheManager, LogicError, compute_block_hashes

zmq = pytest.importorskip("zmq", reason="the extra `events` is not installed")
pytest.importorskip("msgspec", reason="the extra `events` is not installed")

from kv_cache_manager_v2 import KVCacheEventPublisher  # noqa: E402

routers = pytest.fixture(stopped_at_the_end)


def engine(max_entries: int = 10_000, **settings: Any) -> Any:
    events = KVCacheEventManager(max_entries)
    return KVCacheManager(config_of(**settings), device=HostDevice(), event_manager=events)


def publish(manager: Any, **settings: Any) -> Any:
    settings = {"endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*", "topic": TOPIC, **settings}
    publisher = KVCacheEventPublisher(manager.event_manager, **settings)
    wait_for_first(publisher)
    return publisher


def names(tokens: Any, group: str = "None", size: int = 4) -> dict[str, list[int]]:
    hashes = compute_block_hashes(tokens, size, None, "sha256_64")
    return {f"{group}/GPU": [block_hash for block_hash in hashes if isinstance(block_hash, int)]}


def serve(manager: Any, tokens: Any) -> None:
    run_prompt(manager, tokens).close()
    manager.event_manager.flush_iteration_events()


def test_a_router_follows_from_the_start(routers: list[Router]) -> None:
    with engine(num_slots=8) as manager, publish(manager) as publisher:
        routers.append(Router(publisher))
        routers[0].expect({})
        serve(manager, range(16))
        routers[0].expect(names(range(16)))
        serve(manager, range(100, 124))  # six blocks of eight: two of the first four go
        routers[0].expect({"None/GPU": names(range(8))["None/GPU"] + names(range(100, 124))["None/GPU"]})
        manager.clear_reusable_blocks()
        manager.event_manager.flush_iteration_events()
        routers[0].expect({})
        facts = routers[0].facts()
        assert facts["errors"] == [] and facts["first"] == "AllBlocksCleared"


def test_a_router_that_comes_late_or_again_asks_for_what_it_missed(routers: list[Router]) -> None:
    with engine() as manager, publish(manager) as publisher:
        serve(manager, range(8))
        for _ in range(2):
            routers.append(Router(publisher))
            routers[-1].expect(names(range(8)))
        routers[0].stop()
        serve(manager, range(20))
        routers[1].expect(names(range(20)))
        routers.append(Router(publisher))
        routers[2].expect(names(range(20)))
        assert all(router.facts()["errors"] == [] for router in routers[1:])


def test_replays_of_forgotten_batches_come_from_the_tree(routers: list[Router]) -> None:
    with engine(windows=(None, 8)) as manager, publish(manager, buffer_batches=2) as publisher:
        expected: dict[str, list[int]] = {"0/GPU": [], "1/GPU": []}
        for start in range(0, 1000, 100):
            serve(manager, range(start, start + 12))
            for group in ("0", "1"):
                expected[f"{group}/GPU"] += names(range(start, start + 12), group)[f"{group}/GPU"]
        router = Router(publisher)
        routers.append(router)
        router.expect(expected)
        serve(manager, range(5000, 5004))
        for group in ("0", "1"):
            expected[f"{group}/GPU"] += names(range(5000, 5004), group)[f"{group}/GPU"]
        router.expect(expected)
        assert router.facts()["errors"] == []


def end(publisher: Any, manager: Any) -> None:
    publisher.close()
    manager.shutdown()


@pytest.fixture
def same_place() -> Iterator[dict[str, str]]:
    """Endpoints that a second publisher finds free after the first: a port that is released may be another process's then."""
    with tempfile.TemporaryDirectory() as folder:
        yield {"endpoint": f"ipc://{folder}/events", "replay_endpoint": f"ipc://{folder}/replay"}


def test_numbers_that_grow_over_restarts_lose_nothing(routers: list[Router], same_place: dict[str, str]) -> None:
    manager = engine()
    publisher = publish(manager, first_sequence="epoch", **same_place)
    routers.append(Router(publisher))
    serve(manager, range(16))
    routers[0].expect(names(range(16)))
    end(publisher, manager)  # a router is told nothing of it
    with engine() as again:
        with publish(again, first_sequence="epoch", **same_place):
            serve(again, range(200, 208))
            routers[0].expect(names(range(200, 208)))
            serve(again, range(200, 212))
            routers[0].expect(names(range(200, 212)))
            assert routers[0].facts()["errors"] == []


def test_numbers_that_begin_at_0_again_are_a_restart(routers: list[Router], same_place: dict[str, str]) -> None:
    manager = engine(num_slots=200)
    publisher = publish(manager, **same_place)
    routers.append(Router(publisher))
    expected: list[int] = []
    for start in range(0, 2000, 100):
        serve(manager, range(start, start + 4))
        expected += names(range(start, start + 4))["None/GPU"]
        routers[0].expect({"None/GPU": expected})
    assert publisher.next_sequence >= 20  # a batch for each of the steps above, which were awaited one by one
    end(publisher, manager)
    with engine(num_slots=200) as again:
        with publish(again, **same_place):
            # What is published before the router's socket has found the new one is lost to it; fewer than the 20 of before.
            expected = []
            for start in range(10_000, 11_500, 100):
                serve(again, range(start, start + 4))
                expected += names(range(start, start + 4))["None/GPU"]
                if routers[0].ask("restarted") == "yes":
                    break
            routers[0].expect({"None/GPU": expected})
            assert routers[0].facts()["errors"] == []


def test_events_that_come_too_fast_leave_a_gap_and_then_everything(routers: list[Router]) -> None:
    with engine(2, num_slots=200) as manager:
        # Before the first drain: all but the last two are lost, and no consumer has missed them.
        for start in range(0, 1000, 100):
            serve(manager, range(start, start + 8))
        expected = {"None/GPU": sum([names(range(start, start + 8))["None/GPU"] for start in range(0, 1000, 100)], [])}
        with publish(manager) as publisher:
            routers.append(Router(publisher))
            routers[0].expect(expected)
            assert publisher.num_batches_lost == 0
            for start in range(1000, 2000, 100):
                run_prompt(manager, range(start, start + 8)).close()
                expected["None/GPU"] += names(range(start, start + 8))["None/GPU"]
            manager.event_manager.flush_iteration_events()
            routers[0].expect(expected)
            assert publisher.num_batches_lost == 1
            assert routers[0].facts()["errors"] == []


def raw_request(publisher: Any, frames: list[bytes]) -> list[list[bytes]]:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(publisher.replay_endpoint)
    socket.send_multipart(frames)
    answer = []
    while socket.poll(60_000):
        answer.append(socket.recv_multipart())
        if answer[-1][1:] == [b"", b"\xff" * 8, b""]:
            break
    context.destroy(linger=0)
    return answer


def test_a_request_that_makes_no_sense_gets_the_end_marker() -> None:
    with engine() as manager, publish(manager) as publisher:
        end = [b"", b"", b"\xff" * 8, b""]
        for frames in ([b"", b"abc"], [b"x"], [b"", b"", b""], [b"", b"\xff" * 8]):
            assert raw_request(publisher, frames) == [end]
        answer = raw_request(publisher, [b"", bytes(8)])
        assert answer[-1] == end and answer[0][:3] == [b"", TOPIC.encode(), bytes(8)]
        assert publisher.error is None


def test_ports_count_up_by_rank_and_misuse_is_a_clear_error() -> None:
    from kv_cache_manager_v2.publishing.event_endpoints import offset_port

    assert offset_port("tcp://*:5557", 3) == "tcp://*:5560" and offset_port("ipc://a", 2) == "ipc://a_dp2"
    with engine() as manager:
        for wrong in (
            {"dialect": "xml"},
            {"first_sequence": "now"},
            {"first_sequence": -1},
            {"endpoint": "tcp://nowhere", "data_parallel_rank": 1},
            {"endpoint": "tcp://nowhere"},
            {"endpoint": "nowhere"},
            {"snapshot_endpoint": "bad://a"},
            {"endpoint": "tcp://127.0.0.1:99999"},
            {"endpoint": "tcp://127.0.0.1:65535", "data_parallel_rank": 1},
            {"topic": "\udcff"},
            {"linger_ms": 2**40},
            {"high_water_mark": 2**40},
            {"buffer_batches": -1},
        ):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                publish(manager, **wrong)
        with pytest.raises(TypeError):
            publish(manager, topic=b"x")
        with publish(manager) as publisher:
            with engine() as other, pytest.raises(zmq.ZMQError):
                publish(other, endpoint=publisher.endpoint.replace("127.0.0.1", "*"))
    with pytest.raises(LogicError, match="max_kv_event_entries is 0"), engine(0) as off:
        publish(off)
    with pytest.raises(LogicError, match="give it to a KVCacheManager"):
        KVCacheEventPublisher(KVCacheEventManager(1))


def test_an_event_manager_has_one_publisher_at_a_time() -> None:
    """Each would lack what the other one has drained. One that cannot begin, or that is closed, is in no one's way."""
    with engine() as other, publish(other) as taken, engine() as manager:
        with pytest.raises(zmq.ZMQError):
            publish(manager, endpoint=taken.endpoint.replace("127.0.0.1", "*"))
        first = publish(manager)
        with pytest.raises(LogicError, match="event_manager has a publisher already, .*; close that one first"):
            publish(manager)
        first.close()
        with publish(manager):
            first.close()
            with pytest.raises(LogicError, match="close that one first"):
                publish(manager)
