"""The rules of beams, for the reference model: a further beam is a fork of beam 0 that ends with its sequence.

All beams of a sequence have the same committed tokens, capacity and history; what they share beyond these is as with forks. A further
beam is a `ReferenceSequence` of its own, under a name that no sequence has.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from .reference_forks import list_sharers
from .reference_sequence import ReferenceSequence

_MAX_BEAMS: Final = 64
_FIRST_NAME: Final = -(1 << 40)
"""Below the names of private blocks, `ReferenceSequence.private_name`."""


def name_beam(sequence: int, beam: int) -> int:
    """The beam's name, a negative number."""
    return _FIRST_NAME - (sequence * _MAX_BEAMS + beam)


def place_of_beam(name: int) -> tuple[int, int]:
    """The sequence and beam of such a name."""
    return divmod(_FIRST_NAME - name, _MAX_BEAMS)


def list_beams(sequence: ReferenceSequence) -> list[ReferenceSequence]:
    """All beams, beam 0 first."""
    return [sequence, *sequence.beams]


def reorder_blocks(beams: Sequence[ReferenceSequence], parents: Sequence[int], num_blocks: int, next_number: int) -> int:
    """Give each beam its parent's blocks; private blocks without a number get one. Returns the next free number."""
    for parent in sorted({*parents}):
        beam = beams[parent]
        for ordinal in range(len(beam.path), num_blocks):
            if beam.node(ordinal) is None:
                beam.shared_private.setdefault(ordinal, next_number + ordinal)
        next_number += num_blocks
    tails = [beam.shared_tail for beam in beams]
    adopted = [dict(beam.adopted) for beam in beams]
    private = [dict(beam.shared_private) for beam in beams]
    for beam, parent in zip(beams, parents):
        beam.shared_tail = tails[parent]
        beam.adopted = dict(adopted[parent])
        beam.shared_private = dict(private[parent])
    return next_number


def may_gather(
    beams: Sequence[ReferenceSequence],
    sequences: Iterable[ReferenceSequence],
    leased_numbers: set[int],
    sources: Sequence[int],
    tokens_per_block: int,
) -> bool:
    """Whether tokens may be combined from these beams: no block to be written is published, or shared with other sequences."""
    sequences_and_beams = list(sequences)
    for index, source in enumerate(sources):
        ordinal = (len(beams[0].committed) + index) // tokens_per_block
        origin = beams[source]
        for beam in beams:
            is_published = beam.node(ordinal) is not None and beam.node(ordinal) == origin.node(ordinal)
            if is_published or beam.private_name(ordinal) == origin.private_name(ordinal):
                continue
            if beam.node(ordinal) is not None or beam.shared_private.get(ordinal, -1) in leased_numbers:
                return False
            if any([other not in beams for other in list_sharers(sequences_and_beams, beam, ordinal)]):
                return False
    return True
