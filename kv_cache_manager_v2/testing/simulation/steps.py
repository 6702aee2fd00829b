"""Step actions: slots for the inputs, a launch, a commit of some of them."""

from random import Random

from ...base.ids import TokenIdExt
from ..step_batch import Step
from . import failures
from .beams import commit_of_beams
from .commits import commit_batch, commit_some
from .draft_trees import grow_tree, may_grow_tree
from .refusal_questions import ask_before_batch, ask_before_resize, judge_answer, judge_answer_of_batch
from .residency import require_all
from .room_changes import fits_buffers, least_history, least_state_capacity
from .run_state import RunState
from .simulated_sequence import SimulatedSequence
from .state_checks import note_indices, require_indices_stay


def step(run: RunState, sequence: SimulatedSequence, random: Random) -> None:
    num_tokens, capacity, history = _draw_step(run, sequence, random)
    if not fits_buffers(run, sequence, capacity, history):
        return
    needs = run.model.slots_of_beams_to_resize(sequence.model, capacity, history)
    question = ask_before_resize(run, sequence, capacity, history)
    before = note_indices(run.model, sequence)
    passed = sequence.handle.resize(capacity, history)
    require_indices_stay("resize", sequence, before)
    judge_answer(run, question, passed)
    required = sequence.model.required
    sequence.model.required = set()
    run.judge.judge_turns(f"resize of sequence {sequence.name} to ({capacity}, {history})", needs, passed)
    if not passed:
        sequence.model.required = required
        run.num_refused += 1
        return
    run.model.resize(sequence.model, capacity, history, run.manager.describe())
    if run.scenario.grows_trees and len(sequence.model.residency) == 0 and may_grow_tree(sequence, num_tokens):
        grow_tree(run.manager, run.engine, run.model, run.texts, sequence, num_tokens, random)
        run.record_early_copies()
        return
    run_kernels(run, [sequence], [num_tokens], random)
    if random.random() < run.scenario.commits_at_once:
        commit(run, sequence, random)


def step_batch(run: RunState, random: Random) -> None:
    """Like an engine's step: resize all with one call, then launch those that were resized."""
    active = [sequence for sequence in run.sequences if sequence.model.is_active]
    batch = random.sample(active, int(random.random() * (len(active) + 1)))
    if not batch:
        return
    draws = [_draw_step(run, sequence, random) for sequence in batch]
    if run.scenario.fault_share > 0.0:
        draws = failures.change_all(batch, draws)
    for sequence, draw in zip(batch, draws):
        if not sequence.fits_buffers(-(-draw[1] // run.scenario.config.tokens_per_block)):
            return
    run.num_performed += 1
    capacities, histories = [draw[1] for draw in draws], [draw[2] for draw in draws]
    failure: Exception | None = None
    question = ask_before_batch(run, [sequence.handle for sequence in batch], capacities, histories)
    try:
        count = run.manager.resize_batch([sequence.handle for sequence in batch], capacities, histories)
    except failures.FAILURES as error:
        if run.num_faults == 0:
            raise
        failure = error
        count = failures.count_resized([sequence.handle for sequence in batch], capacities, histories)
    if failure is None:
        judge_answer_of_batch(run, question, count == len(batch))
    dump = run.manager.describe()
    for position in range(count if failure is not None else min(count + 1, len(batch))):
        sequence = batch[position]
        _num_tokens, capacity, history = draws[position]
        needs = run.model.slots_of_beams_to_resize(sequence.model, capacity, history)
        call = f"resize_batch, sequence {sequence.name} to ({capacity}, {history})"
        required = sequence.model.required
        sequence.model.required = set()
        run.judge.judge_turns(call, needs, position < count)
        if position < count:
            run.model.resize(sequence.model, capacity, history, dump)
        else:
            sequence.model.required = required
            run.num_refused += 1
    if count > 0:
        run_kernels(run, batch[:count], [draw[0] for draw in draws[:count]], random)
        if random.random() < 0.3:
            commit_batch(run.manager, run.model, run.texts, batch[:count], random)
    if failure is not None:
        raise failure


def _draw_step(run: RunState, sequence: SimulatedSequence, random: Random) -> tuple[int, int, int]:
    """(input tokens, capacity, history length) of a step: a chunk of the prompt, or a few generated tokens."""
    size = run.scenario.config.tokens_per_block
    num_tokens = 1 if random.random() < 0.2 else 1 + int(random.random() * run.scenario.max_step_blocks * size)
    if sequence.to_compute:
        left = len(sequence.to_compute)
        num_tokens = min(num_tokens, left) if random.random() < 0.5 else left
    else:
        num_tokens = min(num_tokens, 12 if run.scenario.grows_trees else 4)
    written = len(sequence.text)
    model = sequence.model
    scratch_reuse = run.scenario.config.swa_scratch_reuse
    if scratch_reuse is None or not model.uses_scratch:
        capacity = written + num_tokens
        if random.random() < 0.2:
            capacity += int(random.random() * 2 * size)
        history = written if random.random() < 0.8 else model.history
        least_capacity = max(model.capacity if random.random() < 0.5 else 0, least_state_capacity(run, sequence))
        return num_tokens, max(capacity, least_capacity), history
    # The step's inputs begin at its history, and nearly all of the capacity must be computed.
    history = written
    if random.random() < 0.2:
        low = min(least_history(run, sequence), written)
        history = low + int(random.random() * (written - low + 1))
    capacity = history + num_tokens + int(random.random() * (scratch_reuse.max_rewind_len + 1))
    return num_tokens, max(capacity, least_state_capacity(run, sequence)), history


def run_kernels(run: RunState, sequences: list[SimulatedSequence], num_tokens: list[int], random: Random) -> None:
    steps: list[Step] = []
    is_there = [require_all(run, sequence) for sequence in sequences]
    for sequence, count in [one for one, is_whole in zip(zip(sequences, num_tokens), is_there) if is_whole]:
        if sequence.model.uses_scratch:
            sequence.take_back(sequence.model.history, random.random() < 0.5)
        inputs = sequence.to_compute[:count]
        del sequence.to_compute[:count]
        while len(inputs) < count:
            inputs.append(run.texts.draw_token(random))
        steps.append(_make_step(run, sequence, inputs, random))
        sequence.num_computed = max(sequence.num_computed, len(sequence.text))
    if len(steps) > 0:
        run.engine.execute(steps)


def _make_step(run: RunState, sequence: SimulatedSequence, inputs: list[TokenIdExt], random: Random) -> Step:
    """The step; each further beam has the same inputs, or others."""
    if len(sequence.other_texts) == 0:
        step = Step(sequence.handle, inputs, list(sequence.text))
        sequence.text.extend(inputs)
        return step
    texts = [sequence.text, *sequence.other_texts]
    inputs_of_beams = [inputs]
    while len(inputs_of_beams) < len(texts):
        is_same = random.random() < 0.3
        inputs_of_beams.append(list(inputs) if is_same else [run.texts.draw_token(random) for _token in inputs])
    step = Step(sequence.handle, inputs_of_beams, [list(text) for text in texts])
    for text, more in zip(texts, inputs_of_beams):
        text.extend(more)
    return step


def commit(run: RunState, sequence: SimulatedSequence, random: Random) -> None:
    if not sequence.model.is_committing or sequence.num_uncommitted <= 0:
        return
    given_end = sequence.given_end
    commit = commit_of_beams if len(sequence.other_texts) > 0 else commit_some
    commit(run.manager, run.scenario.config, run.model, run.judge, run.texts, sequence, random)
    run.num_input_commits += sequence.given_end > given_end
    run.record_early_copies()
