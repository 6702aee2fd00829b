"""Files of the operating system, on a real file system: space is allocated and freed, no file is left over."""

import ctypes
import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kv_cache_manager_v2.base.errors import OutOfMemoryError, StorageIOError
from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.host_device import HostDevice
from kv_cache_manager_v2.device.memory_range import MemoryRange
from kv_cache_manager_v2.device.os_files import OsFiles
from kv_cache_manager_v2.device.port import CopyBatch

MIB = 1 << 20
PAGE = 4096
DISK, HOST = CacheTier.DISK, CacheTier.HOST_MEM


@contextmanager
def file_size_limit(num_bytes: int) -> Iterator[None]:
    """No file of this process may grow beyond, as if the disk were full there."""
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)


def open_file(files: OsFiles, folder: Path) -> int:
    try:
        return files.open_file(str(folder), True)
    except OSError as error:
        assert error.errno in (errno.EINVAL, errno.EOPNOTSUPP)
        return files.open_file(str(folder), False)


@pytest.fixture
def memory() -> Iterator[int]:
    """The address of 4 MiB, aligned to a page."""
    buffer = ctypes.create_string_buffer(4 * MIB + PAGE)
    yield (ctypes.addressof(buffer) + PAGE - 1) // PAGE * PAGE


def test_files_have_no_name_and_room_goes_back(tmp_path: Path) -> None:
    files = OsFiles()
    file = open_file(files, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert os.fstat(file).st_size == 0
    files.grow(file, 0, 8 * MIB)
    assert os.fstat(file).st_size == 8 * MIB
    taken_bytes = os.fstat(file).st_blocks * 512
    files.discard(file, 2 * MIB, 2 * MIB, False)
    assert os.fstat(file).st_size == 8 * MIB
    files.discard(file, 4 * MIB, 4 * MIB, True)
    assert os.fstat(file).st_size == 4 * MIB
    assert os.fstat(file).st_blocks * 512 <= max(taken_bytes - 4 * MIB, 2 * MIB)
    files.close_file(file)
    assert files.free_bytes(str(tmp_path)) > 0


@pytest.mark.parametrize("pieces", [1, 3, 512])
def test_bytes_come_back(tmp_path: Path, memory: int, pieces: int) -> None:
    files = OsFiles()
    file = files.open_file(str(tmp_path), False)
    files.grow(file, 0, 4 * MIB)
    size = 100
    data = os.urandom(size * pieces)
    ctypes.memmove(memory, data, len(data))
    # Every second piece of memory, last first.
    scattered = [memory + MIB + 2 * size * (pieces - index) for index in range(pieces)]
    assert files.transfer(file, True, [memory], [len(data)], 12345) == len(data)
    assert files.transfer(file, False, scattered, [size] * pieces, 12345) == len(data)
    assert b"".join(ctypes.string_at(address, size) for address in scattered) == data
    assert files.transfer(file, True, scattered, [size] * pieces, 0) == len(data)
    assert os.pread(file, len(data), 0) == data
    assert files.transfer(file, False, [memory], [100], 4 * MIB) == 0
    files.close_file(file)
    with pytest.raises(OSError, match=str(errno.EBADF)):
        files.transfer(file, False, [memory], [100], 0)


def test_a_file_that_may_not_grow_keeps_what_it_has(tmp_path: Path) -> None:
    files = OsFiles()
    file = open_file(files, tmp_path)
    files.grow(file, 0, MIB)
    with file_size_limit(3 * MIB):
        with pytest.raises(OSError):
            files.grow(file, MIB, 4 * MIB)
        assert os.fstat(file).st_size == MIB
        files.grow(file, MIB, 2 * MIB)
    files.close_file(file)


def test_out_of_memory_says_where_how_much_and_what_helps(tmp_path: Path) -> None:
    device = HostDevice(PAGE)
    memory = MemoryRange(device, DISK, 1 << 40, str(tmp_path))
    memory.resize(MIB)
    with file_size_limit(3 * MIB):
        with pytest.raises(OutOfMemoryError) as caught:
            memory.resize(4 * MIB)
    for what in (str(tmp_path), f"{3 * MIB} bytes", "are free", "quota"):
        assert what in str(caught.value)
    # More than any disk.
    with pytest.raises(OutOfMemoryError):
        memory.resize(1 << 40)
    assert memory.mapped_bytes == MIB
    memory.resize(4 * MIB)
    memory.close()
    device.close()


def test_a_write_beyond_the_limit_is_kept_in_memory(tmp_path: Path) -> None:
    """The file system took the room back: every write behind the limit fails."""
    device = HostDevice(PAGE)
    disk = MemoryRange(device, DISK, 4 * MIB, str(tmp_path))
    disk.resize(4 * MIB)
    host = MemoryRange(device, HOST, 8 * MIB)
    host.resize(8 * MIB)
    data = os.urandom(4 * MIB)
    ctypes.memmove(host.address, data, len(data))
    batch = CopyBatch(DISK, HOST, 64 << 10)
    back = CopyBatch(HOST, DISK, 64 << 10)
    for slot in range(64):
        batch.add(disk.address + slot * (64 << 10), host.address + slot * (64 << 10))
        back.add(host.address + 4 * MIB + slot * (64 << 10), disk.address + slot * (64 << 10))
    with file_size_limit(MIB):
        device.copy_batch(0, batch)
        device.synchronize_stream(0)
    failure = device.disk_failure(disk.address)
    assert failure is not None and os.strerror(errno.EFBIG) in str(failure)
    device.copy_batch(0, back)
    device.synchronize_stream(0)
    assert ctypes.string_at(host.address + 4 * MIB, 4 * MIB) == data
    disk.close()
    host.close()
    device.close()


def test_folders_that_do_not_serve(tmp_path: Path) -> None:
    device = HostDevice(PAGE)
    with pytest.raises(ValueError, match="create it"):
        device.reserve_disk_range(str(tmp_path / "missing"), PAGE)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError):
        device.reserve_disk_range(str(tmp_path / "file"), PAGE)
    if os.geteuid() != 0:
        tmp_path.chmod(0o500)
        with pytest.raises(StorageIOError, match="permissions"):
            device.reserve_disk_range(str(tmp_path), PAGE)
        tmp_path.chmod(0o700)
    device.close()
