"""What every store of the shared level guarantees, whatever is behind it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_mooncake import FakeMooncake
from fake_valkey_server import FakeServer
from shared_models import Server

from kv_cache_manager_v2.shared import MemoryStore, MooncakeStore, ObjectStore, SharedStore, StoreConnection, ValkeyStore
from kv_cache_manager_v2.shared.shared_store import MISSING, WRONG_SIZE


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as running:
        yield running


@pytest.fixture(params=["memory", "valkey", "two valkey servers, one of them fake", "objects", "mooncake"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SharedStore]:
    if request.param == "memory":
        yield MemoryStore()
        return
    if request.param == "mooncake":
        yield MooncakeStore("127.0.0.1:1", client=FakeMooncake(), buffer_bytes=1 << 20)
        return
    if request.param == "objects":
        local = pytest.importorskip("obstore.store")
        yield ObjectStore(local.LocalStore(str(tmp_path)))
        return
    real: Server = request.getfixturevalue("server")
    if request.param == "valkey":
        yield ValkeyStore([real.address])
        return
    with FakeServer() as fake:
        yield ValkeyStore([fake.address, real.address])


@pytest.fixture
def connections(store: SharedStore) -> Iterator[list[StoreConnection]]:
    """Two to each endpoint: what one stores the other finds."""
    opened = [store.connect(endpoint) for endpoint in store.endpoints for _number in range(2)]
    yield opened
    for connection in opened:
        connection.close()
        connection.close()


def pairs(connections: list[StoreConnection]) -> list[tuple[StoreConnection, StoreConnection]]:
    return list(zip(connections[::2], connections[1::2], strict=True))


def test_endpoints_answer(store: SharedStore, connections: list[StoreConnection]) -> None:
    assert len(store.endpoints) * 2 == len(connections)
    for connection in connections:
        connection.check()


def test_what_one_stores_another_loads(connections: list[StoreConnection]) -> None:
    values = {b"contract/%d" % number: bytes([number % 251]) * (7 + 4001 * number) for number in range(40)}
    for one, other in pairs(connections):
        one.store(list(values), [[memoryview(value)[:5], memoryview(value)[5:]] for value in values.values()])
        assert other.lookup([*values, b"contract/none"]) == [True] * 40 + [False]
        targets = [bytearray(len(value)) for value in values.values()]
        before = other.last_progress
        assert other.load(list(values), [memoryview(target) for target in targets]) == [len(value) for value in values.values()]
        assert [bytes(target) for target in targets] == list(values.values())
        assert other.last_progress > before


def test_later_values_replace_earlier_ones(connections: list[StoreConnection]) -> None:
    for one, other in pairs(connections):
        for value in (b"first", b"then"):
            one.store([b"contract/again"], [[memoryview(value)]])
        target = bytearray(4)
        assert other.load([b"contract/again"], [memoryview(target)]) == [4]
        assert target == b"then"


def test_missing_and_other_sizes_are_answers(connections: list[StoreConnection]) -> None:
    for one, other in pairs(connections):
        one.store([b"contract/size"], [[memoryview(b"12345")]])
        targets = [bytearray(4), bytearray(6), bytearray(5), bytearray(5)]
        keys = [b"contract/size", b"contract/size", b"contract/none", b"contract/size"]
        assert other.load(keys, [memoryview(target) for target in targets]) == [WRONG_SIZE, WRONG_SIZE, MISSING, 5]
        assert targets == [bytearray(4), bytearray(6), bytearray(5), bytearray(b"12345")]


def test_removed_values_are_missing(connections: list[StoreConnection]) -> None:
    for one, other in pairs(connections):
        one.store([b"contract/removed", b"contract/kept"], [[memoryview(b"1")], [memoryview(b"2")]])
        one.remove([b"contract/removed", b"contract/none"])
        assert other.lookup([b"contract/removed", b"contract/kept"]) == [False, True]


def test_nothing_to_do_is_fine(connections: list[StoreConnection]) -> None:
    for connection in connections:
        assert connection.lookup([]) == []
        assert connection.load([], []) == []
        connection.store([], [])
        connection.remove([])
