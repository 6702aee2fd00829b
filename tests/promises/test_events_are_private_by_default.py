"""Events carry tokens: by default no other machine reaches them, with keys no other consumer, and a greedy one costs little."""

import logging
import os
import socket as sockets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from router_process import wait_for_first
from small_models import config_of, run_prompt

from kv_cache_manager_v2 import HostDevice, KVCacheEventManager, KVCacheManager

zmq = pytest.importorskip("zmq", reason="the extra `events` is not installed")
pytest.importorskip("msgspec", reason="the extra `events` is not installed")

from kv_cache_manager_v2 import KVCacheEventPublisher  # noqa: E402
from kv_cache_manager_v2.testing import read_batch  # noqa: E402

ANY_PORT = "tcp://127.0.0.1:*"


@pytest.fixture
def manager() -> Iterator[Any]:
    with KVCacheManager(config_of(), device=HostDevice(), event_manager=KVCacheEventManager(10_000)) as made:
        yield made


def publish(manager: Any, **settings: Any) -> Any:
    publisher = KVCacheEventPublisher(manager.event_manager, heartbeat_seconds=0.02, **settings)
    wait_for_first(publisher)
    return publisher


def first_tokens(socket: Any) -> list[int]:
    """Of the first block that the stream says is stored."""
    while True:
        assert socket.poll(60_000)
        for event in read_batch(socket.recv_multipart()[2]).events:
            if hasattr(event, "token_ids"):
                return list(event.token_ids)


def serve(manager: Any, tokens: Any) -> None:
    run_prompt(manager, tokens).close()
    manager.event_manager.flush_iteration_events()


def test_the_default_is_this_machine_alone() -> None:
    with sockets.socket() as taken:
        taken.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", 5557))
        except OSError:
            pytest.skip("another process has the default port")
    with KVCacheManager(config_of(), device=HostDevice(), event_manager=KVCacheEventManager(10)) as manager:
        with publish(manager) as publisher:
            assert publisher.endpoint == "tcp://127.0.0.1:5557"
            assert publisher.replay_endpoint is None and publisher.snapshot_endpoint is None


def test_what_is_open_to_other_machines_is_logged(manager: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "kv_cache_manager_v2"):
        publish(manager, endpoint=ANY_PORT).close()
        assert [record.levelno for record in caplog.records] == [logging.INFO]
        caplog.clear()
        publish(manager, endpoint=ANY_PORT, replay_endpoint="tcp://*:*").close()
        [line] = caplog.records
        assert line.levelno == logging.WARNING and "tcp://0.0.0.0:" in line.getMessage() and "127.0.0.1:" not in line.getMessage()
        caplog.clear()
        keys = dict(zip(("public", "secret"), (key.decode() for key in zmq.curve_keypair()), strict=True))
        publish(manager, endpoint="tcp://*:*", curve=keys["secret"], curve_consumers=[keys["public"]]).close()
        [line] = caplog.records
        assert line.levelno == logging.INFO and keys["secret"] not in line.getMessage()


def test_an_address_is_bound_and_a_subscriber_that_binds_is_connected_to(manager: Any) -> None:
    context = zmq.Context()
    bound = context.socket(zmq.SUB)
    bound.setsockopt(zmq.SUBSCRIBE, b"")
    port = bound.bind_to_random_port("tcp://127.0.0.1")
    connected = context.socket(zmq.SUB)
    connected.setsockopt(zmq.SUBSCRIBE, b"")
    with publish(manager, bind=ANY_PORT, connect=f"tcp://127.0.0.1:{port}") as publisher:
        connected.connect(publisher.endpoint)
        assert bound.poll(60_000) and connected.poll(60_000)
        serve(manager, range(4))
        assert first_tokens(bound) == first_tokens(connected) == [0, 1, 2, 3]
    with publish(manager, bind=None, connect=f"tcp://127.0.0.1:{port}") as publisher:
        assert publisher.endpoint is None and bound.poll(60_000)
    context.destroy(linger=0)


def test_wrong_addresses_and_keys_are_refused_by_name(manager: Any) -> None:
    public, secret = (key.decode() for key in zmq.curve_keypair())
    for wrong, field in (
        ({"bind": None}, "bind and connect"),
        ({"bind": "tcp://192.0.2.1:5557"}, "connect"),  # of no machine: reserved for documents
        ({"connect": "nowhere"}, "connect"),
        ({"endpoint": ANY_PORT, "curve": secret}, "curve_consumers is empty"),
        ({"endpoint": ANY_PORT, "curve_consumers": [public]}, "curve is None"),
        ({"endpoint": ANY_PORT, "curve": secret[:-1], "curve_consumers": [public]}, "curve is 39 characters"),
        ({"endpoint": ANY_PORT, "curve": secret, "curve_consumers": [public, "x"]}, r"curve_consumers\[1\]"),
        ({"endpoint": ANY_PORT, "curve": '"' * 40, "curve_consumers": [public]}, "curve is 40 characters"),
    ):
        with pytest.raises(ValueError, match=field) as refused:
            publish(manager, **wrong)
        assert secret[:20] not in str(refused.value)
    with pytest.raises(TypeError, match="curve_consumers"):
        publish(manager, endpoint=ANY_PORT, curve=secret, curve_consumers=public)
    publish(manager, endpoint=ANY_PORT).close()  # nothing is left open by the refusals


def test_consumers_without_a_key_get_nothing(manager: Any, caplog: pytest.LogCaptureFixture) -> None:
    keys = {name: zmq.curve_keypair() for name in ("publisher", "friend", "stranger")}
    context = zmq.Context()

    def consumer(kind: int, endpoint: str, name: str | None, server: str = "publisher") -> Any:
        socket = context.socket(kind)
        if name is not None:
            socket.curve_publickey, socket.curve_secretkey = keys[name]
            socket.curve_serverkey = keys[server][0]
        if kind == zmq.SUB:
            socket.setsockopt(zmq.SUBSCRIBE, b"")
        socket.connect(endpoint)
        return socket

    with publish(
        manager,
        endpoint=ANY_PORT,
        replay_endpoint=ANY_PORT,
        snapshot_endpoint=ANY_PORT,
        curve=keys["publisher"][1].decode(),
        curve_consumers=[keys["friend"][0].decode()],
    ) as publisher:
        serve(manager, range(4))
        kinds = [(zmq.SUB, publisher.endpoint, None), (zmq.DEALER, publisher.replay_endpoint, bytes(8))]
        kinds.append((zmq.DEALER, publisher.snapshot_endpoint, b"snapshot"))
        strangers = []
        for kind, endpoint, request in kinds:
            for name, server in ((None, ""), ("stranger", "publisher"), ("friend", "stranger")):
                strangers.append(consumer(kind, endpoint, name, server))
                if request is not None:
                    strangers[-1].send_multipart([b"", request])
        for kind, endpoint, request in kinds:
            friend = consumer(kind, endpoint, "friend")
            if request is not None:
                friend.send_multipart([b"", request])
            for _message in range(3):  # heart-beats; batches of the answer
                assert friend.poll(60_000)
                friend.recv_multipart()
        # The friend's answers came behind the strangers' attempts, on the same thread.
        assert [stranger.poll(0) for stranger in strangers] == [0] * 9
        assert publisher.error is None
    assert sum("not in curve_consumers" in record.getMessage() for record in caplog.records) == 1  # one key, refused three times
    context.destroy(linger=0)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


def ask_greedily(endpoint: str, request: bytes, times: int) -> Any:
    """A consumer that asks as often as it can, and reads nothing."""
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.rcvhwm = 1
    socket.connect(endpoint)
    for _number in range(times):
        socket.send_multipart([b"", request])
    return context


@pytest.mark.parametrize("request_of", ["snapshot", "replay"])
def test_a_consumer_that_asks_and_does_not_read_costs_little(request_of: str, caplog: pytest.LogCaptureFixture) -> None:
    """Two thousand requests for 84 kB each: memory grows by some megabytes, the next consumer is served, and `close` ends."""
    with KVCacheManager(config_of(num_slots=5_000), device=HostDevice(), event_manager=KVCacheEventManager(1 << 20)) as manager:
        with publish(manager, endpoint=ANY_PORT, replay_endpoint=ANY_PORT, snapshot_endpoint=ANY_PORT, buffer_batches=1) as publisher:
            for start in range(0, 16_000, 4_000):
                serve(manager, range(start, start + 4_000))
            endpoint, asked = (
                (publisher.snapshot_endpoint, b"snapshot") if request_of == "snapshot" else (publisher.replay_endpoint, bytes(8))
            )
            reader = zmq.Context()
            patient = reader.socket(zmq.DEALER)
            patient.connect(endpoint)

            def num_bytes_of_answer() -> int:
                patient.send_multipart([b"", asked])
                received = 0
                while True:
                    assert patient.poll(60_000)
                    frames = patient.recv_multipart()
                    received += len(frames[3])
                    if frames[2] == b"\xff" * 8:
                        return received

            while num_bytes_of_answer() < 80_000:  # until all 4,000 blocks are published
                time.sleep(0.01)
            before = resident_bytes()
            greedy = ask_greedily(endpoint, asked, 2000)
            assert num_bytes_of_answer() >= 80_000
            assert resident_bytes() - before < 40 << 20
        # It has closed, though the greedy one has not read, nor ever will.
        assert publisher.error is None
        lines = [record.getMessage() for record in caplog.records if "KV events at" in record.getMessage()]
        assert any("reads too slowly" in line or "a request is dropped" in line for line in lines) and len(lines) < 10
        reader.destroy(linger=0)
        greedy.destroy(linger=0)


def test_what_consumers_send_is_bounded(manager: Any) -> None:
    """A frame larger than any request ends that connection; the others go on."""
    with publish(manager, endpoint=ANY_PORT, snapshot_endpoint=ANY_PORT) as publisher:
        context = zmq.Context()
        for request in (b"x" * (1 << 20), b"snapshot"):
            socket = context.socket(zmq.DEALER)
            socket.connect(publisher.snapshot_endpoint)
            socket.send_multipart([b"", request])
        assert socket.poll(60_000) and publisher.error is None
        context.destroy(linger=0)
