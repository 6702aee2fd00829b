"""Touching of large ranges before they are pinned: whether memory suffices, and allocating it with many threads.

The kernel zeroes each page when it is first touched, some gigabytes a second and core; pinning untouched memory does that on
one core.
"""

import ctypes
import os
from threading import Thread
from typing import Final

_MIN_BYTES_PER_THREAD: Final = 32 << 20
_MAX_THREADS: Final = 16
_KIB: Final = 1024


def available_host_bytes() -> int | None:
    """Bytes that this machine, and this process' control group, can still allocate; None if neither says."""
    available = _read_available("/proc/meminfo")
    limit = _read_number("/sys/fs/cgroup/memory.max")
    used = _read_number("/sys/fs/cgroup/memory.current")
    if limit is not None and used is not None:
        left = max(limit - used, 0)
        return left if available is None else min(available, left)
    return available


def touch_memory(address: int, num_bytes: int) -> None:
    """Write zeros into freshly committed memory, which has no contents yet; small ranges are left as they are."""
    num_threads = min(num_bytes // _MIN_BYTES_PER_THREAD, os.cpu_count() or 1, _MAX_THREADS)
    if num_threads < 2:
        return
    share = num_bytes // num_threads
    threads: list[Thread] = []
    for index in range(num_threads):
        beg = address + index * share
        end = address + num_bytes if index == num_threads - 1 else beg + share
        thread = Thread(target=ctypes.memset, args=(beg, 0, end - beg), name=f"kv-cache-touch-{index}")
        threads.append(thread)
        thread.start()
    for thread in threads:
        thread.join()


def _read_available(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * _KIB
    except (OSError, ValueError, IndexError):
        return None
    return None


def _read_number(path: str) -> int | None:
    try:
        with open(path, encoding="ascii") as lines:
            return int(lines.read())
    except (OSError, ValueError):
        # No control group, or one without a limit, which says "max".
        return None
