"""The causes of cache misses. Every prompt token that was not reused has exactly one cause."""

from enum import IntEnum
from typing import Final

# As plain ints, for the counters.
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
    """The first four are the usual ones; `is_capacity` says for which of them more memory would certainly have helped.

    NOT_REMEMBERED: this prefix was never published, or its history entry was evicted. EVICTED: the blocks were cached, and were
    evicted by priority and policy. UNREACHABLE: the blocks were cached, and were dropped because a block before them was evicted.
    SHRUNK: the blocks were dropped as their tier was made smaller. DROPPED: the blocks were cleared, or dropped on request.
    WINDOW_BROKEN: the blocks are cached, but a windowed layer lacks pages of the window at every longer prefix. NO_SNAPSHOT: the
    blocks are cached, but there is no recurrent state at a later position. PARTIAL_BLOCK: a cached block begins with the same
    tokens, and partial reuse is off; or the prompt ends inside a block whose predecessors
    are gone, as the history has no parts of blocks. OTHER_SCOPE: another reuse scope has, or had, the same tokens. LOAD_FAILED: the
    blocks were cached, and their bytes were lost in a transfer, or a disk could not read them. BACKOFF: `reuse_match_backoff`
    shortened the match, or level 0 has too few slots to resume with all of it.
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
        """Whether more memory would have avoided the miss, as far as the history tells."""
        return self in (MissCause.EVICTED, MissCause.UNREACHABLE, MissCause.SHRUNK)
