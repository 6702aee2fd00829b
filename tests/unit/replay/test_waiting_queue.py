"""Who is next: restarts, then turns whose pause is over, then new arrivals."""

import numpy as np
import pytest

from kv_cache_manager_v2.replay.waiting_queue import WaitingQueue
from kv_cache_manager_v2.replay.workload import Request


def request_of(id: int, after: int | None = None, pause_steps: int = 0) -> Request:
    return Request(id, 0.0, np.array([id]), np.array([4]), 1, after, pause_steps)


def take(line: WaitingQueue, step: int) -> int | None:
    served = line.peek(step)
    if served is None:
        return None
    assert line.peek(step) is served
    line.pop()
    return served.request.id


def test_arrivals_come_in_order_and_end() -> None:
    line = WaitingQueue(iter([request_of(5), request_of(3)]))
    assert [take(line, 0), take(line, 0), take(line, 0)] == [5, 3, None]
    assert line.is_empty
    assert line.num_pulled == 2


def test_a_turn_waits_for_the_one_before_and_for_its_pause() -> None:
    line = WaitingQueue(iter([request_of(0), request_of(1, after=0, pause_steps=10), request_of(2)]))
    assert take(line, 0) == 0
    # Request 1 is parked; request 2 overtakes it.
    assert take(line, 1) == 2
    assert take(line, 2) is None
    assert not line.is_empty
    assert line.next_ready() is None
    line.finish(0, 7)
    assert line.next_ready() == 17
    assert take(line, 16) is None
    assert take(line, 17) == 1
    assert take(line, 17) is None
    assert line.is_empty


def test_a_turn_whose_predecessor_finished_long_ago_starts_at_once() -> None:
    line = WaitingQueue(iter([request_of(0), request_of(1), request_of(2, after=0, pause_steps=3)]))
    assert take(line, 0) == 0
    line.finish(0, 1)
    assert take(line, 9) == 1
    assert take(line, 9) == 2


def test_a_turn_that_is_ready_goes_before_new_arrivals() -> None:
    line = WaitingQueue(iter([request_of(0), request_of(1, after=0), request_of(2), request_of(3)]))
    assert take(line, 0) == 0
    assert take(line, 0) == 2
    line.finish(0, 4)
    assert take(line, 4) == 1
    assert take(line, 4) == 3


def test_restarts_go_first_by_age() -> None:
    line = WaitingQueue(iter([request_of(id) for id in range(4)]))
    served = [line.peek(0)]
    line.pop()
    served.append(line.peek(0))
    line.pop()
    assert line.peek(0) is not None  # request 2 is at the head
    for one in (served[1], served[0]):
        assert one is not None
        line.put_back(one)
    assert [take(line, 0) for _ in range(5)] == [0, 1, 2, 3, None]


def test_a_turn_before_its_predecessor_is_refused() -> None:
    line = WaitingQueue(iter([request_of(1, after=0)]))
    with pytest.raises(ValueError):
        line.peek(0)
