"""When an invariant fails inside a call, the manager says so once, and every later call repeats the first reason.

The state is damaged from outside, by writing into the page rows; no caller can do that through the public names.
"""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from small_models import config_of, manager_of, new_manager, run_prompt
from tiered_models import tiered_config

from kv_cache_manager_v2 import CorruptedError, DecodeBatch, KVCacheManager
from kv_cache_manager_v2.storage.page_rows import LINKS, NOT_QUEUED, ONE_HOLD, PLACE, ROW_WORDS
from kv_cache_manager_v2.testing import SimulatedDevice


def forget_all_holds(manager: KVCacheManager) -> None:
    """Take all holds and locks out of the page rows."""
    anything: Any = manager
    rows = anything._shared.storage.rows
    for page in range(rows.first_page_of_blocks, rows.num_rows):
        at = page * ROW_WORDS
        if rows.has_page(page):
            rows.words[at + PLACE] %= ONE_HOLD
        if rows.num_locks(page) > 0:
            rows.words[at + LINKS] = NOT_QUEUED


def test_first_reason_is_repeated_and_others_go_on(caplog: pytest.LogCaptureFixture) -> None:
    with manager_of() as healthy:
        broken = new_manager()
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
            broken.check_invariants,
        ):
            with pytest.raises(CorruptedError) as later:
                call()
            reasons.add(str(later.value).split(": ", 1)[1])
        assert len(reasons) == 1 and str(first.value).endswith(reasons.pop())
        with run_prompt(healthy, [1, 2, 3]) as kv_cache:
            assert kv_cache.num_committed_tokens == 3
        broken.shutdown()


def test_memory_of_a_broken_manager_comes_back() -> None:
    broken = new_manager()
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
    """The device refuses the event of a suspend on the second stream, and the host's wait too: pages would be unlocked without one."""
    manager, device = on_a_faulty_device()
    kv_cache = run_prompt(manager, [1, 2, 3, 4, 5, 6])
    stream = device.create_stream()
    kv_cache.cuda_stream = stream
    device.faults.fail("record", 1, RuntimeError("no event today"))
    device.faults.fail("synchronize", 1, RuntimeError("nor may the host wait"))
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
    device.faults.fail("synchronize", 1, RuntimeError("nor may the host wait"))
    with pytest.raises(RuntimeError):
        second.resume(streams[1])
    manager.check_invariants()
    assert second.resume(streams[1])
    first.close()
    second.close()
    manager.shutdown()


def test_failed_copy_after_evictions_is_not_ignored() -> None:
    """Three slots: the copy has room only once the window has given its page back, which cannot be undone."""
    device = SimulatedDevice(1)
    manager = KVCacheManager(config_of([8], num_slots=3), device=device)
    kv_cache = run_prompt(manager, list(range(10)))
    kv_cache.stop_committing()
    other = kv_cache.fork()
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


# -- every call -----------------------------------------------------------------------------------------------------------

TEXT = list(range(1, 10))


class Stage:
    """A manager in which something can be done with every call: what each of `CALLS` needs is there."""

    def __init__(self) -> None:
        self.device = SimulatedDevice(0)
        self.manager = KVCacheManager(tiered_config(12, [("host", 12)]), device=self.device)
        self.streams = [self.device.create_stream(), self.device.create_stream()]
        ended = self.prompt(TEXT, 0)
        ended.stop_committing()
        self.plan: Any = ended.plan_committed_block_drop()
        ended.close()
        self.active = self.prompt([20, 21, 22, 23, 24, 25], 0)
        assert self.active.resize(8, 6)
        self.wide = self.prompt([40, 41], 1)
        self.wide.beam_width = 2
        assert self.wide.resize(4, 2)
        self.suspended = self.prompt([30, 31, 32, 33, 34], 1)
        self.suspended.suspend()
        self.drafting = self.prompt([50, 51], 1)
        assert self.drafting.resize(4, 2)
        self.decoding = DecodeBatch(self.manager, 4, 16)
        self.decoding.join(self.active)
        self.decoding.join(self.drafting)
        self.stopped = self.prompt([60], 1)
        self.stopped.stop_committing()
        self.lease = self.active.reserve_transfer()

    def prompt(self, tokens: list[int], stream: int) -> Any:
        kv_cache = self.manager.create_kv_cache(None, tokens)
        assert kv_cache.resume(self.streams[stream]) and kv_cache.resize(len(tokens))
        kv_cache.commit(tokens[kv_cache.num_committed_tokens :])
        return kv_cache


CALLS: dict[str, Callable[[Stage], Any]] = {
    "create_kv_cache": lambda stage: stage.manager.create_kv_cache(None, TEXT),
    "probe_reuse": lambda stage: stage.manager.probe_reuse(None, TEXT),
    "resize_batch": lambda stage: stage.manager.resize_batch([stage.active], [20], [6]),
    "commit_batch": lambda stage: stage.manager.commit_batch([stage.active, stage.drafting], [26, 52]),
    "step of a batch": lambda stage: stage.decoding.step([26, 52]),
    "retain": lambda stage: stage.manager.retain(TEXT, None, 80),
    "release": lambda stage: stage.manager.release(TEXT),
    "demote": lambda stage: stage.manager.demote(TEXT),
    "prefetch of a text": lambda stage: stage.manager.prefetch(TEXT, None, 0),
    "advance_clock": lambda stage: stage.manager.advance_clock(1.0),
    "resize of a level": lambda stage: stage.manager.resize(0, 11 * 64),
    "adjust": lambda stage: stage.manager.adjust(),
    "clear_reusable_blocks": lambda stage: stage.manager.clear_reusable_blocks(),
    "invalidate_reuse_scope": lambda stage: stage.manager.invalidate_reuse_scope(),
    "resume": lambda stage: stage.suspended.resume(stage.streams[0]),
    "prefetch": lambda stage: stage.suspended.prefetch(1),
    "set_residency_window": lambda stage: stage.suspended.set_residency_window(0, None),
    "require_blocks": lambda stage: stage.active.require_blocks(0, [0]),
    "suspend": lambda stage: stage.active.suspend(),
    "close": lambda stage: stage.active.close(),
    "resize": lambda stage: stage.active.resize(20, 6),
    "capacity": lambda stage: setattr(stage.active, "capacity", 20),
    "commit": lambda stage: stage.active.commit([26, 27]),
    "commit_input": lambda stage: stage.active.commit_input(),
    "commit_tree": lambda stage: stage.drafting.commit_tree([52], [3]),
    "commit of beams": lambda stage: stage.wide.commit([42, 43], [1, 0]),
    "stop_committing": lambda stage: stage.active.stop_committing(),
    "fork": lambda stage: stage.active.fork(),
    "beam_width": lambda stage: setattr(stage.wide, "beam_width", 1),
    "reorder_beams": lambda stage: stage.wide.reorder_beams([1, 1]),
    "reserve_transfer": lambda stage: stage.active.reserve_transfer(),
    "settle": lambda stage: stage.lease.settle(stage.streams[1]),
    "plan_committed_block_drop": lambda stage: stage.stopped.plan_committed_block_drop(),
    "drop": lambda stage: stage.plan.drop(),
    "cancel": lambda stage: stage.plan.cancel(),
    "cuda_stream": lambda stage: setattr(stage.active, "cuda_stream", stage.streams[1]),
    "set_base_page_index_buf": lambda stage: stage.active.set_base_page_index_buf(0, 0, None),
}
BREAKABLE_BY_STATE = (
    "resize_batch", "resume", "suspend", "close", "resize", "capacity", "commit of beams", "fork", "beam_width", "reorder_beams",
    "reserve_transfer", "settle",
)  # fmt: skip
"""Those that look at holds and locks."""
BREAKABLE_BY_DEVICE = (*BREAKABLE_BY_STATE, "commit", "commit_tree", "cuda_stream")
"""Those that record an event, wait for one or copy."""


def break_by_state(stage: Stage) -> None:
    forget_all_holds(stage.manager)


def break_by_device(stage: Stage) -> None:
    """An assertion that fails in the middle: one that the device raises is none of the user's either."""
    for kind in ("record", "wait", "copy"):
        stage.device.faults.fail(kind, 1, AssertionError("an invariant does not hold"))


def test_every_call_of_a_broken_manager_repeats_the_first_reason() -> None:
    stage = Stage()
    break_by_state(stage)
    with pytest.raises(CorruptedError) as first:
        stage.active.suspend()
    reason = str(first.value).split(": ", 1)[1]
    for name, call in CALLS.items():
        with pytest.raises(CorruptedError) as later:
            call(stage)
        assert str(later.value).endswith(reason), name
    stage.manager.shutdown()


@pytest.mark.parametrize("name", BREAKABLE_BY_STATE)
def test_every_call_that_finds_wrong_state_breaks_the_manager(name: str) -> None:
    stage = Stage()
    break_by_state(stage)
    with pytest.raises(CorruptedError) as first:
        CALLS[name](stage)
    with pytest.raises(CorruptedError) as later:
        stage.manager.probe_reuse(None, TEXT)
    assert str(later.value).split(": ", 1)[1] == str(first.value).split(": ", 1)[1]
    stage.manager.shutdown()


@pytest.mark.parametrize("name", [name for name in BREAKABLE_BY_DEVICE if name not in ("fork", "reserve_transfer")])
def test_every_call_that_fails_in_the_middle_breaks_the_manager(name: str) -> None:
    stage = Stage()
    break_by_device(stage)
    with pytest.raises(CorruptedError, match="an invariant does not hold"):
        CALLS[name](stage)
    stage.device.faults.clear()
    with pytest.raises(CorruptedError, match="an invariant does not hold"):
        stage.manager.create_kv_cache(None, TEXT)
    stage.manager.shutdown()
