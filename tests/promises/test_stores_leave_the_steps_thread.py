"""`RemoteRequest.store` copies no byte on the caller's thread, and no page is used anew before its copy is made."""

import random

import pytest
from forwarding_device import ForwardingDevice
from shared_models import Rank, shared_config
from unit.device.fake_files import FakeFiles

from kv_cache_manager_v2 import CacheTier, HostDevice
from kv_cache_manager_v2.device.memory_range import MemoryRange
from kv_cache_manager_v2.device.port import CopyBatch
from kv_cache_manager_v2.shared import MemoryStore


class CountingDevice(ForwardingDevice):
    """How many copies are made on the caller's thread, and how many beside it."""

    num_on_thread = 0
    num_beside = 0

    def copy_batch(self, stream: int, batch: CopyBatch) -> None:
        self.num_on_thread += batch.count
        super().copy_batch(stream, batch)

    def copy_beside(self, stream: int, batch: CopyBatch) -> None:
        self.num_beside += batch.count
        super().copy_beside(stream, batch)


@pytest.mark.parametrize("windows", [(None,), (None, 8)])
def test_pages_that_are_evicted_at_once_are_stored_whole(windows: tuple[int | None, ...]) -> None:
    """The GPU has room for one prompt: each one takes the slots of the one before, whose copies may not be made yet."""
    store = MemoryStore()
    rng = random.Random(7)
    texts = [[1000 * number + rng.randrange(900) for _token in range(4 * rng.randrange(3, 9))] for number in range(1, 60)]
    with Rank(store, shared_config(windows, gpu_slots=9 * len(windows)), store_bytes=1 << 22) as writer:
        for text in texts:
            writer.run(text)
        writer.drain()
        assert writer.level.statistics.dropped_pages == 0
    with Rank(store, shared_config(windows, gpu_slots=200)) as reader:  # its engine compares every byte that it reads
        for text in texts:
            assert reader.run([*text, 1]) == len(text)


def test_no_copy_is_made_on_the_steps_thread() -> None:
    device = CountingDevice()
    with Rank(MemoryStore(), device=device) as rank:
        rank.run(list(range(33)))
        rank.drain()
        # Eight whole blocks; a page is one slot of one pool, whose buffers have one size.
        assert (device.num_on_thread, device.num_beside) == (0, 8)
        assert rank.level.statistics.stored_pages == 8


class HeldDevice(ForwardingDevice):
    """Copies beside the caller are behind a disk transfer, which waits until the test lets it go."""

    def __init__(self) -> None:
        self.files = FakeFiles()
        self._device = HostDevice(4096, files=self.files)
        self.disk = MemoryRange(self._device, CacheTier.DISK, 4096, "/nowhere")
        self.source = MemoryRange(self._device, CacheTier.HOST_MEM, 4096, None)
        for memory in (self.disk, self.source):
            memory.resize(4096)

    def copy_beside(self, stream: int, batch: CopyBatch) -> None:
        write = CopyBatch(CacheTier.DISK, CacheTier.HOST_MEM, 4096)
        write.add(self.disk.address, self.source.address)
        self._device.copy_batch(stream, write)
        super().copy_beside(stream, batch)

    def close(self) -> None:
        for memory in (self.disk, self.source):
            memory.close()
        super().close()


def test_the_next_user_of_a_slot_is_behind_the_copy() -> None:
    device = HeldDevice()
    store = MemoryStore()
    with Rank(store, shared_config(gpu_slots=5), device=device) as rank:
        device.files.hold()
        rank.run(list(range(16)))
        assert len(rank.level._outgoing.free) == rank.level._stores.num_slots - 4
        second = rank.manager.create_kv_cache(None, range(100, 116))
        assert second.resume() and second.resize(16)  # takes slots of the first, which has ended
        begun = device.record_event(second.cuda_stream)
        try:
            for _number in range(10):
                assert not device.is_event_done(begun)
            assert len(store.keys()) == 0
        finally:
            device.files.let_go()
        device.synchronize_event(begun)
        device.release_event(begun)
        second.close()
        rank.drain()
        assert len(store.keys()) == 4
    with Rank(store) as reader:
        assert reader.run([*range(16), 1]) == 16


def test_a_level_may_be_closed_after_its_manager() -> None:
    store = MemoryStore()
    rank = Rank(store)
    rank.run(list(range(17)))
    rank.drain()
    rank.engine.close()
    rank.manager.shutdown()
    rank.level.close()
    rank.device.close()
    assert len(store.keys()) == 4


def test_a_level_that_is_closed_late_or_twice_leaves_no_stream() -> None:
    rank = Rank(MemoryStore())
    rank.run(list(range(17)))
    rank.engine.close()
    rank.level.close()
    rank.level.close()
    rank.manager.shutdown()
    rank.device.close()
