"""A forked child can neither use the manager nor harm it: its calls are a `LogicError`, and what it drops stays the parent's."""

import gc
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from tiered_models import Bench, tiered_config

from kv_cache_manager_v2 import HostDevice, KVCache, KVCacheManager, LogicError
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


def use_everything(manager: KVCacheManager, sequences: list[KVCache]) -> None:
    for call in (
        lambda: manager.create_kv_cache(input_tokens=[1, 2, 3]),
        lambda: manager.probe_reuse(None, [1, 2, 3]),
        lambda: manager.describe(),
        lambda: manager.resize(2, 8 * SLOT_BYTES),
        lambda: manager.clear_reusable_blocks(),
        lambda: sequences[0].resume(),
        lambda: sequences[0].prefetch(),
        lambda: sequences[0].get_base_page_indices(0),
        lambda: sequences[0].stop_committing(),
    ):
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
@pytest.mark.parametrize("work", [use_everything, release_all, leave_with])
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
