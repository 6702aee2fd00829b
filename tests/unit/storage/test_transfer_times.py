"""`TransferTimes` where the work takes long, and where the device refuses it."""

from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.host_device import HostDevice
from kv_cache_manager_v2.device.memory_range import MemoryRange
from kv_cache_manager_v2.device.port import NO_TIMER, CopyBatch
from kv_cache_manager_v2.storage.transfer_times import MAX_PENDING, TransferTimes


def test_a_slow_tier_is_not_waited_for_and_few_timers_run(tmp_path) -> None:
    """Whether or not the disk is faster than this loop, each transfer is either timed or counted as not timed."""
    device = HostDevice(4096)
    disk = MemoryRange(device, CacheTier.DISK, 4096, str(tmp_path))
    gpu = MemoryRange(device, CacheTier.GPU_MEM, 4096)
    disk.resize(4096)
    gpu.resize(4096)
    stream = device.create_stream()
    times = TransferTimes(device, 2)
    batch = CopyBatch(CacheTier.DISK, CacheTier.GPU_MEM, 4096)
    batch.add(disk.address, gpu.address)
    num_started = 0
    for _ in range(MAX_PENDING + 6):
        timer = times.start(stream, 0, 1)
        device.copy_batch(stream, batch)
        if timer != NO_TIMER:
            times.stop(stream, timer, 0, 1)
            num_started += 1
    # The other way has timers of its own.
    refused = times.start(stream, 1, 0)
    assert refused != NO_TIMER
    times.cancel(refused)
    device.synchronize_stream(stream)
    times.collect()
    assert sum(times.histogram(0, 1).counts) == num_started >= MAX_PENDING
    assert times.num_not_timed == MAX_PENDING + 6 - num_started + 1
    # What was never looked at ends with the manager.
    timer = times.start(stream, 1, 0)
    times.stop(stream, timer, 1, 0)
    times.close()
    assert sum(times.histogram(1, 0).counts) == 1
    disk.close()
    gpu.close()
    device.close()
