"""Every device that is present: the host, the simulated one with several seeds, CUDA, and CUDA over the strict fake drivers: one that
moves no bytes, and one with bytes whose streams run at once, late, or as a seed says.
"""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kv_cache_manager_v2.device.cuda_device import CudaDevice
from kv_cache_manager_v2.device.cuda_driver import find_cuda_obstacle
from kv_cache_manager_v2.device.host_device import HostDevice
from kv_cache_manager_v2.device.port import Device

from .device_under_test import DeviceUnderTest

_SOFTWARE_DEVICES = ("host", "host-pages", "simulated-0", "simulated-eager-1", "simulated-lazy-2")
_CUDA_OBSTACLE = find_cuda_obstacle()
_FAKE_CUDA = ("cuda-over-fake-driver", "cuda-over-eager-fake-1", "cuda-over-late-fake-2", "cuda-over-mixed-fake-3")
_DEVICES = _SOFTWARE_DEVICES + _FAKE_CUDA + (() if _CUDA_OBSTACLE else ("cuda",))


def _make_fake_driver(name_of_device: str) -> Any:
    """It lives with the tests of `CudaDevice`, which are no package that this one could name."""
    folder = Path(__file__).parent.parent / "unit" / "device"
    name = "device_tests"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            name, folder / "__init__.py", submodule_search_locations=[str(folder)]
        )
        assert spec is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
    if name_of_device == "cuda-over-fake-driver":
        return importlib.import_module(f"{name}.fake_cuda_driver").FakeCudaDriver()
    pace = {"eager": True, "late": False}.get(name_of_device.split("-")[2])
    driver = importlib.import_module(f"{name}.async_cuda_driver").AsyncCudaDriver(int(name_of_device[-1]))
    driver.eager = pace
    return driver


def _make_simulated_device(name: str) -> Device:
    module = pytest.importorskip("kv_cache_manager_v2.testing.simulated_device")
    eager = True if "eager" in name else False if "lazy" in name else None
    device: Device = module.SimulatedDevice(int(name.rsplit("-", 1)[1]), eager=eager)
    return device


def _make(name: str, folder: str) -> DeviceUnderTest:
    if name == "host":
        return DeviceUnderTest(HostDevice(), folder)
    if name == "host-pages":
        return DeviceUnderTest(HostDevice(4096), folder)
    if name.startswith("simulated"):
        return DeviceUnderTest(_make_simulated_device(name), folder)
    if name == "cuda":
        # Small registrations, so that a few MiB have boundaries for copies to cross.
        return DeviceUnderTest(CudaDevice(max_registration_bytes=4 << 20), folder)
    driver = _make_fake_driver(name)
    device = CudaDevice(driver=driver, max_registration_bytes=4 << 20)
    return DeviceUnderTest(device, folder, moves_bytes=name != "cuda-over-fake-driver", fake_driver=driver)


@pytest.fixture(params=_DEVICES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DeviceUnderTest]:
    """A fresh device; after the test it must end with nothing left over."""
    bench = _make(request.param, str(tmp_path))
    yield bench
    bench.close()
