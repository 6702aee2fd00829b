"""`MooncakeStore` over a fake client: codes, sizes, hanging calls, capped threads. `make mooncake` has the real one."""

import threading
from typing import Any

import pytest
from fake_mooncake import NO_ROOM, FakeMooncake
from shared_models import Rank, wait_until

from kv_cache_manager_v2.shared import MooncakeStore, StoreConnection, StoreError, StoreFullError
from kv_cache_manager_v2.shared.shared_store import MISSING, SILENT, UNREACHABLE

TEXT = list(range(17))


def make(client: FakeMooncake, **settings: Any) -> MooncakeStore:
    return MooncakeStore("127.0.0.1:1", client=client, **{"buffer_bytes": 1 << 16, **settings})


def connect(store: MooncakeStore) -> StoreConnection:
    return store.connect(store.endpoints[0])


def test_a_prefix_goes_through_it() -> None:
    client = FakeMooncake()
    with Rank(make(client)) as writer:
        writer.run(TEXT)
        writer.drain()
    with Rank(make(client)) as reader:
        assert reader.run(TEXT) == 16
    assert set(client.values) > {"kvcm/format"} and len(client.values) == 5
    wait_until(lambda: client.registered == {})


def test_more_than_a_buffer_goes_in_parts() -> None:
    client = FakeMooncake()
    connection = connect(make(client, buffer_bytes=4096))
    values = {b"k%d" % number: bytes([number]) * 1500 for number in range(7)}
    connection.store(list(values), [[memoryview(value)] for value in values.values()])
    targets = [bytearray(1500) for _value in values]
    assert connection.load(list(values), [memoryview(target) for target in targets]) == [1500] * 7
    assert [bytes(target) for target in targets] == list(values.values())
    assert client.most_keys == 2
    with pytest.raises(StoreError, match="buffer_bytes"):
        connection.store([b"large"], [[memoryview(bytes(4097))]])
    assert connection.lookup([b"k%d" % (number % 8) for number in range(3000)]) == [number % 8 < 7 for number in range(3000)]
    connection.close()


@pytest.mark.parametrize("code", [-900, -901, -800, -707])
def test_a_store_that_fails_as_a_whole_is_an_error_and_a_lost_key_is_a_miss(code: int) -> None:
    client = FakeMooncake()
    connection = connect(make(client))
    connection.store([b"a", b"b"], [[memoryview(b"1")], [memoryview(b"2")]])
    client.failing = code
    for ask in (
        lambda: connection.lookup([b"a", b"b"]),
        lambda: connection.load([b"a"], [memoryview(bytearray(1))]),
        lambda: connection.store([b"c"], [[memoryview(b"1")]]),
    ):
        with pytest.raises(StoreError, match=str(code)) as caught:
            ask()
        assert caught.value.cause == UNREACHABLE
    client.failing = None

    class OneOnDeadNode(FakeMooncake):
        def batch_get_into(self, keys: Any, addresses: Any, sizes: Any) -> list[int]:
            return [-800, *super().batch_get_into(keys[1:], addresses[1:], sizes[1:])]

    partial = OneOnDeadNode()
    other = connect(make(partial))
    other.store([b"a", b"b"], [[memoryview(b"1")], [memoryview(b"2")]])
    target = bytearray(1)
    assert other.load([b"a", b"b"], [memoryview(bytearray(1)), memoryview(target)]) == [MISSING, 1]
    assert target == b"2"


def test_a_full_store_keeps_what_it_can_and_says_so() -> None:
    client = FakeMooncake()
    client.room = 1
    connection = connect(make(client))
    with pytest.raises(StoreFullError):
        connection.store([b"a", b"b"], [[memoryview(b"1")], [memoryview(b"2")]])
    assert connection.lookup([b"a", b"b"]) == [True, False]
    assert NO_ROOM == -200


def test_calls_that_hang_are_given_up_and_their_threads_are_capped() -> None:
    client = FakeMooncake()
    store = make(client, most_stuck=2)
    first, second, third = connect(store), connect(store), connect(store)
    first.store([b"a"], [[memoryview(b"1")]])
    client.thawed.clear()
    target = bytearray(1)
    for connection in (first, second):
        with pytest.raises(StoreError, match="0.3 s") as caught:
            connection.load([b"a"], [memoryview(target)])
        assert caught.value.cause == SILENT
        connection.close()
    assert store.num_stuck == 2
    with pytest.raises(StoreError, match="holds 2 threads"):
        connect(store)
    with pytest.raises(StoreError, match="abandoned"):
        first.lookup([b"a"])
    client.thawed.set()
    wait_until(lambda: store.num_stuck == 0)
    assert target == bytearray(1), "a late answer was written into the caller's memory"
    third.close()
    wait_until(lambda: client.registered == {})
    again = connect(store)
    assert again.load([b"a"], [memoryview(target)]) == [1] and target == b"1"
    again.close()


def test_a_connection_can_be_aborted_from_another_thread() -> None:
    client = FakeMooncake()
    store = make(client)
    connection = connect(store)
    client.thawed.clear()
    found: list[StoreError] = []

    def ask() -> None:
        try:
            connection.lookup([b"a"])
        except StoreError as error:
            found.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    connection.abort()
    thread.join(30)
    assert len(found) == 1
    client.thawed.set()
    wait_until(lambda: store.num_stuck == 0)


def test_a_frozen_store_costs_hits_and_they_return() -> None:
    client = FakeMooncake()
    with Rank(make(client)) as writer:
        writer.run(TEXT)
        writer.drain()
    store = make(client, most_stuck=3)
    with Rank(store) as reader:
        assert reader.run(TEXT) == 16
        reader.forget()
        client.thawed.clear()
        while not reader.level.failed_endpoints:
            assert reader.run(TEXT) == 0
            reader.forget()
        assert store.num_stuck <= 3
        client.thawed.set()

        def is_back() -> bool:
            reader.forget()
            return reader.run(TEXT) == 16

        reader.wait(is_back)
    wait_until(lambda: store.num_stuck == 0)


def test_a_foreign_format_is_refused() -> None:
    client = FakeMooncake()
    for found in (b"KVCMSHR0", b"what is this"):
        client.values["kvcm/format"] = found
        with pytest.raises(ValueError, match="another format"):
            Rank(make(client))


def test_misuse_is_a_clear_error() -> None:
    client = FakeMooncake()
    with pytest.raises(TypeError, match="master"):
        MooncakeStore(7, client=client)  # type: ignore[arg-type]
    for wrong in ("here", ":1", "here:0", "here:70000", "here:x"):
        with pytest.raises(ValueError, match="host:port"):
            MooncakeStore(wrong, client=client)
    wrongs: list[dict[str, Any]] = [{"contribute_bytes": -1}, {"buffer_bytes": 100}, {"most_stuck": 0}, {"most_stuck": 1000}]
    wrongs += [{name: wrong} for name in ("contribute_bytes", "buffer_bytes", "most_stuck") for wrong in (None, "9", 5000.5)]
    wrongs += [{name: wrong} for name in ("local_host", "metadata", "protocol", "devices") for wrong in (None, 9, b"tcp")]
    for settings in wrongs:
        with pytest.raises((TypeError, ValueError), match=next(iter(settings))):
            MooncakeStore("here:1", client=client, **settings)
    store = make(client)
    store.close()
    assert client.is_closed
