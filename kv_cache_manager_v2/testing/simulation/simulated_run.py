"""One history: a manager on a simulated device, a fake engine that checks bytes, the model that checks decisions.

`perform` does one action and then checks everything that can be checked. Each kind of error has its own exception:
`RaceError` (bytes touched out of order), `KVMismatch` (wrong bytes), `CorruptedError` (invariants), `ModelDisagreement` (a decision
that the rules do not allow), `EventMismatch` (wrong events), or an error of the library where there must be none.
"""

from random import Random
from typing import Any, Final, final


from ...base.errors import CorruptedError, StorageIOError
from ...device.port import Device
from ...manager.kv_cache_manager import KVCacheManager
from ..reference_pages import ModelDisagreement
from ..simulated_device import SimulatedDevice
from . import failures
from .beams import change_beams
from .decode_steps import decode
from .hints import give_hint
from .level_changes import change_level, prefetch
from .misuse import misuse_copies, misuse_manager, misuse_sequence
from .missed_lists import miss_list
from .residency import change_residency, end_required, is_refused_by_window
from .room_changes import give_buffer, move_history, rewind, toggle_scratch
from .run_state import RunState
from .scenario import Action, Scenario
from .sequence_lifetimes import abandon, clear, close, create, fork, resume, stop_committing
from .shared_steps import share_step
from .steps import commit, step, step_batch


@final
class SimulatedRun:
    """Performs actions; `finish` ends the history and checks that nothing is left over.

    ``device``: replaces the scenario's simulated one, for scenarios that plan no failure; `finish` closes it.
    """

    __slots__ = ("is_broken", "_state")

    def __init__(self, scenario: Scenario, device: Device | None = None) -> None:
        self._state: Final = RunState(scenario, device)
        self.is_broken = False
        """The device failed where a change cannot be undone: no more actions are performed."""

    @property
    def device(self) -> SimulatedDevice:
        simulated = self._state.simulated
        assert simulated is not None, "this run is on a device of its own"
        return simulated

    @property
    def manager(self) -> KVCacheManager:
        return self._state.manager

    @property
    def num_performed(self) -> int:
        """Actions that had something to act on."""
        return self._state.num_performed

    @property
    def num_refused(self) -> int:
        """Calls refused for lack of slots."""
        return self._state.num_refused

    @property
    def num_decode_steps(self) -> int:
        """Steps of a `DecodeBatch`."""
        return self._state.num_decode_steps

    @property
    def num_input_commits(self) -> int:
        """Calls of `commit_input` with tokens."""
        return self._state.num_input_commits

    @property
    def num_planned_tokens(self) -> int:
        """Tokens that were matched before they were computed."""
        return self._state.num_planned_tokens

    @property
    def digest(self) -> str:
        """The digest of all state dumps so far: equal for equal decisions."""
        return self._state.digest

    def perform(self, action: Action) -> None:
        """Perform the action, if there is something to act on, and check everything."""
        run = self._state
        if self.is_broken:
            return
        num_performed = run.num_performed
        if run.scenario.fault_share == 0.0:
            self._perform(action.kind, Random(action.number))
        else:
            self._perform_with_faults(action)
        if run.num_performed > num_performed and not self.is_broken:
            run.check()

    def _perform_with_faults(self, action: Action) -> None:
        """Perform with failures: an action that fails has not happened; sequences that lost pages can only be closed."""
        run = self._state
        device = self.device
        faults = device.faults
        try:
            run.lost.end_some(run.sequences, Random(action.number + 3))
        except failures.FAILURES as error:
            self._require_broken_by(error)
            return
        failures.plan_fault(device, action, run.scenario.fault_share, run.scenario.spares_writes)
        num_fired = faults.num_fired
        run.judge.excuses_refusals = run.judge.excuses_refusals or faults.num_pending > 0
        try:
            self._perform(action.kind, Random(action.number))
        except StorageIOError:
            if faults.num_fired == 0:
                raise
        except (*failures.FAILURES, CorruptedError):
            if faults.num_fired == num_fired:
                raise
        else:
            if faults.num_fired == num_fired:
                return
        self.is_broken = not failures.settle_failures(device, run.manager)
        if self.is_broken:
            return
        run.model.record_failure()
        end_required(run)
        try:
            run.lost.take_from(run.sequences, Random(action.number + 2))
        except failures.FAILURES as error:
            self._require_broken_by(error)

    def _require_broken_by(self, error: Exception) -> None:
        """Suspending or closing a lost sequence may be the call that a planned fault hits. Both pass, unless the host cannot wait."""
        self.is_broken = not failures.settle_failures(self.device, self._state.manager)
        if not self.is_broken:
            raise error

    def _perform(self, kind: str, random: Random) -> None:
        run = self._state
        if kind == "create":
            created = create(run, random)
            for sequence in created if len(created) > 1 else []:
                run.check()
                if sequence.model.is_active:
                    step(run, sequence, random)
        elif kind == "share_step":
            share_step(run, random)
        elif kind == "hint":
            run.num_performed += 1
            if give_hint(run.manager, run.texts.draw_text(random, run.scenario.max_tokens), random):
                run.model.make_room()
            run.drops.carry_one_out(run.manager, run.model, random)
        elif kind == "resize_level":
            run.num_performed += 1
            change_level(run.manager, run.scenario.config, run.model, run.judge, random, run.scenario.is_large)
        elif kind == "settle":
            run.num_performed += 1
            run.leases.settle_one(random)
        elif kind == "clear":
            clear(run, random)
        elif kind == "miss_list":
            miss_list(run, random)
        elif kind == "synchronize":
            run.engine.synchronize()
        elif kind == "step_batch":
            step_batch(run, random)
        elif kind == "decode":
            decode(run, random)
        elif kind == "misuse" and random.random() < 0.3:
            run.num_performed += 1
            misuse_manager(run.manager, random)
        elif not self._perform_on_sequence(kind, random) and not self._perform_on_sequence("step", random):
            self._perform_on_sequence("resume", random)

    def _perform_on_sequence(self, kind: str, random: Random) -> bool:
        """Perform on a drawn sequence; False if there is none to act on."""
        run = self._state
        wants_suspended = kind in ("resume", "prefetch")
        wants_active = kind in ("step", "commit", "rewind", "move_history", "suspend", "lend")
        candidates = [sequence for sequence in run.sequences if not (wants_suspended if sequence.model.is_active else wants_active)]
        if not candidates:
            return False
        sequence = random.choice(candidates)
        if kind == "close" and sequence.num_unfinished > 0 and random.random() < 0.7:
            return False
        run.num_performed += 1
        sequence.has_shared = sequence.has_shared or kind in ("lend", "beams")
        if is_refused_by_window(sequence, kind):
            return True
        if kind == "resume":
            resume(run, sequence, random)
        elif kind == "prefetch":
            prefetch(run.manager, run.scenario.config, run.model, sequence, random)
        elif kind == "step":
            step(run, sequence, random)
        elif kind == "commit":
            commit(run, sequence, random)
        elif kind == "rewind":
            rewind(run, sequence, random)
        elif kind == "move_history":
            move_history(run, sequence, random)
        elif kind == "suspend":
            sequence.handle.suspend()
            run.model.suspend(sequence.model)
        elif kind == "stop_committing":
            stop_committing(run, sequence, random)
        elif kind == "close":
            close(run, sequence)
        elif kind == "abandon":
            abandon(run, sequence)
        elif kind == "fork":
            fork(run, sequence)
        elif kind == "residency":
            change_residency(run, sequence, random)
        elif kind == "lend":
            if len(sequence.other_texts) == 0:
                run.leases.lend(sequence, random)
        elif kind == "beams":
            run.num_refused += not change_beams(run.manager, run.model, run.judge, sequence, random)
        elif kind == "toggle_scratch":
            toggle_scratch(run, sequence)
        elif kind == "change_stream":
            # Through Any, as a user's code does: mypyc passes an int wrongly to a setter that is declared wider.
            handle: Any = sequence.handle
            handle.cuda_stream = random.choice(run.streams)
        elif kind == "copying":
            misuse_copies(run.manager, sequence, random)
        elif kind == "give_buffer":
            give_buffer(run, sequence, random)
        else:
            sequence.given_end = -1
            misuse_sequence(run.manager, sequence, random)
        return True

    def finish(self) -> None:
        run = self._state
        if self.is_broken:
            self._finish_broken()
            return
        if run.simulated is not None:
            run.simulated.faults.clear()
        run.lost.close_all()
        while run.sequences:
            close(run, run.sequences[-1])
            run.check()
        run.leases.settle_all()
        run.engine.close()
        run.manager.clear_reusable_blocks()
        run.model.end_epoch(None)
        run.check()
        for level in range(len(run.scenario.config.cache_tiers)):
            for counts in run.manager.get_storage_statistics(level):
                if counts.free != counts.total:
                    raise ModelDisagreement(f"{counts.total - counts.free} slots of level {level} are not free after everything was closed")
        run.manager.shutdown()
        self._close_device()

    def _finish_broken(self) -> None:
        """Finish after the manager broke: its memory must be freed all the same."""
        run = self._state
        for sequence in [*run.sequences, *run.lost.sequences]:
            failures.require_broken(sequence.handle, run.manager)
        self.device.faults.clear()
        run.engine.close()
        run.manager.shutdown()
        self._close_device()

    def _close_device(self) -> None:
        run = self._state
        for stream in run.streams[1:]:
            run.device.destroy_stream(stream)
        simulated = run.simulated
        if simulated is not None and (simulated.num_open_events > 0 or simulated.num_open_streams > 0):
            raise ModelDisagreement(f"{simulated.num_open_events} events and {simulated.num_open_streams} streams were not released")
        run.device.close()
