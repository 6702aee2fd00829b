"""`MooncakeStore` over a Mooncake pool of this machine: the contract of stores, prefixes, and nodes and masters that die and hang.

`make mooncake` runs this and prints a table. Every byte that is loaded is compared by the engine that reads it.
"""

import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parents[1])]

pytest.importorskip("mooncake.store", reason="make mooncake installs Mooncake into an environment of its own", exc_type=ImportError)

from shared_models import Rank, shared_config, wait_until  # noqa: E402

from kv_cache_manager_v2.shared import MooncakeStore, StoreError  # noqa: E402
from kv_cache_manager_v2.shared.shared_store import MISSING, WRONG_SIZE  # noqa: E402

TEXTS = [[1000 * number + position for position in range(65)] for number in range(1, 9)]
CLIENT_TTL = 10.0
NODE = """
import time
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 256 << 20, 16 << 20, "tcp", "", {master!r}) == 0
print("ready", flush=True)
time.sleep(3600)
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Pool:
    """A master and nodes."""

    def __init__(self, num_nodes: int) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.start_master()
        self.nodes = [self.start_node() for _number in range(num_nodes)]

    def start_master(self) -> None:
        command = [
            str(Path(sys.executable).parent / "mooncake_master"),
            "--rpc_address=127.0.0.1",
            f"--rpc_port={self.port}",
            "--metrics_host=127.0.0.1",
            f"--metrics_port={self.metrics_port}",
            "--default_kv_lease_ttl=200",
        ]
        self.master = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(self.master_answers, 20.0)

    def master_answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 0.2).close()
        except OSError:
            return False
        return True

    def start_node(self) -> "subprocess.Popen[str]":
        command = [sys.executable, "-P", "-c", NODE.format(master=self.address)]
        node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert node.stdout is not None and node.stdout.readline() == "ready\n"
        return node

    def stop(self) -> None:
        for process in (*self.nodes, self.master):
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


@pytest.fixture
def pool() -> Iterator[Pool]:
    pool = Pool(2)
    yield pool
    pool.stop()


@pytest.fixture
def store(pool: Pool) -> MooncakeStore:
    # Not closed: its client waits for a pool that some tests have killed, and ends with the process.
    return MooncakeStore(pool.address, buffer_bytes=4 << 20)


def test_the_contract_of_stores(store: MooncakeStore) -> None:
    one, other = store.connect(store.endpoints[0]), store.connect(store.endpoints[0])
    one.check()
    other.check()
    values = {b"contract/%d" % number: bytes([number % 251]) * (7 + 4001 * number) for number in range(40)}
    one.store(list(values), [[memoryview(value)[:5], memoryview(value)[5:]] for value in values.values()])
    assert other.lookup([*values, b"contract/none"]) == [True] * 40 + [False]
    targets = [bytearray(len(value)) for value in values.values()]
    assert other.load(list(values), [memoryview(target) for target in targets]) == [len(value) for value in values.values()]
    assert [bytes(target) for target in targets] == list(values.values())
    one.store([b"contract/1"], [[memoryview(b"then!")]])
    sizes = other.load([b"contract/1"] * 3 + [b"contract/none"], [memoryview(bytearray(size)) for size in (5, 4, 6, 5)])
    assert sizes == [5, WRONG_SIZE, WRONG_SIZE, MISSING]
    one.remove([b"contract/1", b"contract/none"])
    assert other.lookup([b"contract/1", b"contract/2"]) == [False, True]
    for connection in (one, other):
        connection.close()


def test_a_master_that_is_not_there_is_a_named_error() -> None:
    with pytest.raises(StoreError, match="cannot be reached"):
        MooncakeStore(f"127.0.0.1:{free_port()}")


class Watched:
    """A rank, the longest of its manager's calls and the slowest answer to a prompt, in milliseconds."""

    def __init__(self, store: MooncakeStore) -> None:
        self.rank = Rank(store, shared_config((None, 16)))
        self.longest = 0.0
        self.slowest = 0.0

    def time(self, call: Callable[[], Any]) -> Any:
        begun = time.perf_counter()
        found = call()
        self.longest = max(self.longest, (time.perf_counter() - begun) * 1000)
        return found

    def run(self, text: list[int]) -> int:
        """Serve a prompt; how many of its tokens came from the store."""
        rank = self.rank
        kv_cache = rank.manager.create_kv_cache(None, text[:-1])
        begun = time.perf_counter()
        request = self.time(lambda: rank.level.look_up(kv_cache))
        while request.remote_tokens is None:
            self.time(rank.settle)
            time.sleep(0.0005)
        matched = kv_cache.num_committed_tokens
        assert kv_cache.resume()
        if request.remote_tokens and self.time(request.fetch):
            while request.arrived_tokens is None:
                self.time(rank.settle)
                time.sleep(0.0005)
            self.time(request.take)
        self.slowest = max(self.slowest, (time.perf_counter() - begun) * 1000)
        num_loaded = kv_cache.num_committed_tokens - matched
        rank.compute(request, text)
        self.time(rank.settle)
        return num_loaded


def kill_node(pool: Pool) -> None:
    pool.nodes[0].kill()
    pool.nodes[0].wait()


FAULTS: dict[str, tuple[Callable[[Pool], Any], Callable[[Pool], Any]]] = {
    "none": (lambda pool: None, lambda pool: None),
    "a node killed": (kill_node, lambda pool: pool.nodes.append(pool.start_node())),
    "all nodes frozen": (
        lambda pool: [node.send_signal(signal.SIGSTOP) for node in pool.nodes],
        lambda pool: [node.send_signal(signal.SIGCONT) for node in pool.nodes],
    ),
    "master frozen": (lambda pool: pool.master.send_signal(signal.SIGSTOP), lambda pool: pool.master.send_signal(signal.SIGCONT)),
    "master killed": (lambda pool: (pool.master.kill(), pool.master.wait()), lambda pool: pool.start_master()),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_pool_that_fails_costs_hits(pool: Pool, store: MooncakeStore, fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    with Rank(store, shared_config((None, 16))) as writer:
        for text in TEXTS:
            writer.run(text)
            writer.drain()
    watched = Watched(store)
    inflict, relieve = FAULTS[fault]
    rank = watched.rank
    with rank:
        inflict(pool)
        end = time.monotonic() + (1.0 if fault == "none" else 5.0)
        number = 0
        while time.monotonic() < end:
            watched.run(TEXTS[number % 8])
            rank.forget()
            number += 1
        assert store.num_stuck <= 8
        stuck = store.num_stuck
        relieve(pool)
        begun = time.monotonic()

        def is_back() -> bool:
            rank.forget()
            if watched.run(TEXTS[7]) == 64:
                return True
            rank.drain()
            return False

        wait_until(is_back, CLIENT_TTL + 2.0)
        back = time.monotonic() - begun
        assert rank.level.statistics.corrupt_pages == 0
    with capsys.disabled():
        print(
            f"\n  {fault:<17} {number:>5} prompts, longest call {watched.longest:6.1f} ms, slowest answer {watched.slowest:6.0f} ms, "
            f"{stuck} threads stuck, hits back after {back:.1f} s"
        )


def test_random_prompts_beside_nodes_that_freeze(pool: Pool, store: MooncakeStore, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(3)
    trunks = [[1000 * number + position for position in range(60)] for number in range(5)]
    num_loaded = num_prompts = 0
    with Rank(store, shared_config((None, 16))) as rank:
        end = time.monotonic() + 20.0
        frozen_until = 0.0
        while time.monotonic() < end:
            num_loaded += rank.run([*rng.choice(trunks)[: rng.randrange(6, 60)], rng.randrange(9)])
            num_prompts += 1
            if rng.random() < 0.5:
                rank.forget()
            now = time.monotonic()
            if frozen_until and now > frozen_until:
                frozen_until = 0.0
                for node in pool.nodes:
                    node.send_signal(signal.SIGCONT)
            elif not frozen_until and rng.random() < 0.02:
                frozen_until = now + rng.uniform(0.1, 1.5)
                rng.choice(pool.nodes).send_signal(signal.SIGSTOP)
        for node in pool.nodes:
            node.send_signal(signal.SIGCONT)
        assert num_loaded > 0 and rank.level.statistics.corrupt_pages == 0
    with capsys.disabled():
        print(f"\n  random            {num_prompts} prompts, {num_loaded} tokens loaded, no wrong byte")
