"""Each kind of mistake, planted once, is reported for every seed, with both stacks and the history of the bytes."""

import pytest

from kv_cache_manager_v2.base.errors import KVCacheManagerError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.port import CopyBatch, HostKernel, MemoryAccess
from kv_cache_manager_v2.testing.race_error import RaceError, RaceKind
from kv_cache_manager_v2.testing.simulated_device import SimulatedDevice

GPU, HOST = CacheTier.GPU_MEM, CacheTier.HOST_MEM
PAGE = 4096
SEEDS = range(20)


class Kernel(HostKernel):
    def __init__(self, *ranges):
        self.ranges = [MemoryAccess(*one) for one in ranges]

    def accesses(self):
        return self.ranges

    def run(self):
        pass


class Scene:
    """A device with four mapped pages on each tier and two streams."""

    def __init__(self, seed):
        self.device = SimulatedDevice(seed)
        self.gpu = self.device.reserve_range(GPU, 8 * PAGE)
        self.host = self.device.reserve_range(HOST, 8 * PAGE)
        self.device.map_memory(GPU, self.gpu, 4 * PAGE)
        self.device.map_memory(HOST, self.host, 4 * PAGE)
        self.a = self.device.create_stream()
        self.b = self.device.create_stream()

    def copy(self, stream, dst, src, num_bytes=512, dst_tier=GPU, src_tier=GPU):
        batch = CopyBatch(dst_tier, src_tier, num_bytes)
        batch.add(dst, src)
        self.device.copy_batch(stream, batch)

    def order(self, first, then):
        event = self.device.record_event(first)
        self.device.wait_event(then, event)
        self.device.release_event(event)


def write_twice(scene):
    scene.device.fill(scene.a, scene.gpu, 512, 1)
    scene.device.fill(scene.b, scene.gpu + 511, 512, 2)


def copy_onto_a_page_that_is_being_copied(scene):
    scene.device.fill(scene.a, scene.gpu, 512, 1)
    scene.order(scene.a, scene.b)
    scene.copy(scene.a, scene.host, scene.gpu, dst_tier=HOST)
    scene.device.fill(scene.b, scene.gpu, 512, 2)


def reuse_before_the_last_of_two_readers(scene):
    c = scene.device.create_stream()
    scene.device.fill(scene.a, scene.gpu, 512, 1)
    scene.order(scene.a, scene.b)
    scene.order(scene.a, c)
    scene.device.launch(scene.b, Kernel((scene.gpu, 512, False)))
    scene.device.launch(c, Kernel((scene.gpu, 512, False)))
    scene.order(c, scene.a)  # and not b
    scene.device.fill(scene.a, scene.gpu, 512, 2)


def host_reads_too_early(scene):
    scene.device.fill(scene.a, scene.gpu, 512, 1)
    scene.device.host_read(scene.gpu, 1)


def host_writes_under_a_reader(scene):
    scene.device.host_write(scene.host, bytes(512))
    scene.copy(scene.a, scene.gpu, scene.host, src_tier=HOST)
    scene.device.host_write(scene.host, bytes(512))


def same_handle_is_another_stream(scene):
    """A driver gives the address of a destroyed stream to a new one: the handle orders nothing."""
    scene.device.fill(scene.a, scene.gpu, 512, 1)
    scene.device.destroy_stream(scene.a)
    streams = [scene.device.create_stream() for _ in range(20)]
    assert scene.a in streams
    scene.device.launch(scene.a, Kernel((scene.gpu, 512, False)))


def read_never_written(scene):
    scene.device.fill(scene.a, scene.gpu, 512, 1)
    scene.device.launch(scene.a, Kernel((scene.gpu, 513, False)))


def touch_beyond_the_mapped_part(scene):
    scene.device.fill(scene.a, scene.gpu + 4 * PAGE - 1, 2, 1)


def touch_after_release(scene):
    scene.device.unmap_memory(GPU, scene.gpu, 4 * PAGE)
    scene.device.release_range(GPU, scene.gpu, 8 * PAGE)
    scene.device.reserve_range(GPU, 8 * PAGE)
    scene.device.fill(scene.a, scene.gpu, 1, 1)


def touch_what_was_never_reserved(scene):
    scene.device.launch(scene.a, Kernel((64, 8, True)))


def unmap_while_it_is_read(scene):
    scene.device.host_write(scene.host, bytes(512))
    scene.copy(scene.a, scene.gpu, scene.host, src_tier=HOST)
    scene.device.unmap_memory(HOST, scene.host, PAGE)


def copies_of_one_batch_in_a_chain(scene):
    scene.device.fill(scene.a, scene.gpu, PAGE, 1)
    batch = CopyBatch(GPU, GPU, 512)
    batch.add(scene.gpu + 512, scene.gpu)
    batch.add(scene.gpu + 1024, scene.gpu + 512)
    scene.device.copy_batch(scene.a, batch)


def copy_with_the_tiers_exchanged(scene):
    scene.device.fill(scene.a, scene.gpu, 512, 1)
    scene.copy(scene.a, scene.host, scene.gpu, dst_tier=GPU, src_tier=HOST)


def fill_of_host_memory(scene):
    scene.device.fill(scene.a, scene.host, 512, 1)


PLANTED = [
    (write_twice, RaceKind.WRITE_AFTER_WRITE),
    (copy_onto_a_page_that_is_being_copied, RaceKind.WRITE_AFTER_READ),
    (reuse_before_the_last_of_two_readers, RaceKind.WRITE_AFTER_READ),
    (host_reads_too_early, RaceKind.READ_AFTER_WRITE),
    (host_writes_under_a_reader, RaceKind.WRITE_AFTER_READ),
    (same_handle_is_another_stream, RaceKind.READ_AFTER_WRITE),
    (read_never_written, RaceKind.UNWRITTEN),
    (touch_beyond_the_mapped_part, RaceKind.UNMAPPED),
    (touch_after_release, RaceKind.FREED),
    (touch_what_was_never_reserved, RaceKind.UNMAPPED),
    (unmap_while_it_is_read, RaceKind.UNMAP_IN_USE),
    (copies_of_one_batch_in_a_chain, RaceKind.BATCH_OVERLAP),
    (copy_with_the_tiers_exchanged, RaceKind.WRONG_TIER),
    (fill_of_host_memory, RaceKind.WRONG_TIER),
]


@pytest.mark.parametrize("plant,kind", PLANTED, ids=[plant.__name__ for plant, _kind in PLANTED])
def test_planted_mistake_is_found_for_every_seed(plant, kind):
    for seed in SEEDS:
        scene = Scene(seed)
        with pytest.raises(RaceError) as caught:
            plant(scene)
        assert caught.value.kind == kind
        assert list(scene.device.races) == [caught.value]


def test_every_kind_is_planted():
    assert {kind for _plant, kind in PLANTED} == set(RaceKind)


def test_report_tells_both_stacks_and_the_history():
    scene = Scene(0)
    with pytest.raises(RaceError) as caught:
        copy_onto_a_page_that_is_being_copied(scene)
    race = caught.value
    # Both accesses come from the planting function, whose frame is the innermost that is not the device's own.
    for text in (race.current, race.earlier):
        assert "copy_onto_a_page_that_is_being_copied" in text or " copy" in text
        assert __file__.rsplit("/", 1)[1] in text
    assert (race.address, race.num_bytes) == (scene.gpu, 512)
    # map, fill, copy: the refused access is not history.
    assert len(race.history) == 3
    assert race.current in str(race) and race.earlier in str(race)


def test_race_is_no_error_that_a_program_may_handle():
    assert not issubclass(RaceError, KVCacheManagerError)


def test_history_is_bounded():
    device = SimulatedDevice(0, log_length=8)
    gpu = device.reserve_range(GPU, PAGE)
    device.map_memory(GPU, gpu, PAGE)
    for _ in range(100):
        device.fill(device.default_stream(), gpu, 512, 1)
    with pytest.raises(RaceError) as caught:
        device.host_read(gpu, 1)
    assert len(caught.value.history) == 8


def test_what_is_ordered_is_not_reported():
    """The same scenes with the missing order put in."""
    for seed in SEEDS:
        scene = Scene(seed)
        device = scene.device
        device.fill(scene.a, scene.gpu, 512, 1)
        scene.order(scene.a, scene.b)
        device.fill(scene.b, scene.gpu + 511, 512, 2)  # waits
        scene.copy(scene.b, scene.host, scene.gpu, dst_tier=HOST)
        scene.order(scene.b, scene.a)
        device.launch(scene.a, Kernel((scene.gpu, 600, False), (scene.gpu, 600, True)))  # one kernel is no race
        event = device.record_event(scene.a)
        while not device.is_event_done(event):  # the host has seen it: this orders as well
            pass
        assert device.host_read(scene.host, 2) == bytes([1, 1])
        device.unmap_memory(GPU, scene.gpu, 4 * PAGE)
        device.unmap_memory(HOST, scene.host, 4 * PAGE)
        assert list(device.races) == []
