"""Staging slots of stores are sent, used again and freed only after the copies into them have ended; also where one was refused."""

from dataclasses import replace

import pytest
from shared_models import Rank, shared_config

from kv_cache_manager_v2.shared import MemoryStore
from kv_cache_manager_v2.testing import SimulatedDevice, Step

TEXT = list(range(100, 133))


@pytest.mark.parametrize("seed", range(6))
def test_a_refused_copy_frees_its_slots_once_the_others_have_ended(seed: int) -> None:
    """Each layer group has a pool of its own: the copy of the first has been enqueued when that of the second is refused."""
    device = SimulatedDevice(seed)
    config = shared_config((None, None))
    first, second = config.layers
    wider = replace(second, buffers=[replace(buffer, size=2 * buffer.size) for buffer in second.buffers], sliding_window_size=16)
    with Rank(MemoryStore(), replace(config, layers=[first, wider]), device=device) as rank:
        request = rank.begin(TEXT)
        kv_cache = request.kv_cache
        assert kv_cache.resume() and kv_cache.resize(len(TEXT), 0)
        rank.engine.execute([Step(kv_cache, TEXT, [])])
        kv_cache.commit(TEXT)
        device.drain()
        device.faults.fail("copy", 2, RuntimeError("refused"))
        num_free = len(rank.level._outgoing.free)
        assert request.store() == 0 and len(rank.level._outgoing.free) == num_free
        assert device.num_pending == 0, "a copy is under way into a slot that is free"
        request.cancel_remote()
        kv_cache.close()
        rank.drain()
    assert device.races == ()


def offer(rank: Rank) -> None:
    """Compute the text, and offer its 8 blocks."""
    request = rank.begin(TEXT)
    kv_cache = request.kv_cache
    assert kv_cache.resume() and kv_cache.resize(len(TEXT), 0)
    rank.engine.execute([Step(kv_cache, TEXT, [])])
    kv_cache.commit(TEXT)
    assert request.store() == 8
    request.cancel_remote()
    kv_cache.close()


@pytest.mark.parametrize("seed", range(6))
def test_a_level_frees_its_memory_after_the_last_copy(seed: int) -> None:
    """The simulated device raises where memory is unmapped while a copy into it may run."""
    device = SimulatedDevice(seed)
    with Rank(MemoryStore(), device=device) as rank:
        offer(rank)
        rank.level.close()
    assert device.races == ()


def test_a_page_is_sent_after_its_copy() -> None:
    device = SimulatedDevice(1)
    store = MemoryStore()
    with Rank(store, device=device) as rank:
        copies = rank.level._outgoing._out.stream
        device.hold_stream(copies)
        offer(rank)
        for _ in range(3):
            rank.settle()
            device.step(100)
        assert [task.is_submitted for task in rank.level._outgoing._outgoing] == [False]
        device.release_stream(copies)
        rank.drain()
    with Rank(store) as reader:
        assert reader.run([*TEXT, 7]) == 32, "every byte is checked as it is read"
