"""What a shared level waits for, or takes note of, before it goes on: leaving one of these out must show here."""

from threading import Event

import pytest
from shared_models import Rank, shared_config, wait_until

from kv_cache_manager_v2.shared import MemoryStore
from kv_cache_manager_v2.testing import SimulatedDevice, Step

FIRST = list(range(100, 133))
SECOND = list(range(200, 233))


def offer(rank: Rank, text: list[int]) -> int:
    """Compute the text, and offer its 8 blocks; how many pages were taken."""
    request = rank.begin(text)
    kv_cache = request.kv_cache
    assert kv_cache.resume() and kv_cache.resize(len(text), kv_cache.num_committed_tokens)
    done = kv_cache.num_committed_tokens
    rank.engine.execute([Step(kv_cache, text[done:], text[:done])])
    kv_cache.commit(text[done:])
    count = request.store()
    request.cancel_remote()
    kv_cache.close()
    return count


class HeldStore(MemoryStore):
    """Keeps nothing until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = Event()

    def put(self, key: bytes, value: bytes) -> None:
        assert self.may_go_on.wait(60)
        super().put(key, value)


def test_an_offer_takes_the_slots_of_what_is_stored_by_now() -> None:
    """Staging memory for 8 pages, all of which are in the store when the next 8 come; no report was taken in between."""
    store = HeldStore()
    with Rank(store, store_bytes=8 * 4096) as rank:
        outgoing = rank.level._outgoing
        assert outgoing._staging.num_slots == 8
        assert offer(rank, FIRST) == 8
        tasks = list(outgoing._outgoing)
        rank.wait(lambda: all([task.is_submitted for task in tasks]))
        store.may_go_on.set()
        wait_until(lambda: all([task.is_over for task in tasks]))
        assert len(outgoing.free) == 0 and offer(rank, SECOND) == 8
        rank.drain()


def test_what_was_evicted_before_the_weights_changed_has_no_name_of_after() -> None:
    store = MemoryStore()
    with Rank(store, shared_config(gpu_slots=9), write_policy="eviction") as rank:
        rank.run(FIRST)
        rank.run(SECOND)
        leaving = rank.level._outgoing._leaving
        assert leaving is not None and len(leaving.paths) > 0, "the first text was evicted, and no report was taken since"
        rank.level.begin_epoch(1)
        rank.drain()
    with Rank(store, epoch=1) as reader:
        assert reader.run([*FIRST, 7]) == 0, "keys and values of other weights"


@pytest.mark.parametrize("seed", range(6))
def test_a_level_frees_its_memory_after_the_last_load(seed: int) -> None:
    """The simulated device raises where memory is unmapped while a copy from it may run."""
    store = MemoryStore()
    with Rank(store) as writer:
        assert offer(writer, FIRST) == 8
        writer.drain()
    device = SimulatedDevice(seed)
    with Rank(store, device=device) as rank:
        request = rank.begin([*FIRST, 7])
        assert rank.load(request) == 32
        rank.level.close()
        request.kv_cache.close()
    assert device.races == ()


def test_a_server_that_begins_anew_is_stored_to_again() -> None:
    with Rank(MemoryStore()) as rank:
        assert offer(rank, FIRST) == 8
        rank.drain()
        assert offer(rank, FIRST) == 0, "it is there"
        rank.level._workers.begun_anew.append("memory")
        rank.settle()
        assert offer(rank, FIRST) == 8
        rank.drain()
