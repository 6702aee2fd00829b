"""One history: a manager on a simulated device, a fake engine that checks bytes, the model that checks decisions.

`perform` does one action and then checks everything that can be checked. Whatever is wrong raises, each in its own way:
`RaceError` (bytes touched out of order), `KVMismatch` (wrong bytes), `CorruptedError` (the books), `ModelDisagreement` (a decision
that the rules do not allow), `EventMismatch` (what those outside are told), or an error of the library where there must be none.
"""

import hashlib
import warnings
from random import Random
from typing import Any, Final, final

import numpy as np
from mypy_extensions import mypyc_attr

from ...base.errors import CorruptedError, LogicError, StorageIOError
from ...base.ids import TokenIdExt
from ...events.event_manager import KVCacheEventManager
from ...manager.kv_cache_manager import KVCacheManager
from ..event_follower import EventFollower
from ..fake_engine import FakeEngine
from ..reference_model import ReferenceModel
from ..reference_pages import ModelDisagreement
from ..simulated_device import SimulatedDevice
from ..step_batch import Step
from . import failures
from .beams import change_beams, commit_of_beams
from .commits import commit_batch, commit_some
from .draft_trees import grow_tree, may_grow_tree
from .forks import fork_sequence
from .hints import draw_scope, give_hint
from .level_changes import change_level, prefetch
from .lost_sequences import LostSequences
from .misuse import misuse_manager, misuse_sequence
from .open_leases import OpenLeases
from .planned_drops import PlannedDrops
from .pool_group_map import find_pool_groups
from .room_judge import RoomJudge, count_slots
from .scenario import Action, Scenario
from .scope_invalidation import invalidate_scope
from .simulated_sequence import SimulatedSequence
from .snapshot_judge import draw_positions
from .state_checks import check_prompt, check_state, require_unchanged
from .text_source import TextSource, draw_token_container

@final
@mypyc_attr(native_class=True)
class SimulatedRun:
    """Performs actions; `finish` ends the history and checks that nothing is left over."""

    __slots__ = (
        "device", "manager", "_scenario", "_engine", "_model", "_judge", "_pool_group_of", "_streams", "_texts",
        "_sequences", "_lost", "_drops", "_leases", "_next_name", "_digest", "_follower", "num_performed", "num_refused", "is_broken",
    )  # fmt: skip

    device: Final[SimulatedDevice]
    manager: Final[KVCacheManager]
    num_performed: int
    """Actions that found something to do."""
    num_refused: int
    """Calls that found no room."""
    is_broken: bool
    """The device failed where nothing can be undone: nothing more is performed."""
    _scenario: Final[Scenario]
    _engine: Final[FakeEngine]
    _model: Final[ReferenceModel]
    _judge: Final[RoomJudge]
    _pool_group_of: Final[list[int]]
    _streams: Final[list[int]]
    _texts: Final[TextSource]
    _sequences: Final[list[SimulatedSequence]]
    _lost: Final[LostSequences]
    _drops: Final[PlannedDrops]
    _leases: Final[OpenLeases]
    _next_name: int
    _follower: Final[EventFollower]

    def __init__(self, scenario: Scenario) -> None:
        config = scenario.config
        self._scenario = scenario
        self.device = scenario.make_device()
        events = KVCacheEventManager(scenario.max_event_entries)
        self.manager = KVCacheManager(config, device=self.device, event_manager=events)
        self._follower = EventFollower(events)
        self._engine = FakeEngine(config, self.device)
        self._model = ReferenceModel(config, self.manager.layer_grouping)
        statistics = self.manager.get_storage_statistics()
        slot_sizes = [counts.slot_sizes for counts in statistics]
        self._pool_group_of = find_pool_groups(config, self.manager.layer_grouping, slot_sizes)
        num_slots, num_all_slots = count_slots(self.manager)
        self._judge = RoomJudge(self._model, self._pool_group_of, num_slots, num_all_slots, config.max_util_for_resume)
        self._streams = [self.device.default_stream()]
        while len(self._streams) < scenario.num_streams:
            self._streams.append(self.device.create_stream())
        self._texts = TextSource(scenario.vocabulary, scenario.digest_share, scenario.max_kept_texts, scenario.max_cut)
        self._sequences = []
        self._lost = LostSequences(self.manager, self._model)
        self._drops = PlannedDrops()
        self._leases = OpenLeases(self.manager, self._model, self._streams)
        self._next_name = 0
        self._digest: Final = hashlib.sha256()
        self.num_performed = 0
        self.num_refused = 0
        self.is_broken = False

    @property
    def digest(self) -> str:
        """Of all pictures so far: equal for equal decisions."""
        return self._digest.hexdigest()[:16]

    # -- one action ---------------------------------------------------------------------------------------------------

    def perform(self, action: Action) -> None:
        """Do it, if there is anything that it can be done to, and check everything."""
        if self.is_broken:
            return
        num_performed = self.num_performed
        if self._scenario.fault_share == 0.0:
            self._perform(action.kind, Random(action.number))
        else:
            self._perform_with_faults(action)
        if self.num_performed > num_performed and not self.is_broken:
            self._check()

    def _perform_with_faults(self, action: Action) -> None:
        """What a failure prevents has not happened; sequences that lost pages to it can only be closed."""
        faults = self.device.faults
        self._lost.close_some(Random(action.number + 3))
        failures.plan_fault(self.device, action, self._scenario.fault_share, self._scenario.spares_writes)
        num_fired = faults.num_fired
        self._judge.excuses_refusals = self._judge.excuses_refusals or faults.num_pending > 0
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
        self.is_broken = not failures.settle_failures(self.device, self.manager)
        if self.is_broken:
            return
        self._model.note_failure()
        self._lost.take_from(self._sequences, Random(action.number + 2))

    def _perform(self, kind: str, random: Random) -> None:
        if kind == "create":
            self._create(random)
        elif kind == "hint":
            self.num_performed += 1
            if give_hint(self.manager, self._texts.draw_text(random, self._scenario.max_tokens), random):
                self._model.make_room()
            self._drops.carry_one_out(self.manager, self._model, random)
        elif kind == "resize_level":
            self.num_performed += 1
            change_level(self.manager, self._scenario.config, self._model, self._judge, random)
        elif kind == "settle":
            self.num_performed += 1
            self._leases.settle_one(random)
        elif kind == "clear":
            self._clear(random)
        elif kind == "synchronize":
            self._engine.synchronize()
        elif kind == "step_batch":
            self._step_batch(random)
        elif kind == "misuse" and random.random() < 0.3:
            self.num_performed += 1
            misuse_manager(self.manager, random)
        elif not self._perform_on_sequence(kind, random) and not self._perform_on_sequence("step", random):
            self._perform_on_sequence("resume", random)

    def _perform_on_sequence(self, kind: str, random: Random) -> bool:
        """False if there is no sequence that it could be done to."""
        wants_suspended = kind in ("resume", "prefetch")
        wants_active = kind in ("step", "commit", "rewind", "move_history", "suspend", "lend")
        candidates = [
            sequence
            for sequence in self._sequences
            if not (wants_suspended if sequence.model.is_active else wants_active)
        ]
        if not candidates:
            return False
        sequence = random.choice(candidates)
        if kind == "close" and sequence.num_unfinished > 0 and random.random() < 0.7:
            return False
        self.num_performed += 1
        if kind == "resume":
            self._resume(sequence, random)
        elif kind == "prefetch":
            prefetch(self.manager, self._scenario.config, self._model, sequence, random)
        elif kind == "step":
            self._step(sequence, random)
        elif kind == "commit":
            self._commit(sequence, random)
        elif kind == "rewind":
            self._rewind(sequence, random)
        elif kind == "move_history":
            self._move_history(sequence, random)
        elif kind == "suspend":
            sequence.handle.suspend()
            self._model.suspend(sequence.model)
        elif kind == "stop_committing":
            sequence.handle.stop_committing()
            self._model.stop_committing(sequence.model, self.manager.describe())
            self._note_early_copies()
            self._drops.plan(sequence.handle, random)
        elif kind == "close":
            self._close(sequence)
        elif kind == "abandon":
            self._abandon(sequence)
        elif kind == "fork":
            self._fork(sequence)
        elif kind == "lend":
            if len(sequence.other_texts) == 0:
                self._leases.lend(sequence, random)
        elif kind == "beams":
            self.num_refused += not change_beams(self.manager, self._model, self._judge, sequence, random)
        elif kind == "toggle_scratch":
            self._toggle_scratch(sequence)
        elif kind == "change_stream":
            # Through Any, as a user's code does: mypyc passes an int wrongly to a setter that is declared wider.
            handle: Any = sequence.handle
            handle.cuda_stream = random.choice(self._streams)
        elif kind == "give_buffer":
            self._give_buffer(sequence, random)
        else:
            misuse_sequence(self.manager, sequence, random)
        return True

    # -- sequences come and go ----------------------------------------------------------------------------------------

    def _create(self, random: Random) -> None:
        if len(self._sequences) >= self._scenario.max_sequences:
            return
        self.num_performed += 1
        scope = draw_scope(random)
        text = self._texts.draw_text(random, self._scenario.max_tokens)
        tokens = draw_token_container(random, text)
        probed = self.manager.probe_reuse(scope, tokens)
        name = self._next_name
        self._next_name += 1
        positions = draw_positions(random, self._model.state.group >= 0, self._scenario.max_tokens)
        handle = self.manager.create_kv_cache(scope, tokens, name, snapshot_positions=positions)
        num_matched = handle.num_committed_tokens
        state_tokens = handle.match_info.state_tokens
        check_prompt(handle, len(text))
        if probed != num_matched:
            raise ModelDisagreement(f"probe_reuse said {probed} tokens, create_kv_cache matched {num_matched}")
        model = self._model.create(name, (scope.lora_id, scope.salt), text, num_matched, self.manager.describe(), state_tokens)
        to_compute = list(text[num_matched:])
        max_committed = len(text) if random.random() < 0.4 else self._scenario.max_tokens * 1000
        sequence = SimulatedSequence(name, handle, model, list(text[:num_matched]), to_compute, max_committed)
        sequence.state_tokens = state_tokens
        sequence.prompt_length = len(text)
        sequence.snapshot_positions = positions
        self._sequences.append(sequence)
        if random.random() < 0.6:
            self._resume(sequence, random)

    def _resume(self, sequence: SimulatedSequence, random: Random) -> None:
        is_overused = self._judge.is_overused()
        need = self._model.slots_of_beams_to_resume(sequence.model)
        stream = random.choice(self._streams) if random.random() < 0.9 else None
        waits = random.random() < 0.6
        passed = sequence.handle.resume(stream, waits)
        if is_overused and passed:
            raise ModelDisagreement(f"sequence {sequence.name} was resumed beyond max_util_for_resume")
        if not is_overused:
            self._judge.judge(f"resume of sequence {sequence.name}", need, passed)
        if passed:
            had_state = sequence.model.has_state
            self._model.resume(sequence.model, self.manager.describe())
            for _poll in range(0 if waits else int(random.random() * 4)):
                if failures.is_ready(sequence.handle):
                    break
            if sequence.model.has_state and not had_state and sequence.state_tokens < len(sequence.text):
                # Of these tokens only attention was found: the recurrent layers run them again.
                if waits or failures.await_ready(sequence.handle):
                    self._engine.replay_states(sequence.handle, list(sequence.text), sequence.state_tokens)
        else:
            self.num_refused += 1

    def _close(self, sequence: SimulatedSequence) -> None:
        sequence.handle.close()
        self._model.close(sequence.model)
        self._note_early_copies()
        self._sequences.remove(sequence)

    def _note_early_copies(self) -> None:
        """Calls that publish make room for copies of that on the level below."""
        if self._scenario.config.write_policy == "through":
            self._model.make_room()

    def _fork(self, sequence: SimulatedSequence) -> None:
        if len(self._sequences) >= self._scenario.max_sequences:
            return
        child, is_refused = fork_sequence(self._model, self._judge, sequence, self._next_name)
        self.num_refused += is_refused
        if child is not None:
            self._next_name += 1
            self._sequences.append(child)

    def _abandon(self, sequence: SimulatedSequence) -> None:
        """The user forgets the sequence; the next call on the manager closes it."""
        self._model.abandon(sequence.model)
        self._note_early_copies()
        self._sequences.remove(sequence)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            sequence.forget_handle()
        self.manager.probe_reuse()

    def _clear(self, random: Random) -> None:
        """Mostly after everything was closed: slots that many streams have read are then soon written again."""
        self.num_performed += 1
        if random.random() < 0.7:
            self._lost.close_all()
            while self._sequences:
                self._close(self._sequences[-1])
                self._check()
        try:
            self.manager.clear_reusable_blocks()
        except LogicError:
            if not self._sequences and not self._lost.sequences and len(self._leases) == 0:
                raise
            invalidate_scope(self.manager, self._model, draw_scope(random))
            return
        self._model.clear()

    # -- steps --------------------------------------------------------------------------------------------------------

    def _draw_step(self, sequence: SimulatedSequence, random: Random) -> tuple[int, int, int]:
        """(input tokens, capacity, history length) of a step: a chunk of the prompt, or a few generated tokens."""
        size = self._scenario.config.tokens_per_block
        num_tokens = 1 if random.random() < 0.2 else 1 + int(random.random() * 3 * size)
        if sequence.to_compute:
            left = len(sequence.to_compute)
            num_tokens = min(num_tokens, left) if random.random() < 0.5 else left
        else:
            num_tokens = min(num_tokens, 12 if self._scenario.grows_trees else 4)
        written = len(sequence.text)
        model = sequence.model
        scratch_reuse = self._scenario.config.swa_scratch_reuse
        if scratch_reuse is None or not model.uses_scratch:
            capacity = written + num_tokens
            if random.random() < 0.2:
                capacity += int(random.random() * 2 * size)
            history = written if random.random() < 0.8 else model.history
            least_capacity = max(model.capacity if random.random() < 0.5 else 0, self._least_state_capacity(sequence))
            return num_tokens, max(capacity, least_capacity), history
        # The step's inputs begin at its history, and nearly all that there is room for must be computed.
        history = written
        if random.random() < 0.2:
            low = min(self._least_history(sequence), written)
            history = low + int(random.random() * (written - low + 1))
        capacity = history + num_tokens + int(random.random() * (scratch_reuse.max_rewind_len + 1))
        return num_tokens, max(capacity, self._least_state_capacity(sequence)), history

    def _least_state_capacity(self, sequence: SimulatedSequence) -> int:
        """Room that cannot be taken back: the recurrent state may have gone so far."""
        if self._model.state.group < 0:
            return 0
        return sequence.model.peak_capacity - self._scenario.config.state_checkpoints

    def _least_history(self, sequence: SimulatedSequence) -> int:
        """How far tokens may be taken back."""
        least = max(sequence.model.history, len(sequence.model.committed))
        if self._model.state.group >= 0:
            least = max(least, self._least_state_capacity(sequence))
        scratch_reuse = self._scenario.config.swa_scratch_reuse
        if scratch_reuse is None or not sequence.model.uses_scratch:
            return least
        return max(least, sequence.model.capacity - scratch_reuse.max_rewind_len)

    def _step(self, sequence: SimulatedSequence, random: Random) -> None:
        num_tokens, capacity, history = self._draw_step(sequence, random)
        if not self._fits_buffers(sequence, capacity, history):
            return
        needs = self._model.slots_of_beams_to_resize(sequence.model, capacity, history)
        passed = sequence.handle.resize(capacity, history)
        self._judge.judge_turns(f"resize of sequence {sequence.name} to ({capacity}, {history})", needs, passed)
        if not passed:
            self.num_refused += 1
            return
        self._model.resize(sequence.model, capacity, history, self.manager.describe())
        if self._scenario.grows_trees and may_grow_tree(sequence, num_tokens):
            grow_tree(self.manager, self._engine, self._model, self._texts, sequence, num_tokens, random)
            self._note_early_copies()
            return
        self._run_kernels([sequence], [num_tokens], random)
        if random.random() < self._scenario.commits_at_once:
            self._commit(sequence, random)

    def _step_batch(self, random: Random) -> None:
        """What an engine does: room for all with one call, then one launch for those that got it."""
        active = [sequence for sequence in self._sequences if sequence.model.is_active]
        batch = random.sample(active, int(random.random() * (len(active) + 1)))
        if not batch:
            return
        draws = [self._draw_step(sequence, random) for sequence in batch]
        if self._scenario.fault_share > 0.0:
            draws = failures.change_all(batch, draws)
        for sequence, draw in zip(batch, draws):
            if not sequence.fits_buffers(-(-draw[1] // self._scenario.config.tokens_per_block)):
                return
        self.num_performed += 1
        capacities, histories = [draw[1] for draw in draws], [draw[2] for draw in draws]
        failure: Exception | None = None
        try:
            count = self.manager.resize_batch([sequence.handle for sequence in batch], capacities, histories)
        except failures.FAILURES as error:
            if self.device.faults.num_fired == 0:
                raise
            failure = error
            count = failures.count_resized([sequence.handle for sequence in batch], capacities, histories)
        picture = self.manager.describe()
        for position in range(count if failure is not None else min(count + 1, len(batch))):
            sequence = batch[position]
            _num_tokens, capacity, history = draws[position]
            needs = self._model.slots_of_beams_to_resize(sequence.model, capacity, history)
            call = f"resize_batch, sequence {sequence.name} to ({capacity}, {history})"
            self._judge.judge_turns(call, needs, position < count)
            if position < count:
                self._model.resize(sequence.model, capacity, history, picture)
            else:
                self.num_refused += 1
        if count > 0:
            self._run_kernels(batch[:count], [draw[0] for draw in draws[:count]], random)
            if random.random() < 0.3:
                commit_batch(self.manager, self._model, self._texts, batch[:count], random)
        if failure is not None:
            raise failure

    def _run_kernels(self, sequences: list[SimulatedSequence], num_tokens: list[int], random: Random) -> None:
        steps: list[Step] = []
        for sequence, count in zip(sequences, num_tokens):
            if sequence.model.uses_scratch:
                sequence.take_back(sequence.model.history, random.random() < 0.5)
            inputs = sequence.to_compute[:count]
            del sequence.to_compute[:count]
            while len(inputs) < count:
                inputs.append(self._texts.draw_token(random))
            steps.append(self._make_step(sequence, inputs, random))
            sequence.num_computed = max(sequence.num_computed, len(sequence.text))
        self._engine.execute(steps)

    def _make_step(self, sequence: SimulatedSequence, inputs: list[TokenIdExt], random: Random) -> Step:
        """Of further beams each has the same inputs, or others."""
        if len(sequence.other_texts) == 0:
            step = Step(sequence.handle, inputs, list(sequence.text))
            sequence.text.extend(inputs)
            return step
        texts = [sequence.text, *sequence.other_texts]
        inputs_of_beams = [inputs]
        while len(inputs_of_beams) < len(texts):
            is_same = random.random() < 0.3
            inputs_of_beams.append(list(inputs) if is_same else [self._texts.draw_token(random) for _token in inputs])
        step = Step(sequence.handle, inputs_of_beams, [list(text) for text in texts])
        for text, more in zip(texts, inputs_of_beams):
            text.extend(more)
        return step

    def _commit(self, sequence: SimulatedSequence, random: Random) -> None:
        if not sequence.model.is_committing or sequence.num_uncommitted <= 0:
            return
        commit = commit_of_beams if len(sequence.other_texts) > 0 else commit_some
        commit(self.manager, self._scenario.config, self._model, self._judge, self._texts, sequence, random)
        self._note_early_copies()

    def _rewind(self, sequence: SimulatedSequence, random: Random) -> None:
        """Draft tokens are taken back: the capacity shrinks, or merely what was asked for too much."""
        low = self._least_history(sequence)
        if not sequence.model.uses_scratch:
            capacity = low + int(random.random() * (sequence.model.capacity - low + 1))
            history = sequence.model.history
        elif low > len(sequence.text):
            return  # the recurrent state cannot be rewound so far
        else:
            capacity = low + int(random.random() * (len(sequence.text) - low + 1))
            history = capacity
        if self._resize_only(sequence, capacity, history):
            sequence.take_back(capacity, random.random() < 0.5)

    def _move_history(self, sequence: SimulatedSequence, random: Random) -> None:
        low, high = sequence.model.history, len(sequence.text)
        self._resize_only(sequence, sequence.model.capacity, low + int(random.random() * (high - low + 1)))

    def _resize_only(self, sequence: SimulatedSequence, capacity: int, history: int) -> bool:
        if not self._fits_buffers(sequence, capacity, history):
            return False
        needs = self._model.slots_of_beams_to_resize(sequence.model, capacity, history)
        passed = sequence.handle.resize(capacity, history)
        self._judge.judge_turns(f"resize of sequence {sequence.name} to ({capacity}, {history})", needs, passed)
        if passed:
            self._model.resize(sequence.model, capacity, history, self.manager.describe())
        return passed

    def _toggle_scratch(self, sequence: SimulatedSequence) -> None:
        """Where it would make a difference to the present step, or cannot be, it is refused."""
        if len(sequence.other_texts) > 0:
            return
        wanted = not sequence.model.uses_scratch
        scratch_reuse = self._scenario.config.swa_scratch_reuse
        if wanted and scratch_reuse is not None and sequence.model.capacity - scratch_reuse.max_rewind_len > len(sequence.text):
            return  # the next step could not begin at the end of the text
        is_possible = scratch_reuse is not None and self._model.may_toggle_scratch(sequence.model)
        picture = self.manager.describe()
        try:
            sequence.handle.enable_swa_scratch_reuse = wanted
        except ValueError:
            if is_possible:
                raise
            require_unchanged(picture, self.manager.describe())
            return
        if not is_possible:
            raise ModelDisagreement(f"scratch reuse of sequence {sequence.name} was switched in the middle of a step")
        sequence.model.uses_scratch = wanted

    # -- the user's index buffers -------------------------------------------------------------------------------------

    def _fits_buffers(self, sequence: SimulatedSequence, capacity: int, history: int) -> bool:
        """Whether the user's buffers are long enough; if not, that the call is refused as the user's mistake."""
        if sequence.fits_buffers(-(-capacity // self._scenario.config.tokens_per_block)):
            return True
        picture = self.manager.describe()
        try:
            sequence.handle.resize(capacity, history)
        except ValueError:
            require_unchanged(picture, self.manager.describe())
            return False
        raise ModelDisagreement(f"sequence {sequence.name} grew beyond the user's index buffer")

    def _give_buffer(self, sequence: SimulatedSequence, random: Random) -> None:
        group = int(random.random() * len(self._model.rules))
        if random.random() < 0.3:
            sequence.handle.set_base_page_index_buf(0, group, None)
            sequence.buffers.pop(group, None)
            return
        num_blocks = self._model.num_blocks(sequence.model)
        buffer = np.full(num_blocks + int(random.random() * 8), 12345, dtype=np.int32)
        sequence.handle.set_base_page_index_buf(0, group, buffer.data)
        sequence.buffers[group] = buffer

    # -- checks and the end -------------------------------------------------------------------------------------------

    def _check(self) -> None:
        self.manager.check_invariants()
        picture = self.manager.describe()
        self._digest.update(failures.decisions_in(picture))
        self._model.see(picture)
        check_state(self.manager, self._model, self._judge, self._sequences, self._pool_group_of)
        if self.num_performed % self._scenario.steps_per_event_check == 0:
            self._follower.check(picture)
        if self.device.races:
            raise self.device.races[0]

    def finish(self) -> None:
        if self.is_broken:
            self._finish_broken()
            return
        self.device.faults.clear()
        self._lost.close_all()
        while self._sequences:
            self._close(self._sequences[-1])
            self._check()
        self._leases.settle_all()
        self._engine.close()
        self.manager.clear_reusable_blocks()
        self._model.clear()
        self._check()
        for level in range(len(self._scenario.config.cache_tiers)):
            for counts in self.manager.get_storage_statistics(level):
                if counts.free != counts.total:
                    raise ModelDisagreement(
                        f"{counts.total - counts.free} slots of level {level} are not free after everything was closed"
                    )
        self.manager.shutdown()
        self._close_device()

    def _finish_broken(self) -> None:
        """Memory comes back all the same."""
        for sequence in [*self._sequences, *self._lost.sequences]:
            failures.require_broken(sequence.handle, self.manager)
        self.device.faults.clear()
        self._engine.close()
        self.manager.shutdown()
        self._close_device()

    def _close_device(self) -> None:
        for stream in self._streams[1:]:
            self.device.destroy_stream(stream)
        if self.device.num_open_events > 0 or self.device.num_open_streams > 0:
            raise ModelDisagreement(
                f"{self.device.num_open_events} events and {self.device.num_open_streams} streams were not given back"
            )
        self.device.close()
