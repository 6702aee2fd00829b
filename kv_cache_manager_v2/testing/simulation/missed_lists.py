"""A list of copies that does not reach the engine's workers: it is named, and nothing is believed any more until all is forgotten."""

from random import Random

from ...base.errors import LogicError
from ..reference_pages import ModelDisagreement
from .run_state import RunState
from .sequence_lifetimes import close
from .state_checks import require_unchanged

_SHARE_OF_REPORTED = 0.5


def miss_list(run: RunState, random: Random) -> None:
    memory = run.engine.memory
    assert memory is not None, "lists of copies are for memory that the engine owns"
    run.engine.synchronize()
    if not memory.miss_copies(run.manager, random.random() < _SHARE_OF_REPORTED):
        return
    run.num_performed += 1
    while run.sequences:
        _require_refused(run)
        close(run, run.sequences[random.randrange(len(run.sequences))])
        run.check()
    memory.renew_worker(run.manager, run.manager.reset_copies())
    run.model.end_epoch(None)


def _require_refused(run: RunState) -> None:
    before = run.manager.describe()
    try:
        run.manager.reset_copies()
    except LogicError:
        require_unchanged(before, run.manager.describe())
    else:
        raise ModelDisagreement("reset_copies() passed, and sequences are open")
