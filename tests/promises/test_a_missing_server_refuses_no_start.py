"""One of several shared servers that does not answer, or refuses, costs its keys and a warning, and is used once it answers."""

import logging
from collections.abc import Iterator
from itertools import cycle
from typing import Any

import pytest
from fake_valkey_server import FakeServer
from shared_models import Rank, Server

from kv_cache_manager_v2.shared import StoreError, ValkeyStore

TEXTS = [[1000 * number + position for position in range(17)] for number in range(1, 9)]


@pytest.fixture
def servers() -> Iterator[list[FakeServer]]:
    with FakeServer() as first, FakeServer() as second:
        yield [first, second]


def warnings(caplog: Any, text: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if text in record.getMessage() and record.levelno >= logging.WARNING]


_TURNS = cycle(TEXTS)


def look_up_next(rank: Rank) -> None:
    """Look up another text than last time: the servers' ports decide which of them has its keys, and it may be the same one for all."""
    rank.begin(next(_TURNS)).kv_cache.close()


def test_a_server_that_is_down_at_the_start_is_used_once_it_is_up(caplog: pytest.LogCaptureFixture) -> None:
    with Server() as up, Server() as down:
        down.kill()
        with Rank(ValkeyStore([up.address, down.address])) as rank:
            assert len(warnings(caplog, f"begins without {down.address}")) == 1
            assert rank.level.failed_endpoints == (down.address,)
            for text in TEXTS:
                assert rank.run(text) == 0
            rank.drain()
            assert rank.level.statistics.stored_pages == 4 * len(TEXTS), "all, on their second choice where the first is down"
            down.start()

            def is_back() -> bool:
                look_up_next(rank)
                return rank.level.failed_endpoints == ()

            rank.forget()
            rank.wait(is_back)
            for text in TEXTS:
                rank.run([*text[:-1], 7, 8, 9, 10, 11])
            rank.drain()
            rank.forget()
            assert all(rank.run([*text[:-1], 7, 8, 9, 10, 11]) == 20 for text in TEXTS)


@pytest.mark.parametrize("answer", [b"-NOAUTH Authentication required.\r\n", b"HTTP/1.1 400 Bad Request\r\n"])
def test_one_of_two_that_refuses_costs_a_warning_and_both_are_an_error(
    servers: list[FakeServer], caplog: pytest.LogCaptureFixture, answer: bytes
) -> None:
    store = ValkeyStore([server.address for server in servers])
    servers[0].reply = lambda words: answer
    with Rank(store) as rank:
        assert rank.level.failed_endpoints == (servers[0].address,)
        assert len(warnings(caplog, f"begins without {servers[0].address}")) == 1
        assert rank.run(TEXTS[0]) == 0
    servers[1].reply = lambda words: answer
    with pytest.raises(StoreError):
        Rank(store)


def test_no_server_at_all_is_an_error() -> None:
    with Server() as first, Server() as second:
        first.kill()
        second.kill()
        with pytest.raises(StoreError, match="cannot be reached"):
            Rank(ValkeyStore([first.address, second.address]))


def test_a_foreign_key_space_is_an_error_at_once_and_never_used_later(servers: list[FakeServer], caplog: pytest.LogCaptureFixture) -> None:
    servers[0].values[b"kvcm/format"] = b"KVCMSHR0"
    store = ValkeyStore([server.address for server in servers])
    with pytest.raises(ValueError, match="KVCMSHR0"):
        Rank(store)
    servers[0].reply = lambda words: b"-LOADING Valkey is loading the dataset in memory\r\n"
    with Rank(store) as rank:
        servers[0].reply = None
        asked = len(servers[0].commands)

        def is_refused() -> bool:
            look_up_next(rank)
            return len(warnings(caplog, "is not used")) == 1

        rank.wait(is_refused)
        rank.run(TEXTS[0])
        # GET is that of the format: no key is asked for with EXISTS before.
        assert set(servers[0].commands[asked:]) <= {b"PING", b"INFO", b"SET", b"GET"}, "a server of another format was asked for keys"
        assert set(servers[0].values) == {b"kvcm/format"}
        assert rank.level.failed_endpoints == (servers[0].address,)
