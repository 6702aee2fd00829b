"""Whatever a server answers: the right sizes, a miss, or `StoreError`; a value is received where it belongs."""

from typing import Any

import pytest
from fake_valkey_server import FakeServer

from kv_cache_manager_v2.shared import StoreError, StoreFullError, ValkeyStore
from kv_cache_manager_v2.shared.resp_connection import FORMAT, FORMAT_KEY
from kv_cache_manager_v2.shared.shared_store import MISSING, WRONG_SIZE, StoreConnection


def connect(server: FakeServer) -> StoreConnection:
    return ValkeyStore([server.address]).connect(server.address)


def test_values_come_back_in_their_places() -> None:
    """More than a pipeline, sizes from nothing to more than the buffer."""
    values = {b"key %d" % number: bytes([number]) * (number * number * 40) for number in range(1, 41)}
    with FakeServer() as server:
        connection = connect(server)
        connection.store(list(values), [[memoryview(value)[:3], memoryview(value)[3:]] for value in values.values()])
        assert server.values == values
        targets = [bytearray(len(value)) for value in values.values()]
        assert connection.load(list(values), [memoryview(target) for target in targets]) == [len(value) for value in values.values()]
        assert [bytes(target) for target in targets] == list(values.values())
        assert connection.lookup([b"key 1", b"none", b"key 40"]) == [True, False, True]
        connection.remove([b"key 1", b"none"])
        assert b"key 1" not in server.values
        connection.close()


def test_values_of_another_size_are_skipped() -> None:
    with FakeServer() as server:
        server.values.update({b"long": b"x" * 100_000, b"short": b"xy", b"right": b"right"})
        connection = connect(server)
        targets = [bytearray(5) for _key in range(4)]
        sizes = connection.load([b"long", b"short", b"none", b"right"], [memoryview(target) for target in targets])
        assert sizes == [WRONG_SIZE, WRONG_SIZE, MISSING, 5]
        assert targets == [bytearray(5), bytearray(5), bytearray(5), bytearray(b"right")]
        connection.close()


GARBAGE = [
    b"$5\r\nrightXX", b"+OK\r\n", b"-ERR what\r\n", b"$-7\r\n", b"$x\r\n", b"\0" * 10_000, b":1\r\n",
    b"$9999999999999\r\n", b"*1\r\n$5\r\n",
]  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_is_an_error(garbage: bytes) -> None:
    with FakeServer() as server:
        connection = connect(server)
        server.reply = lambda words: garbage
        with pytest.raises(StoreError):
            connection.load([b"key"], [memoryview(bytearray(5))])
        connection.close()


@pytest.mark.parametrize("call", ["lookup", "load", "store", "remove", "check"])
def test_a_server_that_is_silent_or_gone_is_an_error(call: str) -> None:
    target = memoryview(bytearray(5))
    calls = {
        "lookup": lambda connection: connection.lookup([b"key"]),
        "load": lambda connection: connection.load([b"key"], [target]),
        "store": lambda connection: connection.store([b"key"], [[target]]),
        "remove": lambda connection: connection.remove([b"key"]),
        "check": lambda connection: connection.check(),
    }
    with FakeServer() as server:
        silent = connect(server)
        server.thawed.clear()
        with pytest.raises(StoreError, match=server.address):
            calls[call](silent)
        silent.close()
        gone = connect(server)
    with pytest.raises(StoreError, match=server.address):
        calls[call](gone)
    with pytest.raises(StoreError, match="cannot be reached"):
        connect(server)


@pytest.mark.parametrize("command", ["EXISTS", "GET", "SET", "UNLINK"])
def test_a_refusal_is_told_in_the_words_of_the_server(command: str) -> None:
    target = memoryview(bytearray(5))
    with FakeServer() as server:
        connection = connect(server)
        server.reply = lambda words: b"-LOADING Valkey is loading the dataset in memory\r\n"
        with pytest.raises(StoreError, match=f"refuses {command}: LOADING Valkey is loading"):
            match command:
                case "EXISTS":
                    connection.lookup([b"key"])
                case "GET":
                    connection.load([b"key"], [target])
                case "SET":
                    connection.store([b"key"], [[target]])
                case _:
                    connection.remove([b"key"])
        connection.close()


def test_a_full_server_is_named_and_the_connection_goes_on() -> None:
    with FakeServer() as server:
        connection = connect(server)
        refusal = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
        server.reply = lambda words: refusal if words[:2] == [b"SET", b"large"] else None
        with pytest.raises(StoreFullError, match="maxmemory-policy"):
            connection.store([b"small", b"large"], [[memoryview(b"1")], [memoryview(b"2")]])
        assert connection.lookup([b"small", b"large"]) == [True, False]
        connection.close()


def test_a_key_space_of_another_format_is_refused() -> None:
    with FakeServer() as server:
        connection = connect(server)
        connection.check()
        assert server.values[FORMAT_KEY] == FORMAT
        connection.check()
        server.values[FORMAT_KEY] = b"KVCMSHR9"
        with pytest.raises(ValueError, match="KVCMSHR9"):
            connection.check()
        connection.close()


@pytest.mark.parametrize(
    ("addresses", "settings", "message"),
    [
        ([], {}, "addresses"),
        ("127.0.0.1:1", {}, "addresses"),
        (["127.0.0.1:x"], {}, "127.0.0.1:x"),
        (["127.0.0.1:70000"], {}, "70000"),
        (["a:1", "a:1"], {}, "twice"),
        (["a:1"], {"username": "u"}, "password"),
        (["a:1"], {"database": -1}, "database"),
    ],
)
def test_wrong_addresses_are_named(addresses: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ValkeyStore(addresses, **settings)
