"""Why a token of a prompt was not reused. Every token that was not has exactly one cause."""

from enum import IntEnum
from typing import Final

# As plain numbers, for the places that count.
NOT_REMEMBERED: Final = 0
EVICTED: Final = 1
UNREACHABLE: Final = 2
SHRUNK: Final = 3
DROPPED: Final = 4
WINDOW_BROKEN: Final = 5
NO_SNAPSHOT: Final = 6
PARTIAL_BLOCK: Final = 7
OTHER_SCOPE: Final = 8
LOAD_FAILED: Final = 9
BACKOFF: Final = 10
NUM_MISS_CAUSES: Final = 11


class MissCause(IntEnum):
    """The first four are the usual ones; `is_capacity` says which more memory would have spared for certain.

    NOT_REMEMBERED: this prefix was never published, or its history entry is gone: new, or forgotten long ago. EVICTED: they were
    here, and their turn to go came, by priority and recency. UNREACHABLE: they were here, and went because what comes before
    them was evicted. SHRUNK: they went as their tier was made smaller. DROPPED: they were cleared, or dropped on request.
    WINDOW_BROKEN: they are here, but a windowed layer lacks pages of the window at every longer prefix. NO_SNAPSHOT: they are
    here, but there is no recurrent state at a later position. PARTIAL_BLOCK: a block here begins with the same tokens and
    could not serve them (partial reuse is off, or it lacks pages); or the prompt ends inside a block whose predecessors are
    gone, and parts of blocks are not remembered. OTHER_SCOPE: another reuse scope has, or had, the same text. LOAD_FAILED: they
    were here, and their bytes were lost in a transfer. BACKOFF: `reuse_match_backoff` trimmed them off.
    """

    NOT_REMEMBERED = 0
    EVICTED = 1
    UNREACHABLE = 2
    SHRUNK = 3
    DROPPED = 4
    WINDOW_BROKEN = 5
    NO_SNAPSHOT = 6
    PARTIAL_BLOCK = 7
    OTHER_SCOPE = 8
    LOAD_FAILED = 9
    BACKOFF = 10

    @property
    def is_capacity(self) -> bool:
        """Whether more memory would have helped, as far as is remembered."""
        return self in (MissCause.EVICTED, MissCause.UNREACHABLE, MissCause.SHRUNK)
