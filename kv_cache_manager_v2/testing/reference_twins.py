"""Twins, for the reference model: where indices stay, pages that active sequences keep although the tree has equal ones.

A commit that meets a published block keeps its own page as a twin exactly if another active sequence, or a lease, has the published
page on the device. The twin ends when its last sequence is suspended, ends, or needs it no more; and when no one but twins' sequences
needs the published page on the device: then the oldest twin is the published page.
"""

from collections.abc import Iterable
from typing import Final, final


from .reference_sequence import ReferenceSequence


@final
class ReferenceTwin:
    """One twin. ``number``: of the private block, as in `ReferenceSequence.shared_private`."""

    __slots__ = ("node", "group", "ordinal", "number", "users")

    def __init__(self, node: int, group: int, ordinal: int, number: int, users: list[ReferenceSequence]) -> None:
        self.node: Final = node
        self.group: Final = group
        self.ordinal: Final = ordinal
        self.number: Final = number
        self.users: Final = users

    @property
    def private_name(self) -> tuple[int, int]:
        """As `ReferenceSequence.private_name` of a block that forks share."""
        return (-1 - self.number, self.ordinal)


def find_twin(twins: Iterable[ReferenceTwin], sequence: ReferenceSequence, group: int, ordinal: int) -> ReferenceTwin | None:
    for twin in twins:
        if (twin.group, twin.ordinal) == (group, ordinal) and sequence in twin.users:
            return twin
    return None


def list_twin_blocks(twins: Iterable[ReferenceTwin], sequence: ReferenceSequence, group: int) -> list[int]:
    """The ordinals of the sequence's twins."""
    return sorted([twin.ordinal for twin in twins if twin.group == group and sequence in twin.users])
