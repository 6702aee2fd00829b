"""A journal is written by one manager: a second one on its path is refused and harms nothing; the path is free when the first one ends."""

import gc
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from forwarding_device import ForwardingDevice
from small_models import config_of, run_prompt
from tiered_models import tiered_config

from kv_cache_manager_v2 import CacheTier, HostDevice, KVCacheEventManager, KVCacheManager, LogicError, OutOfMemoryError
from kv_cache_manager_v2.replay.rerun import rerun

OTHER_PROCESS = """
import os, sys
sys.path[:0] = sys.argv[3:]
from small_models import config_of
from kv_cache_manager_v2 import HostDevice, KVCacheManager
manager = KVCacheManager(config_of(), device=HostDevice(), journal=sys.argv[1])
if sys.argv[2] == "fork" and os.fork() == 0:
    print("made", flush=True)
    sys.stdin.read()
    os._exit(0)
if sys.argv[2] != "fork":
    print("made", flush=True)
sys.stdin.read()
manager.shutdown()
"""


def make(path: Path | str, **settings: Any) -> KVCacheManager:
    return KVCacheManager(config_of(), journal=path, **{"device": HostDevice(), **settings})


def start(path: Path, kind: str = "alone") -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-c", OTHER_PROCESS, str(path), kind, str(Path(__file__).parents[1])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "made\n"
    return process


def expect_refused(path: Path | str) -> None:
    with pytest.raises(LogicError) as caught:
        make(path)
    assert str(path) in str(caught.value) and "(each rank) a path of its own" in str(caught.value)


def test_a_second_one_is_refused_under_each_name_and_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "calls.journal"
    (tmp_path / "soft").symlink_to(path)
    monkeypatch.chdir(tmp_path)
    manager = make(path)
    os.link(path, tmp_path / "hard")
    run_prompt(manager, [1, 2, 3, 4, 5]).close()
    manager.flush_journal()
    before = path.read_bytes()
    for name in (path, tmp_path / "soft", tmp_path / "hard", "calls.journal"):
        expect_refused(name)
        assert path.read_bytes() == before
    run_prompt(manager, [1, 2, 3, 4, 6]).close()
    digest = manager.state_digest()
    manager.shutdown()
    assert rerun(path, HostDevice()).digest == digest
    make(path).shutdown()


def test_the_path_is_free_when_a_manager_is_dropped(tmp_path: Path) -> None:
    holder = [make(tmp_path / "j")]
    expect_refused(tmp_path / "j")
    with pytest.warns(ResourceWarning):
        holder.clear()
        gc.collect()
    make(tmp_path / "j").shutdown()


class RefusingDevice(ForwardingDevice):
    """Refuses the n-th range or memory that is asked for."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.left = number

    def map_memory(self, tier: CacheTier, address: int, num_bytes: int) -> None:
        self._count()
        super().map_memory(tier, address, num_bytes)

    def reserve_range(self, tier: CacheTier, num_bytes: int) -> int:
        self._count()
        return super().reserve_range(tier, num_bytes)

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OutOfMemoryError("planted")


def test_the_path_is_free_when_a_constructor_has_failed(tmp_path: Path) -> None:
    path, number = tmp_path / "j", 1
    while True:
        device = RefusingDevice(number)
        try:
            manager = KVCacheManager(tiered_config(2, [("host", 4)]), device=device, journal=path)
        except OutOfMemoryError:
            number += 1
            make(path).shutdown()
            continue
        break
    manager.shutdown()
    assert number > 2, "nothing was refused"


class MeddlingDevice(ForwardingDevice):
    """Gives the event manager to another manager while the first one is made: the first one's constructor fails near its end."""

    def __init__(self, events: KVCacheEventManager) -> None:
        super().__init__()
        self.events = events
        self.others: list[KVCacheManager] = []

    def reserve_range(self, tier: CacheTier, num_bytes: int) -> int:
        if self.others == []:
            self.others.append(KVCacheManager(config_of(), device=HostDevice(), event_manager=self.events))
        return super().reserve_range(tier, num_bytes)


def test_the_path_is_free_when_a_constructor_has_failed_late(tmp_path: Path) -> None:
    events = KVCacheEventManager(10)
    device = MeddlingDevice(events)
    with pytest.raises(LogicError, match="event_manager"):
        make(tmp_path / "j", device=device, event_manager=events)
    make(tmp_path / "j").shutdown()
    device.others[0].shutdown()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_other_processes_are_refused_too_until_it_ends(tmp_path: Path) -> None:
    """Killed, or shut down; also while a child that it has forked goes on."""
    path = tmp_path / "j"
    for kind in ("alone", "fork"):
        process = start(path, kind)
        expect_refused(path)
        process.kill()
        process.wait()
        make(path).shutdown()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.stdout.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_neither_keeps_the_path_nor_frees_it(tmp_path: Path) -> None:
    manager = make(tmp_path / "j")
    begin, end = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of other tests' threads
        child = os.fork()
    if child == 0:
        status = 1
        try:
            manager.shutdown()
            expect_refused(tmp_path / "j")
            os.write(begin[1], b"!")
            os.close(end[1])
            os.read(end[0], 1)
            status = 0
        finally:
            os._exit(status)
    os.close(begin[1])
    assert os.read(begin[0], 1) == b"!"
    expect_refused(tmp_path / "j")
    manager.shutdown()
    make(tmp_path / "j").shutdown()
    os.close(end[1])
    assert os.waitpid(child, 0)[1] == 0
    os.close(begin[0])
    os.close(end[0])


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs a list of the open files")
def test_a_copy_of_the_open_file_does_not_keep_the_path(tmp_path: Path) -> None:
    """A child that C code has forked has one, and runs nothing of Python's that could close it."""
    manager = make(tmp_path / "j")
    files = [int(file.name) for file in Path("/proc/self/fd").iterdir() if file.resolve() == tmp_path / "j"]
    copies = [os.dup(file) for file in files]
    assert len(copies) == 1
    manager.shutdown()
    make(tmp_path / "j").shutdown()
    os.close(copies[0])


@pytest.mark.skipif(not Path("/dev/null").exists(), reason="needs /dev/null")
def test_what_is_no_file_has_room_for_many() -> None:
    managers = [make("/dev/null"), make("/dev/null")]
    for manager in managers:
        manager.shutdown()
