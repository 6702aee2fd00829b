"""What the model knows of a segment: nine features and two hints in a few levels each, packed into one integer.

    bits    feature                                              levels
    0-2     uses so far: 1, 2, 3-4, 5-8, 9-16, 17-32, more       7
    3-6     bucket of age at the latest return, plus 1; 0: none  16
    7-10    tokens that the request generated, in powers of two  16
    11-14   new blocks of the request, in powers of two          16
    15-18   blocks of the request, in powers of two              16
    19      whether it is the last block of the request          2
    20-23   blocks from the root to its end, in powers of two    16
    24-25   the path is new (0), goes on where another ended (1), or parts from one (2); 3: see `BlockMates`  4
    26      whether the request generated its tokens             2
    27-28   whether the caller said that its text goes on (1) or ends (2); 0: nothing was said  3
    29-32   kind of its tokens, as the caller named it, plus 1; 0: none  16
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

TRAIT_BITS: Final = 33
AGE_SHIFT: Final = 3
GENERATED_SHIFT: Final = 7
NEW_SHIFT: Final = 11
LENGTH_SHIFT: Final = 15
LAST_SHIFT: Final = 19
DEPTH_SHIFT: Final = 20
PATH_SHIFT: Final = 24
TEXT_SHIFT: Final = 26
CONTINUES_SHIFT: Final = 27
KIND_SHIFT: Final = 29

NEW_PATH: Final = 0
EXTENDED_PATH: Final = 1
BRANCHED_PATH: Final = 2
WAITING: Final = 3
"""Pages that wait for their block's leading page: nothing is learned of them."""

FEATURE_SHIFTS: Final = (0, 3, 7, 11, 15, 19, 20, 24, 26)
FEATURE_LEVELS: Final = (7, 16, 16, 16, 16, 2, 16, 4, 2)
NUM_FEATURES: Final = 9
HINT_SHIFTS: Final = (CONTINUES_SHIFT, KIND_SHIFT)
HINT_LEVELS: Final = (3, 16)
NUM_HINTS: Final = 2
NO_HINT: Final = 0
CONTINUES: Final = 1
ENDS: Final = 2
_NUM_KINDS: Final = 15
MOST_USES: Final = 33
"""A page's uses are counted so far."""
_MOST_LEVEL: Final = 15
NO_REQUEST: Final = 0


@final
class RequestFacts:
    """What a request tells the learned policies as it releases its pages: one for all queues of a manager.

    `begin` before the pages are released, `end` after it. What is pushed in between is that request's; what is pushed otherwise (a page
    that moved, one that is out of its window) has no request.
    """

    __slots__ = ("serial", "num_blocks", "num_generated_blocks", "num_generated_tokens", "continues", "kinds", "_num_requests")

    def __init__(self) -> None:
        self._num_requests: i64 = 0
        self.end()

    def begin(self, num_blocks: i64, num_generated_blocks: i64, num_generated_tokens: i64, continues: i64 = NO_HINT) -> None:
        self._num_requests += 1
        self.serial: i64 = self._num_requests
        """Of the request that releases its pages, or NO_REQUEST."""
        self.num_blocks: i64 = num_blocks
        """Of its whole text."""
        self.num_generated_blocks: i64 = num_generated_blocks
        """Of these, the last ones, which it generated."""
        self.num_generated_tokens: i64 = num_generated_tokens
        self.continues: i64 = continues
        """What the caller said of it: NO_HINT, CONTINUES or ENDS."""
        self.kinds = vec[i64]()
        """Levels of the kinds of its blocks, the last one first; empty where the caller named none."""

    def kind_at(self, block: i64) -> i64:
        """Of a block, counted from the last one."""
        return self.kinds[block] if block < len(self.kinds) else NO_HINT

    def end(self) -> None:
        self.begin(0, 0, 0)
        self.serial = NO_REQUEST


def waits(traits: i64) -> bool:
    return (traits >> PATH_SHIFT) & 3 == WAITING


def level_of_count(count: i64) -> i64:
    """Powers of two: 0, 1, 2-3, 4-7 and so on, up to level 15."""
    level: i64 = 0
    while count > 0 and level < _MOST_LEVEL:
        count >>= 1
        level += 1
    return level


def level_of_kind(kind: i64) -> i64:
    """Kinds that differ by a multiple of 15 are one to the model."""
    return 1 + kind % _NUM_KINDS


def level_of_uses(uses: i64) -> i64:
    return level_of_count(uses - 1)


def least_uses(traits: i64) -> i64:
    """Of the segment's level."""
    return 1 + ((1 << (traits & 7)) >> 1)
