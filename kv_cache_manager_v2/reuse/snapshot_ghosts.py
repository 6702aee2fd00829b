"""Snapshots of recurrent state that were dropped for want of room: the latest ones, by a hash of their prefix.

One that ends inside a block is found from the prefix above the block: the length of the latest one there is remembered.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

NOT_GONE: Final = -1
_LEAST: Final = 64
_MOST: Final = 1 << 12
_PLACE_SHIFT: Final = 12
_PLACE_MASK: Final = _MOST - 1
_NO_KEY: Final = -1


@final
@mypyc_attr(native_class=True)
class SnapshotGhosts:
    __slots__ = ("_ghosts", "_lengths", "_keys", "_parents", "_next")

    _ghosts: Final[dict[int, int]]
    """By key: when it went, whether with its block, place."""
    _lengths: Final[dict[int, int]]
    """By the key above: bytes, place."""
    _keys: Final[vec[i64]]
    """By place."""
    _parents: Final[vec[i64]]
    _next: i64

    def __init__(self, num_slots: i64) -> None:
        """16 times as many are remembered as there are slots, at least 64 and at most 4,096."""
        count = 16 * num_slots
        if count < _LEAST:
            count = _LEAST
        if count > _MOST:
            count = _MOST
        self._ghosts = {}
        self._lengths = {}
        self._keys = vec[i64]([_NO_KEY] * count)
        self._parents = vec[i64]([_NO_KEY] * count)
        self._next = 0

    def record(self, key: i64, time: i64, went_with_block: bool, parent_key: i64, num_bytes: i64) -> None:
        """``num_bytes``: of the tokens behind the prefix ``parent_key``; 0 for a whole block."""
        place = self._next
        self._next = place + 1 if place + 1 < len(self._keys) else 0
        self._forget(self._ghosts, self._keys[place], place)
        self._forget(self._lengths, self._parents[place], place)
        self._keys[place] = key
        self._ghosts[int(key)] = int((((time << 1) | (1 if went_with_block else 0)) << _PLACE_SHIFT) | place)
        self._parents[place] = _NO_KEY
        if num_bytes > 0:
            self._parents[place] = parent_key
            self._lengths[int(parent_key)] = int((num_bytes << _PLACE_SHIFT) | place)

    def _forget(self, entries: dict[int, int], key: i64, place: i64) -> None:
        if key != _NO_KEY and entries[int(key)] & _PLACE_MASK == place:
            del entries[int(key)]

    def find(self, key: i64) -> i64:
        """``time << 1 | went_with_block``, or NOT_GONE."""
        entry: i64 = self._ghosts.get(int(key), NOT_GONE << _PLACE_SHIFT)
        return entry >> _PLACE_SHIFT

    def find_length(self, parent_key: i64) -> i64:
        """The bytes of the latest snapshot inside a block below that prefix; 0 if there is none."""
        entry: i64 = self._lengths.get(int(parent_key), 0)
        return entry >> _PLACE_SHIFT
