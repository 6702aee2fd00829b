"""Commit actions: of one sequence, by either of two calls, or one more token of each, by one call."""

from collections.abc import Sequence
from random import Random
from typing import Final

from ...base.errors import LogicError
from ...base.ids import TokenIdExt
from ...config.manager_config import KVCacheManagerConfig
from ...manager.kv_cache_manager import KVCacheManager
from ..reference_model import NO_SNAPSHOT, ReferenceModel
from .room_judge import RoomJudge
from .simulated_sequence import SimulatedSequence
from .snapshot_judge import expect_snapshot, keep_off
from .state_checks import note_indices, require_indices_stay, require_unchanged
from .text_source import TextSource, draw_token_container


_SHARE_OF_TREES: Final = 0.15
_SHARE_OF_ENDS: Final = 0.05
_SHARE_OF_INPUTS: Final = 0.7


def commit_some(
    manager: KVCacheManager,
    config: KVCacheManagerConfig,
    model: ReferenceModel,
    judge: RoomJudge,
    texts: TextSource,
    sequence: SimulatedSequence,
    random: Random,
) -> None:
    """Commit all computed tokens, or a part of them."""
    count = sequence.num_uncommitted
    begin = len(sequence.model.committed)
    if random.random() < 0.3:
        count = int(random.random() * (count + 1))
    snapshot = NO_SNAPSHOT
    is_end = False
    if model.state.group >= 0:
        count = keep_off(config, sequence, count)
        is_end = Random(begin * 1000 + count + 1).random() < _SHARE_OF_ENDS
        has_free_slot = judge.has_free_slot(manager, model.state.group)
        snapshot = expect_snapshot(config, sequence, count, judge.has_room(model.state.group), has_free_slot, is_end)
    tokens: list[TokenIdExt] = sequence.text[begin : begin + count]
    before = note_indices(model, sequence)
    is_tree = Random(begin * 1000 + count).random() < _SHARE_OF_TREES
    if is_end:
        sequence.given_end = -1
        sequence.handle.commit(draw_token_container(random, tuple(tokens)), is_end=True)
    elif not is_tree or not _commit_as_tree(manager, sequence, tokens, begin):
        container = draw_token_container(random, tuple(tokens))
        if not _commit_as_input(sequence, tokens, begin):
            sequence.handle.commit(container)
    require_indices_stay("commit", sequence, before)
    model.commit(sequence.model, tokens, snapshot)
    if is_end:
        model.stop_committing(sequence.model, manager.describe())
    texts.keep(random, tuple(sequence.model.committed))


def _commit_as_input(sequence: SimulatedSequence, tokens: list[TokenIdExt], begin: int) -> bool:
    """Commit tokens that the sequence was created with; False if they are others, or another call has committed some."""
    end = begin + len(tokens)
    given_end = sequence.given_end
    # Any other call ends it, one that fails too.
    sequence.given_end = -1
    if given_end != begin or tuple(tokens) != sequence.given[begin:end]:
        return False
    if Random(begin * 1000 + end + 2).random() < _SHARE_OF_INPUTS:
        sequence.handle.commit_input(len(tokens))
        sequence.given_end = end
        return True
    return False


def _commit_as_tree(manager: KVCacheManager, sequence: SimulatedSequence, tokens: list[TokenIdExt], begin: int) -> bool:
    """Commit a tree of drafts that is a chain, all of it accepted; False if this sequence cannot have one now."""
    dump = manager.describe()
    sequence.given_end = -1
    try:
        sequence.handle.commit_tree(tokens, range(begin, begin + len(tokens)))
    except (LogicError, ValueError):
        require_unchanged(dump, manager.describe())
        return False
    return True


def commit_batch(
    manager: KVCacheManager, model: ReferenceModel, texts: TextSource, batch: Sequence[SimulatedSequence], random: Random
) -> None:
    """Commit the next token of each, but of recurrent models: whether a snapshot finds a slot depends on the sequences before."""
    chosen = [sequence for sequence in batch if sequence.model.is_committing and sequence.num_uncommitted > 0]
    chosen = [sequence for sequence in chosen if len(sequence.other_texts) == 0]
    if model.state.group >= 0:
        return
    tokens = [sequence.text[len(sequence.model.committed)] for sequence in chosen]
    for position in range(len(chosen) - 1, -1, -1):
        if isinstance(tokens[position], bytes):
            del chosen[position], tokens[position]
    manager.commit_batch([sequence.handle for sequence in chosen], draw_token_container(random, tuple(tokens)))
    for sequence, token in zip(chosen, tokens):
        sequence.given_end = -1
        model.commit(sequence.model, [token], NO_SNAPSHOT)
        texts.keep(random, tuple(sequence.model.committed))
