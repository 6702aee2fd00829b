"""The reasons why a page was dropped."""

from enum import IntEnum
from typing import Final

from ..events import removal_cause

NUM_DROP_REASONS: Final = len(removal_cause.CAUSE_NAMES)


class DropReason(IntEnum):
    """CAPACITY, UNREACHABLE and SHRUNK would not have happened with more memory.

    CAPACITY: it was evicted, by priority, then by policy. UNREACHABLE: it could not be matched any more, as a page before it on its
    path was evicted. SHRUNK: its tier was made smaller. SUPERSEDED: a fuller block has the same tokens.
    CLEARED: `clear_reusable_blocks`. SCOPE_INVALIDATED: its reuse scope was invalidated. REQUESTED: the user asked to drop it.
    FAILURE: its bytes were lost in a transfer, or a disk could not read them.
    """

    CAPACITY = removal_cause.CAPACITY
    SUPERSEDED = removal_cause.SUPERSEDED
    CLEARED = removal_cause.CLEARED
    SCOPE_INVALIDATED = removal_cause.SCOPE_INVALIDATED
    FAILURE = removal_cause.FAILURE
    UNREACHABLE = removal_cause.UNREACHABLE
    SHRUNK = removal_cause.SHRUNK
    REQUESTED = removal_cause.REQUESTED
