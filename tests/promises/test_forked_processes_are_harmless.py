"""A forked child can neither use the manager nor harm it: its calls are a `LogicError`, and what it drops stays the parent's."""

import gc
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from durable_models import PROMPTS, Process, durable_config
from public_calls import World, find_served, make_uses
from tiered_models import Bench, tiered_config

from kv_cache_manager_v2 import HostDevice, KVCache, KVCacheManager, KVCacheManagerConfig, LogicError
from kv_cache_manager_v2.replay.rerun import rerun

SLOT_BYTES = 64
"""A key and a value of 4 tokens with 8 bytes each."""


def run_in_child(work: Callable[[], None]) -> int:
    """0 if ``work`` returned; the child ends at once then, without Python's own end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads that a child does not have: that is what is tested
        child = os.fork()
    if child == 0:
        status = 1
        try:
            signal.alarm(20)  # ends it where it waits for something that its process does not have
            work()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1]


def expect_refused(call: Callable[[], object]) -> None:
    try:
        call()
    except LogicError as error:
        assert "fork" in str(error)
        return
    raise AssertionError("a call was served in a forked process")


def use_disk_pages(manager: KVCacheManager, sequences: list[KVCache]) -> None:
    for call in (sequences[0].resume, sequences[0].prefetch, lambda: manager.resize(2, 8 * SLOT_BYTES)):
        expect_refused(call)


def release_all(manager: KVCacheManager, sequences: list[KVCache]) -> None:
    for kv_cache in sequences:
        kv_cache.close()
    manager.shutdown()


def leave_with(manager: KVCacheManager, sequences: list[KVCache]) -> None:
    try:
        with manager, sequences[0]:
            raise KeyError("the child's own error")
    except KeyError:
        return
    raise AssertionError("the child's own error is hidden")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("work", [use_disk_pages, release_all, leave_with])
def test_child_leaves_the_parents_bytes_alone(work: Callable[[KVCacheManager, list[KVCache]], None], tmp_path: Path) -> None:
    """5 sequences of 2 blocks, 2 slots on the GPU and 2 in host memory: at least 6 pages are in the file, which both processes have."""
    with Bench(tiered_config(2, [("host", 2), ("disk", 16)], str(tmp_path)), HostDevice()) as bench:
        sequences = [bench.suspended(number, 8) for number in range(5)]
        assert run_in_child(lambda: work(bench.manager, sequences)) == 0
        for kv_cache in sequences:
            assert kv_cache.resume()
            bench.check(kv_cache)
            kv_cache.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_child_that_forgets_a_lease_hears_nothing(tmp_path: Path) -> None:
    """The lease is the parent's: no warning in the child says that it was never settled."""
    with Bench(tiered_config(4, [("host", 4)], str(tmp_path)), HostDevice()) as bench:
        kv_cache = bench.suspended(0, 8)
        assert kv_cache.resume()
        leases = [kv_cache.reserve_transfer()]

        def forget() -> None:
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                leases.clear()
                gc.collect()
            assert len(told) == 0

        gc.collect()  # what earlier tests forgot is not told of in the child
        assert run_in_child(forget) == 0
        leases[0].settle()
        kv_cache.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_child_that_forgets_the_manager(tmp_path: Path) -> None:
    """The last reference goes in the child, as where a pool of workers is forked: neither the file nor the journal notices."""
    journal = tmp_path / "calls.journal"
    device = HostDevice()
    holder = [KVCacheManager(tiered_config(2, [("disk", 16)], str(tmp_path)), device=device, journal=journal)]
    sequences: list[KVCache] = []
    for number in range(3):
        sequences.append(holder[0].create_kv_cache())
        assert sequences[number].resume() and sequences[number].resize(8)
        sequences[number].commit(list(range(number * 10, number * 10 + 8)))
        sequences[number].suspend()

    def forget() -> None:
        sequences.clear()
        holder.clear()
        gc.collect()

    assert run_in_child(forget) == 0
    for kv_cache in sequences:
        assert kv_cache.resume()
        kv_cache.close()
    digest = holder[0].state_digest()
    holder[0].shutdown()
    device.close()
    other = HostDevice()
    assert rerun(journal, other).digest == digest
    other.close()


def list_locks(parent: Path) -> list[str]:
    """Of folders there, what this process has open."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # that of the listing
        if path.startswith(f"{parent}/") and os.path.basename(path) == "lock":
            found.append(path)
    return found


def start_idle_child() -> tuple[int, int]:
    """A forked child that lives until the pipe's end, the second number, is closed."""
    until, end = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        os.close(end)
        os.read(until, 1)
        os._exit(0)
    os.close(until)
    return child, end


def end_child(child: int, end: int) -> None:
    os.close(end)
    assert os.waitpid(child, 0)[1] == 0


def durable_config_of(parent: Path, num_paths: int) -> KVCacheManagerConfig:
    paths = [parent / f"disk{number}" for number in range(num_paths)]
    for path in paths:
        path.mkdir(exist_ok=True)
    return durable_config(str(paths[0]), more_paths=[str(path) for path in paths[1:]])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("num_paths", [1, 2])
def test_child_has_none_of_the_folders_locks(tmp_path: Path, num_paths: int) -> None:
    """While the manager lives no other one is let in, whatever its children do and however they end; then one is, at once."""
    config = durable_config_of(tmp_path, num_paths)
    process = Process(config)
    assert process.run(PROMPTS[0]) == 0
    assert len(list_locks(tmp_path)) == num_paths

    def use_child() -> None:
        assert list_locks(tmp_path) == []
        process.manager.shutdown()
        durable = process.manager._shared.storage.durable
        assert durable is not None
        durable.close()
        try:
            KVCacheManager(config, device=HostDevice())
        except LogicError as error:
            assert f"in use by process {os.getppid()}" in str(error)
            return
        raise AssertionError("a second manager was let in")

    assert run_in_child(use_child) == 0
    child = start_idle_child()
    for is_alive in (True, False):
        if not is_alive:
            end_child(*child)
        with pytest.raises(LogicError, match=f"in use by process {os.getpid()}"):
            KVCacheManager(config, device=HostDevice())
    child = start_idle_child()
    process.end()
    again = Process(config)
    assert again.run(PROMPTS[0]) == 32
    again.end()
    end_child(*child)


OWNER = """
import os, sys
sys.path.insert(0, {tests!r})
from durable_models import PROMPTS, Process, durable_config
process = Process(durable_config({path!r}, more_paths={more!r}))
process.run(PROMPTS[0])
process.settle()
if os.fork() == 0:
    print(os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("num_paths", [1, 2])
def test_child_that_outlives_a_killed_owner_blocks_nothing(tmp_path: Path, num_paths: int) -> None:
    config = durable_config_of(tmp_path, num_paths)
    paths = [str(tmp_path / f"disk{number}") for number in range(num_paths)]
    program = OWNER.format(tests=str(Path(__file__).resolve().parents[1]), path=paths[0], more=paths[1:])
    command = [sys.executable, "-P", "-W", "ignore", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        assert owner.stdin is not None and owner.stdout is not None
        child = int(owner.stdout.readline())
        owner.kill()
        assert owner.wait() == -signal.SIGKILL
        process = Process(config)
        assert process.run(PROMPTS[0]) == 32
        process.end()
        os.kill(child, 0)  # it lives: its input has not ended


RELEASING = {"KVCacheManager.shutdown", "KVCache.close", "PoolView.release", "PrometheusExporter.close"}
"""Do nothing in a child, so that it may leave a ``with``."""
ANSWERED = set(
    (
        "KVCacheManager.get_layer_group_id KVCacheManager.state_layer_group_id KVCacheManager.life_cycle_of_group KVCacheManager.get_quota "
        "KVCacheManager.get_page_stride KVCacheManager.get_page_index_scale KVCacheManager.get_page_index_upper_bound "
        "KVCacheManager.get_page_index_converter KVCacheManager.supports_index_mode KVCache.supports_index_mode BatchPageTable.row_of "
        "TransferLease.get_page_indices CommittedBlockDrop.drop_when_forgotten PrometheusExporter.show_curves PrometheusExporter.collect"
    ).split()
)
"""What the configuration says, what a handle has noted, and the metrics of the last time."""


def call_all(uses: dict[str, Callable[[], object]]) -> None:
    wrong = find_served(uses, "fork", RELEASING | ANSWERED)
    sys.stderr.write("\n".join(wrong))  # an error of the child's is not seen
    assert wrong == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_no_call_is_served_in_a_child() -> None:
    """All public calls of all handles of a manager; properties are numbers and names that a handle has."""
    world = World()
    uses = make_uses(world)
    before = world.fingerprint()
    for order in (uses, dict(reversed(uses.items()))):
        assert run_in_child(partial(call_all, order)) == 0
        assert world.fingerprint() == before
    world.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_child_leaves_the_parents_journal_alone(tmp_path: Path) -> None:
    """What the buffer has at the fork is written once, by the parent; also where the child is forked inside a call and goes on there."""
    journal = tmp_path / "calls.journal"
    device = HostDevice()
    manager = KVCacheManager(tiered_config(8, []), device=device, journal=journal)

    def serve(count: int, callback: Callable[[int, object], int]) -> None:
        for number in range(count):
            with manager.create_kv_cache(None, [number], custom_priority_callback=callback) as kv_cache:
                assert kv_cache.resume() and kv_cache.resize(4)

    def fork_inside(ordinal: int, life_cycle: object) -> int:
        children.append(os.fork())
        return 35

    serve(1, lambda ordinal, life_cycle: 35)
    size = journal.stat().st_size
    assert run_in_child(lambda: expect_refused(manager.flush_journal)) == 0
    assert journal.stat().st_size == size
    children: list[int] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        with manager.create_kv_cache(custom_priority_callback=fork_inside) as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(4)
            if children[0] == 0:
                kv_cache.close()
                manager.shutdown()
                os._exit(0)
    assert os.waitpid(children[0], 0)[1] == 0
    assert journal.stat().st_size == size
    serve(1, lambda ordinal, life_cycle: 35)
    digest = manager.state_digest()
    manager.shutdown()
    device.close()
    other = HostDevice()
    assert rerun(journal, other).digest == digest
    other.close()
