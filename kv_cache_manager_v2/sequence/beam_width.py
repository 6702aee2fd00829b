"""How many beams a sequence has: further ones are forks of beam 0, and the last ones end first."""

from mypy_extensions import i64

from ..base.errors import LogicError, OutOfPagesError
from .beams import add_beam
from .fork import has_room_to_fork
from .page_arrivals import await_arrivals
from .residency import close_beams
from .sequence_state import SequenceState
from .step_validation import validate_fork


def change_width(state: SequenceState, width: i64) -> bool:
    """Whether it was another one. `OutOfPagesError`, and nothing has changed, if there is no slot for a beam's recurrent state."""
    old_width: i64 = len(state.sharing.beams) + 1
    if width == old_width:
        return False
    if width > old_width:
        _validate_widening(state)
        await_arrivals(state)
        _add_beams(state, old_width, width)
    close_beams(state, width)
    return True


def _validate_widening(state: SequenceState) -> None:
    if state.tail.copies_on_resume:
        raise LogicError(
            f"sequence {state.id}: the first resume() copies the partial block that was matched; set a larger beam_width after it"
        )
    if state.scratch.is_enabled:
        raise LogicError(f"sequence {state.id}: beams do not use scratch slots; set enable_swa_scratch_reuse to False first")
    validate_fork(state, "setting beam_width")


def _add_beams(state: SequenceState, old_width: i64, width: i64) -> None:
    """Room for all of them comes first: what is evicted for a beam that is taken back would be gone."""
    try:
        has_room = has_room_to_fork(state, width - old_width)
        while len(state.sharing.beams) + 1 < width:
            if not has_room or not add_beam(state):
                refusal = state.shared.storage.last_refusal
                raise OutOfPagesError("no room" if refusal is None else refusal.text)
    except BaseException:
        close_beams(state, old_width)
        raise
