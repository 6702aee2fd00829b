"""The drill behind ``kvcm replay --kill-at N``: how many hits a kill costs a manager with a durable level.

    process    serves                                                      says
    unkilled   the first N requests, then those after them                 the hits of those after them
    killed     all of them; it ends itself by SIGKILL once N are done      nothing
    restarted  those after the first N, on the folder of the killed one    the hits of the same requests

Each is a child of this process, and each of the two histories has a folder of its own on each path, which is removed afterwards.
"""

import contextlib
import json
import os
import signal
import sys
import tempfile
import traceback
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, final


from .. import Device, KVCacheManager, KVCacheManagerConfig, LogicError, OutOfMemoryError, PageIndexMode, StorageIOError
from ..base.value import Value
from ..testing import FakeEngine
from .failed_reads import synchronize_past_failures
from .plan import ReplayPlan
from .recorder import CallRecorder
from .replayer import PlanError
from .report_rows import aligned
from .scheduler import Scheduler
from .tally import Tally
from .timed_calls import TimedCalls
from .waiting_queue import WaitingQueue
from .workload import Request

LEAST_SHARE: Final = 0.8
"""Of the hits of the unkilled run."""
_NEVER: Final = -1
_UNKILLED: Final = "unkilled"
_KILLED: Final = "killed"
_RESTARTED: Final = "restarted"


@dataclass(frozen=True)
class KillDrillResult(Value):
    """``hit_tokens``: of the ``requests`` requests after the kill, whose prompts have ``prompt_tokens``."""

    kill_at: int
    requests: int
    prompt_tokens: int
    hit_tokens_unkilled: int
    hit_tokens: int
    verified: bool
    mismatches: int

    @property
    def share(self) -> float:
        """The hits after the kill, in those without one; 1 where there were none to lose."""
        return 1.0 if self.hit_tokens_unkilled == 0 else self.hit_tokens / self.hit_tokens_unkilled

    @property
    def has_passed(self) -> bool:
        return self.share >= LEAST_SHARE and self.mismatches == 0

    def to_json(self) -> str:
        return json.dumps({**asdict(self), "share": self.share, "passed": self.has_passed}, indent=1) + "\n"

    def to_text(self) -> str:
        rows = [
            ["killed at request", f"{self.kill_at:,}"],
            ["requests afterwards", f"{self.requests:,}, {self.prompt_tokens:,} prompt tokens"],
            ["hit tokens without the kill", f"{self.hit_tokens_unkilled:,}"],
            ["hit tokens after it", f"{self.hit_tokens:,}: {self.share:.1%}, at least {LEAST_SHARE:.0%} are wanted"],
        ]
        if self.verified:
            rows.append(["wrong bytes", f"{self.mismatches:,}"])
        return "\n".join(aligned(rows)) + "\n"


def run_kill_drill(plan: ReplayPlan, kill_at: int) -> KillDrillResult:
    """`PlanError` where the plan cannot be served so."""
    requests = list(plan.workload.requests())
    if len(requests) <= kill_at:
        raise PlanError(f"--kill-at {kill_at}: there are {len(requests)} requests, and none would come after the kill; see --limit")
    tier = plan.lower_tiers[len(plan.lower_tiers) - 1]
    for parent in (tier.path, *tier.more_paths):
        if parent is not None and not os.path.isdir(parent):
            raise PlanError(f"there is no folder {parent!r} for the durable level; create it first")
    with contextlib.ExitStack() as removed:
        folders: list[str] = []
        for parent in (tier.path, *tier.more_paths):
            folders.append(removed.enter_context(tempfile.TemporaryDirectory(prefix="kvcm-drill-", dir=parent)))
        drill = _Drill(plan, requests, kill_at, folders)
        unkilled = drill.play(_UNKILLED)
        drill.play(_KILLED)
        restarted = drill.play(_RESTARTED)
    return KillDrillResult(
        kill_at=kill_at,
        requests=len(requests) - kill_at,
        prompt_tokens=restarted["prompt_tokens"],
        hit_tokens_unkilled=unkilled["hit_tokens"],
        hit_tokens=restarted["hit_tokens"],
        verified=plan.verify,
        mismatches=unkilled["mismatches"] + restarted["mismatches"],
    )


@final
class _Drill:
    __slots__ = ("_plan", "_requests", "_kill_at", "_folders")

    def __init__(self, plan: ReplayPlan, requests: list[Request], kill_at: int, folders: list[str]) -> None:
        self._plan: Final = plan
        self._requests: Final = requests
        self._kill_at: Final = kill_at
        self._folders: Final = folders
        """One on each path."""

    def play(self, role: str) -> dict[str, int]:
        """Serve in a child; returns its figures, none for the killed one."""
        sys.stdout.flush()
        sys.stderr.flush()
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            code = 1
            try:
                os.write(writing, json.dumps(self._serve(role)).encode())
                code = 0
            except PlanError as error:
                os.write(writing, json.dumps({"error": str(error)}).encode())
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(writing)
        with open(reading, "rb") as file:
            data = file.read()
        status = os.waitpid(child, 0)[1]
        figures: dict[str, Any] = json.loads(data) if len(data) > 0 else {}
        if "error" in figures:
            raise PlanError(figures["error"])
        if role == _KILLED:
            if not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL):
                raise PlanError(f"--kill-at {self._kill_at}: all requests were served before so many were done; see --max-running")
        elif status != 0:
            raise PlanError(f"the {role} process ended with status {status} and without figures; what it says is above")
        return figures

    # -- in the child -------------------------------------------------------------------------------------------------

    def _serve(self, role: str) -> dict[str, int]:
        plan = self._plan
        last = len(plan.lower_tiers) - 1
        paths = [os.path.join(folder, "unkilled" if role == _UNKILLED else "killed") for folder in self._folders]
        for path in paths:
            os.makedirs(path, exist_ok=True)
        tier = replace(plan.lower_tiers[last], path=paths[0], more_paths=tuple(paths[1:]))
        plan = replace(plan, lower_tiers=(*plan.lower_tiers[:last], tier))
        device = plan.make_device()
        try:
            try:
                config = plan.manager_config(device)
                manager = KVCacheManager(config, device=device)
            except (ValueError, LogicError, OutOfMemoryError, StorageIOError) as error:
                raise PlanError(str(error)) from error
            with manager:
                return self._serve_on(role, manager, config, device)
        finally:
            device.close()

    def _serve_on(self, role: str, manager: KVCacheManager, config: KVCacheManagerConfig, device: Device) -> dict[str, int]:
        mode = PageIndexMode.PER_LAYER if self._plan.scratch else PageIndexMode.SHARED
        engine = FakeEngine(config, device, raise_on_mismatch=False, index_mode=mode) if self._plan.verify else None
        later = _without_earlier(self._requests[self._kill_at :])
        if role == _KILLED:
            tally = self._run(manager, engine, self._requests, self._kill_at)
        elif role == _UNKILLED:
            self._run(manager, engine, self._requests[: self._kill_at], _NEVER)
            tally = self._run(manager, engine, later, _NEVER)
        else:
            tally = self._run(manager, engine, later, _NEVER)
        mismatches = 0
        if engine is not None:
            synchronize_past_failures(engine)
            mismatches = engine.mismatches
            engine.close()
        return {"prompt_tokens": tally.num_prompt_tokens, "hit_tokens": tally.num_hit_tokens, "mismatches": mismatches}

    def _run(self, manager: KVCacheManager, engine: FakeEngine | None, requests: list[Request], kill_at: int) -> Tally:
        calls = TimedCalls(manager, CallRecorder())
        scheduler = Scheduler(calls, WaitingQueue(iter(requests)), self._plan.limits, engine, self._plan.decoding)
        try:
            while scheduler.step():
                if kill_at != _NEVER and scheduler.tally.num_requests_done >= kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
        finally:
            scheduler.close()
        return scheduler.tally


def _without_earlier(requests: list[Request]) -> list[Request]:
    """The requests, of which none waits for one that is not among them."""
    known: set[int] = set()
    result: list[Request] = []
    for request in requests:
        known.add(request.id)
        if request.after is not None and request.after not in known:
            request = Request(request.id, request.arrival_ms, request.segment_codes, request.segment_lengths, request.num_output_tokens)
        result.append(request)
    return result
