"""Capacity actions without a step, and the user's buffers that must be long enough for the capacity."""

from random import Random
from typing import Any

import numpy as np

from ..reference_pages import ModelDisagreement
from .run_state import RunState
from .simulated_sequence import SimulatedSequence
from .state_checks import require_unchanged


def rewind(run: RunState, sequence: SimulatedSequence, random: Random) -> None:
    """Rewind: the capacity shrinks below the computed tokens, or only by spare slots."""
    low = least_history(run, sequence)
    if not sequence.model.uses_scratch:
        capacity = low + int(random.random() * (sequence.model.capacity - low + 1))
        history = sequence.model.history
    elif low > len(sequence.text):
        return  # the recurrent state cannot be rewound so far
    else:
        capacity = low + int(random.random() * (len(sequence.text) - low + 1))
        history = capacity
    if _resize_only(run, sequence, capacity, history):
        sequence.take_back(capacity, random.random() < 0.5)


def move_history(run: RunState, sequence: SimulatedSequence, random: Random) -> None:
    low, high = sequence.model.history, len(sequence.text)
    _resize_only(run, sequence, sequence.model.capacity, low + int(random.random() * (high - low + 1)))


def _resize_only(run: RunState, sequence: SimulatedSequence, capacity: int, history: int) -> bool:
    if not fits_buffers(run, sequence, capacity, history):
        return False
    needs = run.model.slots_of_beams_to_resize(sequence.model, capacity, history)
    passed = sequence.handle.resize(capacity, history)
    required = sequence.model.required
    sequence.model.required = set()
    run.judge.judge_turns(f"resize of sequence {sequence.name} to ({capacity}, {history})", needs, passed)
    if not passed:
        sequence.model.required = required
    else:
        run.model.resize(sequence.model, capacity, history, run.manager.describe())
    return passed


def toggle_scratch(run: RunState, sequence: SimulatedSequence) -> None:
    """Switch scratch reuse; refused if the present step depends on it, or if it is impossible."""
    if len(sequence.other_texts) > 0:
        return
    wanted = not sequence.model.uses_scratch
    scratch_reuse = run.scenario.config.swa_scratch_reuse
    is_possible = scratch_reuse is not None and run.model.may_toggle_scratch(sequence.model)
    dump = run.manager.describe()
    # Through Any, as a user's code does: mypyc passes a bool wrongly to a setter that is declared wider.
    handle: Any = sequence.handle
    try:
        handle.enable_swa_scratch_reuse = wanted
    except ValueError:
        if is_possible:
            raise
        require_unchanged(dump, run.manager.describe())
        return
    if not is_possible:
        raise ModelDisagreement(f"scratch reuse of sequence {sequence.name} was switched in the middle of a step")
    sequence.model.uses_scratch = wanted


def fits_buffers(run: RunState, sequence: SimulatedSequence, capacity: int, history: int) -> bool:
    """Whether the user's buffers are long enough; if not, check that the call is refused as the user's mistake."""
    if sequence.fits_buffers(-(-capacity // run.scenario.config.tokens_per_block)):
        return True
    dump = run.manager.describe()
    try:
        sequence.handle.resize(capacity, history)
    except ValueError:
        require_unchanged(dump, run.manager.describe())
        return False
    raise ModelDisagreement(f"sequence {sequence.name} grew beyond the user's index buffer")


def give_buffer(run: RunState, sequence: SimulatedSequence, random: Random) -> None:
    group = int(random.random() * len(run.model.rules))
    if random.random() < 0.3:
        sequence.handle.set_base_page_index_buf(0, group, None)
        sequence.buffers.pop(group, None)
        return
    num_blocks = run.model.num_blocks(sequence.model)
    buffer = np.full(num_blocks + int(random.random() * 8), 12345, dtype=np.int32)
    sequence.handle.set_base_page_index_buf(0, group, buffer.data)
    sequence.buffers[group] = buffer


def least_state_capacity(run: RunState, sequence: SimulatedSequence) -> int:
    """The capacity below which the recurrent state may already have advanced."""
    if run.model.state.group < 0:
        return 0
    return sequence.model.peak_capacity - run.scenario.config.state_checkpoints


def least_history(run: RunState, sequence: SimulatedSequence) -> int:
    """The history to which tokens may be rewound."""
    least = max(sequence.model.history, len(sequence.model.committed))
    if run.model.state.group >= 0:
        least = max(least, least_state_capacity(run, sequence))
    scratch_reuse = run.scenario.config.swa_scratch_reuse
    if scratch_reuse is None or not sequence.model.uses_scratch:
        return least
    return max(least, sequence.model.capacity - scratch_reuse.max_rewind_len)
