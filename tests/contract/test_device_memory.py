"""Memory of a device: reserve, map, keep contents, unmap, release; and what happens when a caller is wrong."""

import pytest

from kv_cache_manager_v2.base.errors import LogicError, OutOfMemoryError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.memory_range import MemoryRange

from .device_under_test import DISK, GPU, HOST, DeviceUnderTest

TIERS = pytest.mark.parametrize("tier", [GPU, HOST, DISK], ids=["gpu", "host", "disk"])
PATTERN = bytes(range(256)) * 8


@TIERS
def test_granularity_is_a_power_of_two_and_the_tier_has_memory(bench: DeviceUnderTest, tier: CacheTier) -> None:
    granularity_bytes = bench.device.granularity_bytes(tier)
    assert granularity_bytes > 0 and granularity_bytes & (granularity_bytes - 1) == 0
    assert bench.device.total_bytes(tier) >= granularity_bytes


def test_a_device_has_a_name(bench: DeviceUnderTest) -> None:
    assert len(bench.device.name) > 0


@TIERS
def test_life_cycle_of_a_range(bench: DeviceUnderTest, tier: CacheTier) -> None:
    device = bench.device
    granule = bench.granules(tier, 1)
    address = bench.reserve(tier, 4 * granule)
    assert address > 0 and address % granule == 0
    device.map_memory(tier, address, granule)
    device.map_memory(tier, address + 3 * granule, granule)
    bench.write(tier, address, PATTERN)
    bench.write(tier, address + 4 * granule - len(PATTERN), PATTERN)
    bench.check(tier, address, PATTERN)
    bench.check(tier, address + 4 * granule - len(PATTERN), PATTERN)
    device.unmap_memory(tier, address, granule)
    bench.check(tier, address + 4 * granule - len(PATTERN), PATTERN)
    device.unmap_memory(tier, address + 3 * granule, granule)
    device.release_range(tier, address, 4 * granule)


@TIERS
def test_what_was_unmapped_can_be_mapped_again(bench: DeviceUnderTest, tier: CacheTier) -> None:
    device = bench.device
    granule = bench.granules(tier, 1)
    address = bench.reserve(tier, 2 * granule)
    for round_number in range(3):
        device.map_memory(tier, address, 2 * granule)
        bench.write(tier, address, bytes([round_number]) * len(PATTERN))
        bench.check(tier, address, bytes([round_number]) * len(PATTERN))
        device.unmap_memory(tier, address, 2 * granule)
    device.release_range(tier, address, 2 * granule)


@TIERS
def test_memory_mapped_in_one_go_is_unmapped_in_parts_and_the_other_way_round(bench: DeviceUnderTest, tier: CacheTier) -> None:
    device = bench.device
    granule = bench.granules(tier, 1)
    address = bench.reserve(tier, 5 * granule)
    device.map_memory(tier, address, 5 * granule)
    for index in range(5):
        bench.write(tier, address + index * granule, bytes([index]) * 100)
    # Out of the middle first: what is left and right of it stays.
    device.unmap_memory(tier, address + 2 * granule, granule)
    for index in (0, 1, 3, 4):
        bench.check(tier, address + index * granule, bytes([index]) * 100)
    device.unmap_memory(tier, address, 2 * granule)
    device.map_memory(tier, address, granule)
    device.map_memory(tier, address + 2 * granule, granule)
    device.map_memory(tier, address + granule, granule)
    for index in (3, 4):
        bench.check(tier, address + index * granule, bytes([index]) * 100)
    device.unmap_memory(tier, address, 5 * granule)
    device.release_range(tier, address, 5 * granule)


@TIERS
def test_ranges_do_not_share_addresses(bench: DeviceUnderTest, tier: CacheTier) -> None:
    granule = bench.granules(tier, 1)
    addresses = sorted(bench.memory(tier, 2 * granule) for _ in range(8))
    for index, address in enumerate(addresses):
        bench.write(tier, address, bytes([index]) * 64)
    for index, address in enumerate(addresses):
        bench.check(tier, address, bytes([index]) * 64)
    assert all(b - a >= 2 * granule for a, b in zip(addresses, addresses[1:], strict=False))


@TIERS
def test_a_memory_range_keeps_its_contents_while_it_grows_and_shrinks(bench: DeviceUnderTest, tier: CacheTier) -> None:
    granule = bench.granules(tier, 1)
    memory = bench.memory_range(tier, 10 * granule - 1)
    assert memory.max_bytes == 10 * granule
    assert memory.mapped_bytes == 0
    address = memory.address
    memory.resize(1)
    assert memory.mapped_bytes == granule
    bench.write(tier, address, PATTERN)
    for granules in (2, 5, 10, 7, 3, 4, 1):
        memory.resize(granules * granule)
        assert memory.mapped_bytes == granules * granule
        assert memory.address == address
        bench.check(tier, address, PATTERN)
        bench.write(tier, address + granules * granule - 100, bytes([granules]) * 100)
        bench.check(tier, address + granules * granule - 100, bytes([granules]) * 100)
    memory.resize(0)
    assert memory.mapped_bytes == 0


@TIERS
def test_a_memory_range_refuses_what_does_not_fit_and_is_closed_once(bench: DeviceUnderTest, tier: CacheTier) -> None:
    granule = bench.granules(tier, 1)
    memory = bench.memory_range(tier, 2 * granule)
    memory.resize(granule)
    for num_bytes in (-1, 2 * granule + 1):
        with pytest.raises(ValueError):
            memory.resize(num_bytes)
    assert memory.mapped_bytes == granule
    memory.close()
    memory.close()
    with pytest.raises(LogicError):
        memory.resize(granule)
    with pytest.raises(ValueError):
        bench.memory_range(tier, 0)


@TIERS
def test_more_addresses_than_a_machine_has(bench: DeviceUnderTest, tier: CacheTier) -> None:
    with pytest.raises(OutOfMemoryError):
        bench.reserve(tier, 1 << 60)


def test_more_memory_than_the_gpu_has_changes_nothing(bench: DeviceUnderTest) -> None:
    device = bench.device
    if device.name == "host":
        pytest.skip("the host device maps any amount; memory is taken when it is touched")
    granule = bench.granules(GPU, 1)
    total_bytes = device.total_bytes(GPU) // granule * granule
    memory = bench.memory_range(GPU, total_bytes + granule)
    memory.resize(granule)
    bench.write(GPU, memory.address, PATTERN)
    with pytest.raises(OutOfMemoryError):
        memory.resize(total_bytes + granule)
    assert memory.mapped_bytes == granule
    bench.check(GPU, memory.address, PATTERN)
    memory.resize(3 * granule)
    bench.check(GPU, memory.address, PATTERN)


@TIERS
def test_misuse_of_ranges_raises_and_changes_nothing(bench: DeviceUnderTest, tier: CacheTier) -> None:
    device = bench.device
    other_tier = HOST if tier == GPU else GPU
    granule = bench.granules(tier, 1)
    address = bench.reserve(tier, 4 * granule)
    device.map_memory(tier, address + granule, granule)
    bench.write(tier, address + granule, PATTERN)

    for num_bytes in (granule - 1, granule + 1, -granule):
        with pytest.raises(ValueError):
            bench.reserve(tier, num_bytes)
        with pytest.raises(ValueError):
            device.map_memory(tier, address + 2 * granule, num_bytes)
        with pytest.raises(ValueError):
            device.unmap_memory(tier, address + granule, num_bytes)
    with pytest.raises(ValueError):
        bench.reserve(tier, 0)
    with pytest.raises(ValueError):
        device.map_memory(tier, address + 1, granule)
    with pytest.raises(ValueError):
        device.unmap_memory(tier, address + granule + 1, granule)

    with pytest.raises(LogicError):  # mapped already, alone and with free neighbours
        device.map_memory(tier, address + granule, granule)
    with pytest.raises(LogicError):
        device.map_memory(tier, address, 3 * granule)
    with pytest.raises(LogicError):  # beyond the range
        device.map_memory(tier, address + 3 * granule, 2 * granule)
    with pytest.raises(LogicError):  # not mapped, or not all of it
        device.unmap_memory(tier, address, granule)
    with pytest.raises(LogicError):
        device.unmap_memory(tier, address + granule, 2 * granule)
    with pytest.raises(LogicError):  # never reserved
        device.map_memory(tier, granule, granule)
    with pytest.raises(LogicError):
        device.unmap_memory(tier, granule, granule)
    with pytest.raises(LogicError):
        device.release_range(tier, granule, granule)
    with pytest.raises(LogicError):  # still mapped
        device.release_range(tier, address, 4 * granule)
    with pytest.raises(LogicError):  # of another tier
        device.map_memory(other_tier, address + 2 * granule, granule)
    with pytest.raises(LogicError):
        device.unmap_memory(other_tier, address + granule, granule)

    bench.check(tier, address + granule, PATTERN)
    device.unmap_memory(tier, address + granule, granule)
    with pytest.raises(LogicError):  # a part of a range
        device.release_range(tier, address, granule)
    with pytest.raises(LogicError):
        device.release_range(tier, address + granule, 3 * granule)
    with pytest.raises(LogicError):
        device.release_range(other_tier, address, 4 * granule)
    device.release_range(tier, address, 4 * granule)
    with pytest.raises(LogicError):
        device.release_range(tier, address, 4 * granule)
    with pytest.raises(LogicError):
        device.map_memory(tier, address, granule)


def test_a_disk_range_needs_a_folder_and_other_ranges_have_none(bench: DeviceUnderTest) -> None:
    device = bench.device
    with pytest.raises(ValueError):
        device.reserve_range(DISK, 1 << 30)
    with pytest.raises(ValueError):
        MemoryRange(device, DISK, 1 << 30)
    with pytest.raises(ValueError):
        MemoryRange(device, HOST, 1 << 30, bench.folder)


@TIERS
def test_close_refuses_while_a_range_is_reserved_and_can_be_called_again(bench: DeviceUnderTest, tier: CacheTier) -> None:
    device = bench.device
    granule = bench.granules(tier, 1)
    address = bench.reserve(tier, granule)
    with pytest.raises(LogicError):
        device.close()
    # Refused means that nothing was closed.
    device.map_memory(tier, address, granule)
    bench.write(tier, address, PATTERN)
    bench.check(tier, address, PATTERN)
    device.unmap_memory(tier, address, granule)
    device.release_range(tier, address, granule)
