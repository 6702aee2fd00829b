"""Selection of the default device: the one that a manager uses if it is given none.

CUDA if there is a usable driver, else the host; the log says which and why. ``KV_CACHE_MANAGER_V2_DEVICE`` overrides
it: ``host``, ``cuda`` (the calling thread's current GPU, or the first) or ``cuda:1``. Requesting CUDA where it is
not usable is an error, never a silent fallback. Probable mistakes are warnings: a GPU that is not used because its
driver is broken, and the first of several GPUs used without being named.

If no GPU is visible, the CUDA driver is not initialised, so that the process may fork and its children use CUDA.

Whether this machine may have a GPU at all is determined without the driver: a process that has initialised the driver cannot use it in
children that it forks.
"""

import os
from typing import Any, Final

from ..base.checks import has_attribute, require_path, to_text, type_name
from ..base.errors import CudaError
from ..base.given import Given
from ..base.package_log import PackageLog
from .cuda_device import CudaDevice
from .cuda_driver import NO_GPU_SEEN, CudaDriver, find_cuda_obstacle, load_driver_module
from .host_device import HostDevice
from .port import Device
import re


VISIBLE_DEVICES_VARIABLE: Final = "CUDA_VISIBLE_DEVICES"

# The driver's files: of a GPU; of WSL, where they do not tell the vendor; of Tegra.
_GPU_FILE: Final = re.compile(r"nvidia[0-9]+|dxg|nvhost-gpu|nvgpu")


def find_gpu_absence(device_folder: str = "/dev") -> str:
    """The reason why this process has no GPU; an empty string if it may have one."""
    visible = os.environ.get(VISIBLE_DEVICES_VARIABLE)
    if visible is not None and (visible.strip() == "" or visible.strip().startswith("-1")):
        return f"{VISIBLE_DEVICES_VARIABLE}={visible!r} hides every GPU"
    try:
        names = os.listdir(device_folder)
    except OSError:
        # Not an operating system with such files.
        return ""
    for name in names:
        if _GPU_FILE.fullmatch(name) is not None:
            return ""
    return f"there is no {device_folder}/nvidia0 or the like: the machine has no NVIDIA GPU, or its container was given none"


DEVICE_VARIABLE: Final = "KV_CACHE_MANAGER_V2_DEVICE"

_logger: Final = PackageLog(__name__)


def default_device(driver: Any = None, *, gpu_folder: Given[str | None] = None) -> Device:
    """A new device, selected as the module says; the caller closes it.

    ``driver``: replaces `cuda.bindings.driver`. ``gpu_folder``: the folder to search for GPUs' files before the driver
    is loaded; by default ``/dev`` if no ``driver`` is given.
    """
    folder = None if gpu_folder is None else require_path(to_text(gpu_folder, "gpu_folder"), "gpu_folder", "folder")
    if driver is not None and not has_attribute(driver, "cuInit"):
        raise TypeError(f"driver must be cuda.bindings.driver, what replaces it, or None, not {type_name(driver)}")
    choice = os.environ.get(DEVICE_VARIABLE, "").strip().lower()
    if choice == "host":
        return _use(HostDevice(), f"{DEVICE_VARIABLE}={choice}")
    ordinal = _parse_ordinal(choice)
    if choice == "" and (driver is None or folder is not None):
        absence = find_gpu_absence("/dev" if folder is None else folder)
        if absence:
            return _use(HostDevice(), absence)
    obstacle = find_cuda_obstacle(driver)
    if obstacle:
        if choice:
            raise CudaError(f"{DEVICE_VARIABLE}={choice}, but CUDA cannot be used: {obstacle}")
        return _use_host_without_cuda(obstacle)
    if ordinal is None:
        ordinal = _find_current_ordinal(load_driver_module() if driver is None else driver)
    reason = f"{DEVICE_VARIABLE}={choice}" if choice else "the CUDA driver is usable"
    return _use(CudaDevice(ordinal, driver=driver), reason)


def _use_host_without_cuda(obstacle: str) -> Device:
    if obstacle != NO_GPU_SEEN:
        _logger.warning(
            "there is a GPU, or should be one, but CUDA cannot be used, so the cache is in host memory: %s;"
            " repair that, or set %s=host if the host is meant",
            obstacle,
            DEVICE_VARIABLE,
        )
    return _use(HostDevice(), f"no CUDA: {obstacle}")


def _parse_ordinal(choice: str) -> int | None:
    """The GPU named by ``choice``; None if it names none."""
    if choice == "" or choice == "cuda":
        return None
    ordinal = choice.removeprefix("cuda:")
    if ordinal == choice or not (ordinal.isascii() and ordinal.isdigit()):
        raise ValueError(f"{DEVICE_VARIABLE} is {choice!r}; choose host, cuda, or cuda:N with N the number of a GPU")
    return int(ordinal)


def _find_current_ordinal(driver_module: Any) -> int:
    """The GPU whose context is current on this thread, set by an engine that uses one of several; else 0."""
    driver = CudaDriver(driver_module)
    if int(driver.call("cuCtxGetCurrent")) == 0:
        num_devices: int = driver.call("cuDeviceGetCount")
        if num_devices > 1:
            _logger.warning(
                "cuda:0 is taken of %d GPUs, because none is current on this thread; make one current first, or set %s=cuda:N",
                num_devices,
                DEVICE_VARIABLE,
            )
        return 0
    return int(driver.call("cuCtxGetDevice"))


def _use(device: Device, reason: str) -> Device:
    _logger.inform("using device %s (%s)", device.name, reason)
    return device
