"""Whether this machine may have an NVIDIA GPU that this process can use, determined without the driver.

A process that has initialised the driver cannot use it in children that it forks. So the driver is not called: a process that
gets no GPU anyway stays free to fork.
"""

import os
import re
from typing import Final

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
