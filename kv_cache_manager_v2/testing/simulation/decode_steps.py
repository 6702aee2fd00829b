"""Decode steps of several sequences by one call on a `DecodeBatch`, for some scenarios, judged as the single calls that they are."""

from random import Random
from typing import Final

from ...kernels.decode_batch import DecodeBatch
from ..reference_model import NO_SNAPSHOT
from ..reference_pages import ModelDisagreement
from .run_state import RunState
from .simulated_sequence import SimulatedSequence
from .steps import run_kernels

_NO_TOKEN: Final = -1


def decode(run: RunState, random: Random) -> None:
    """Some sequences join a new batch, and it makes a few steps; members without room leave it."""
    members = [sequence for sequence in run.sequences if _may_decode(sequence)]
    if len(members) == 0 or run.model.state.group >= 0:
        return
    members = random.sample(members, 1 + int(random.random() * len(members)))
    num_steps = 1 + int(random.random() * 6)
    num_inputs = 1 if random.random() < 0.7 else 2
    size = run.scenario.config.tokens_per_block
    num_blocks = max([-(-max(one.model.capacity, len(one.text) + num_steps * num_inputs) // size) for one in members], default=0)
    members = [sequence for sequence in members if sequence.fits_buffers(num_blocks)]
    if len(members) == 0:
        return
    run.num_performed += 1
    batch = DecodeBatch(run.manager, len(members), num_blocks + 1)
    for sequence in members:
        batch.join(sequence.handle)
    for _step in range(num_steps):
        if len(members) == 0:
            break
        members = _step_once(run, batch, members, num_inputs, random)
    for sequence in members:
        batch.leave(sequence.handle)


def _may_decode(sequence: SimulatedSequence) -> bool:
    model = sequence.model
    return model.is_active and not model.uses_scratch and len(sequence.other_texts) == 0 and len(model.residency) == 0


def _step_once(
    run: RunState, batch: DecodeBatch, members: list[SimulatedSequence], num_inputs: int, random: Random
) -> list[SimulatedSequence]:
    """Returns the members that are still in the batch, in the order of its rows."""
    tokens: list[int] = []
    for sequence in members:
        num_committed = len(sequence.model.committed)
        token = sequence.text[num_committed] if sequence.model.is_committing and sequence.num_uncommitted > 0 else _NO_TOKEN
        tokens.append(token if isinstance(token, int) else _NO_TOKEN)
    left = {kv_cache.id: refusal.text for kv_cache, refusal in batch.step(tokens, num_inputs)}
    run.num_decode_steps += 1
    dump = run.manager.describe()
    stayed: list[SimulatedSequence] = []
    for sequence, token in zip(members, tokens):
        model = sequence.model
        if token != _NO_TOKEN:
            run.model.commit(model, [token], NO_SNAPSHOT)
            run.model.adopt_leased(dump)
            sequence.given_end = _NO_TOKEN
            run.texts.keep(random, tuple(model.committed))
        capacity = max(model.capacity, model.history + num_inputs)
        needs = run.model.slots_of_beams_to_resize(model, capacity, model.history)
        passed = sequence.handle.id not in left
        run.judge.judge_turns(f"decode step of sequence {sequence.name} to {capacity}", needs, passed)
        if passed:
            run.model.resize(model, capacity, model.history, dump, is_in_batch=True)
            stayed.append(sequence)
        else:
            run.num_refused += 1
    for sequence in stayed:
        run.model.require_tail_as_shown(sequence.model, "decode step", dump)
    run.record_early_copies()
    # The last row takes the place of one that leaves.
    rows = list(members)
    for row in range(len(members) - 1, -1, -1):
        if members[row] not in stayed:
            last = rows.pop()
            if row < len(rows):
                rows[row] = last
    for row, sequence in enumerate(rows):
        if batch.table.row_of(sequence.handle) != row:
            raise ModelDisagreement(f"sequence {sequence.name} is in row {batch.table.row_of(sequence.handle)} of the batch, not {row}")
    ready = [sequence for sequence in rows if sequence.model.capacity > len(sequence.text)]
    if len(ready) > 0:
        run_kernels(run, ready, [1] * len(ready), random)
    return rows
