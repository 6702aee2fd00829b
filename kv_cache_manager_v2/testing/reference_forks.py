"""The rules of forks, for the reference model: which sequences share a private block, and the effect of the first write."""

from collections.abc import Iterable

from .reference_sequence import ReferenceSequence


def list_sharers(sequences: Iterable[ReferenceSequence], sequence: ReferenceSequence, ordinal: int) -> list[ReferenceSequence]:
    """The other open sequences that own the same private block."""
    number = sequence.shared_private.get(ordinal)
    if number is None:
        return []
    return [other for other in sequences if other is not sequence and other.shared_private.get(ordinal) == number]


def num_first_written(sequence: ReferenceSequence, capacity: int, history: int, tokens_per_block: int) -> int:
    """The first block that the step after a resize may write: of its inputs, or of tokens behind the old capacity."""
    positions = [sequence.capacity] if capacity > sequence.capacity else []
    if history < capacity:
        positions.append(history)
    return min(positions) // tokens_per_block if positions else 1 << 60


def make_fork(sequence: ReferenceSequence, name: int, num_blocks: int, next_number: int) -> ReferenceSequence:
    """A second sequence with all blocks of the first; private ones get numbers from ``next_number`` on, by ordinal."""
    child = ReferenceSequence(name, sequence.scope, len(sequence.scratch))
    child.committed = list(sequence.committed)
    child.uses_scratch = sequence.uses_scratch
    child.history = sequence.history
    child.capacity = sequence.capacity
    child.is_active = sequence.is_active
    child.is_committing = sequence.is_committing
    child.is_retired = sequence.is_retired
    child.publishes_at_close = sequence.publishes_at_close
    child.path = list(sequence.path)
    child.shared_tail = sequence.shared_tail
    child.is_matched_tail = sequence.is_matched_tail
    child.adopted = dict(sequence.adopted)
    child.has_state = sequence.has_state
    child.snapshot_node = sequence.snapshot_node
    child.peak_capacity = sequence.peak_capacity
    child.num_matched = sequence.num_matched
    for ordinal in range(len(sequence.path), num_blocks):
        if sequence.node(ordinal) is None:
            sequence.shared_private.setdefault(ordinal, next_number + ordinal)
    child.shared_private = dict(sequence.shared_private)
    return child


def copy_blocks(sequence: ReferenceSequence) -> ReferenceSequence:
    """A copy of what a resize changes, for `restore_blocks`."""
    kept = ReferenceSequence(sequence.name, sequence.scope, len(sequence.scratch))
    restore_blocks(kept, sequence)
    return kept


def restore_blocks(sequence: ReferenceSequence, kept: ReferenceSequence) -> None:
    sequence.history = kept.history
    sequence.capacity = kept.capacity
    sequence.shared_tail = kept.shared_tail
    sequence.adopted = dict(kept.adopted)
    sequence.shared_private = dict(kept.shared_private)
