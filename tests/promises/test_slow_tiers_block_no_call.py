"""A request whose pages are on a slow tier blocks no other call: `ready` says when they arrived, and timing decides nothing."""

import sys
from pathlib import Path

import pytest
from tiered_models import TOKENS_PER_BLOCK, Bench, tiered_config
from unit.device.fake_files import FakeFiles

from kv_cache_manager_v2 import DataRole, Device, HostDevice, KVCache, LayerGroupId, LayerId
from kv_cache_manager_v2.testing import SimulatedDevice


def wait_until_ready(kv_cache: KVCache) -> None:
    while not kv_cache.ready:
        # Lets the disk's threads go on.
        sys.stdout.flush()


def test_a_slow_disk_holds_up_its_own_sequence_only() -> None:
    """4 slots on the GPU, 12 on the disk, whose transfers are held at a gate."""
    files = FakeFiles()
    with Bench(tiered_config(8, [("disk", 12)]), HostDevice(files=files)) as bench:
        slow = bench.suspended(0, 4 * TOKENS_PER_BLOCK)
        other = bench.suspended(1, 8 * TOKENS_PER_BLOCK)
        # All of other's 8 pages came after slow's 4, which are on the disk.
        assert other.resume()
        bench.check(other)
        assert other.resize(4 * TOKENS_PER_BLOCK)
        del bench.texts[1][4 * TOKENS_PER_BLOCK :]
        files.hold()
        assert slow.resume(wait=False)
        readiness = [slow.ready]
        bench.check(other)
        bench.engine.synchronize()
        readiness.append(slow.ready)
        assert readiness == [False, False]
        files.let_go()
        wait_until_ready(slow)
        assert slow.ready, "it stays so"
        bench.check(slow)


def test_a_real_disk_file(tmp_path: Path) -> None:
    with Bench(tiered_config(8, [("disk", 40)], str(tmp_path)), HostDevice()) as bench:
        sequences = [bench.suspended(number, 5 * TOKENS_PER_BLOCK) for number in range(6)]
        for _round in range(3):
            for kv_cache in sequences:
                assert kv_cache.resume(wait=False)
                wait_until_ready(kv_cache)
                bench.check(kv_cache)
                kv_cache.suspend()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("seed", range(10))
def test_polling_gets_there_on_any_schedule(seed: int) -> None:
    device = SimulatedDevice(seed)
    with Bench(tiered_config(8, [("host", 6), ("disk", 40)]), device) as bench:
        sequences = [bench.suspended(number, 5 * TOKENS_PER_BLOCK) for number in range(5)]
        for kv_cache in sequences:
            assert kv_cache.resume(wait=False)
            wait_until_ready(kv_cache)
            bench.check(kv_cache)
            kv_cache.suspend()
        assert sequences[0].prefetch()
        assert sequences[0].resume(wait=False)
        wait_until_ready(sequences[0])
        bench.check(sequences[0])
        for kv_cache in sequences:
            kv_cache.close()
        assert device.races == ()


def test_ready_is_for_active_sequences() -> None:
    with Bench(tiered_config(8, [("host", 8)]), HostDevice()) as bench:
        kv_cache = bench.suspended(0, 4)
        with pytest.raises(Exception, match="ACTIVE|suspended|SUSPENDED"):
            assert kv_cache.ready
        assert kv_cache.resume()
        assert kv_cache.ready, "nothing had to be onboarded"


@pytest.mark.parametrize("call", ["commit_tree", "reserve_transfer"])
@pytest.mark.parametrize("kind", ["host", "disk"])
def test_work_before_it_is_ready_is_in_order(call: str, kind: str) -> None:
    """A tree of drafts was computed, its pages were offloaded and are being onboarded: what moves or sends its bytes comes later."""
    device = SimulatedDevice(5, eager=False)
    with Bench(tiered_config(4, [(kind, 12)]), device) as bench:
        drafts = bench.manager.create_kv_cache(id=0)
        assert drafts.resume() and bench.write(drafts, 2 * TOKENS_PER_BLOCK)
        drafts.suspend()
        other = bench.suspended(1, 4 * TOKENS_PER_BLOCK)
        assert drafts.resume(wait=False)
        if call == "commit_tree":
            # The race detector sees 3 -> 2 and 6 -> 3 being copied.
            drafts.commit_tree([5, 6, 7, 8], [0, 1, 3, 6])
        else:
            lease = drafts.reserve_transfer()
            # The other side begins behind the sequence's stream; the host stands in for it.
            device.synchronize_stream(device.default_stream())
            slot_bytes = sum(bench.manager.get_storage_statistics()[0].slot_sizes)
            base = bench.manager.get_mem_pool_base_address(LayerId(0), DataRole("key"))
            device.host_read(base + lease.get_page_indices(LayerGroupId(0))[1] * slot_bytes, slot_bytes // 2)
            lease.settle()
        assert device.races == ()
        drafts.close()
        assert other.resume()
        bench.check(other)


def rotate(bench: Bench, device: Device) -> None:
    """Sequences that grow, commit, come and go over three levels; never a call that may wait."""
    streams = [device.default_stream(), device.create_stream()]
    sequences: list[KVCache] = []
    for number in range(6):
        kv_cache = bench.manager.create_kv_cache(id=number)
        assert kv_cache.resume(streams[number % 2], wait=False)
        assert bench.write(kv_cache, 3 * TOKENS_PER_BLOCK, commit=number % 2 == 0)
        kv_cache.suspend()
        sequences.append(kv_cache)
    for turn in range(18):
        kv_cache = sequences[turn * 5 % 6]
        assert kv_cache.resume(streams[turn % 2], wait=False)
        if turn % 3 == 0:
            wait_until_ready(kv_cache)
            assert bench.write(kv_cache, 1, commit=kv_cache.id % 2 == 0)
        kv_cache.suspend()
        if turn % 4 == 0:
            sequences[turn % 6].prefetch(turn % 3)
    for kv_cache in sequences[:3]:
        kv_cache.close()
    for number in (0, 2):
        again = bench.manager.create_kv_cache(input_tokens=list(bench.texts[number]), id=number + 10)
        bench.texts[again.id] = list(bench.texts[number])[: again.num_committed_tokens]
        assert again.resume(streams[0], wait=False)
        wait_until_ready(again)
        bench.check(again)
        again.close()
    for kv_cache in sequences[3:]:
        kv_cache.close()


TIERS = (("host", 5), ("disk", 40))


@pytest.mark.parametrize("seed", range(8))
def test_the_host_never_waits(seed: int) -> None:
    device = SimulatedDevice(seed)
    with Bench(tiered_config(9, TIERS, windows=(None, 8)), device) as bench:
        rotate(bench, device)
        assert device.num_host_waits == 0
        assert device.races == ()
        assert bench.num_copied(0, 1) > 0 and bench.num_copied(2, 0) + bench.num_copied(2, 1) > 0


def test_when_copies_finish_decides_nothing(tmp_path: Path) -> None:
    """Every decision is the same on a device that runs at once, as late as it may, or in any order between."""
    digests: set[bytes] = set()
    devices: list[Device] = [HostDevice(), SimulatedDevice(0, eager=True), SimulatedDevice(0, eager=False)]
    devices += [SimulatedDevice(seed) for seed in range(1, 9)]
    for device in devices:
        with Bench(tiered_config(9, TIERS, str(tmp_path), windows=(None, 8)), device) as bench:
            rotate(bench, device)
            digests.add(bench.manager.state_digest())
    assert len(digests) == 1
