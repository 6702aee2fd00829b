"""`Wakeup`: readable after `give` until `take`, from any thread, and silent once it is closed; by eventfd and by pipe."""

import os
import select
import threading

import pytest

from kv_cache_manager_v2.device.wakeup import Wakeup


def is_readable(wakeup: Wakeup) -> bool:
    return select.select([wakeup.file_descriptor], [], [], 0)[0] != []


@pytest.fixture(params=[True, False], ids=["eventfd", "pipe"])
def wakeup(request: pytest.FixtureRequest) -> Wakeup:
    return Wakeup(request.param)


def test_it_is_readable_until_it_is_taken(wakeup: Wakeup) -> None:
    assert not is_readable(wakeup)
    wakeup.take()
    threads = [threading.Thread(target=wakeup.give) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert is_readable(wakeup)
    wakeup.take()
    assert not is_readable(wakeup)
    wakeup.close()


def test_it_can_be_given_more_often_than_a_pipe_has_room_for(wakeup: Wakeup) -> None:
    # 64 KiB for 8 bytes each.
    for _ in range(10_000):
        wakeup.give()
    assert is_readable(wakeup)
    while is_readable(wakeup):
        wakeup.take()
    wakeup.close()


def test_a_closed_one_writes_to_no_file_that_has_its_number(wakeup: Wakeup) -> None:
    wakeup.close()
    wakeup.close()
    wakeup.take()
    reading, writing = os.pipe()
    wakeup.give()
    os.set_blocking(reading, False)
    with pytest.raises(BlockingIOError):
        os.read(reading, 1)
    os.close(reading)
    os.close(writing)
