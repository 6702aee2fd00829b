"""A `CudaDevice` over the strict fake driver, with kernels that run on the processor and disks in memory."""

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from kv_cache_manager_v2.device.cuda_device import CudaDevice

PAGE_BYTES = 4096
_FOLDER = Path(__file__).parents[1] / "unit" / "device"
_NAME = "device_tests"


def import_fake(module: str) -> Any:
    """It lives with the tests of `CudaDevice`, which are no package that this one could name."""
    if _NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(_NAME, _FOLDER / "__init__.py", submodule_search_locations=[str(_FOLDER)])
        assert spec is not None
        sys.modules[_NAME] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{_NAME}.{module}")


_kernels: list[Any] = []


def make_cuda_device(seed: int, total_bytes: int = 1 << 30) -> tuple[CudaDevice, Any]:
    """The device, and its driver: `live()` of it must be empty once the device is closed. Granules are 4 KiB."""
    if not _kernels and import_fake("kernels_on_host").COMPILER is not None:
        _kernels.append(import_fake("kernels_on_host").KernelsOnHost())
    driver = import_fake("async_cuda_driver").AsyncCudaDriver(
        seed, total_bytes=total_bytes, pinnable_bytes=total_bytes, granularity_bytes=PAGE_BYTES, kernels=(_kernels or [None])[0]
    )
    device = CudaDevice(
        driver=driver,
        nvrtc=import_fake("fake_nvrtc").FakeNvrtc(),
        granularity_bytes=PAGE_BYTES,
        max_registration_bytes=4 * PAGE_BYTES if seed % 3 == 0 else 1 << 20,
        files=import_fake("fake_files").FakeFiles(),
        staging_bytes=(1 + seed % 2) << 20,
    )
    return device, driver


def require_clean(driver: Any) -> None:
    """Nothing is left, and the driver refused nothing."""
    assert driver.live() == {}
    assert driver.refusals == []
    assert driver.fault is None
