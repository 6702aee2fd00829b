"""When an invariant fails inside a call, the manager says so once, and every later call repeats the first reason.

The books are damaged from outside, by writing into the page rows; no caller can do that through the public names.
"""

import logging
from typing import Any

import pytest
from small_models import config_of, manager_of, run_prompt

from kv_cache_manager_v2 import CorruptedError, KVCacheManager
from kv_cache_manager_v2.testing import SimulatedDevice


def forget_all_holds(manager: KVCacheManager) -> None:
    """Set the USERS word of every page row to zero: nobody holds anything any more."""
    anything: Any = manager
    rows = anything._shared.storage.rows
    for page in range(rows.first_page_of_blocks, len(rows.words) // 3):
        rows.words[page * 3 + 1] = 0


def test_first_reason_is_repeated_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    with manager_of() as healthy:
        broken = manager_of()
        victim = run_prompt(broken, [1, 2, 3, 4, 5])
        forget_all_holds(broken)
        with pytest.raises(CorruptedError):
            broken.check_invariants()
        with caplog.at_level(logging.CRITICAL), pytest.raises(CorruptedError) as first:
            victim.suspend()
        assert len(caplog.records) == 1
        reasons = set()
        for call in (
            victim.suspend,
            victim.close,
            lambda: victim.resize(9),
            lambda: victim.commit([1]),
            broken.create_kv_cache,
            broken.probe_reuse,
        ):
            with pytest.raises(CorruptedError) as later:
                call()
            reasons.add(str(later.value).split(": ", 1)[1])
        assert len(reasons) == 1 and str(first.value).endswith(reasons.pop())
        with run_prompt(healthy, [1, 2, 3]) as kv_cache:
            assert kv_cache.num_committed_tokens == 3
        broken.shutdown()


def test_memory_of_a_broken_manager_comes_back() -> None:
    broken = manager_of()
    device = broken.device
    victim = run_prompt(broken, [1, 2, 3, 4, 5])
    forget_all_holds(broken)
    with pytest.raises(CorruptedError):
        victim.close()
    broken.shutdown()
    device.close()


def on_a_faulty_device() -> tuple[KVCacheManager, SimulatedDevice]:
    device = SimulatedDevice(0)
    return KVCacheManager(config_of([None, 8], num_slots=32), device=device), device


def test_copy_that_fails_leaves_resume_undone() -> None:
    manager, device = on_a_faulty_device()
    run_prompt(manager, [1, 2, 3, 4, 5, 6]).close()
    kv_cache = manager.create_kv_cache(None, [1, 2, 3, 4, 5, 6])
    for nth in (1, 2):
        before = manager.describe()
        device.faults.fail("copy", nth, RuntimeError("no copy today"))
        with pytest.raises(RuntimeError, match="no copy today"):
            kv_cache.resume()
        assert manager.describe() == before
        manager.check_invariants()
    assert kv_cache.resume()
    manager.check_invariants()
    kv_cache.close()
    manager.shutdown()


def test_copy_that_fails_leaves_resize_undone() -> None:
    manager, device = on_a_faulty_device()
    kv_cache = run_prompt(manager, [1, 2, 3, 4, 5, 6])
    kv_cache.stop_committing()
    before = manager.describe()
    device.faults.fail("copy", 2, RuntimeError("no copy today"))
    with pytest.raises(RuntimeError, match="no copy today"):
        kv_cache.resize(20, 6)
    assert manager.describe() == before
    manager.check_invariants()
    assert kv_cache.resize(20, 6)
    kv_cache.close()
    manager.shutdown()


def test_change_that_is_interrupted_breaks_the_manager() -> None:
    """The device refuses the event of a suspend on the second stream: pages would be unlocked without one."""
    manager, device = on_a_faulty_device()
    kv_cache = run_prompt(manager, [1, 2, 3, 4, 5, 6])
    stream = device.create_stream()
    kv_cache.cuda_stream = stream
    device.faults.fail("record", 1, RuntimeError("no event today"))
    with pytest.raises(RuntimeError, match="no event today"):
        kv_cache.suspend()
    with pytest.raises(CorruptedError, match="no event today"):
        kv_cache.close()
    manager.shutdown()



def test_wait_that_fails_in_a_copy_leaks_no_slot() -> None:
    """The slot of the copy was last used on another stream; the device refuses the wait for it."""
    device = SimulatedDevice(1)
    manager = KVCacheManager(config_of(num_slots=8), device=device)
    streams = [device.create_stream(), device.create_stream()]
    run_prompt(manager, [1, 2, 3, 4, 5, 6]).close()
    other = manager.create_kv_cache()
    assert other.resume(streams[0]) and other.resize(4)
    first, second = (manager.create_kv_cache(None, [1, 2, 3, 4, 5, 6]) for _ in range(2))
    assert first.resume(streams[1])
    other.close()
    device.faults.fail("wait", 1, RuntimeError("no wait today"))
    with pytest.raises(RuntimeError):
        second.resume(streams[1])
    manager.check_invariants()
    assert second.resume(streams[1])
    first.close()
    second.close()
    manager.shutdown()


def test_failed_copy_after_pages_were_given_up_is_not_passed_over() -> None:
    """Three slots: the copy has room only once the window has given its page back, which cannot be undone."""
    device = SimulatedDevice(1)
    manager = KVCacheManager(config_of([8], num_slots=3), device=device)
    kv_cache = run_prompt(manager, list(range(10)))
    kv_cache.stop_committing()
    other = manager.create_kv_cache(None, list(range(10)))
    device.faults.fail("copy", 1, RuntimeError("no copy today"))
    before = manager.describe()
    try:
        done = kv_cache.resize(12, 11)
    except RuntimeError:
        with pytest.raises(CorruptedError):
            manager.probe_reuse(None, [1])
    else:
        assert not done and manager.describe() == before
        other.close()
        kv_cache.close()
    manager.shutdown()
