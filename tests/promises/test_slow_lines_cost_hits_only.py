"""A line that trickles, servers that hang together, a store that has lost all: each costs hits for a moment, and no prompt its time."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from threading import Lock
from typing import Any

import pytest
from fake_valkey_server import FakeServer, trickling
from shared_models import MODEL, Rank, Server, agree, shared_config, wait_until

from kv_cache_manager_v2.shared import MemoryStore, ObjectStore, RemoteRequest, SharedLevel, StoreError, ValkeyStore
from kv_cache_manager_v2.shared.store_tasks import ASKED_FIRST

TEXTS = [[1000 * number + position for position in range(17)] for number in range(1, 17)]
PATIENCE = 60.0
"""Seconds after which what has not happened hangs. What trickles here never ends: a call that waited for the end of it would."""


@pytest.fixture
def servers() -> Iterator[list[FakeServer]]:
    started = [FakeServer() for _number in range(4)]
    yield started
    for server in started:
        server.close()


ROOM: Any = {"store_bytes": 4 << 20, "load_bytes": 4 << 20}
"""Staging slots for a prompt of 300 blocks."""


def fill(*servers: FakeServer, texts: list[list[int]] = TEXTS) -> ValkeyStore:
    store = ValkeyStore([server.address for server in servers])
    with Rank(store, shared_config(gpu_slots=2000), **ROOM) as writer:
        serve_until_found(writer, writer, texts)
    return store


def serve_until_found(writer: Rank, reader: Rank, texts: list[list[int]]) -> None:
    """The writer computes and stores what is missing, until the reader finds all: a busy machine misses a deadline, which costs hits."""

    def are_found() -> bool:
        for text in texts:
            writer.forget()
            writer.run(text)
            writer.drain()
        reader.forget()
        return [reader.run(text) for text in texts] == [len(text) - 1 for text in texts]

    wait_until(are_found, 60.0)


def is_answered(request: RemoteRequest) -> bool:
    return request.remote_tokens is not None


def find(rank: Rank, text: list[int]) -> RemoteRequest:
    """Its look-up has found all but the last token; begun again where a busy machine misses a deadline."""
    requests = [rank.begin(text)]

    def is_found() -> bool:
        if requests[-1].remote_tokens is not None and requests[-1].remote_tokens < len(text) - 1:
            requests[-1].kv_cache.close()
            requests.append(rank.begin(text))
        return requests[-1].remote_tokens is not None

    rank.wait(is_found, PATIENCE)
    return requests[-1]


def num_asked(*servers: FakeServer) -> int:
    """Commands but those with which probes begin."""
    return sum([len(server.commands) - server.commands.count(b"PING") for server in servers])


@pytest.mark.parametrize("seconds", [0.25, 0.05])
def test_a_look_up_over_a_line_that_trickles_is_cut_off(servers: list[FakeServer], seconds: float) -> None:
    server = servers[0]
    with Rank(fill(server), write_policy="off") as rank:
        server.reply = trickling(b"", b":", seconds)
        requests = [rank.begin(text) for text in TEXTS[:6]]
        rank.wait(lambda: all([is_answered(request) for request in requests]), PATIENCE)
        rank.wait(lambda: rank.level.failed_endpoints == (server.address,))
        rank.wait(lambda: rank.level.read_facts().failures["slow"] > 0)
        # From here on it is not asked.
        before = num_asked(server)
        requests.append(rank.begin(TEXTS[7]))
        rank.wait(partial(is_answered, requests[-1]), PATIENCE)
        assert num_asked(server) == before
        server.reply = None
        for request in requests:
            request.kv_cache.close()

        def is_back() -> bool:
            rank.forget()
            return rank.run(TEXTS[9]) == 16

        wait_until(is_back, PATIENCE)


def test_a_load_over_a_line_that_trickles_is_cut_off(servers: list[FakeServer]) -> None:
    with Rank(fill(servers[0]), write_policy="off", least_bytes_per_second=1 << 20) as rank:
        request = find(rank, TEXTS[0])
        assert request.kv_cache.resume()
        servers[0].reply = trickling(b"GET", b"$400\r\n", 0.2)
        assert request.fetch()
        rank.wait(lambda: request.arrived_tokens is not None, PATIENCE)
        assert request.arrived_tokens == 0
        rank.wait(lambda: rank.level.num_quarantined == 0, PATIENCE)
        servers[0].reply = None
        rank.compute(request, TEXTS[0])


def test_prompts_on_healthy_servers_do_not_wait_for_one_that_trickles(servers: list[FakeServer]) -> None:
    store = fill(*servers)
    slow = max(servers, key=lambda server: len(server.values))
    alone = MemoryStore()
    held: list[list[int]] = []
    elsewhere: list[list[int]] = []
    with Rank(alone) as writer:
        for text in TEXTS:
            before = set(alone.keys())
            writer.run(text)
            writer.drain()
            (elsewhere if slow.values.keys().isdisjoint(set(alone.keys()) - before) else held).append(text)
    assert len(held) >= 4, "a quarter of them or more: one for each thread that looks up"
    with Rank(store, write_policy="off") as rank:
        slow.reply = trickling(b"", b":", 0.1)
        requests = [rank.begin(text) for text in held]
        requests.extend([find(rank, text) for text in elsewhere])
        rank.wait(lambda: all([is_answered(request) for request in requests]), PATIENCE)
        assert num_asked(slow) > 0
        slow.reply = None
        for request in requests:
            request.kv_cache.close()


def test_servers_that_hang_together_are_left_alone(servers: list[FakeServer]) -> None:
    store = fill(*servers)
    with Rank(store, write_policy="off") as rank:
        for server in servers:
            server.thawed.clear()
        for text in TEXTS[:8]:
            assert rank.run(text) == 0
        assert set(rank.level.failed_endpoints) == {server.address for server in servers}
        # Probes go on beside, and no prompt waits for one.
        before = num_asked(*servers)
        for text in TEXTS[8:14]:
            assert rank.run(text) == 0
        assert num_asked(*servers) == before
        for server in servers:
            server.thawed.set()
        rank.wait(lambda: rank.level.failed_endpoints == ())
        rank.forget()
        assert rank.run(TEXTS[15]) == 16


# -- what is asked, and what is written ----------------------------------------------------------------------------------


def test_engines_that_compute_the_same_write_it_once(servers: list[FakeServer]) -> None:
    server = servers[0]
    store = ValkeyStore([server.address])
    text = list(range(401))
    for number in range(6):
        with Rank(store, shared_config(gpu_slots=200), write_policy="commit") as rank:
            # None of them looks it up first: they have begun at the same time, say.
            request = rank.begin(text)
            rank.compute(request, text)
            rank.drain()
        written = server.commands.count(b"SET") - 1 - number  # the format of keys, at each start
        assert written == 100
    assert len(server.values) == 101


def test_an_idle_engine_frees_all_staging_slots_by_its_reports(servers: list[FakeServer]) -> None:
    """No call waits for a copy or a store, so what the last prompts had copied is stored, and its slots are free, by later reports."""
    with Rank(ValkeyStore([servers[0].address]), shared_config(gpu_slots=64), write_policy="commit") as rank:
        for text in TEXTS[:8]:
            rank.run(text)

        def taken() -> int:
            return rank.level.read_facts().slots[("store", "taken")]

        assert taken() > 0

        def are_free() -> bool:
            rank.level.remote_report()
            return taken() == 0

        wait_until(are_free)
        assert len(servers[0].values) == 8 * 4 + 1, "with the format of keys"


def test_a_cold_prompt_costs_eight_questions(servers: list[FakeServer]) -> None:
    server = servers[0]
    with Rank(ValkeyStore([server.address]), shared_config(gpu_slots=64)) as rank:
        before = server.commands.count(b"EXISTS")
        request = rank.begin(list(range(4 * 8192 + 1)))
        rank.wait(lambda: request.remote_tokens == 0)
        assert server.commands.count(b"EXISTS") - before == ASKED_FIRST
        request.kv_cache.close()


def test_one_rank_asks_and_tells_the_others(servers: list[FakeServer]) -> None:
    """Each rank has a server of its own. That of the rank that does not ask has lost a page, which its load finds out."""
    text = list(range(4 * 20 + 1))
    stores = [ValkeyStore([server.address]) for server in servers[:2]]
    for store in stores:
        with Rank(store) as writer:
            writer.run(text[:-20])
            writer.drain()
    before = [server.commands.count(b"EXISTS") for server in servers[:2]]
    ranks = [Rank(stores[0]), Rank(stores[1], asks=False)]
    for lost in (None, 7):
        if lost is not None:
            del servers[1].values[[key for key in servers[1].values if b"/g0/" in key][lost]]
        requests = [rank.begin(text) for rank in ranks]
        while any(request.remote_tokens is None for request in requests):
            agree(*ranks)
        assert [request.remote_tokens for request in requests] == [60, 60], "15 of the 20 blocks are there"
        assert servers[1].commands.count(b"EXISTS") == before[1], "no question of the second rank"
        assert servers[0].commands.count(b"EXISTS") - before[0] == (8 + 12) * (1 if lost is None else 2)
        for request in requests:
            assert request.kv_cache.resume() and request.fetch()
        while any(request.arrived_tokens is None for request in requests):
            agree(*ranks)
        assert [request.arrived_tokens for request in requests] == ([60, 60] if lost is None else [28, 28])
        assert all([request.take() for request in requests])
        for rank, request in zip(ranks, requests, strict=True):
            rank.engine.synchronize()
            request.cancel_remote()
            request.kv_cache.close()
            rank.manager.clear_reusable_blocks()
    assert ranks[0].manager.state_digest() == ranks[1].manager.state_digest()
    for rank in ranks:
        rank.end()


def test_windows_are_asked_for_what_the_longest_prefix_needs(servers: list[FakeServer]) -> None:
    server = servers[0]
    text = list(range(4 * 200 + 1))
    store = ValkeyStore([server.address])
    with Rank(store, shared_config((None, 8), gpu_slots=1000)) as writer:
        writer.run(text)
        writer.drain()
    with Rank(store, shared_config((None, 8), gpu_slots=1000)) as rank:
        before = server.commands.count(b"EXISTS")
        request = rank.begin(text)
        rank.wait(lambda: request.remote_tokens == 800)
        # All 200 blocks of the layers that read everything; of the window of 8 tokens, which the next one is in, two blocks of 4.
        assert server.commands.count(b"EXISTS") - before == 200 + 2
        rank.load(request)
        rank.compute(request, text)


def test_a_fleet_does_not_fill_a_restarted_server_all_at_once(servers: list[FakeServer]) -> None:
    """Six engines with the same prompt: those that begin later find what the first ones have written. Without a delay each writes all."""
    server = servers[0]
    life = [b"1"]

    def answer(words: list[bytes]) -> bytes | None:
        text = b"redis_mode:standalone\r\nrun_id:%b\r\n" % life[0]
        return b"$%d\r\n%b\r\n" % (len(text), text) if words[0] == b"INFO" else None

    server.reply = answer
    store = ValkeyStore([server.address])
    with ExitStack() as stack:
        ranks = [stack.enter_context(Rank(store, write_policy="commit")) for _number in range(6)]
        for rank in ranks:
            rank.run(TEXTS[0])
            rank.drain()
        before = server.commands.count(b"SET")
        server.values.clear()
        life[0] = b"2"
        server.cut_off()
        requests = [(rank, rank.begin(TEXTS[1])) for rank in ranks]
        for rank, request in requests:
            rank.wait(partial(is_answered, request))
        server.delay = 0.02  # so that all could have asked before the first page is there
        for rank, request in requests:
            rank.compute(request, TEXTS[1])

        def are_drained() -> bool:
            for rank in ranks:
                rank.settle()
            return all(len(rank.level._outgoing) == 0 for rank in ranks)

        wait_until(are_drained)
        written = server.commands.count(b"SET") - before
        assert 4 <= written < 6 * 4


@pytest.mark.parametrize("tail", [1, 3])
def test_a_store_that_comes_back_empty_is_filled_again(tail: int) -> None:
    """Also by an engine whose prompts have no whole block to look up."""
    text = list(range(500, 516 + tail))
    with Server() as real:
        store = ValkeyStore([real.address])
        with Rank(store, write_policy="second_hit") as rank, Rank(store, write_policy="off") as other:
            for _turn in range(3):
                rank.run(text)
            rank.drain()
            assert other.run(text) == 16
            real.kill()
            real.start()

            def is_back() -> bool:
                rank.run(text)
                rank.settle()
                other.forget()
                return other.run(text) == 16

            wait_until(is_back, PATIENCE)


# -- several servers ------------------------------------------------------------------------------------------------------


def long_text(number: int) -> list[int]:
    """300 blocks, and one token."""
    return [10_000 * number + position for position in range(1201)]


def test_what_is_stored_while_a_server_is_away_is_found_on_another_one(servers: list[FakeServer]) -> None:
    texts = [long_text(number) for number in range(6)]
    store = fill(*servers, texts=texts)
    config = shared_config(gpu_slots=4000)
    with Rank(store, config, **ROOM) as rank, Rank(store, config, write_policy="off", **ROOM) as other:
        # The one with the fewest pages, as its port decides what a server gets: any other one may have all first segments, or no page.
        num_pages = {server: len(server.values) for server in servers if any(b"/g0/" in key for key in server.values)}
        away = min(num_pages, key=lambda server: num_pages[server])
        away.reply = lambda words: b"-ERR away\r\n"
        first = [rank.run(text) for text in texts]
        assert 0 < sum(first) < 1200 * len(texts)
        rank.drain()
        # What was to be stored before the breaker opened was dropped. They are computed, and stored where they are found.
        serve_until_found(rank, other, texts)
        away.reply = None


def test_an_engine_that_lists_one_server_more_finds_what_others_have_stored(servers: list[FakeServer]) -> None:
    texts = [long_text(number) for number in range(6)]
    fill(*servers[:3], texts=texts)
    with Rank(ValkeyStore([server.address for server in servers]), shared_config(gpu_slots=4000), write_policy="off", **ROOM) as rank:
        serve_until_found(rank, rank, texts)
        assert rank.level.statistics.stored_pages == 0


def test_servers_are_added_and_taken_while_prompts_run(servers: list[FakeServer]) -> None:
    texts = [long_text(number) for number in range(4)]
    store = fill(*servers[:2], texts=texts)
    with Rank(store, shared_config(gpu_slots=4000), **ROOM) as rank:
        serve_until_found(rank, rank, texts[:1])
        rank.level.set_servers(ValkeyStore([server.address for server in servers]))
        serve_until_found(rank, rank, texts[1:2])
        rank.level.set_servers(ValkeyStore([server.address for server in servers[1:]]))
        before = len(servers[0].commands)
        serve_until_found(rank, rank, texts)
        assert len(servers[0].commands) == before, "it was taken away, and is not asked"
        rank.wait(lambda: rank.level.failed_endpoints == ())


def test_a_server_that_is_taken_away_between_look_up_and_load_is_a_miss(servers: list[FakeServer]) -> None:
    """What was found there is of a server that is unknown by then: no error, no wrong byte, and later prompts are shared again."""
    texts = [long_text(number) for number in range(2)]
    store = fill(servers[0], texts=texts)
    with Rank(store, shared_config(gpu_slots=4000), **ROOM) as rank:
        request = find(rank, texts[0])
        rank.level.set_servers(ValkeyStore([servers[1].address]))
        before = len(servers[0].commands)
        assert request.kv_cache.resume() and request.fetch()
        rank.wait(lambda: request.arrived_tokens is not None)
        assert request.arrived_tokens == 0 and len(servers[0].commands) == before
        rank.compute(request, texts[0])
        serve_until_found(rank, rank, texts[1:])


@pytest.mark.parametrize("mode", ["cluster", "sentinel"])
def test_a_cluster_or_sentinel_is_refused_by_its_name(servers: list[FakeServer], mode: str) -> None:
    text = b"redis_mode:%b\r\nrun_id:1\r\n" % mode.encode()
    servers[0].reply = lambda words: b"$%d\r\n%b\r\n" % (len(text), text) if words[0] == b"INFO" else None
    with Rank(MemoryStore()) as rank:
        with pytest.raises(StoreError, match=f"runs as {mode}"):
            SharedLevel(rank.manager, ValkeyStore([servers[0].address]), MODEL)


# -- object stores ----------------------------------------------------------------------------------------------------------


class SlowObjects:
    """An object store that takes 15 ms for each request, whatever else is under way."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lock = Lock()
        self.inside = 0
        self.most_inside = 0

    def wait(self) -> None:
        with self.lock:
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
        time.sleep(0.015)
        with self.lock:
            self.inside -= 1

    def get(self, path: str) -> Any:
        self.wait()
        if path not in self.values:
            raise FileNotFoundError(path)
        return SlowObject(self.values[path])

    def put(self, path: str, value: bytes) -> None:
        self.wait()
        self.values[path] = bytes(value)

    def head(self, path: str) -> Any:
        self.wait()
        if path not in self.values:
            raise FileNotFoundError(path)
        return {}

    def delete(self, path: str) -> None:
        self.values.pop(path, None)


class SlowObject:
    def __init__(self, value: bytes) -> None:
        self.value = value
        self.meta = {"size": len(value)}

    def bytes(self) -> bytes:
        return self.value


def test_an_object_store_is_asked_side_by_side() -> None:
    pytest.importorskip("obstore", reason="ObjectStore needs obstore")
    objects = SlowObjects()
    text = long_text(1)
    with Rank(ObjectStore(objects), shared_config(gpu_slots=400), **ROOM) as writer:
        writer.run(text)
        writer.drain()
    with Rank(ObjectStore(objects), shared_config(gpu_slots=400), write_policy="off", **ROOM) as rank:
        request = find(rank, text)
        assert objects.most_inside > 8
        rank.load(request)
        rank.compute(request, text)


def test_the_first_error_of_an_object_store_ends_the_rest() -> None:
    pytest.importorskip("obstore", reason="ObjectStore needs obstore")
    objects = SlowObjects()
    connection = ObjectStore(objects).connect("objects")

    def refuse(path: str) -> Any:
        raise OSError("no more")

    objects.__dict__["head"] = refuse
    with pytest.raises(Exception, match="no more"):
        connection.lookup([b"a"] * 100)


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf")])
def test_a_rate_is_a_rate(wrong: float) -> None:
    with Rank(MemoryStore()) as rank:
        with pytest.raises(ValueError, match="least_bytes_per_second"):
            SharedLevel(rank.manager, MemoryStore(), MODEL, least_bytes_per_second=wrong)

