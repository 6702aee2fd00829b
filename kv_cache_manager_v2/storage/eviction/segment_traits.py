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

from typing import Final

from mypy_extensions import i64

TRAIT_BITS: Final = 33
USES_SHIFT: Final = 0
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
    if uses <= 2:
        return uses - 1
    level: i64 = 2
    most: i64 = 4
    while uses > most:
        most *= 2
        level += 1
    return level


def least_uses(traits: i64) -> i64:
    """Of the segment's level."""
    level = traits & 7
    if level < 2:
        return level + 1
    return (1 << (level - 1)) + 1
