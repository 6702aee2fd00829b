"""Beam actions: several continuations of one committed prefix in one sequence; change their number or order, commit one."""

from random import Random
from typing import Any, Final

from ...base.errors import LogicError, OutOfPagesError
from ...base.ids import TokenIdExt
from ...config.manager_config import KVCacheManagerConfig
from ...manager.kv_cache_manager import KVCacheManager
from ..reference_model import NO_SNAPSHOT, ReferenceModel
from ..reference_pages import ModelDisagreement
from .forks import count_states, may_fork
from .room_judge import RoomJudge
from .simulated_sequence import SimulatedSequence
from .snapshot_judge import expect_snapshot, keep_off
from .state_checks import require_unchanged
from .text_source import TextSource

_WIDTHS: Final = (1, 1, 2, 2, 3, 4)


def change_beams(manager: KVCacheManager, model: ReferenceModel, judge: RoomJudge, sequence: SimulatedSequence, random: Random) -> bool:
    """Change the width or the order of beams. False if that was refused for lack of slots."""
    if len(sequence.other_texts) > 0 and sequence.model.is_active and random.random() < 0.5:
        width = len(sequence.other_texts) + 1
        reorder(model, sequence, [int(random.random() * width) for _beam in range(width)])
        return True
    return _change_width(manager, model, judge, sequence, random.choice(_WIDTHS))


def reorder(model: ReferenceModel, sequence: SimulatedSequence, parents: list[int]) -> None:
    sequence.handle.reorder_beams(parents)
    model.reorder(sequence.model, parents)
    texts = [sequence.text, *sequence.other_texts]
    sequence.set_texts([list(texts[parent]) for parent in parents])


def _change_width(manager: KVCacheManager, model: ReferenceModel, judge: RoomJudge, sequence: SimulatedSequence, width: int) -> bool:
    old_width = len(sequence.other_texts) + 1
    if width > old_width and model.state.group >= 0 and not sequence.model.has_state:
        return True  # a state that several beams start from is counted for one only
    is_possible = width <= old_width or (
        may_fork(model, sequence) and not sequence.model.is_matched_tail and not sequence.model.uses_scratch
    )
    call = f"beam_width of sequence {sequence.name} from {old_width} to {width}"
    need = count_states(model, sequence, max(width - old_width, 0))
    dump = manager.describe()
    # Through Any, as a user's code does: mypyc passes an int wrongly to a setter that is declared wider.
    handle: Any = sequence.handle
    try:
        handle.beam_width = width
    except LogicError:
        if is_possible:
            raise
        require_unchanged(dump, manager.describe())
        return True
    except OutOfPagesError:
        judge.judge(call, need, False)
        require_unchanged(dump, manager.describe())
        return False
    if not is_possible:
        raise ModelDisagreement(f"{call} passed with scratch reuse, history in scratch slots, or a matched block to copy")
    if sequence.model.has_state and width > old_width:
        judge.judge(call, need, True)
        model.make_room()
    model.set_width(sequence.model, width)
    texts = [sequence.text, *sequence.other_texts][:width]
    sequence.set_texts([*texts, *[list(sequence.text) for _beam in range(width - len(texts))]])
    return True


def commit_of_beams(
    manager: KVCacheManager,
    config: KVCacheManagerConfig,
    model: ReferenceModel,
    judge: RoomJudge,
    texts: TextSource,
    sequence: SimulatedSequence,
    random: Random,
) -> None:
    """Commit what one beam has computed, or less, as far as all beams agree. Tokens on which beams agree may come from any of them."""
    width = len(sequence.other_texts) + 1
    begin = len(sequence.model.committed)
    chosen = int(random.random() * width)
    if model.state.group >= 0:
        # The recurrent state cannot be combined: all beams continue from that one.
        reorder(model, sequence, [chosen] * width)
    all_texts = [sequence.text, *sequence.other_texts]
    text = all_texts[chosen]
    count = sequence.num_uncommitted
    if random.random() < 0.4:
        count = int(random.random() * (count + 1))
    snapshot = NO_SNAPSHOT
    if model.state.group >= 0:
        count = keep_off(config, sequence, count)
        snapshot = expect_snapshot(
            config, sequence, count, judge.has_room(model.state.group), judge.has_free_slot(manager, model.state.group)
        )
    agrees = all([other[: begin + count] == text[: begin + count] for other in all_texts])
    if not agrees and begin + count < len(text):
        return  # the following tokens of other beams have another prefix
    tokens: list[TokenIdExt] = text[begin : begin + count]
    sources: list[int] = []
    for index in range(count):
        end = begin + index + 1
        alike = [beam for beam, other in enumerate(all_texts) if other[:end] == text[:end]]
        sources.append(random.choice(alike) if model.state.group < 0 else 0)
    is_possible = model.may_gather(sequence.model, sources)
    dump = manager.describe()
    try:
        sequence.handle.commit(tokens, sources)
    except LogicError:
        if is_possible:
            raise
        require_unchanged(dump, manager.describe())
        return
    if not is_possible:
        raise ModelDisagreement(f"sequence {sequence.name}: a commit of beams wrote into a block that is published or shared")
    model.commit(sequence.model, tokens, snapshot)
    if not agrees:
        sequence.set_texts([list(text) for _beam in range(width)])
    texts.keep(random, tuple(sequence.model.committed))
