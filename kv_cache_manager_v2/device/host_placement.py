"""Placement of pinned host memory: its NUMA node, its page size, and no copies for forked children.

- *Node.* A GPU copies faster from the node that it is attached to. That node is preferred, not required: a tier may be larger
  than one node's memory. If that fails, the log says so once.
- *Huge pages* are requested: fewer to touch, to pin and to look up. The kernel may have none.
- *Children* that the process forks get no copy. Otherwise pinned pages would be copied when first written, and the GPU would
  keep using the old ones.
"""

import ctypes
import errno
import os
import platform
import re
from typing import Any, Final, final


from ..base.package_log import PackageLog

_logger: Final = PackageLog(__name__)

_MADV_DONTFORK: Final = 10
_MADV_HUGEPAGE: Final = 14
_MPOL_PREFERRED: Final = 1
_MBIND_NUMBERS: Final = {"x86_64": 237, "aarch64": 235, "ppc64le": 259}
_BITS_PER_WORD: Final = 64

_libc: Final = ctypes.CDLL(None, use_errno=True)
_madvise: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, use_errno=True)(("madvise", _libc))
_syscall: Final = _libc.syscall
_syscall.restype = ctypes.c_long


def count_numa_nodes(folder: str = "/sys/devices/system/node") -> int:
    """The number of NUMA nodes; 1 if the operating system does not say."""
    try:
        names = os.listdir(folder)
    except OSError:
        return 1
    return max(1, len([name for name in names if re.fullmatch(r"node[0-9]+", name) is not None]))


def find_numa_node(pci_bus_id: str, folder: str = "/sys/bus/pci/devices") -> int | None:
    """The node of the PCI device, ``0000:3B:00.0``; None if the operating system does not say."""
    try:
        with open(os.path.join(folder, pci_bus_id.lower(), "numa_node"), encoding="ascii") as file:
            node = int(file.read())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def prefer_numa_node(address: int, num_bytes: int, node: int) -> int:
    """Prefer that node for pages that are touched from now on, as long as it has free ones. An error number, 0 is success."""
    number = _MBIND_NUMBERS.get(platform.machine())
    if number is None:
        return errno.ENOSYS
    num_words = node // _BITS_PER_WORD + 1
    mask: Any = (ctypes.c_uint64 * num_words)()
    mask[node // _BITS_PER_WORD] = 1 << node % _BITS_PER_WORD
    # The kernel uses one bit less than it is passed.
    num_bits = num_words * _BITS_PER_WORD + 1
    status: int = _syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(address),
        ctypes.c_size_t(num_bytes),
        ctypes.c_long(_MPOL_PREFERRED),
        mask,
        ctypes.c_ulong(num_bits),
        ctypes.c_long(0),
    )
    return 0 if status == 0 else ctypes.get_errno()


@final
class HostPlacement:
    """Placement for one GPU's pinned memory. ``node``: the GPU's; None if it is not known."""

    __slots__ = ("_device_name", "_node", "_num_nodes", "_has_warned")

    def __init__(self, device_name: str, node: int | None, num_nodes: int) -> None:
        self._device_name: Final = device_name
        self._node: Final = node
        self._num_nodes: Final = num_nodes
        self._has_warned = False

    def prepare(self, address: int, num_bytes: int) -> None:
        """Advise the kernel on committed memory that is not touched yet. Never fails: without advice the memory is slower."""
        _madvise(address, num_bytes, _MADV_HUGEPAGE)
        if _madvise(address, num_bytes, _MADV_DONTFORK) != 0:
            self._warn(f"is copied into children that this process forks: {os.strerror(ctypes.get_errno())}; fork none")
        if self._num_nodes < 2:
            return
        if self._node is None:
            self._warn("may lie far from the GPU, because its NUMA node is not known; numactl --preferred may help")
            return
        number = prefer_numa_node(address, num_bytes, self._node)
        if number != 0:
            self._warn(
                f"may lie far from the GPU, because NUMA node {self._node} cannot be preferred: {os.strerror(number)};"
                " in a container it may take CAP_SYS_NICE, outside numactl --preferred may help"
            )

    def _warn(self, what: str) -> None:
        if not self._has_warned:
            _logger.warning("pinned host memory for %s %s", self._device_name, what)
            self._has_warned = True
