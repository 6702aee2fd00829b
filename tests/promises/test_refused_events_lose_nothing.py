"""A device that refuses an event or a wait, at any place of a call that offloads pages: invariants hold and every byte stays right.

The host waits instead, and the call goes on. Where the device refuses that as well, either the call was refused and the same call passes
later, or the manager is broken, says so with the device's reason in every call, and frees all that it has. Which of the two depends
on whether something had changed already.
"""

from collections.abc import Callable, Sequence

import pytest
from small_models import config_of
from tiered_models import TOKENS_PER_BLOCK, Bench, tiered_config

from kv_cache_manager_v2 import CacheTier, CorruptedError, KVCacheManager, PageMoveError, SwaScratchReuseConfig
from kv_cache_manager_v2.testing import SimulatedDevice

SLOT_BYTES = 2 * 8 * TOKENS_PER_BLOCK
MAX_CALLS = 100


class Refused(Exception):
    """What the device says."""


class Situation:
    """Three levels. Published pages of ``first`` with copies below them, private ones of ``second``, both suspended; ``active`` decodes on
    a stream of its own in what is left of level 0, and has to have one of theirs for each further block."""

    def __init__(self, write_policy: str, seed: int, num_pool_groups: int) -> None:
        config = tiered_config(12, [("host", 10), ("disk", 24)], num_pool_groups=num_pool_groups, write_policy=write_policy)
        self.bytes_per_slot = SLOT_BYTES * (1 if num_pool_groups == 1 else 3)
        self.device = SimulatedDevice(seed, granularity_bytes=SLOT_BYTES)
        self.bench = Bench(config, self.device)
        streams = [self.device.create_stream() for _ in range(3)]
        self.first = self.bench.suspended(1, 4 * TOKENS_PER_BLOCK, commit=True, stream=streams[0])
        # A second reader of the same pages, on another stream: its last use has to be waited for as well.
        text = self.bench.texts[1]
        self.sharing = self.bench.manager.create_kv_cache(input_tokens=list(text), id=3)
        self.bench.texts[3] = list(text)
        assert self.sharing.resume(streams[1])
        self.bench.check(self.sharing)
        self.sharing.suspend()
        self.second = self.bench.suspended(2, 4 * TOKENS_PER_BLOCK, stream=streams[1])
        self.active = self.bench.manager.create_kv_cache(id=4)
        assert self.active.resume(streams[2]) and self.bench.write(self.active, 4 * TOKENS_PER_BLOCK)
        self.streams = streams

    def grow(self) -> bool:
        """6 blocks more than the 12 - 12 that are free: 6 of the 8 pages are offloaded."""
        capacity = 10 * TOKENS_PER_BLOCK
        return self.active.resize(capacity, len(self.bench.texts[4]))

    def shrink_top(self) -> bool:
        """To 9 slots: 3 pages are offloaded, and those of ``active`` behind the end move in front of it."""
        return self.bench.manager.resize(0, 9 * self.bytes_per_slot)

    def shrink_host(self) -> bool:
        """First all pages that can are offloaded to it; then 4 slots, so that others are offloaded to the disk."""
        return self.active.resize(10 * TOKENS_PER_BLOCK) and self.bench.manager.resize(1, 4 * self.bytes_per_slot)

    def come_back(self) -> bool:
        """``second`` is onboarded again, and ``first`` is offloaded for it."""
        return self.active.resize(8 * TOKENS_PER_BLOCK) and self.second.resume(self.streams[1])

    def finish(self) -> None:
        """All sequences read every byte; every slot is free at the end."""
        bench = self.bench
        bench.manager.check_invariants()
        if self.second.is_active:
            bench.check(self.second)
            self.second.suspend()
        bench.check(self.active)
        self.active.suspend()
        for kv_cache in (self.first, self.sharing, self.second, self.active):
            assert kv_cache.resume(self.streams[0])
            bench.check(kv_cache)
            kv_cache.suspend()
            bench.manager.check_invariants()
        for kv_cache in (self.first, self.sharing, self.second, self.active):
            kv_cache.close()
        bench.close()
        self.check_device()

    def finish_broken(self) -> None:
        """One reason for every call, the device's; memory, events and streams come back all the same."""
        bench = self.bench
        reasons = set()
        calls: list[Callable[[], object]] = [bench.manager.probe_reuse, self.first.resume]
        calls += [kv_cache.close for kv_cache in (self.first, self.sharing, self.second, self.active)]
        for call in calls:
            with pytest.raises(CorruptedError) as caught:
                call()
            reasons.add(str(caught.value))
        assert len(reasons) == 1 and "not now" in reasons.pop()
        bench.engine.close()
        bench.manager.shutdown()
        self.check_device()
        self.device.close()

    def check_device(self) -> None:
        """Nothing is left but the engine's own streams."""
        device = self.device
        assert device.races == () and device.num_open_events == 0 and device.num_open_streams == len(self.streams)
        assert [device.mapped_bytes(tier) for tier in (CacheTier.GPU_MEM, CacheTier.HOST_MEM, CacheTier.DISK)] == [0, 0, 0]


def plan_refusals(device: SimulatedDevice, kinds: Sequence[str], nth: int, num_refused: int) -> None:
    """"synchronize": the host may not wait instead, however often it tries."""
    for kind in kinds:
        for further in range(MAX_CALLS if kind == "synchronize" else num_refused):
            device.faults.fail(kind, 1 + further if kind == "synchronize" else nth + further, Refused("not now"))


def refuse(kinds: Sequence[str], nth: int, num_refused: int, call: str, write_policy: str, num_pool_groups: int) -> str:
    """The outcome of the call whose ``nth`` event or wait was refused, and some after it: "passed", "refused", "broken"; or "done" if
    it makes fewer than that."""
    situation = Situation(write_policy, nth, num_pool_groups)
    device = situation.device
    plan_refusals(device, kinds, nth, num_refused)
    answer = False
    outcome = "passed"
    num_waits = device.num_host_waits
    try:
        answer = getattr(situation, call)()
    except (Refused, PageMoveError, CorruptedError) as error:
        outcome = "refused"
        assert "not now" in str(error)
    if device.faults.num_fired == 0:
        outcome = "done"
    elif outcome == "passed":
        assert device.num_host_waits > num_waits
    device.faults.clear()
    try:
        situation.bench.manager.probe_reuse()
    except CorruptedError:
        situation.finish_broken()
        return "broken"
    situation.bench.manager.check_invariants()
    if outcome == "refused":
        answer = getattr(situation, call)()
    assert answer, f"{outcome}: there is room"
    situation.finish()
    return outcome


def refuse_in_turn(kinds: Sequence[str], num_refused: int, call: str, write_policy: str, num_pool_groups: int = 1) -> list[str]:
    outcomes: list[str] = []
    while outcomes[-1:] != ["done"]:
        assert len(outcomes) < MAX_CALLS
        outcomes.append(refuse(kinds, len(outcomes) + 1, num_refused, call, write_policy, num_pool_groups))
    assert len(outcomes) > 1
    return outcomes


def outcome_without_host_wait(bench: Bench, nth: int, call: Callable[[], object]) -> str:
    """The outcome of a call whose ``nth`` event is refused, and the host's wait too, as in `refuse`; a broken manager has said why, and
    has been shut down."""
    device = bench.device
    assert isinstance(device, SimulatedDevice)
    num_fired = device.faults.num_fired
    plan_refusals(device, ["record", "synchronize"], nth, 1)
    outcome = "passed"
    try:
        call()
    except (Refused, CorruptedError) as error:
        outcome = "refused"
        assert "not now" in str(error)
    if device.faults.num_fired == num_fired:
        outcome = "done"
    device.faults.clear()
    try:
        bench.manager.probe_reuse()
        bench.manager.check_invariants()
    except CorruptedError as error:
        outcome = "broken"
        assert "not now" in str(error)
        bench.engine.close()
        bench.manager.shutdown()
    return outcome


@pytest.mark.parametrize("write_policy", ["back", "through"])
@pytest.mark.parametrize("call", ["grow", "shrink_top", "shrink_host", "come_back"])
@pytest.mark.parametrize("kind", ["wait", "record"])
@pytest.mark.parametrize("num_pool_groups", [1, 2])
def test_every_event_and_every_wait_is_refused_in_turn(num_pool_groups: int, kind: str, call: str, write_policy: str) -> None:
    outcomes = refuse_in_turn([kind], 1, call, write_policy, num_pool_groups)
    # Refused where it is asked whether the stream of a resume is one: nothing has changed then.
    assert "broken" not in outcomes and "passed" in outcomes


@pytest.mark.parametrize("write_policy", ["back", "through"])
@pytest.mark.parametrize("call", ["grow", "come_back"])
@pytest.mark.parametrize("kind", ["wait", "record"])
@pytest.mark.parametrize("num_pool_groups", [1, 2])
def test_nor_may_the_host_wait(num_pool_groups: int, kind: str, call: str, write_policy: str) -> None:
    """Room is made before anything else changes; what is left half done comes later, if at all."""
    outcomes = refuse_in_turn([kind, "synchronize"], 1, call, write_policy, num_pool_groups)
    assert outcomes[0] in ("refused", "broken")


@pytest.mark.parametrize("write_policy", ["back", "through"])
@pytest.mark.parametrize("call", ["grow", "shrink_top", "shrink_host", "come_back"])
def test_a_device_that_refuses_everything_from_there_on(call: str, write_policy: str) -> None:
    """What would undo the call is refused too."""
    outcomes = refuse_in_turn(["wait", "record"], 50, call, write_policy)
    assert "broken" not in outcomes
    if not call.startswith("shrink"):
        # To shrink is to wait for the device.
        refuse_in_turn(["wait", "record", "synchronize"], 50, call, write_policy)


@pytest.mark.parametrize("num_refused", [1, 50])
@pytest.mark.parametrize("kinds", [["wait"], ["record"], ["wait", "record", "copy"], ["wait", "record", "copy", "synchronize"]])
@pytest.mark.parametrize("num_pool_groups", [1, 2])
def test_pages_that_change_places(num_pool_groups: int, kinds: list[str], num_refused: int) -> None:
    """4 + 4 slots and 8 held pages, in each pool group: each one onboarded swaps places with one offloaded."""
    outcomes: list[str] = []
    while outcomes[-1:] != ["done"]:
        nth = len(outcomes) + 1
        device = SimulatedDevice(nth)
        bench = Bench(tiered_config(4, [("host", 4)], num_pool_groups=num_pool_groups), device)
        first, second = [bench.suspended(number, 4 * TOKENS_PER_BLOCK, commit=True) for number in (1, 2)]
        plan_refusals(device, kinds, nth, num_refused)
        outcomes.append("passed")
        try:
            assert first.resume()
        except (Refused, PageMoveError, CorruptedError) as error:
            outcomes[-1] = "refused"
            assert "not now" in str(error)
        if device.faults.num_fired == 0:
            outcomes[-1] = "done"
        device.faults.clear()
        try:
            bench.manager.probe_reuse()
            bench.manager.check_invariants()
            assert first.is_active or first.resume()
        except CorruptedError as error:
            outcomes[-1] = "broken"
            # Halfway through, and copying back is refused too.
            assert "not now" in str(error) and ("synchronize" in kinds or ("copy" in kinds and num_refused > 1))
            bench.engine.close()
            bench.manager.shutdown()
            assert (device.num_open_events, device.num_open_streams) == (0, 0)
            continue
        for kv_cache, other in ((first, second), (second, first)):
            bench.check(kv_cache)
            kv_cache.suspend()
            bench.manager.check_invariants()
            assert other.resume()
        bench.check(first)
        first.close()
        second.close()
        bench.close()
        assert device.races == ()
    assert len(outcomes) > 2


def test_pages_evicted_together_when_the_host_cannot_wait() -> None:
    """The disk takes no more writes, so cached pages are dropped, several at a time. Their slots wait for the copies that were made
    while it still did, and for a reader on another stream: to know when both are done takes an event. Whether both are done by then is
    the device's pace: several of them."""
    outcomes: list[str] = []
    for pace in range(0, 800, 100):
        outcomes.append("begun")
        nth = 0
        while outcomes[-1] != "done":
            nth += 1
            outcomes.append(outcome_of_an_eviction(SimulatedDevice(pace + nth), nth))
    assert "broken" in outcomes


def outcome_of_an_eviction(device: SimulatedDevice, nth: int) -> str:
    bench = Bench(tiered_config(8, [("disk", 16)], write_policy="through"), device)
    streams = [device.create_stream() for _ in range(2)]
    bench.suspended(1, 4 * TOKENS_PER_BLOCK, commit=True, stream=streams[0]).close()
    bench.texts[2] = list(bench.texts[1])
    with bench.manager.create_kv_cache(input_tokens=bench.texts[2], id=2) as reader:
        assert reader.resume(streams[1])
        bench.check(reader)
    device.faults.fail("disk_write", 1, OSError("no space left"))
    bench.suspended(3, TOKENS_PER_BLOCK, commit=True, stream=streams[0]).close()
    bench.engine.synchronize()
    other = bench.manager.create_kv_cache(id=4)
    assert other.resume(streams[0])
    outcome = outcome_without_host_wait(bench, nth, lambda: other.resize(7 * TOKENS_PER_BLOCK))
    if outcome == "broken":
        assert (device.num_open_events, device.num_open_streams) == (0, 2)
        return outcome
    assert other.resize(7 * TOKENS_PER_BLOCK)
    other.close()
    bench.close()
    assert device.races == ()
    return outcome


def test_beams_change_their_stream_together() -> None:
    outcomes: list[str] = []
    while outcomes[-1:] != ["done"]:
        nth = len(outcomes) + 1
        device = SimulatedDevice(nth)
        bench = Bench(tiered_config(8, []), device)
        old, new = [device.create_stream() for _ in range(2)]
        kv_cache = bench.manager.create_kv_cache(id=1)
        assert kv_cache.resume(old) and kv_cache.resize(4)
        kv_cache.beam_width = 3
        outcomes.append(outcome_without_host_wait(bench, nth, lambda: setattr(kv_cache, "cuda_stream", new)))
        if outcomes[-1] == "broken":
            continue
        assert kv_cache.cuda_stream == (old if outcomes[-1] == "refused" else new)
        kv_cache.close()
        bench.close()
    assert outcomes[0] == "refused" and "broken" in outcomes


def test_beams_are_closed_together() -> None:
    """With a part of a block to publish, which takes an event after the further beams are gone."""
    outcomes: list[str] = []
    while outcomes[-1:] != ["done"]:
        nth = len(outcomes) + 1
        device = SimulatedDevice(nth)
        bench = Bench(tiered_config(8, []), device)
        streams = [device.create_stream() for _ in range(2)]
        with bench.manager.create_kv_cache() as other:
            assert other.resume(streams[0])
        kv_cache = bench.manager.create_kv_cache(id=1)
        assert kv_cache.resume(streams[1]) and bench.write(kv_cache, 6, commit=True)
        kv_cache.beam_width = 2
        outcomes.append(outcome_without_host_wait(bench, nth, kv_cache.close))
        if outcomes[-1] == "broken":
            continue
        assert outcomes[-1] != "refused" or kv_cache.beam_width == 2
        kv_cache.close()
        bench.close()
    assert "broken" in outcomes


@pytest.mark.parametrize("kind", ["wait", "record"])
@pytest.mark.parametrize("asks", ["sequence", "text"])
def test_a_prefetch_is_refused_as_a_resume_is(asks: str, kind: str) -> None:
    """4 + 8 slots, 4 pages below level 0 and 4 on it, which change places. Where nothing is enqueued without its event, what the
    device refuses is refused, and no sequence keeps a page."""
    outcomes: list[str] = []
    while outcomes[-1:] != ["done"]:
        nth = len(outcomes) + 1
        device = SimulatedDevice(nth)
        bench = Bench(tiered_config(4, [("host", 8)]), device)
        first, second = [bench.suspended(number, 4 * TOKENS_PER_BLOCK, commit=True) for number in (1, 2)]
        plan_refusals(device, [kind], nth, 1)
        device.faults.fail("synchronize", 1, Refused("not now"))
        outcomes.append("passed")
        try:
            if asks == "sequence":
                assert first.prefetch()
            elif bench.manager.prefetch(bench.texts[1]).num_accepted == 0:
                outcomes[-1] = "refused"
        except (Refused, PageMoveError, CorruptedError) as error:
            outcomes[-1] = "refused"
            assert "not now" in str(error)
        if device.faults.num_fired == 0:
            outcomes[-1] = "done"
        device.faults.clear()
        try:
            bench.manager.check_invariants()
            assert first.resume()
        except CorruptedError as error:
            outcomes[-1] = "broken"
            # The mark behind copies that are enqueued: it is unknown when they are done.
            assert "not now" in str(error) and kind == "record"
            bench.engine.close()
            bench.manager.shutdown()
            continue
        bench.check(first)
        first.close()
        assert second.resume()
        bench.check(second)
        second.close()
        bench.close()
        assert device.races == ()
    assert "refused" in outcomes, outcomes


def test_a_resume_that_may_not_wait_for_its_scratch_slots_takes_none() -> None:
    """Prefill steps of 8 blocks with a window of 4 tokens; whose slots the sequence gets is those that another stream freed last."""
    outcomes: list[str] = []
    while outcomes[-1:] != ["done"]:
        assert len(outcomes) < MAX_CALLS
        device = SimulatedDevice(len(outcomes))
        config = config_of((4,), TOKENS_PER_BLOCK, 32, swa_scratch_reuse=SwaScratchReuseConfig())
        with KVCacheManager(config, device=device) as manager:
            streams = [device.create_stream() for _ in range(3)]
            kv_caches = [manager.create_kv_cache(id=number) for number in range(2)]
            for kv_cache, stream in zip(kv_caches, streams):
                assert kv_cache.resume(stream) and kv_cache.resize(8 * TOKENS_PER_BLOCK) and kv_cache.has_scratch_slots
            for kv_cache in kv_caches:
                kv_cache.suspend()
            plan_refusals(device, ["wait", "synchronize"], len(outcomes) + 1, 1)
            outcomes.append("done")
            try:
                assert kv_caches[0].resume(streams[2])
            except Refused:
                outcomes[-1] = "refused"
            device.faults.clear()
            try:
                manager.check_invariants()
            except CorruptedError as error:
                # Its pages come first.
                assert "not now" in str(error)
                outcomes[-1] = "broken"
                continue
            assert kv_caches[0].is_active or kv_caches[0].resume(streams[2])
            manager.check_invariants()
            for kv_cache in kv_caches:
                kv_cache.close()
    assert "refused" in outcomes and outcomes[1:] == ["refused"] * (len(outcomes) - 2) + ["done"]
