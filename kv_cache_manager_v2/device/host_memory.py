"""Address ranges and memory of the operating system: reserve, commit, decommit, release.

Reserved addresses are an inaccessible private mapping that costs nothing. Committing makes a part of it readable and
writable; a page of physical memory is allocated only when it is first touched, so page tables may describe tiers far larger
than the machine. Decommitting replaces the part by a fresh mapping, which frees the physical pages at once: an inaccessible one, or one
that reads as zeros, where a numpy array that was made over it may still be in use.

Plain functions on raw addresses, without state: `RangeTable` has what is reserved and committed.
"""

import ctypes
import errno
import os
import resource
from typing import Final

from ..base.errors import OutOfMemoryError

PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")

_PROT_NONE: Final = 0
_PROT_READ_WRITE: Final = 1 | 2
_MAP_PRIVATE: Final = 0x02
_MAP_FIXED: Final = 0x10
_MAP_ANONYMOUS: Final = 0x20
_MAP_NORESERVE: Final = 0x4000
_MAP_FLAGS: Final = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
_MAP_FAILED: Final = (1 << (8 * ctypes.sizeof(ctypes.c_void_p))) - 1
_MAX_RANGE_BYTES: Final = 1 << 56
"""More than any processor addresses: refused here, before a C size overflows."""

_libc: Final = ctypes.CDLL(None)
_mapping: Final = ctypes.CFUNCTYPE(
    ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long, use_errno=True
)
_mmap: Final = _mapping(("mmap", _libc))
_munmap: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, use_errno=True)(("munmap", _libc))
_mprotect: Final = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, use_errno=True)(("mprotect", _libc))


def total_host_bytes() -> int:
    """Physical memory of this machine."""
    return os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES


def reserve_addresses(num_bytes: int, alignment: int) -> int:
    """The first of ``num_bytes`` addresses, a multiple of ``alignment`` (a power of two of pages)."""
    if num_bytes > _MAX_RANGE_BYTES:
        raise OutOfMemoryError(f"cannot reserve {num_bytes} bytes of addresses: no machine has so many")
    padding = alignment - PAGE_BYTES
    mapping = _mmap_anywhere(num_bytes + padding)
    address = (mapping + alignment - 1) & ~(alignment - 1)
    if address > mapping:
        _munmap(mapping, address - mapping)
    num_behind = mapping + padding - address
    if num_behind > 0:
        _munmap(address + num_bytes, num_behind)
    return address


def release_addresses(address: int, num_bytes: int) -> None:
    if _munmap(address, num_bytes) != 0:
        raise _make_error(f"cannot release {num_bytes} bytes of addresses at {address:#x}")


def commit_memory(address: int, num_bytes: int) -> None:
    """Make reserved bytes readable and writable; they read as zero until written."""
    if _mprotect(address, num_bytes, _PROT_READ_WRITE) != 0:
        error = _make_error(f"cannot commit {num_bytes} bytes of host memory")
        # The kernel may have changed some of the first pages.
        _mprotect(address, num_bytes, _PROT_NONE)
        raise error


def decommit_memory(address: int, num_bytes: int, is_touchable: bool = False) -> None:
    """Return the memory to the operating system; the addresses stay reserved. With ``is_touchable`` what is touched there is new memory."""
    mapping = _mmap(address, num_bytes, _PROT_READ_WRITE if is_touchable else _PROT_NONE, _MAP_FLAGS | _MAP_FIXED, -1, 0)
    if mapping == _MAP_FAILED:
        raise _make_error(f"cannot free {num_bytes} bytes of host memory at {address:#x}")


def _mmap_anywhere(num_bytes: int) -> int:
    mapping: int = _mmap(None, num_bytes, _PROT_NONE, _MAP_FLAGS, -1, 0)
    if mapping == _MAP_FAILED:
        raise _make_error(f"cannot reserve {num_bytes} bytes of addresses", _describe_address_limit())
    return mapping


def _describe_address_limit() -> str:
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return "lower the tier's quota or max_quota"
    return f"RLIMIT_AS allows this process {limit} bytes of addresses: raise it (`ulimit -v`), or lower the tier's quota or max_quota"


def _make_error(what: str, way_out: str = "lower the tier's quota") -> Exception:
    number = ctypes.get_errno()
    reason = os.strerror(number)
    if number == errno.ENOMEM or number == errno.EAGAIN:
        return OutOfMemoryError(f"{what}: {reason}; {way_out}, or see `ulimit -a` and vm.max_map_count")
    return OSError(number, f"{what}: {reason}")
