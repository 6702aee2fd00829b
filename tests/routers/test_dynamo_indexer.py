"""NVIDIA Dynamo's standalone indexer follows a publisher: late start, gaps, restarts, and all media. `make routers` runs this.

What the indexer knows is compared, tier by tier and hash by hash (its `/dump`), with what the manager has. It listens on all interfaces:
the tests run in a network of their own, where there is only the loopback.
"""

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parents[1])]

pytest.importorskip("dynamo", reason="make routers installs Dynamo's indexer into an environment of its own")

from durable_models import Process, durable_config  # noqa: E402
from shared_models import Rank  # noqa: E402
from small_models import config_of, run_prompt  # noqa: E402

from kv_cache_manager_v2 import (  # noqa: E402
    HostDevice,
    KVCacheEventManager,
    KVCacheEventPublisher,
    KVCacheManager,
    ReuseScope,
    compute_block_hashes,
)
from kv_cache_manager_v2.shared import MemoryStore  # noqa: E402

INTERFACES = [name for _index, name in socket.if_nameindex()]
OPEN = "the indexer listens on all interfaces: make routers gives it a network of its own"
pytestmark = pytest.mark.skipif(INTERFACES != ["lo"], reason=OPEN)

Tiers = dict[str, list[int]]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def eventually(ask: Callable[[], Any], expected: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    found = ask()
    while found != expected and time.monotonic() < deadline:
        time.sleep(0.02)
        found = ask()
    assert found == expected


class Indexer:
    """The process, and what it answers."""

    def __init__(self) -> None:
        self.port = free_port()
        command = [sys.executable, "-P", "-m", "dynamo.indexer", "--port", str(self.port), "--threads", "1"]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(self.answers, True)

    def ask(self, path: str, body: Any = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=10) as answer:
            found: bytes = answer.read()
            return found

    def answers(self) -> bool:
        try:
            self.ask("/health")
        except OSError:
            return False
        return True

    def register(self, publisher: Any, number: int = 1) -> None:
        self.ask(
            "/register",
            {
                "instance_id": number,
                "endpoint": publisher.endpoint,
                "replay_endpoint": publisher.replay_endpoint,
                "model_name": "m",
                "block_size": 4,
            },
        )

    def tiers(self) -> Tiers:
        """All hashes that it knows, by tier."""
        found: Tiers = {}
        for index in json.loads(self.ask("/dump")).values():
            for event in index["events"]:
                blocks = event["event"]["data"]["stored"]["blocks"]
                found.setdefault(event["storage_tier"], []).extend([block["block_hash"] for block in blocks])
        return {tier: sorted(hashes) for tier, hashes in found.items()}

    def longest(self, tokens: list[int], **scope: str) -> int:
        """The longest prefix that the engine has, in tokens, wherever. ``scope``: cache_salt, lora_name."""
        instances = json.loads(self.ask("/query", {"model_name": "m", "token_ids": tokens, **scope}))["instances"]
        return int(instances["1"]["longest_matched"]) if "1" in instances else 0

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=30)


@pytest.fixture
def indexers() -> Iterator[list[Indexer]]:
    started: list[Indexer] = [Indexer()]
    yield started
    for indexer in started:
        indexer.stop()


@pytest.fixture
def place() -> dict[str, str]:
    return {"endpoint": f"tcp://127.0.0.1:{free_port()}", "replay_endpoint": f"tcp://127.0.0.1:{free_port()}"}


def bound(place: dict[str, str]) -> dict[str, str]:
    """The same ports, to bind: an address without * or :: is connected to."""
    return {name: address.replace("127.0.0.1", "*") for name, address in place.items()}


def publish(events: Any, place: dict[str, str], **settings: Any) -> Any:
    return KVCacheEventPublisher(events, topic="kv@pod@m", **{"heartbeat_seconds": 0.05, **bound(place), **settings})


def hashes(*texts: Any) -> list[int]:
    return sorted({name for text in texts for name in compute_block_hashes(list(text), 4, None, "sha256_64") if isinstance(name, int)})


def serve(manager: Any, tokens: Any) -> None:
    run_prompt(manager, tokens).close()
    manager.event_manager.flush_iteration_events()


def engine(max_entries: int = 10_000, **settings: Any) -> Any:
    return KVCacheManager(config_of(**settings), device=HostDevice(), event_manager=KVCacheEventManager(max_entries))


@pytest.mark.parametrize("buffer_batches", [10_000, 0])
@pytest.mark.parametrize("first_sequence", [0, "epoch"])
def test_late_start_beside_an_idle_engine(indexers: list[Indexer], place: dict[str, str], buffer_batches: int, first_sequence: Any) -> None:
    with engine(num_slots=8) as manager:
        with publish(manager.event_manager, place, buffer_batches=buffer_batches, first_sequence=first_sequence) as publisher:
            serve(manager, range(16))
            while publisher.num_batches_published < 3:
                time.sleep(0.01)
            indexers[0].register(publisher)
            eventually(indexers[0].tiers, {"device": hashes(range(16))})
            assert indexers[0].longest(list(range(20))) == 16
            serve(manager, range(100, 124))  # six blocks of eight: two of the first four go
            eventually(indexers[0].tiers, {"device": hashes(range(8), range(100, 124))})
            indexers.append(Indexer())
            indexers[1].register(publisher)
            eventually(indexers[1].tiers, {"device": hashes(range(8), range(100, 124))})


@pytest.mark.parametrize("dialect", ["map", "array"])
def test_scopes_have_their_own_hits(indexers: list[Indexer], place: dict[str, str], dialect: str) -> None:
    text = list(range(64))
    with engine(num_slots=100) as manager, publish(manager.event_manager, place, dialect=dialect, lora_names={7: "polite"}) as publisher:
        indexers[0].register(publisher)
        run_prompt(manager, text, reuse_scope=ReuseScope(salt="a")).close()
        run_prompt(manager, text[:32], reuse_scope=ReuseScope(salt="b")).close()
        run_prompt(manager, text[:16], reuse_scope=ReuseScope(lora_id=7)).close()
        run_prompt(manager, text[:8], reuse_scope=ReuseScope(lora_id=8)).close()
        manager.event_manager.flush_iteration_events()
        eventually(lambda: indexers[0].longest(text, cache_salt="a"), 64)
        eventually(lambda: indexers[0].longest(text, lora_name="lora-8"), 8)
        assert indexers[0].longest(text, cache_salt="b") == 32
        assert indexers[0].longest(text, lora_name="polite") == 16
        assert indexers[0].longest(text) == indexers[0].longest(text, cache_salt="c") == indexers[0].longest(text, lora_name="other") == 0
        # A path that goes on below what is known, and one that is told anew to a late consumer.
        run_prompt(manager, [*text, *range(900, 908)], reuse_scope=ReuseScope(salt="a")).close()
        manager.event_manager.flush_iteration_events()
        indexers.append(Indexer())
        indexers[1].register(publisher)
        for indexer in indexers:
            eventually(lambda indexer=indexer: indexer.longest([*text, *range(900, 908)], cache_salt="a"), 72)
            assert indexer.longest([*text, *range(900, 908)]) == 0


def test_a_new_publisher_of_a_living_manager(indexers: list[Indexer], place: dict[str, str]) -> None:
    with engine(num_slots=100) as manager:
        for start in (0, 100):
            with publish(manager.event_manager, place, first_sequence="epoch") as publisher:
                if start == 0:
                    indexers[0].register(publisher)
                serve(manager, range(start, start + 16))
                eventually(indexers[0].tiers, {"device": hashes(*[range(begin, begin + 16) for begin in range(0, start + 1, 100)])})


def test_a_gap(indexers: list[Indexer], place: dict[str, str]) -> None:
    with engine(2, num_slots=200) as manager, publish(manager.event_manager, place) as publisher:
        indexers[0].register(publisher)
        serve(manager, range(16))
        eventually(indexers[0].tiers, {"device": hashes(range(16))})
        texts = [range(start, start + 8) for start in range(1000, 2000, 100)]
        for text in texts:
            run_prompt(manager, text).close()
        manager.event_manager.flush_iteration_events()  # ten events, and room for two
        eventually(indexers[0].tiers, {"device": hashes(range(16), *texts)})
        assert publisher.num_batches_lost == 1


def test_a_restart_with_a_durable_level(indexers: list[Indexer], place: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        config = durable_config(folder)
        before = KVCacheEventManager(10_000)
        process = Process(config, event_manager=before)
        publisher = publish(before, place, first_sequence="epoch")
        indexers[0].register(publisher)
        process.run(list(range(16)))
        before.flush_iteration_events()
        eventually(lambda: indexers[0].longest(list(range(16))), 16)
        publisher.close()
        process.end()
        after = KVCacheEventManager(10_000)
        with KVCacheManager(config, device=HostDevice(), event_manager=after) as manager:
            with publish(after, place, first_sequence="epoch"):
                eventually(indexers[0].tiers, {"disk": hashes(range(16))})
                serve(manager, range(300, 308))
                eventually(indexers[0].tiers, {"device": hashes(range(300, 308)), "disk": hashes(range(16))})


def test_a_restart_without_one_leaves_nothing(indexers: list[Indexer], place: dict[str, str]) -> None:
    for start in (0, 100):
        with engine() as manager, publish(manager.event_manager, place, first_sequence="epoch") as publisher:
            if start == 0:
                indexers[0].register(publisher)
            serve(manager, range(start, start + 16))
            eventually(indexers[0].tiers, {"device": hashes(range(start, start + 16))})


def test_copies_in_a_shared_level(indexers: list[Indexer], place: dict[str, str]) -> None:
    store = MemoryStore()
    events = KVCacheEventManager(10_000)
    made: list[Any] = []

    def make(manager: Any) -> Any:
        made.append(publish(events, place))
        return made[0]

    with Rank(store, event_manager=events, publish=make) as rank, made[0]:
        indexers[0].register(made[0])
        rank.run(list(range(17)))
        rank.drain()
        events.flush_iteration_events()
        eventually(indexers[0].tiers, {"device": hashes(range(16)), "external": hashes(range(16))})
        rank.forget()
        events.flush_iteration_events()
        eventually(indexers[0].tiers, {"external": hashes(range(16))})
        assert indexers[0].longest(list(range(16))) == 16
        late = Indexer()
        indexers.append(late)
        late.register(made[0])
        eventually(late.tiers, {"external": hashes(range(16))})
