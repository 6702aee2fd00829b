"""Leases, for the reference model: pages lent to another machine stay in their slots, on the device, until the lease is settled.

The slots tell whether a leased private block is published meanwhile: they are then those of a page in the tree, unless
an equal block had such a page already; then the lease keeps a private page of its own.
"""

from typing import Final, final


from .reference_sequence import ReferenceSequence
from .reference_tree import Page, Scope


@final
class LeasedPage:
    """``number``: of the private block that it was part of when the lease was made; None if it was published already."""

    __slots__ = ("group", "ordinal", "slot", "number", "is_lent", "node")

    def __init__(self, group: int, ordinal: int, slot: int, number: int | None, is_lent: bool, node: int | None) -> None:
        self.group: Final = group
        self.ordinal: Final = ordinal
        self.slot: Final = slot  # when it was leased; a page that is only kept may have moved since
        self.number: Final = number
        self.is_lent: Final = is_lent  # or only kept, so that lent pages stay reachable
        self.node: int | None = node  # the published block whose page it is

    @property
    def published(self) -> Page | None:
        return None if self.node is None else (self.node, self.group)

    @property
    def private_name(self) -> tuple[int, int]:
        """The same as `ReferenceSequence.private_name` of the sequences that still have the block."""
        assert self.number is not None, "a leased page is private or published"
        return (-1 - self.number, self.ordinal)


@final
class ReferenceLease:
    """One open lease. ``numbers``: of the private blocks that it co-owns, though it never writes."""

    __slots__ = ("scope", "pages", "numbers")

    def __init__(self, scope: Scope) -> None:
        self.scope: Final = scope
        self.pages: Final[list[LeasedPage]] = []
        self.numbers: Final[set[int]] = set()

    def lent_slots(self, group: int) -> list[int]:
        return [page.slot for page in self.pages if page.group == group and page.is_lent]

    def has_private(self, sequence: ReferenceSequence, group: int, ordinal: int) -> bool:
        """Whether it has that page of a private block of the sequence."""
        number = sequence.shared_private.get(ordinal)
        return number is not None and any([page.node is None and (page.number, page.group) == (number, group) for page in self.pages])
