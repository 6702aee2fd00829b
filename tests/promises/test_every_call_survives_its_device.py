"""Whatever the device refuses, at any place of any call that moves pages: no byte is wrong, nothing is lost but what a disk lost, and the
same call passes later. Three levels that are in use, a model with windows and recurrent layers, on two kinds of devices."""

from collections.abc import Callable
from typing import Any

import pytest
from hybrid_models import hybrid_config
from refused_work import PartlyCopyingDevice, Refused, RefusingHostDevice, Story

from kv_cache_manager_v2 import (
    DiskCacheTierConfig,
    EvictionPolicy,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    KVCache,
    OutOfMemoryError,
    PageMoveError,
    SnapshotPolicy,
)
from kv_cache_manager_v2.base.errors import PartlyCopiedError
from kv_cache_manager_v2.testing import SimulatedDevice, Step

SLOT_BYTES = 64
MAX_CALLS = 200


class Situation(Story):
    """``active`` decodes; ``away`` and ``second`` are suspended, and below level 0; published pages of others fill the rest."""

    def __init__(self, device: SimulatedDevice | RefusingHostDevice, write_policy: str) -> None:
        tiers: list[Any] = [
            GpuCacheTierConfig(56 * SLOT_BYTES, EvictionPolicy.LRU),
            HostCacheTierConfig(24 * SLOT_BYTES, EvictionPolicy.LRU),
            DiskCacheTierConfig(200 * SLOT_BYTES, "/tmp", EvictionPolicy.LRU),
        ]
        policy = SnapshotPolicy(every_num_blocks=1, at_close=True)
        config = hybrid_config(
            [None, 8], cache_tiers=tiers, num_state_layers=1, state_checkpoints=2, snapshot_policy=policy,
            write_policy=write_policy, max_util_for_resume=1.0,
        )  # fmt: skip
        super().__init__(config, device)
        self.away = self.begin(1, range(100, 119), 0, 16)
        self.away.suspend()
        for number in range(2, 5):
            other = self.begin(number, range(100 * number, 100 * number + 28), number % 2, 28)
            other.close()
            self.open.remove(other)
        self.second = self.begin(5, range(500, 532), 1, 0)
        self.second.suspend()
        filler = self.begin(8, range(800, 840), 2, 0)
        filler.close()
        self.open.remove(filler)
        self.active = self.begin(6, range(600, 612), 1, 9)

    def resume(self) -> bool:
        return self.away.resume(self.streams[2])

    def resume_without_waiting(self) -> bool:
        if not self.away.is_active and not self.away.resume(self.streams[2], False):
            return False
        while not self.away.ready:
            pass
        return True

    def prefetch(self) -> bool:
        return self.away.prefetch()

    def prefetch_text(self) -> object:
        return self.manager.prefetch(list(range(100, 116)), None, 1)

    def grow(self) -> bool:
        done = self.active.resize(40, 12)
        if done:
            self.engine.execute([Step(self.active, list(range(612, 640)), self.texts[6])])
            self.texts[6] = list(range(600, 640))
        return done

    def rewind(self) -> bool:
        done = self.active.resize(10)
        self.texts[6] = list(range(600, 610))
        return done

    def commit(self) -> None:
        self.active.commit([609, 610, 611])

    def fork(self) -> KVCache:
        child = self.active.fork(7)
        self.texts[7] = list(self.texts[6])
        self.open.append(child)
        return child

    def shrink_top(self) -> bool:
        return self.manager.resize(0, 40 * SLOT_BYTES)

    def grow_top(self) -> bool:
        return self.manager.resize(0, 96 * SLOT_BYTES)

    def shrink_host(self) -> bool:
        return self.manager.resize(1, 8 * SLOT_BYTES)

    def grow_disk(self) -> bool:
        return self.manager.resize(2, 400 * SLOT_BYTES)

    def adjust(self) -> object:
        self.manager.adjust()
        return None

    def suspend(self) -> None:
        self.active.suspend()

    def close(self) -> None:
        self.active.close()
        self.open.remove(self.active)


CALLS: dict[str, Callable[[Situation], object]] = {
    "resume": Situation.resume,
    "resume without waiting": Situation.resume_without_waiting,
    "prefetch": Situation.prefetch,
    "prefetch of a text": Situation.prefetch_text,
    "grow": Situation.grow,
    "rewind": Situation.rewind,
    "commit with snapshots": Situation.commit,
    "fork": Situation.fork,
    "shrink level 0": Situation.shrink_top,
    "grow level 0": Situation.grow_top,
    "shrink level 1": Situation.shrink_host,
    "grow level 2": Situation.grow_disk,
    "adjust": Situation.adjust,
    "suspend": Situation.suspend,
    "close": Situation.close,
}
NEVER_FAIL = ("suspend", "close")


def refuse(device: SimulatedDevice | RefusingHostDevice, kind: str, nth: int, lasts: bool, call: str, write_policy: str) -> str:
    """"passed", "refused" or, if it asks for less than that many, "done"."""
    situation = Situation(device, write_policy)
    error: Exception = Refused("not now")
    if kind == "map":
        error = OutOfMemoryError("not now")
    for further in range(50 if lasts else 1):
        device.faults.fail(kind, nth + further, error)
    outcome = "passed"
    try:
        assert CALLS[call](situation) is not False, situation.manager.last_refusal
    except (Refused, PageMoveError, OutOfMemoryError, PartlyCopiedError) as caught:
        outcome = "refused"
        assert "not now" in str(caught) and call not in NEVER_FAIL
        assert isinstance(caught, (Refused, OutOfMemoryError, PartlyCopiedError)) or "level" in str(caught)
    if device.faults.num_fired == 0:
        outcome = "done"
    device.faults.clear()
    situation.manager.check_invariants()
    if outcome == "refused":
        situation.check()
        assert CALLS[call](situation) is not False, situation.manager.last_refusal
    situation.check()
    for other in situation.open:
        if other.is_active:
            other.suspend()
    for other in situation.open:
        assert other.resume(situation.streams[0])
        situation.check()
        other.suspend()
    situation.finish()
    return outcome


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", ["copy", "wait", "record", "create_stream", "fill", "map", "unmap", "synchronize"])
def test_each_in_turn(kind: str, call: str) -> None:
    outcomes: list[str] = []
    while outcomes[-1:] != ["done"]:
        nth = len(outcomes) + 1
        assert nth < MAX_CALLS
        device = SimulatedDevice(nth, granularity_bytes=SLOT_BYTES)
        outcomes.append(refuse(device, kind, nth, nth % 2 == 0, call, ("back", "through")[nth % 3 % 2]))


@pytest.mark.parametrize("call", CALLS)
def test_on_the_host_device(call: str) -> None:
    for kind in ("copy", "wait", "record", "create_stream", "map", "unmap", "synchronize"):
        outcomes: list[str] = []
        while outcomes[-1:] != ["done"]:
            nth = len(outcomes) + 1
            assert nth < MAX_CALLS
            outcomes.append(refuse(RefusingHostDevice(), kind, nth, nth % 2 == 0, call, ("back", "through")[nth % 2]))


@pytest.mark.parametrize("call", CALLS)
def test_batches_of_copies_that_are_begun_and_not_finished(call: str) -> None:
    """All these copies go into slots that nobody has yet: what was copied of a batch is forgotten with the rest."""
    outcomes: list[str] = []
    while outcomes[-1:] != ["done"]:
        nth = len(outcomes) + 1
        assert nth < MAX_CALLS
        outcomes.append(refuse(PartlyCopyingDevice(), "copy", nth, nth % 2 == 0, call, ("back", "through")[nth % 2]))
