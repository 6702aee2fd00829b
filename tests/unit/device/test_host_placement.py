"""Pinned memory as the kernel keeps it: asked of the kernel itself."""

import ctypes
import logging
import os
import signal
from pathlib import Path

import pytest

from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.cuda_device import CudaDevice
from kv_cache_manager_v2.device.host_memory import commit_memory, decommit_memory, release_addresses, reserve_addresses
from kv_cache_manager_v2.device.host_placement import HostPlacement, count_numa_nodes, find_numa_node, prefer_numa_node
from kv_cache_manager_v2.device.memory_range import MemoryRange

from .fake_cuda_driver import FakeCudaDriver

HOST = CacheTier.HOST_MEM
GRANULE = 2 << 20


def kernel_flags(address: int) -> set[str]:
    """The two-letter flags of the mapping around the address, as the kernel lists them."""
    is_inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if "-" in first and not first.endswith(":"):
            beg, end = (int(text, 16) for text in first.split("-"))
            is_inside = beg <= address < end
        elif is_inside and first == "VmFlags:":
            return set(line.split()[1:])
    pytest.skip("this kernel lists no flags of mappings")


def test_pinned_memory_asks_for_huge_pages_and_is_not_forked() -> None:
    driver = FakeCudaDriver()
    device = CudaDevice(driver=driver)
    memory = MemoryRange(device, HOST, 8 * GRANULE)
    for num_granules in (2, 8, 5):
        memory.resize(num_granules * GRANULE)
        for granule in range(num_granules):
            flags = kernel_flags(memory.address + granule * GRANULE)
            assert "dc" in flags, "copied into children"
            if Path("/sys/kernel/mm/transparent_hugepage").exists():
                assert "hg" in flags
    memory.close()
    device.close()


def test_the_driver_is_asked_where_the_gpu_is() -> None:
    driver = FakeCudaDriver()
    CudaDevice(driver=driver).close()
    assert "cuDeviceGetPCIBusId" in driver.calls


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_none_of_it() -> None:
    driver = FakeCudaDriver()
    device = CudaDevice(driver=driver)
    memory = MemoryRange(device, HOST, GRANULE)
    memory.resize(GRANULE)
    ctypes.memset(memory.address, 5, GRANULE)
    child = os.fork()
    if child == 0:
        # Reads a byte of pinned memory, which is not there: the kernel ends this process.
        signal.signal(signal.SIGSEGV, signal.SIG_DFL)
        ctypes.string_at(memory.address, 1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGSEGV
    assert ctypes.string_at(memory.address, 3) == b"\5\5\5"
    memory.close()
    device.close()


def test_nodes_by_what_the_operating_system_says(tmp_path: Path) -> None:
    for name in ("node0", "node1", "node12", "nodes", "online", "has_cpu"):
        (tmp_path / name).mkdir()
    assert count_numa_nodes(str(tmp_path)) == 3
    assert count_numa_nodes(str(tmp_path / "missing")) == 1
    for text, node in (("1\n", 1), ("0\n", 0), ("-1\n", None), ("", None), ("far", None)):
        gpu = tmp_path / "0000:3b:00.0"
        gpu.mkdir(exist_ok=True)
        (gpu / "numa_node").write_text(text)
        assert find_numa_node("0000:3B:00.0", str(tmp_path)) == node
    assert find_numa_node("0000:AF:00.0", str(tmp_path)) is None


def warnings_of(caplog: pytest.LogCaptureFixture, node: int | None, num_nodes: int) -> list[str]:
    placement = HostPlacement("cuda:3", node, num_nodes)
    caplog.clear()
    address = reserve_addresses(2 * GRANULE, GRANULE)
    commit_memory(address, 2 * GRANULE)
    for part in (0, 1):
        placement.prepare(address + part * GRANULE, GRANULE)
        ctypes.memset(address + part * GRANULE, 1, GRANULE)
    decommit_memory(address, 2 * GRANULE)
    release_addresses(address, 2 * GRANULE)
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_where_it_cannot_be_near_the_gpu_the_log_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    assert warnings_of(caplog, None, 1) == []
    assert warnings_of(caplog, 999, 1) == []
    (warning,) = warnings_of(caplog, None, 2)
    assert "cuda:3" in warning and "not known" in warning and "numactl" in warning
    # No machine has this node, so the kernel refuses.
    (warning,) = warnings_of(caplog, 999, 2)
    assert "node 999" in warning and "cuda:3" in warning and "numactl" in warning


def test_the_kernel_prefers_the_node() -> None:
    """Node 0, which every machine has; a container may forbid even that."""
    address = reserve_addresses(GRANULE, GRANULE)
    commit_memory(address, GRANULE)
    number = prefer_numa_node(address, GRANULE, 0)
    try:
        if number != 0:
            pytest.skip(f"the kernel lets nobody choose: {os.strerror(number)}")
        ctypes.memset(address, 1, GRANULE)
        lines = [line for line in Path("/proc/self/numa_maps").read_text().splitlines() if line.startswith(f"{address:x} ")]
        if not lines:
            pytest.skip("the kernel does not list policies")
        assert lines[0].split()[1] in ("prefer:0", "prefer=static:0")
    finally:
        release_addresses(address, GRANULE)
