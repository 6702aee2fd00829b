"""A manager takes addresses for what its tiers can be asked to grow to (`max_quota`), not for all of the machine's memory, and its own
memory as it is used."""

import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from forwarding_device import ForwardingDevice
from small_models import config_of, run_prompt

from kv_cache_manager_v2 import CacheTier, DiskCacheTierConfig, GpuCacheTierConfig, HostCacheTierConfig, KVCacheManager
from kv_cache_manager_v2.config.cache_tier_config import DEFAULT_GROWTH, LEAST_MAX_QUOTA
from kv_cache_manager_v2.config.config_codec import decode_config, encode_config
from kv_cache_manager_v2.config.config_value import MAX_CONFIG_INT

MEGABYTE = 1 << 20
MOST = 3 * MEGABYTE


class CountingDevice(ForwardingDevice):
    """A host device that knows how many bytes of addresses were asked of it."""

    reserved = 0

    def reserve_range(self, tier: CacheTier, num_bytes: int) -> int:
        self.reserved += num_bytes
        return super().reserve_range(tier, num_bytes)


class SmallDevice(ForwardingDevice):
    """A host device with little of each kind."""

    def total_bytes(self, tier: CacheTier) -> int:
        return MOST


def config_with(quota: int, max_quota: int | None = None) -> Any:
    tiers = (GpuCacheTierConfig(quota, max_quota=max_quota), HostCacheTierConfig(2 * quota, max_quota=max_quota))
    return dataclasses.replace(config_of(), cache_tiers=tiers)


def reserved_by(quota: int, max_quota: int | None = None) -> int:
    device = CountingDevice()
    with KVCacheManager(config_with(quota, max_quota), device=device):
        return device.reserved


def test_a_small_tier_reserves_a_multiple_of_its_quota() -> None:
    """One pool a level, the second level twice as large as the first."""
    assert reserved_by(24 * MEGABYTE) - reserved_by(16 * MEGABYTE) == 3 * 8 * MEGABYTE * DEFAULT_GROWTH
    assert reserved_by(MEGABYTE) < 3 * LEAST_MAX_QUOTA, "small tiers have room for a little more"


def test_a_tier_that_says_how_far_it_grows_reserves_that() -> None:
    assert reserved_by(MEGABYTE, 9 * MEGABYTE) - reserved_by(MEGABYTE, 5 * MEGABYTE) == 2 * 4 * MEGABYTE


def test_a_tier_grows_up_to_its_max_quota_and_no_further() -> None:
    with KVCacheManager(config_with(MEGABYTE, 4 * MEGABYTE), device=CountingDevice()) as manager:
        with run_prompt(manager, [1, 2, 3, 4, 5]):
            assert manager.resize(0, 4 * MEGABYTE) and manager.get_quota(0) == 4 * MEGABYTE
            before = manager.describe()
            with pytest.raises(ValueError, match="max_quota") as caught:
                manager.resize(0, 4 * MEGABYTE + 1)
            assert str(4 * MEGABYTE + 1) in str(caught.value) and str(4 * MEGABYTE) in str(caught.value)
            assert manager.describe() == before
            assert manager.resize(0, MEGABYTE)
            assert manager.resize(0, 9 * MEGABYTE, best_efforts=True) and manager.get_quota(0) == 4 * MEGABYTE
            manager.check_invariants()


def test_a_default_is_named_as_such() -> None:
    with KVCacheManager(config_with(MEGABYTE), device=CountingDevice()) as manager:
        assert manager.resize(0, LEAST_MAX_QUOTA)
        with pytest.raises(ValueError, match="max_quota"):
            manager.resize(0, LEAST_MAX_QUOTA + 1)


def test_it_is_part_of_the_configuration() -> None:
    config = config_with(MEGABYTE, 4 * MEGABYTE)
    assert decode_config(encode_config(config)) == config
    for tier in (GpuCacheTierConfig, HostCacheTierConfig):
        with pytest.raises(ValueError, match="max_quota"):
            tier(MEGABYTE, max_quota=MEGABYTE - 1)


@pytest.mark.parametrize("level", range(3))
def test_a_quota_that_a_tier_can_be_made_with_is_no_wrong_argument(level: int, tmp_path: Path) -> None:
    """Both doors have one bound."""
    tiers = (GpuCacheTierConfig(MEGABYTE), HostCacheTierConfig(MEGABYTE), DiskCacheTierConfig(MEGABYTE, str(tmp_path)))
    for tier in tiers:
        for quota in (2 << 40, MAX_CONFIG_INT):
            assert dataclasses.replace(tier, quota=quota).quota == quota
        with pytest.raises(ValueError, match="quota"):
            dataclasses.replace(tier, quota=MAX_CONFIG_INT + 1)
    config = dataclasses.replace(config_of(), cache_tiers=tiers)
    with KVCacheManager(config, device=SmallDevice()) as manager:
        for quota in (2 << 40, MAX_CONFIG_INT):
            assert manager.resize(level, quota, best_efforts=True)
            assert MEGABYTE < manager.get_quota(level) <= MOST
        for quota in (-1, MAX_CONFIG_INT + 1):
            with pytest.raises(ValueError, match=f"level {level}, a {type(tiers[level]).__name__}, must be from 0 to {MAX_CONFIG_INT}"):
                manager.resize(level, quota, best_efforts=True)
        manager.check_invariants()


PROGRAM = """
import resource, sys
sys.path[:0] = {path!r}
from test_tiers_reserve_what_they_can_grow_to import MEGABYTE, config_with
from kv_cache_manager_v2 import HostDevice, KVCacheManager, OutOfMemoryError
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 1000 * MEGABYTE,) * 2)
with KVCacheManager(config_with(5 * MEGABYTE // 2), device=HostDevice()):
    print("a manager")
try:
    KVCacheManager(config_with(5 * MEGABYTE // 2, 1 << 40), device=HostDevice())
except OutOfMemoryError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_process_with_few_addresses_has_room_for_a_small_tier_and_is_told_the_limit() -> None:
    program = PROGRAM.format(path=[str(Path(__file__).parent), *filter(None, sys.path)])
    output = subprocess.run([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    first, second = output.splitlines()
    assert first == "a manager"
    assert "RLIMIT_AS" in second and "max_quota" in second


START = """
import dataclasses, resource, sys
sys.path[:0] = {path!r}
from small_models import config_of
from kv_cache_manager_v2 import ExternalDevice, GpuCacheTierConfig, KVCacheManager
def used():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
for num_slots in (1000, 10_000_000):
    config = config_of(num_slots=num_slots)
    config = dataclasses.replace(config, cache_tiers=[GpuCacheTierConfig(config.cache_tiers[0].quota)])
    before = used()
    with KVCacheManager(config, device=ExternalDevice()) as manager:
        print(manager.get_storage_statistics()[0].total, used() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_manager_for_ten_million_slots_starts_in_little_memory() -> None:
    """With the defaults, once a small one has loaded the code; one byte a slot would be ten times as much."""
    program = START.format(path=[str(Path(__file__).parent), *filter(None, sys.path)])
    output = subprocess.run([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True, check=True).stdout
    num_slots, num_bytes = map(int, output.splitlines()[1].split())
    assert num_slots >= 10_000_000 and num_bytes < MEGABYTE, output
