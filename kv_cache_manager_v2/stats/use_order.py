"""Keys in the order of their last use, with a fast count of how many were used since a given one.

Every use has a time, counted from 0; a key has the time of its last use. Times are counted in groups of 32 and of 1024, so a use costs
three writes and a query under a hundred reads. When the times run out, the keys are renumbered from 0 on. Memory is bounded: beyond
`MAX_KEYS` the least recently used quarter is forgotten.

Conservation: a key is in the table if and only if `_place_at` names its place at its time.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

MAX_KEYS: Final = 1 << 13
NUM_TIMES: Final = 1 << 15
NOT_KNOWN: Final = -1

_NUM_PLACES: Final = 2 * MAX_KEYS
_NO_KEY: Final = -1
_NO_PLACE: Final = -1
_GROUP_SHIFT: Final = 5
_LARGE_GROUP_SHIFT: Final = 10
_NUM_GROUPS: Final = NUM_TIMES >> _GROUP_SHIFT
_NUM_LARGE_GROUPS: Final = NUM_TIMES >> _LARGE_GROUP_SHIFT


@final
@mypyc_attr(native_class=True)
class UseOrder:
    """Keys must not be negative, and must be well mixed."""

    __slots__ = ("num_keys", "_keys", "_times", "_place_at", "_groups", "_large_groups", "_next_time")

    num_keys: i64
    _keys: Final[vec[i64]]
    """An open-addressing table: a key is at its first free place from ``key & mask`` on."""
    _times: Final[vec[i64]]
    """By place: the time of the key there."""
    _place_at: Final[vec[i64]]
    """By time: the place of the key whose last use it is."""
    _groups: Final[vec[i64]]
    """By group of 32 times: how many are some key's last use."""
    _large_groups: Final[vec[i64]]
    """The same by group of 1024."""
    _next_time: i64

    def __init__(self) -> None:
        self.num_keys = 0
        self._keys = vec[i64]([_NO_KEY] * _NUM_PLACES)
        self._times = vec[i64]([0] * _NUM_PLACES)
        self._place_at = vec[i64]([_NO_PLACE] * NUM_TIMES)
        self._groups = vec[i64]([0] * _NUM_GROUPS)
        self._large_groups = vec[i64]([0] * _NUM_LARGE_GROUPS)
        self._next_time = 0

    def record_use(self, key: i64) -> None:
        """Move the key to the MRU end."""
        if self._next_time == NUM_TIMES:
            self._renumber(0)
        keys = self._keys
        place = self._find_place(key)
        if keys[place] == _NO_KEY:
            if self.num_keys == MAX_KEYS:
                self._renumber(MAX_KEYS // 4)
                place = self._find_place(key)
            keys[place] = key
            self.num_keys += 1
        else:
            time = self._times[place]
            self._place_at[time] = _NO_PLACE
            self._count(time, -1)
        self._give_time(place)

    def count_used_since(self, key: i64) -> i64:
        """How many other keys were used since the last use of ``key``; NOT_KNOWN if it was never used, or is forgotten."""
        place = self._find_place(key)
        if self._keys[place] == _NO_KEY:
            return NOT_KNOWN
        after = self._times[place] + 1
        count: i64 = 0
        place_at = self._place_at
        while (after & ((1 << _GROUP_SHIFT) - 1)) != 0:
            if place_at[after] != _NO_PLACE:
                count += 1
            after += 1
        groups = self._groups
        group = after >> _GROUP_SHIFT
        while (group & ((1 << (_LARGE_GROUP_SHIFT - _GROUP_SHIFT)) - 1)) != 0:
            count += groups[group]
            group += 1
        large_groups = self._large_groups
        for large_group in range(group >> (_LARGE_GROUP_SHIFT - _GROUP_SHIFT), _NUM_LARGE_GROUPS):
            count += large_groups[large_group]
        return count

    def _find_place(self, key: i64) -> i64:
        """The key's place, or the free one where it belongs."""
        keys = self._keys
        place = key & (_NUM_PLACES - 1)
        while keys[place] != key and keys[place] != _NO_KEY:
            place = (place + 1) & (_NUM_PLACES - 1)
        return place

    def _give_time(self, place: i64) -> None:
        time = self._next_time
        self._times[place] = time
        self._place_at[time] = place
        self._count(time, 1)
        self._next_time = time + 1

    def _count(self, time: i64, change: i64) -> None:
        group = time >> _GROUP_SHIFT
        large_group = time >> _LARGE_GROUP_SHIFT
        self._groups[group] += change
        self._large_groups[large_group] += change

    def _renumber(self, num_forgotten: i64) -> None:
        """Renumber the times from 0 on, without the keys that were used longest ago."""
        kept = vec[i64]([0] * (self.num_keys - num_forgotten))
        keys = self._keys
        place_at = self._place_at
        num_passed: i64 = 0
        for time in range(self._next_time):
            place = place_at[time]
            if place != _NO_PLACE:
                if num_passed >= num_forgotten:
                    kept[num_passed - num_forgotten] = keys[place]
                num_passed += 1
                place_at[time] = _NO_PLACE
        _fill(keys, _NO_KEY)
        _fill(self._groups, 0)
        _fill(self._large_groups, 0)
        self._next_time = 0
        self.num_keys = len(kept)
        for key in kept:
            place = self._find_place(key)
            keys[place] = key
            self._give_time(place)


def _fill(words: vec[i64], word: i64) -> None:
    for position in range(len(words)):
        words[position] = word
