"""A store that is killed, frozen, slow, full or lying costs hits: no call waits for it, no byte is wrong, and hits return with it."""

import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_valkey_server import FakeServer
from shared_models import MODEL, Rank, Server, shared_config, wait_until

from kv_cache_manager_v2 import KVCacheManager, LogicError
from kv_cache_manager_v2.shared import MemoryStore, SharedLevel, SharedStore, StoreConnection, StoreError, ValkeyStore

TEXTS = [[1000 * number + position for position in range(17)] for number in range(1, 9)]


@pytest.fixture
def server() -> Iterator[FakeServer]:
    with FakeServer() as running:
        yield running


def fill(store: SharedStore, texts: list[list[int]] = TEXTS) -> None:
    with Rank(store) as writer:
        for text in texts:
            writer.run(text)
            writer.drain()


FAULTS = ["frozen", "slow", "garbage", "errors", "cut off"]


def break_server(server: FakeServer, fault: str) -> None:
    if fault == "frozen":
        server.thawed.clear()
    elif fault == "slow":
        server.delay = 1.0
    elif fault == "garbage":
        rng = random.Random(1)
        server.reply = lambda words: rng.randbytes(64) + b"\r\n"
    elif fault == "errors":
        server.reply = lambda words: b"-LOADING Valkey is loading the dataset in memory\r\n"
    else:
        server.reply = lambda words: b"$320\r\nKVCMSHR1"


def repair_server(server: FakeServer) -> None:
    server.reply = None
    server.delay = 0.0
    server.thawed.set()


@pytest.mark.parametrize(("moment", "fault"), [("look-up", "frozen"), ("look-up", "garbage"), *[("load", fault) for fault in FAULTS]])
def test_a_store_that_fails_costs_hits(server: FakeServer, fault: str, moment: str) -> None:
    store = ValkeyStore([server.address])
    fill(store)
    with Rank(store) as rank:
        request = rank.begin(TEXTS[0])
        if moment == "load":
            rank.wait(lambda: request.remote_tokens == 16)
            assert request.kv_cache.resume()
            break_server(server, fault)
            assert request.fetch()
            rank.wait(lambda: request.arrived_tokens is not None)
            assert request.arrived_tokens == 0
            assert request.take() and request.remote_tokens == 0
        else:
            rank.wait(lambda: request.remote_tokens is not None)
            break_server(server, fault)
            for text in TEXTS[1:4]:
                assert rank.run(text) == 0
            assert rank.level.failed_endpoints == (server.address,)
            num_asked = len(server.commands)
            while rank.level.statistics.refusals == 0:
                assert rank.run(TEXTS[4]) == 0
                rank.forget()
            assert len(server.commands) <= num_asked + 1  # not asked, but for a probe
            rank.load(request)
        rank.compute(request, TEXTS[0])
        repair_server(server)

        def is_back() -> bool:
            rank.forget()
            return rank.run(TEXTS[7]) == 16

        wait_until(is_back)
        # What was asked while it was frozen may run out of time after that.
        rank.wait(lambda: rank.level.failed_endpoints == ())
        rank.wait(lambda: rank.level.num_quarantined == 0)
        assert rank.level.statistics.failures > 0


def test_a_full_store_is_left_alone_for_a_while(server: FakeServer) -> None:
    store = ValkeyStore([server.address])
    with Rank(store) as rank:
        server.reply = lambda words: b"-OOM command not allowed when used memory > 'maxmemory'.\r\n" if words[0] == b"SET" else None
        rank.run(TEXTS[0])
        rank.drain()
        num_asked = server.commands.count(b"SET")
        assert rank.level.statistics.full_stores == 1
        assert rank.run(TEXTS[1]) == 0
        assert server.commands.count(b"SET") == num_asked
        assert rank.level.statistics.dropped_pages == 8
        assert rank.level.failed_endpoints == ()
        server.reply = None

        def is_stored() -> bool:
            rank.forget()
            rank.run(TEXTS[2])
            rank.drain()
            rank.forget()
            return rank.run(TEXTS[2]) == 16

        wait_until(is_stored)


class StuckStore(MemoryStore):
    """Loads wait for a gate, whatever the deadline, and write late; as a transfer engine with its own ideas of time may."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()
        self.num_inside = 0

    def connect(self, endpoint: str) -> StoreConnection:
        connection = super().connect(endpoint)
        load = connection.load

        def stuck_load(keys: list[bytes], targets: list[memoryview]) -> list[int]:
            self.num_inside += 1
            self.gate.wait()
            return load(keys, targets)

        connection.__dict__["load"] = stuck_load
        return connection


def test_slots_of_a_stuck_load_are_quarantined_until_it_has_ended() -> None:
    store = StuckStore()
    fill(store)
    with Rank(store, load_bytes=6 * 4096, num_load_threads=1) as rank:
        store.gate.clear()
        request = rank.begin(TEXTS[0])
        rank.wait(lambda: request.remote_tokens == 16)
        assert request.kv_cache.resume() and request.fetch()
        rank.wait(lambda: request.arrived_tokens == 0)
        assert rank.level.statistics.deadlines == 1
        assert request.take()
        assert rank.level.num_quarantined == 4
        rank.level.check_invariants()
        rank.compute(request, TEXTS[0])
        other = rank.begin(TEXTS[1])
        rank.wait(lambda: other.remote_tokens == 16)  # look-ups go on
        assert other.kv_cache.resume()
        assert not other.fetch()  # 2 slots are free, 4 are wanted
        store.gate.set()
        rank.wait(lambda: rank.level.num_quarantined == 0)
        assert rank.load(other) == 16
        rank.compute(other, TEXTS[1])


def test_what_is_stuck_does_not_keep_the_level_from_closing(caplog: pytest.LogCaptureFixture) -> None:
    store = StuckStore()
    fill(store)
    rank = Rank(store)
    store.gate.clear()
    request = rank.begin(TEXTS[0])
    rank.wait(lambda: request.remote_tokens == 16)
    assert request.kv_cache.resume() and request.fetch()
    wait_until(lambda: store.num_inside == 1)
    request.cancel_remote()
    rank.level.check_invariants()
    request.kv_cache.close()
    rank.level.close()
    assert "staging memory is not freed" in caplog.text
    store.gate.set()
    rank.manager.shutdown()


def test_one_of_several_servers_fails_alone() -> None:
    """Its keys are misses, those of the other one are hits; a record stands and falls with its parents."""
    with FakeServer() as one, FakeServer() as other:
        store = ValkeyStore([one.address, other.address])
        texts = TEXTS
        fill(store)

        def shares() -> list[int]:
            return [len([key for key in server.values if key.startswith(b"kvcm2/")]) for server in (one, other)]

        # Its port decides what a server gets: of eight prompts, one or none. By one failure it is not yet left alone.
        while min(shares()) < 8:
            texts = [*texts, [1000 * len(texts) + 500 + position for position in range(17)]]
            fill(store, texts[-1:])
        assert sum(shares()) == 4 * len(texts)
        with Rank(store, write_policy="off") as rank:
            other.reply = lambda words: b"-ERR no\r\n"
            num_loaded = [rank.run(text) for text in texts]
            assert 0 < sum(num_loaded) < 16 * len(texts)
            assert rank.level.failed_endpoints == (other.address,)


@pytest.mark.parametrize("seed", range(2))
def test_nothing_wrong_is_ever_read(server: FakeServer, seed: int) -> None:
    """Two managers, a store that lies, loses, cuts off and mixes up; the engines check every byte that the model reads."""
    rng = random.Random(seed)
    store = ValkeyStore([server.address])
    trunks = [[1000 * number + position for position in range(40)] for number in range(3)]

    def reply(words: list[bytes]) -> bytes | None:
        dice = rng.random()
        if words[0] != b"GET" or dice > 0.25 or len(server.values) < 3:
            return b":1\r\n" if words[0] == b"EXISTS" and dice < 0.1 else None
        value = bytearray(server.values.get(words[1], b""))
        if dice < 0.05 or len(value) < 10:
            return b"$-1\r\n"
        if dice < 0.12:
            value[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
        elif dice < 0.16:
            value = bytearray(server.values[rng.choice(list(server.values))])
        elif dice < 0.2:
            value[len(value) // 2 :] = bytes(len(value) - len(value) // 2)
        elif dice < 0.22:
            return rng.randbytes(30)
        return b"$%d\r\n%b\r\n" % (len(value), bytes(value))

    server.reply = None
    with Rank(store, shared_config((None, 8))) as first, Rank(store, shared_config((None, 8))) as second:
        server.reply = reply
        for _step in range(60):
            rank = rng.choice((first, second))
            text = [*rng.choice(trunks)[: rng.randrange(6, 40)], rng.randrange(9)]
            rank.run(text)
            if rng.random() < 0.3:
                rank.forget()
        server.reply = None
        statistics = [rank.level.statistics for rank in (first, second)]
        assert sum(one.loaded_pages for one in statistics) > 0 and sum(one.corrupt_pages for one in statistics) > 0


# -- a real server --------------------------------------------------------------------------------------------------------


def test_a_server_that_is_killed_and_started_again() -> None:
    with Server() as real:
        store = ValkeyStore([real.address])
        fill(store)
        with Rank(store) as rank:
            assert rank.run(TEXTS[0]) == 16
            real.kill()
            assert [rank.run(text) for text in TEXTS[1:]] == [0] * 7
            real.start()

            def is_back() -> bool:
                rank.forget()
                rank.run(TEXTS[2])
                rank.drain()
                rank.forget()
                return rank.run(TEXTS[2]) == 16

            wait_until(is_back)


def test_a_server_that_is_stopped_and_continued() -> None:
    with Server() as real:
        store = ValkeyStore([real.address])
        fill(store)
        with Rank(store, write_policy="off") as rank:
            real.signal(signal.SIGSTOP)
            assert [rank.run(text) for text in TEXTS[:4]] == [0] * 4
            real.signal(signal.SIGCONT)

            def is_back() -> bool:
                rank.forget()
                return rank.run(TEXTS[5]) == 16

            wait_until(is_back)


def test_wrong_credentials_and_absent_servers_are_named_at_the_start() -> None:
    rank = Rank(MemoryStore())
    with Server("--requirepass", "secret") as real:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({}, "NOAUTH"),
            ({"password": "wrong"}, "WRONGPASS"),
            ({"password": "x", "username": "y"}, "WRONGPASS"),
        ]
        for settings, message in wrong:
            with pytest.raises(StoreError, match=message):
                SharedLevel(rank.manager, ValkeyStore([real.address], **settings), MODEL)
        with Rank(ValkeyStore([real.address], password="secret", database=3)) as right:
            assert right.run(TEXTS[0]) == 0
        with pytest.raises(StoreError, match="database"):
            SharedLevel(rank.manager, ValkeyStore([real.address], password="secret", database=99), MODEL)
        address = real.address
    with pytest.raises(StoreError, match="cannot be reached"):
        SharedLevel(rank.manager, ValkeyStore([address]), MODEL)
    with FakeServer() as foreign:
        foreign.reply = lambda words: b"HTTP/1.1 400 Bad Request\r\n\r\n"
        with pytest.raises(StoreError, match="HTTP"):
            SharedLevel(rank.manager, ValkeyStore([foreign.address]), MODEL)
    rank.end()


PREFILL = """
import sys
sys.path[:0] = {folders!r}
from shared_models import Rank
from kv_cache_manager_v2.shared import ValkeyStore
rank = Rank(ValkeyStore([{address!r}]))
texts = {texts!r}
for number in range(1 << 30):
    rank.run(texts[number % len(texts)] + [number % 1000])
    rank.drain()
    print(number, flush=True)
"""


def test_one_process_prefills_and_is_killed_another_goes_on() -> None:
    """The first process is killed in the middle of its stores; the second computes one token of what the first one has stored."""
    folders = [str(Path(__file__).parent.parent)]
    with Server() as real:
        script = PREFILL.format(folders=folders, address=real.address, texts=TEXTS)
        first = subprocess.Popen([sys.executable, "-P", "-c", script], stdout=subprocess.PIPE)
        assert first.stdout is not None
        for _line in range(len(TEXTS) + 3):
            assert first.stdout.readline() != b""
        first.send_signal(signal.SIGKILL)
        first.wait()
        first.stdout.close()
        with Rank(ValkeyStore([real.address])) as second:
            for text in TEXTS:
                assert second.run(text) == 16
            assert second.num_computed == len(TEXTS)


EXITS = """
import os, signal, sys
sys.path[:0] = {folders!r}
from shared_models import Rank, TOKENS_PER_BLOCK
from kv_cache_manager_v2 import LogicError
from kv_cache_manager_v2.shared import ValkeyStore
rank = Rank(ValkeyStore([{address!r}]))
request = rank.begin(list(range(33)))
way = {way!r}
if way == "fork":
    child = os.fork()
    if child == 0:
        try:
            rank.level.remote_report()
        except LogicError as error:
            assert "forked" in str(error)
            rank.level.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    rank.wait(lambda: request.remote_tokens is not None)
    request.kv_cache.close()
    rank.end()
elif way == "interrupt":
    signal.raise_signal(signal.SIGINT)
"""


@pytest.mark.parametrize(("way", "code", "is_frozen"), [("end", 0, True), ("fork", 0, False), ("interrupt", -signal.SIGINT, True)])
def test_processes_end(server: FakeServer, way: str, code: int, is_frozen: bool) -> None:
    """With a look-up under way, whatever the server does."""
    if is_frozen:

        def freeze(words: list[bytes]) -> bytes | None:
            if words[0] == b"EXISTS":
                server.thawed.clear()
                server.thawed.wait()
            return None

        server.reply = freeze
    script = EXITS.format(folders=[str(Path(__file__).parent.parent)], address=server.address, way=way)
    process = subprocess.run([sys.executable, "-P", "-c", script], capture_output=True, timeout=60, check=False)
    assert process.returncode == code, process.stderr.decode()


def test_a_level_that_is_closed_or_of_another_manager() -> None:
    config = shared_config()
    with KVCacheManager(config) as manager:
        level = SharedLevel(manager, MemoryStore(), MODEL, load_bytes=1 << 16, store_bytes=1 << 16)
        kv_cache = manager.create_kv_cache(None, TEXTS[0])
        request = level.look_up(kv_cache)
        level.close()
        for call in (request.fetch, request.store, request.take, level.remote_report):
            with pytest.raises(LogicError, match="closed"):
                call()
        request.cancel_remote()
        kv_cache.close()
