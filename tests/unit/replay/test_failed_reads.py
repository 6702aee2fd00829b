"""A replay goes on where a disk cannot read, or reads other bytes: the tokens are computed again, and every byte is right."""

import errno
import os
from pathlib import Path

import pytest
from unit.device.fake_files import FakeFiles
from unit.replay.serving import BYTES_PER_BLOCK, FULL, MODELS, TOKENS_PER_BLOCK, request_of

from kv_cache_manager_v2 import HostDevice, KVCacheManager
from kv_cache_manager_v2.replay.decoding import Decoding
from kv_cache_manager_v2.replay.failed_reads import synchronize_past_failures
from kv_cache_manager_v2.replay.handover import Handover
from kv_cache_manager_v2.replay.plan import ReplayPlan
from kv_cache_manager_v2.replay.presets import ModelPreset
from kv_cache_manager_v2.replay.recorder import CallRecorder
from kv_cache_manager_v2.replay.scheduler import Scheduler
from kv_cache_manager_v2.replay.serving_limits import ServingLimits
from kv_cache_manager_v2.replay.tier_option import LowerTier
from kv_cache_manager_v2.replay.timed_calls import TimedCalls
from kv_cache_manager_v2.replay.waiting_queue import WaitingQueue
from kv_cache_manager_v2.replay.workload import ListedWorkload
from kv_cache_manager_v2.testing import FakeEngine

NUM_REQUESTS = 6
HIT_AND_RUN = ServingLimits(4, 48, 12, preempt_share=0.3)


def plan_of(model: ModelPreset, limits: ServingLimits, decoding: Decoding, is_durable: bool = False) -> ReplayPlan:
    """Long answers under one prompt, in so little memory that all of them go to the disk and come back."""
    requests = [request_of(number, [(1, 12), (100 + number, 12)], 33) for number in range(NUM_REQUESTS)]
    return ReplayPlan(
        workload=ListedWorkload("long answers", requests),
        model=model,
        tokens_per_block=TOKENS_PER_BLOCK,
        memory_bytes=26 * BYTES_PER_BLOCK,
        lower_tiers=(LowerTier("disk", 200 * BYTES_PER_BLOCK, None, is_durable),),
        limits=limits,
        decoding=decoding,
        verify=True,
        device="host",
    )


class EveryNthReadFails(FakeFiles):
    """From the first one on that is asked for."""

    def __init__(self, interval: int) -> None:
        super().__init__()
        self.num_reads = 0
        self.num_failed = 0

        def answer(is_write: bool, offset: int, num_bytes: int) -> int:
            if not is_write:
                self.num_reads += 1
                if self.num_reads % interval == 0:
                    self.num_failed += 1
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            return num_bytes

        self.answer = answer


def serve(plan: ReplayPlan, device: HostDevice, folder: str, damages: Path | None = None, splits: bool = False) -> int:
    """Serve all of the plan, every byte checked; returns how often a request was suspended. ``damages``: the folder whose pages get
    other bytes in the middle of it. ``splits``: a second manager decodes."""
    config = plan.manager_config(device, folder)
    with KVCacheManager(config, device=device) as manager, FakeEngine(config, device, raise_on_mismatch=False) as engine:
        recorder = CallRecorder()
        decoder = KVCacheManager(config, device=device) if splits else None
        handover = None if decoder is None else Handover(TimedCalls(decoder, recorder))
        queue = WaitingQueue(plan.workload.requests())
        scheduler = Scheduler(TimedCalls(manager, recorder), queue, plan.limits, engine, plan.decoding, handover)
        num_steps = 0
        while scheduler.step():
            num_steps += 1
            assert num_steps < 3000, "it serves in circles"
            manager.check_invariants()
            if damages is not None and num_steps % 10 == 0:
                for data in damages.glob("kvcm-*/data-*"):
                    data.write_bytes(bytes(data.stat().st_size))
        scheduler.close()
        if decoder is not None:
            decoder.shutdown()
        synchronize_past_failures(engine)
        tally = scheduler.tally
        assert (tally.num_requests_done, tally.num_requests_refused) == (NUM_REQUESTS, 0)
        assert engine.mismatches == 0, engine.first_mismatches
        return tally.num_forced_preemptions


@pytest.mark.parametrize("interval", [1, 2, 5])
@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "not waiting"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_reads_that_fail_cost_tokens(model: ModelPreset, waits: bool, interval: int, tmp_path: Path) -> None:
    limits = ServingLimits(4, 48, 12, preempt_share=0.3, waits=waits, prefetches=not waits)
    with_drafts = Decoding(num_drafts=2 if interval == 2 else 0)
    files = EveryNthReadFails(interval)
    device = HostDevice(files=files)
    assert serve(plan_of(model, limits, with_drafts), device, str(tmp_path)) > NUM_REQUESTS
    assert files.num_failed > 0
    device.close()


def test_beams_end_where_a_read_fails(tmp_path: Path) -> None:
    files = EveryNthReadFails(2)
    device = HostDevice(files=files)
    limits = ServingLimits(3, 48, 12, preempt_share=0.3)
    assert serve(plan_of(FULL, limits, Decoding(beam_width=2)), device, str(tmp_path)) > 0
    assert files.num_failed > 0
    device.close()


def test_a_manager_that_decodes_goes_on_too(tmp_path: Path) -> None:
    files = EveryNthReadFails(2)
    device = HostDevice(files=files)
    assert serve(plan_of(FULL, HIT_AND_RUN, Decoding()), device, str(tmp_path), splits=True) > 0
    assert files.num_failed > 0
    device.close()


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "not waiting"])
def test_preempted_requests_go_on_where_the_disk_has_other_bytes(waits: bool, tmp_path: Path) -> None:
    """A durable level finds out by checksums, when a request that was suspended is resumed."""
    device = HostDevice()
    limits = ServingLimits(4, 48, 12, preempt_share=0.3, waits=waits)
    plan = plan_of(FULL, limits, Decoding(), True)
    assert serve(plan, device, str(tmp_path), tmp_path) > NUM_REQUESTS
    device.close()
