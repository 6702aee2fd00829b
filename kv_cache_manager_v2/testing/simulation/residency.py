"""Residency windows: some sequences keep old pages below level 0 while they run, and require them for a step."""

from random import Random
from typing import Any, Final

from ...base.errors import LogicError
from ..reference_pages import ModelDisagreement, state_dump_of
from .run_state import RunState
from .simulated_sequence import SimulatedSequence

REFUSED: Final = ("fork", "lend", "beams", "toggle_scratch")
"""Actions on a sequence that a residency window refuses."""


def change_residency(run: RunState, sequence: SimulatedSequence, random: Random) -> None:
    """Set a window, change or end it, or require some blocks; what cannot be is refused."""
    group = int(random.random() * len(run.model.rules))
    residency = sequence.model.residency
    if sequence.model.is_active and (group in residency or random.random() < 0.3):
        levels = _read_levels(run, sequence, group)
        below = [ordinal for ordinal, level in enumerate(levels) if level > 0]
        ordinals = below if len(below) > 0 and random.random() < 0.8 else list(range(len(levels)))
        require_blocks(run, sequence, group, random.choices(ordinals, k=3) if len(ordinals) > 0 else [])
        return
    if group in residency and random.random() < 0.3:
        sequence.handle.set_residency_window(group, None)
        run.model.set_window(sequence.model, group, None, 0)
        return
    size = run.scenario.config.tokens_per_block
    window = random.choice((1, size, 2 * size, 3 * size + 1))
    num_sink_tokens = random.choice((0, 1, size + 1))
    is_refused, is_certain = _is_refused(run, sequence, group)
    try:
        sequence.handle.set_residency_window(group, window, num_sink_tokens)
    except LogicError:
        if is_certain and not is_refused:
            raise
        return
    if is_refused:
        raise ModelDisagreement(f"sequence {sequence.name} got a residency window of group {group}, which should be refused")
    run.model.set_window(sequence.model, group, window, num_sink_tokens)


def end_required(run: RunState) -> None:
    """After a call that has failed: what was required has ended if the call had come to moving pages."""
    for sequence in run.sequences:
        if sequence.model.is_active and all([len(table.required) == 0 for table in sequence.handle._state_for_batch().tables]):
            sequence.model.required = set()


def _read_levels(run: RunState, sequence: SimulatedSequence, group: int) -> list[int]:
    """Where the pages are; levels and slots are those of the state dump."""
    dump = state_dump_of(run.manager.describe(), sequence.name)
    levels: list[int] = sequence.handle.get_block_levels(group).tolist()
    slots: list[int] = sequence.handle.get_block_slots(group).tolist()
    found = [(None, None) if level < 0 else (level, slot) for level, slot in zip(levels, slots, strict=True)]
    expected = list(zip(dump["page_levels"][group], dump["page_slots"][group], strict=True))
    if found != expected:
        raise ModelDisagreement(f"sequence {sequence.name} has pages in {found}, must be {expected}")
    return levels


def _is_refused(run: RunState, sequence: SimulatedSequence, group: int) -> tuple[bool, bool]:
    """Whether a window must be refused, and whether that is certain: of what a sequence has shared with others the model knows less."""
    config = run.scenario.config
    rule = run.model.rules[group]
    model = sequence.model
    is_refused = (
        rule.is_state
        or rule.window is not None
        or len(config.cache_tiers) == 1
        or config.is_external
        or run.model.state.group >= 0
        or run.model.indices_stay
        or model.uses_scratch
        or len(model.beams) > 0
    )
    return is_refused, is_refused or not sequence.has_shared


def require_blocks(run: RunState, sequence: SimulatedSequence, group: int, ordinals: list[int]) -> bool:
    need = run.model.slots_to_require(sequence.model, group, ordinals)
    is_misuse = any([not run.model.is_needed(sequence.model, group, ordinal) for ordinal in ordinals])
    try:
        passed = sequence.handle.require_blocks(group, ordinals)
    except LogicError:
        if not is_misuse:
            raise
        return False
    if is_misuse:
        raise ModelDisagreement(f"require_blocks of sequence {sequence.name} passed for a block without a page")
    run.judge.judge(f"require_blocks of sequence {sequence.name}", need, passed)
    run.num_refused += not passed
    if passed:
        run.model.require_blocks(sequence.model, group, ordinals)
    return passed


def require_all(run: RunState, sequence: SimulatedSequence) -> bool:
    """The step reads all blocks, as the fake engine does."""
    blocks = list(range(run.model.num_blocks(sequence.model)))
    return all([require_blocks(run, sequence, group, blocks) for group in sequence.model.residency])


def is_refused_by_window(sequence: SimulatedSequence, kind: str) -> bool:
    """Whether the action is one that a window refuses; then it is tried."""
    if len(sequence.model.residency) == 0 or kind not in REFUSED:
        return False
    # Through Any, as a user's code does: mypyc passes an int or a bool wrongly to a setter that is declared wider.
    handle: Any = sequence.handle
    try:
        if kind == "fork":
            handle.fork()
        elif kind == "lend":
            handle.reserve_transfer()
        elif kind == "beams":
            handle.beam_width = 2
        else:
            handle.enable_swa_scratch_reuse = True
    except LogicError:
        return True
    raise ModelDisagreement(f"{kind} of sequence {sequence.name} passed with a residency window")
