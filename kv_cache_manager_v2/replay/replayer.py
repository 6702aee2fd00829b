"""A replay from plan to report: makes device, manager and engine, serves, and closes everything.

The report is made whatever ends the serving: all served, Ctrl-C, or an invariant that does not hold (with
``check_invariants``, after every step). Other errors are the caller's to see; the sequences are closed before.
"""

import tempfile
from time import monotonic, perf_counter
from typing import Final, final


from .. import (
    AttentionLayerConfig,
    CorruptedError,
    CudaError,
    Device,
    KVCacheManager,
    KVCacheManagerConfig,
    LogicError,
    OutOfMemoryError,
    PageIndexMode,
    StorageIOError,
    __version__,
    is_compiled,
)
from ..testing import FakeEngine
from .console import Console
from .failed_reads import synchronize_past_failures
from .handover import Handover
from .interrupt import InterruptFlag
from .plan import RECORDED, ReplayPlan
from .pool_adjustment import PoolAdjustment
from .recorder import CallRecorder
from .report import LayerGroupFigures, PoolGroupFigures, ReplayReport, call_figures
from .scheduler import Scheduler
from .service_clock import ServiceClock
from .sized_codec import make_codec
from .tier_figures import tier_figures, transfer_figures
from .timed_calls import TimedCalls
from .timeline import Timeline
from .waiting_queue import WaitingQueue

_UPDATE_INTERVAL_SECONDS: Final = 0.2


class PlanError(ValueError):
    """The plan asks for something that this machine or the manager refuses; the text has the numbers."""


def run_replay(plan: ReplayPlan, console: Console, timeline: Timeline | None = None) -> ReplayReport:
    """Serve the plan's workload. The device and the manager are closed when this returns or raises.

    ``timeline`` is filled meanwhile.
    `PlanError` if the device or the manager cannot be made as planned.
    """
    if plan.needs_temporary_folder:
        with tempfile.TemporaryDirectory(prefix="kvcm-") as folder:
            return _run(plan, console, timeline, folder)
    return _run(plan, console, timeline, "")


def _run(plan: ReplayPlan, console: Console, timeline: Timeline | None, temporary_folder: str) -> ReplayReport:
    device = _make_device(plan)
    try:
        try:
            config = plan.manager_config(device, temporary_folder)
        except ValueError as error:
            raise PlanError(str(error)) from error
        with _make_manager(plan, config, device) as manager:
            if plan.disaggregate:
                with _make_manager(plan, config, device) as decode_manager:
                    return _serve(_Replayer(plan, console, manager, decode_manager, timeline), config, device)
            return _serve(_Replayer(plan, console, manager, None, timeline), config, device)
    finally:
        device.close()


def _serve(replayer: "_Replayer", config: KVCacheManagerConfig, device: Device) -> ReplayReport:
    plan = replayer.plan
    if not plan.verify:
        return replayer.serve(None)
    mode = PageIndexMode.PER_LAYER if plan.scratch else PageIndexMode.SHARED
    with FakeEngine(config, device, raise_on_mismatch=False, index_mode=mode) as engine:
        return replayer.serve(engine)


def _make_device(plan: ReplayPlan) -> Device:
    try:
        return plan.make_device()
    except (CudaError, ImportError) as error:
        raise PlanError(f"device {plan.device}: {error}") from error


def _make_manager(plan: ReplayPlan, config: KVCacheManagerConfig, device: Device) -> KVCacheManager:
    try:
        return KVCacheManager(config, device=device, cold_page_codec=make_codec(plan.codec))
    except (ValueError, OutOfMemoryError) as error:
        raise PlanError(f"{error} (see --memory, --tiers, --shrink and --pool-ratio)") from error
    except (CudaError, LogicError, StorageIOError) as failure:  # another name: mypyc gives one name one type
        raise PlanError(str(failure)) from failure


def _close_sequences(scheduler: Scheduler, is_corrupted: bool) -> None:
    try:
        scheduler.close()
    except CorruptedError:
        # The manager that has just said so may say it again; the report has the first reason.
        if not is_corrupted:
            raise


@final
class _Replayer:
    """A manager that serves a plan's workload."""

    __slots__ = ("plan", "_console", "_manager", "_decode_manager", "_timeline")

    def __init__(
        self,
        plan: ReplayPlan,
        console: Console,
        manager: KVCacheManager,
        decode_manager: KVCacheManager | None,
        timeline: Timeline | None,
    ) -> None:
        """``decode_manager``: None to decode where the prompt was computed."""
        self.plan: Final = plan
        self._console: Final = console
        self._manager: Final = manager
        self._decode_manager: Final = decode_manager
        self._timeline: Final = timeline

    def serve(self, engine: FakeEngine | None) -> ReplayReport:
        recorder = CallRecorder()
        clock = ServiceClock(self.plan.step_time) if self.plan.arrivals == RECORDED else None
        queue = WaitingQueue(self.plan.workload.requests(), clock is not None)
        calls = TimedCalls(self._manager, recorder)
        all_calls = [calls]
        handover: Handover | None = None
        if self._decode_manager is not None:
            handover = Handover(TimedCalls(self._decode_manager, recorder))
            all_calls.append(handover.calls)
        scheduler = Scheduler(calls, queue, self.plan.limits, engine, self.plan.decoding, handover, clock)
        failure: str | None = None
        interrupted = False
        self._console.start(self.plan.workload.summary().num_requests)
        if self._timeline is not None:
            self._timeline.begin(self._manager)
        adjustment = PoolAdjustment(all_calls if self.plan.adjusts else [], self.plan.step_time)
        begin = perf_counter()
        try:
            with InterruptFlag() as flag:
                interrupted = self._serve_steps(scheduler, adjustment, flag)
        except CorruptedError as error:
            failure = str(error)
        finally:
            self._console.stop()
            if self._timeline is not None and failure is None:
                self._timeline.finish(scheduler.tally)
            _close_sequences(scheduler, failure is not None)
        wall_seconds = perf_counter() - begin
        if engine is not None:
            synchronize_past_failures(engine)
        return self._report(scheduler, recorder, engine, wall_seconds, interrupted, failure, adjustment.num_adjustments, clock)

    def _serve_steps(self, scheduler: Scheduler, adjustment: PoolAdjustment, flag: InterruptFlag) -> bool:
        """True if Ctrl-C ended it."""
        next_update = monotonic()
        num_computed = 0
        while scheduler.step():
            if adjustment.end_step(scheduler.tally.num_computed_tokens - num_computed):
                scheduler.record_moved_pages()
            num_computed = scheduler.tally.num_computed_tokens
            if self.plan.check_invariants:
                self._manager.check_invariants()
                if self._decode_manager is not None:
                    self._decode_manager.check_invariants()
            if self._timeline is not None:
                self._timeline.look(scheduler.tally)
            now = monotonic()
            if now >= next_update:
                next_update = now + _UPDATE_INTERVAL_SECONDS
                self._console.update(scheduler.tally, self._used_shares())
            if flag.is_raised():
                return True
        return False

    def _used_shares(self) -> list[float]:
        return [
            (group.total - group.free) / max(group.total, 1) for group in self._manager.get_storage_statistics()
        ]  # fmt: skip

    def _report(
        self, scheduler: Scheduler, recorder: CallRecorder, engine: FakeEngine | None, wall_seconds: float, interrupted: bool,
        failure: str | None, num_adjustments: int, clock: ServiceClock | None,
    ) -> ReplayReport:  # fmt: skip
        plan = self.plan
        tally = scheduler.tally
        return ReplayReport(
            workload=plan.workload.name,
            model=plan.model.title,
            shrink=plan.shrink,
            tokens_per_block=plan.tokens_per_block,
            memory_bytes=self._manager.get_quota(0),
            max_running=plan.limits.max_running,
            token_budget=plan.limits.token_budget,
            chunk_tokens=plan.limits.chunk_tokens,
            scratch=plan.scratch,
            seed=plan.seed,
            device=self._manager.device.name,
            compiled=is_compiled(),
            version=__version__,
            requests=tally.num_requests_done,
            requests_refused=tally.num_requests_refused,
            skipped_lines=plan.skipped_lines,
            prompt_tokens=tally.num_prompt_tokens,
            hit_tokens=tally.num_hit_tokens,
            reusable_tokens=tally.num_reusable_tokens,
            generated_tokens=tally.num_generated_tokens,
            computed_tokens=tally.num_computed_tokens,
            steps=tally.num_steps,
            verified=engine is not None,
            mismatches=0 if engine is None else engine.mismatches,
            first_mismatches=() if engine is None else tuple([str(one) for one in engine.first_mismatches]),
            invariants_checked=plan.check_invariants,
            failure=failure,
            interrupted=interrupted,
            preemptions=tally.num_preemptions,
            forced_preemptions=tally.num_forced_preemptions,
            restarts=tally.num_restarts,
            refusals=tally.num_refused_calls,
            pool_groups=tuple([
                PoolGroupFigures(group.slot_sizes, group.total, group.peak_used, group.evicted)
                for group in self._manager.get_storage_statistics()
            ]),
            layer_groups=self._layer_groups(scheduler.census.peak_used),
            tiers=tier_figures(self._manager, tally.hit_tokens),
            transfers=transfer_figures(self._manager),
            wall_seconds=wall_seconds,
            manager_seconds=recorder.total_ns / 1e9,
            calls=call_figures(recorder),
            missed_tokens=dict(tally.missed_tokens),
            checked_bytes=0 if engine is None else engine.num_checked_bytes,
            pool_ratio=plan.pool_ratio,
            notes=plan.notes,
            arrivals=plan.arrivals,
            service=None if clock is None else clock.figures(),
            adjustments=num_adjustments if plan.adjusts else None,
            last_refusal=None if self._manager.last_refusal is None else self._manager.last_refusal.text,
            restored_pages=self._restored_pages(),
        )

    def _restored_pages(self) -> int:
        coldest = len(self._manager.cache_tier_list) - 1
        return sum([group.restored_pages for group in self._manager.get_storage_statistics(coldest)])

    def _layer_groups(self, peak_used: tuple[int, ...]) -> tuple[LayerGroupFigures, ...]:
        windows: dict[int, int | None] = {}
        for layer in self._manager.init_config.layers:
            if isinstance(layer, AttentionLayerConfig):
                windows[self._manager.get_layer_group_id(layer.layer_id)] = layer.window_size
        return tuple([
            LayerGroupFigures(windows.get(group), len(layer_ids), peak_used[group])
            for group, layer_ids in enumerate(self._manager.layer_grouping)
        ])
