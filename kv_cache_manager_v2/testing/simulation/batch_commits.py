"""The end of a decode step: one more token of each sequence is committed, by one call."""

from collections.abc import Sequence
from random import Random

from ...manager.kv_cache_manager import KVCacheManager
from ..reference_model import NO_SNAPSHOT, ReferenceModel
from .simulated_sequence import SimulatedSequence
from .text_source import TextSource, draw_token_container


def commit_batch(
    manager: KVCacheManager, model: ReferenceModel, texts: TextSource, batch: Sequence[SimulatedSequence], random: Random
) -> None:
    """The next token of each, but of recurrent models: whether a snapshot finds room depends on the sequences before."""
    chosen = [sequence for sequence in batch if sequence.model.is_committing and sequence.num_uncommitted > 0]
    if model.state.group >= 0:
        return
    tokens = [sequence.text[len(sequence.model.committed)] for sequence in chosen]
    for position in range(len(chosen) - 1, -1, -1):
        if isinstance(tokens[position], bytes):
            del chosen[position], tokens[position]
    manager.commit_batch([sequence.handle for sequence in chosen], draw_token_container(random, tuple(tokens)))
    for sequence, token in zip(chosen, tokens):
        model.commit(sequence.model, [token], NO_SNAPSHOT)
        texts.keep(random, tuple(sequence.model.committed))
