"""Locked files: unlocked by the process that has locked them, for all that have the file open; a forked child has none of them."""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kv_cache_manager_v2.device.claimed_file import ClaimedFile
from kv_cache_manager_v2.device.file_port import FilePort
from kv_cache_manager_v2.device.os_files import OsFiles
from kv_cache_manager_v2.device.read_only_files import ReadOnlyFiles


@pytest.mark.parametrize("port", [OsFiles, ReadOnlyFiles])
def test_closing_unlocks_what_others_still_have_open(tmp_path: Path, port: Callable[[], FilePort]) -> None:
    """As where a child was forked by C code, which Python hears nothing of."""
    path = tmp_path / "lock"
    path.touch(mode=0o600)
    files = port()
    lock = files.lock(str(path))
    copy = os.dup(lock)
    with pytest.raises(BlockingIOError):
        files.lock(str(path))
    files.close_file(lock)
    again = files.lock(str(path))
    os.close(copy)
    with pytest.raises(BlockingIOError):
        files.lock(str(path))
    files.close_file(again)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.EACCES])
def test_what_another_owner_has_locked_is_not_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Whichever way the file system says so: NFS may answer with EACCES."""

    def refuse(file: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    path = tmp_path / "journal"
    path.write_bytes(b"of another process")
    path.chmod(0o600)
    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(BlockingIOError):
        ClaimedFile(str(path))
    with pytest.raises(BlockingIOError):
        OsFiles().lock(str(path))
    assert path.read_bytes() == b"of another process"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("port", [OsFiles, ReadOnlyFiles])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_closing_in_a_child_unlocks_nothing_of_the_parents(tmp_path: Path, port: Callable[[], FilePort]) -> None:
    """Neither by the number that the parent has given it, nor by closing another file of that number."""
    path = tmp_path / "lock"
    path.touch(mode=0o600)
    files = port()
    lock = files.lock(str(path))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            assert os.readlink(f"/proc/self/fd/{lock}") == os.devnull
            assert os.open(tmp_path, os.O_RDONLY) != lock
            files.close_file(lock)
            try:
                files.lock(str(path))
            except BlockingIOError:
                status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    with pytest.raises(BlockingIOError):
        files.lock(str(path))
    files.close_file(lock)
    files.close_file(files.lock(str(path)))
