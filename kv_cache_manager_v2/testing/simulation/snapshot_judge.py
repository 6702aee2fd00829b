"""The judge of snapshots: when a commit leaves a snapshot of the recurrent state, as far as callers can tell."""

from random import Random

from ...config.manager_config import KVCacheManagerConfig
from ..reference_model import MAY_REPLACE, MAY_SNAPSHOT, MUST_SNAPSHOT, NO_SNAPSHOT, TAKES_FREE
from .simulated_sequence import SimulatedSequence


def is_planned(config: KVCacheManagerConfig, sequence: SimulatedSequence, end: int) -> str:
    """Whether the sequence leaves a snapshot at that length, if it can. Branching points and learned lengths are not known here."""
    policy = config.snapshot_policy
    size = config.tokens_per_block
    due = sequence.handle.next_snapshot_position
    learns = policy.placement == "learned"
    at_prompt_end = policy.at_prompt_end and end == sequence.prompt_length
    if end == due or end in sequence.snapshot_positions or (at_prompt_end and not learns):
        return MUST_SNAPSHOT
    if policy.every_num_blocks is not None and end % (policy.every_num_blocks * size) == 0:
        return MUST_SNAPSHOT
    if due is None or end < due:
        return NO_SNAPSHOT
    if learns:
        # Only the first of the learned lengths is known here.
        return MAY_SNAPSHOT if at_prompt_end or (end % size == 0 and end <= sequence.prompt_length) else NO_SNAPSHOT
    return MAY_SNAPSHOT if policy.at_branches and end % size == 0 and end < sequence.prompt_length else NO_SNAPSHOT


def keep_off(config: KVCacheManagerConfig, sequence: SimulatedSequence, count: int) -> int:
    """Fewer tokens to commit: a commit inside the prompt that ends at a planned snapshot declares that the state is there."""
    while count > 0:
        end = len(sequence.model.committed) + count
        is_there = sequence.num_computed - end <= config.state_checkpoints
        # Commits of generated tokens declare nothing, so there is nothing to avoid.
        if is_there or end > sequence.prompt_length or is_planned(config, sequence, end) == NO_SNAPSHOT:
            break
        count -= 1
    return count


def expect_snapshot(
    config: KVCacheManagerConfig, sequence: SimulatedSequence, count: int, has_room: bool, has_free_slot: bool, is_end: bool = False
) -> str:
    """The effect of committing so many tokens: a snapshot is certain only if all capacity is committed and there is a slot.

    ``has_free_slot``: now, on level 0: without one, where none is planned, only the sequence's own last snapshot may go for it.
    """
    begin = len(sequence.model.committed)
    end = begin + count
    planned = is_planned(config, sequence, end) if count > 0 and end > 0 else NO_SNAPSHOT
    is_certain = sequence.model.peak_capacity - end <= config.state_checkpoints
    if not is_certain and end > sequence.prompt_length:
        return NO_SNAPSHOT
    if planned == NO_SNAPSHOT and config.snapshot_policy.at_commits and is_certain and count > 0:
        if begin < sequence.prompt_length or is_end:
            return TAKES_FREE if has_free_slot else MAY_REPLACE
    return MAY_SNAPSHOT if planned == MUST_SNAPSHOT and not (is_certain and has_room) else planned


def draw_positions(random: Random, has_state: bool, max_tokens: int) -> list[int]:
    """Lengths at which the user asks for snapshots."""
    if not has_state:
        return []
    return [int(random.random() * max_tokens) for _position in range(random.choice((0, 0, 1, 3)))]
