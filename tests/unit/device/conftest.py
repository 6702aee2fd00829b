"""No test of a device leaves a thread of it running: such a thread would touch memory that a later test has unmapped."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_SECONDS = 10.0


def _threads() -> set[int]:
    """Those that move bytes of disks, and those of the fake driver."""
    found = {thread.native_id or 0 for thread in threading.enumerate() if thread.name == "fake-gpu"}
    for task in Path("/proc/self/task").iterdir():
        try:
            if (task / "comm").read_text(encoding="utf-8").startswith("kvcm-disk"):
                found.add(int(task.name))
        except OSError:
            pass  # It has just ended.
    return found


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = _threads()
    yield
    deadline = time.monotonic() + _SECONDS
    while _threads() - before and time.monotonic() < deadline:
        time.sleep(0.005)
    assert not _threads() - before, "close the device, and let go of its disk"
