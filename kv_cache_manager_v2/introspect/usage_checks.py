"""Invariants of the statistics: compared with the tree and with each other."""

from collections.abc import Sequence

from ..base.errors import CorruptedError
from ..sequence.sequence_state import SequenceState
from ..sequence.shared_state import SharedState
from ..stats.usage_counters import PROMPT_TOKENS, UsageCounters


def check_usage(shared: SharedState, states: Sequence[SequenceState], num_published: int) -> None:
    """Raise `CorruptedError` if hits and misses are not the prompt, or the history miscounts the tree's blocks."""
    history = shared.tree.history
    if history is not None and history.num_blocks != num_published:
        raise CorruptedError(f"{num_published} blocks are published, the history counts {history.num_blocks}")
    for state in states:
        counters = state.counters
        if counters is not None:
            _check_prompt(counters.usage, f"sequence {state.id}")
            if counters.total is not None:
                _check_prompt(counters.total, "the total")


def _check_prompt(usage: UsageCounters, name: str) -> None:
    explained = 0
    for at in range(usage.hits_at, usage.calls_at):
        explained += int(usage.counts[at])
    tokens = int(usage.counts[usage.calls_at + PROMPT_TOKENS])
    if explained != tokens:
        raise CorruptedError(f"{name}: hits and misses are {explained} tokens of a prompt of {tokens}")
