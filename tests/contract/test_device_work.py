"""Copies, fills and kernels: the right bytes and no others, for any shape of batch; and refusals that touch nothing."""

import ctypes
import random
from collections.abc import Sequence

import pytest

from kv_cache_manager_v2.base.errors import LogicError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.port import CopyBatch, HostKernel, MemoryAccess

from .device_under_test import DISK, GPU, HOST, DeviceUnderTest

TIER_PAIRS = pytest.mark.parametrize(
    ("dst_tier", "src_tier"),
    [(GPU, GPU), (GPU, HOST), (HOST, GPU), (HOST, HOST), (GPU, DISK), (DISK, GPU), (HOST, DISK), (DISK, HOST), (DISK, DISK)],
    ids=["gpu-gpu", "gpu-host", "host-gpu", "host-host", "gpu-disk", "disk-gpu", "host-disk", "disk-host", "disk-disk"],
)


def run_copies(
    bench: DeviceUnderTest,
    dst_tier: CacheTier,
    src_tier: CacheTier,
    num_bytes: int,
    slots: Sequence[tuple[int, int]],
    seed: int,
    *,
    on_default_stream: bool = False,
    is_beside: bool = False,
) -> None:
    """Copy slot ``src`` onto slot ``dst`` for each pair; compare with the same done to bytes objects."""
    num_dst = max(dst for dst, _ in slots) + 2
    num_src = max(src for _, src in slots) + 1
    generator = random.Random(seed)
    src_image = generator.randbytes(num_src * num_bytes)
    dst_image = bytearray(generator.randbytes(num_dst * num_bytes))
    src_address = bench.memory(src_tier, len(src_image) + 1) + 1  # no alignment is promised
    dst_address = bench.memory(dst_tier, len(dst_image) + 3) + 3
    bench.write(src_tier, src_address, src_image)
    bench.write(dst_tier, dst_address, bytes(dst_image))
    batch = CopyBatch(dst_tier, src_tier, num_bytes)
    for dst, src in slots:
        batch.add(dst_address + dst * num_bytes, src_address + src * num_bytes)
        dst_image[dst * num_bytes : (dst + 1) * num_bytes] = src_image[src * num_bytes : (src + 1) * num_bytes]
    stream = bench.device.default_stream() if on_default_stream else bench.device.create_stream()
    if is_beside:
        bench.device.copy_beside(stream, batch)
    else:
        bench.device.copy_batch(stream, batch)
    # The batch is the caller's again at once.
    batch.clear()
    batch.add(1, 1)
    bench.device.synchronize_stream(stream)
    bench.check(dst_tier, dst_address, bytes(dst_image))
    bench.check(src_tier, src_address, src_image)
    if not on_default_stream:
        bench.device.destroy_stream(stream)


def test_an_expected_write_changes_no_byte(bench: DeviceUnderTest) -> None:
    """It is a note for devices that check for races; a copy is no reader."""
    address = bench.memory(GPU, 64)
    bench.write(GPU, address, bytes(range(64)))
    bench.device.expect_write(address + 8, 16)
    run_copies(bench, GPU, GPU, 16, [(0, 1)], 1)
    bench.write(GPU, address + 8, bytes(range(8, 24)))
    bench.check(GPU, address, bytes(range(64)))


@TIER_PAIRS
@pytest.mark.parametrize("num_bytes", [1, 7, 64, 1000, 4096, 5000, 65536])
def test_scattered_copies(bench: DeviceUnderTest, dst_tier: CacheTier, src_tier: CacheTier, num_bytes: int) -> None:
    count = 60 if num_bytes <= 5000 else 12
    generator = random.Random(num_bytes)
    dsts = generator.sample(range(2 * count), count)
    srcs = [generator.randrange(count) for _ in range(count)]  # a source may be read several times
    run_copies(bench, dst_tier, src_tier, num_bytes, list(zip(dsts, srcs, strict=True)), seed=num_bytes)


@pytest.mark.parametrize(("dst_tier", "src_tier"), [(GPU, HOST), (HOST, GPU)], ids=["gpu-host", "host-gpu"])
@pytest.mark.parametrize("num_bytes", [1, 64, 5000, 65536])
def test_copies_beside_the_caller(bench: DeviceUnderTest, dst_tier: CacheTier, src_tier: CacheTier, num_bytes: int) -> None:
    run_copies(bench, dst_tier, src_tier, num_bytes, [(11 - i, i // 2) for i in range(12)], seed=num_bytes, is_beside=True)


@TIER_PAIRS
def test_neighbours_and_runs(bench: DeviceUnderTest, dst_tier: CacheTier, src_tier: CacheTier) -> None:
    shapes = [
        [(i, i) for i in range(40)],  # one run
        [(39 - i, i) for i in range(40)],  # backwards: no run at all
        [(i, i // 10 * 20 + i % 10) for i in range(40)],  # runs of ten at the source
        [(i // 3 * 4 + i % 3, i) for i in range(40)],  # runs of three at the destination
        [(5, 2)],
        [(0, 1), (1, 2), (3, 3), (4, 4), (2, 0)],
    ]
    for seed, slots in enumerate(shapes):
        run_copies(bench, dst_tier, src_tier, 257, slots, seed)


@TIER_PAIRS
def test_copies_on_the_default_stream(bench: DeviceUnderTest, dst_tier: CacheTier, src_tier: CacheTier) -> None:
    run_copies(bench, dst_tier, src_tier, 4096, [(30 - 2 * i, i) for i in range(15)], seed=3, on_default_stream=True)


@TIER_PAIRS
def test_large_copies_cross_every_boundary_inside_the_device(
    bench: DeviceUnderTest, dst_tier: CacheTier, src_tier: CacheTier
) -> None:
    run_copies(bench, dst_tier, src_tier, (3 << 20) + 5, [(1, 0), (0, 2), (2, 1)], seed=11)


@TIER_PAIRS
def test_neighbouring_ranges_are_no_unit(bench: DeviceUnderTest, dst_tier: CacheTier, src_tier: CacheTier) -> None:
    """Where two ranges happen to touch, a run of copies would go on from one into the other."""
    size = 1024
    srcs = sorted(bench.memory(src_tier, bench.granules(src_tier, 1)) for _ in range(6))
    dsts = sorted(bench.memory(dst_tier, bench.granules(dst_tier, 1)) for _ in range(6))
    batch = CopyBatch(dst_tier, src_tier, size)
    expected: dict[int, bytes] = {}
    for index, (src, dst) in enumerate(zip(srcs, dsts, strict=True)):
        # The first and the last bytes of each range.
        for is_last in (0, 1):
            data = bytes([2 * index + is_last]) * size
            src_address = src + is_last * (bench.granules(src_tier, 1) - size)
            dst_address = dst + is_last * (bench.granules(dst_tier, 1) - size)
            bench.write(src_tier, src_address, data)
            expected[dst_address] = data
            batch.add(dst_address, src_address)
    stream = bench.device.create_stream()
    bench.device.copy_batch(stream, batch)
    bench.device.synchronize_stream(stream)
    for address, data in expected.items():
        bench.check(dst_tier, address, data)
    bench.device.destroy_stream(stream)


def test_an_empty_batch_is_no_work(bench: DeviceUnderTest) -> None:
    bench.device.copy_batch(bench.device.default_stream(), CopyBatch(GPU, HOST, 4096))


def test_a_wrong_address_is_refused_before_anything_is_copied(bench: DeviceUnderTest) -> None:
    device = bench.device
    granule = bench.granules(GPU, 1)
    memory = bench.memory_range(GPU, 4 * granule)
    memory.resize(2 * granule)
    a = memory.address
    host = bench.memory(HOST, granule)
    bench.write(GPU, a, b"\x01" * (2 * granule))
    bench.write(HOST, host, b"\x02" * 4096)
    stream = device.create_stream()
    wrong = [
        (a + 2 * granule, host),  # not mapped
        (a + 2 * granule - 1, host),  # the last byte is mapped, the next is not
        (a + 5 * granule, host),  # beyond the range
        (host, host),  # of another tier
        (a, a),
        (0, host),
        (a, 8),
        (-8, host),
        (a, (1 << 62) - 1),
    ]
    for dst, src in wrong:
        batch = CopyBatch(GPU, HOST, 4096)
        batch.add(a, host)
        batch.add(dst, src)
        # A device that looks for races reports these as such, which is no LogicError.
        with pytest.raises(Exception, match="."):
            device.copy_batch(stream, batch)
    device.synchronize_stream(stream)
    if "simulated" not in device.name:
        bench.check(GPU, a, b"\x01" * (2 * granule))
        bench.check(HOST, host, b"\x02" * 4096)
    for num_bytes in (0, -1):
        with pytest.raises(ValueError):
            device.copy_batch(stream, CopyBatch(GPU, HOST, num_bytes))
    device.destroy_stream(stream)


def test_a_batch_is_emptied_and_filled_again(bench: DeviceUnderTest) -> None:
    a = bench.memory(GPU, 8 * 512)
    bench.write(GPU, a, b"".join(bytes([i]) * 512 for i in range(8)))
    stream = bench.device.create_stream()
    batch = CopyBatch(GPU, GPU, 512)
    batch.add(a + 4 * 512, a)
    batch.add(a + 5 * 512, a + 512)
    bench.device.copy_batch(stream, batch)
    batch.clear()
    assert batch.count == 0
    batch.add(a + 6 * 512, a + 2 * 512)
    assert batch.count == 1
    bench.device.copy_batch(stream, batch)
    bench.device.synchronize_stream(stream)
    bench.check(GPU, a, b"".join(bytes([i]) * 512 for i in (0, 1, 2, 3, 0, 1, 2, 7)))
    bench.device.destroy_stream(stream)


def test_fills(bench: DeviceUnderTest) -> None:
    device = bench.device
    granule = bench.granules(GPU, 1)
    memory = bench.memory_range(GPU, 2 * granule)
    memory.resize(granule)
    a = memory.address
    stream = device.create_stream()
    device.fill(stream, a, granule, 0)
    device.fill(stream, a + 5, 1, 255)
    device.fill(stream, a + granule - 3, 3, 17)
    device.fill(stream, a + 100, 333, 8)
    device.synchronize_stream(stream)
    expected = bytearray(granule)
    expected[5] = 255
    expected[granule - 3 :] = b"\x11\x11\x11"
    expected[100:433] = b"\x08" * 333
    bench.check(GPU, a, bytes(expected))
    for value in (-1, 256):
        with pytest.raises(ValueError):
            device.fill(stream, a, 16, value)
    for num_bytes in (0, -16):
        with pytest.raises(ValueError):
            device.fill(stream, a, num_bytes, 1)
    host = bench.memory(HOST, 4096)
    for address, num_bytes in ((a + granule, 1), (a + granule - 1, 2), (8, 8), (host, 16)):
        with pytest.raises(Exception, match="."):
            device.fill(stream, address, num_bytes, 1)
    device.synchronize_stream(stream)
    bench.check(GPU, a, bytes(expected))
    device.destroy_stream(stream)


class Increment(HostKernel):
    """Adds one to every byte; on the host."""

    def __init__(self, bench: DeviceUnderTest, address: int, num_bytes: int) -> None:
        self.address = address
        self.num_bytes = num_bytes
        self.num_runs = 0

    def accesses(self) -> Sequence[MemoryAccess]:
        return [MemoryAccess(self.address, self.num_bytes, False), MemoryAccess(self.address, self.num_bytes, True)]

    def run(self) -> None:
        self.num_runs += 1
        data = ctypes.string_at(self.address, self.num_bytes)
        ctypes.memmove(self.address, bytes((byte + 1) % 256 for byte in data), self.num_bytes)


class Failing(HostKernel):
    def accesses(self) -> Sequence[MemoryAccess]:
        return []

    def run(self) -> None:
        raise ZeroDivisionError("a kernel that fails")


def test_kernels_run_once_and_in_stream_order(bench: DeviceUnderTest) -> None:
    device = bench.device
    a = bench.memory(GPU, 2 * 512)
    kernel = Increment(bench, a, 512)
    if not device.is_software:
        with pytest.raises(LogicError):
            device.launch(device.default_stream(), kernel)
        return
    stream = device.create_stream()
    device.fill(stream, a, 512, 40)
    device.launch(stream, kernel)
    again = Increment(bench, a, 512)
    device.launch(stream, again)
    batch = CopyBatch(GPU, GPU, 512)
    batch.add(a + 512, a)
    device.copy_batch(stream, batch)
    device.fill(stream, a, 512, 1)
    device.synchronize_stream(stream)
    assert kernel.num_runs == again.num_runs == 1
    bench.check(GPU, a, b"\x01" * 512 + b"\x2a" * 512)
    device.destroy_stream(stream)


def test_kernel_errors_reach_the_launcher_or_the_synchronising_caller(bench: DeviceUnderTest) -> None:
    device = bench.device
    if not device.is_software:
        pytest.skip("this device runs no host kernels")
    stream = device.create_stream()
    with pytest.raises(ZeroDivisionError):
        device.launch(stream, Failing())
        device.synchronize_stream(stream)
    device.destroy_stream(stream)


def test_nothing_works_on_a_closed_device(bench: DeviceUnderTest) -> None:
    device = bench.device
    stream = device.create_stream()
    event = device.record_event(stream)
    device.synchronize_event(event)
    bench.close()
    bench.device.close()
    for use in (
        lambda: device.reserve_range(GPU, 1 << 30),
        lambda: device.create_stream(),
        lambda: device.record_event(0),
        lambda: device.release_event(event),
        lambda: device.is_event_done(event),
        lambda: device.fill(0, 4096, 1, 1),
        lambda: device.copy_batch(0, CopyBatch(GPU, GPU, 1)),
        lambda: device.synchronize_stream(0),
    ):
        with pytest.raises(LogicError):
            use()
    # What the fixture does when the test ends is done already.
    bench.close = lambda: None  # type: ignore[method-assign]
