"""Why a page is gone: which decision took its slot away for good."""

from enum import IntEnum
from typing import Final

from ..events import removal_cause

NUM_DROP_REASONS: Final = len(removal_cause.CAUSE_NAMES)


class DropReason(IntEnum):
    """CAPACITY, UNREACHABLE and SHRUNK would not have been with more memory.

    CAPACITY: its turn had come, by priority, then by recency. UNREACHABLE: nobody could have matched it any more, as a page
    before it on its path was evicted. SHRUNK: its tier was made smaller. SUPERSEDED: a fuller block has the same tokens.
    CLEARED: `clear_reusable_blocks`. SCOPE_INVALIDATED: its reuse scope was declared void. REQUESTED: the user asked for it
    to go. FAILURE: its bytes were lost in a transfer.
    """

    CAPACITY = removal_cause.CAPACITY
    SUPERSEDED = removal_cause.SUPERSEDED
    CLEARED = removal_cause.CLEARED
    SCOPE_INVALIDATED = removal_cause.SCOPE_INVALIDATED
    FAILURE = removal_cause.FAILURE
    UNREACHABLE = removal_cause.UNREACHABLE
    SHRUNK = removal_cause.SHRUNK
    REQUESTED = removal_cause.REQUESTED
