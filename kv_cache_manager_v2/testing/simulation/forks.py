"""Fork actions: a second sequence continues from an existing one."""

from ...base.errors import LogicError, OutOfPagesError
from ..reference_model import ReferenceModel
from ..reference_pages import ModelDisagreement
from ..reference_room import SlotNeed
from .room_judge import RoomJudge
from .simulated_sequence import SimulatedSequence


def count_states(model: ReferenceModel, sequence: SimulatedSequence, num_copies: int) -> SlotNeed:
    """The slots of that many forks: a copy each of the recurrent state, if there is one."""
    need = SlotNeed(len(model.rules))
    if sequence.model.has_state:
        need.add(model.state.group, num_copies * model.state.num_slots)
    return need


def may_fork(model: ReferenceModel, sequence: SimulatedSequence) -> bool:
    """Whether the sequence can be forked: not with history in scratch slots, nor with a recurrent state off the device."""
    has_state_below = sequence.model.has_state and not sequence.model.is_active
    return not has_state_below and not model.has_history_in_scratch(sequence.model)


def fork_sequence(model: ReferenceModel, judge: RoomJudge, sequence: SimulatedSequence, name: int) -> tuple[SimulatedSequence | None, bool]:
    """The fork, and whether the call was refused for lack of slots."""
    call = f"fork of sequence {sequence.name}"
    is_misuse = not may_fork(model, sequence) or len(sequence.other_texts) > 0
    need = count_states(model, sequence, 1)
    try:
        handle = sequence.handle.fork(name)
    except LogicError:
        if not is_misuse:
            raise
        return None, False
    except OutOfPagesError:
        judge.judge(call, need, False)
        return None, True
    if is_misuse:
        raise ModelDisagreement(f"{call} passed with beams, history in scratch slots, or its state not on the device")
    if sequence.model.has_state:
        judge.judge(call, need, True)
        model.make_room()
    forked = model.fork(sequence.model, name)
    text, to_compute = list(sequence.text), list(sequence.to_compute)
    child = SimulatedSequence(name, handle, forked, text, to_compute, sequence.max_committed)
    child.has_shared = True
    sequence.has_shared = True
    child.num_computed = sequence.num_computed
    child.state_tokens = sequence.state_tokens
    child.prompt_length = sequence.prompt_length
    child.snapshot_positions = sequence.snapshot_positions
    return child, False
