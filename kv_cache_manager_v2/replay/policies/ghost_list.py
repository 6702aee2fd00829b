"""Content that is gone, the oldest forgotten first: a bounded set of content keys, each with a note, in the order of their adding.

A ring of keys in the order of adding (a taken one leaves a 0), and an open hash table from key to place in the ring with
linear probing and backward shifting, twice as long as the ring. Both start small and double while the ring is more than three
quarters full of keys: 86 bytes a key at most, and nothing is allocated once the limit is reached.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

NOT_THERE: Final = -1
_NOTHING: Final = -1
_SMALLEST: Final = 64
_MIXER: Final = 0x2545F4914F6CDD1D & ((1 << 61) - 1)
_MASK: Final = (1 << 62) - 1


@final
class GhostList:
    """``num_keys`` keys are in it, ``limit`` at most."""

    __slots__ = ("num_keys", "limit", "_ring", "_notes", "_begin", "_end", "_table")

    def __init__(self) -> None:
        self.num_keys: i64 = 0
        self.limit: i64 = 0
        self._ring = vec[i64]([0] * _SMALLEST)
        """Keys; place ``p`` is at ``p & (length - 1)``, for ``_begin <= p < _end``."""
        self._notes = vec[i64]([0] * _SMALLEST)
        self._begin: i64 = 0
        self._end: i64 = 0
        self._table = vec[i64]([_NOTHING] * (2 * _SMALLEST))
        """Places in the ring, or _NOTHING."""

    def set_limit(self, limit: i64) -> None:
        self.limit = limit
        while self.num_keys > limit:
            self.forget_oldest()

    def add(self, key: i64, note: i64 = 0) -> None:
        """The youngest from now on, with a note that is not negative; the oldest is forgotten where there are too many."""
        if self.limit == 0:
            return
        self.take(key)
        if self.num_keys == self.limit:
            self.forget_oldest()
        size: i64 = len(self._ring)
        if self._end - self._begin == size:
            self._make_place()
            size = len(self._ring)
        self._ring[self._end & (size - 1)] = key
        self._notes[self._end & (size - 1)] = note
        self._table[self._find_place(key, _NOTHING)] = self._end
        self._end += 1
        self.num_keys += 1

    def take(self, key: i64) -> i64:
        """The key's note; it is there no more. NOT_THERE if it was not."""
        at = self._find(key)
        if at == _NOTHING:
            return NOT_THERE
        size: i64 = len(self._ring)
        place = self._table[at] & (size - 1)
        self._ring[place] = 0
        self._erase(at)
        self.num_keys -= 1
        return self._notes[place]

    def contains(self, key: i64) -> bool:
        return self._find(key) != _NOTHING

    def forget_oldest(self) -> None:
        """There is one."""
        size: i64 = len(self._ring)
        ring = self._ring
        while ring[self._begin & (size - 1)] == 0:
            self._begin += 1
        self._erase(self._find(ring[self._begin & (size - 1)]))
        ring[self._begin & (size - 1)] = 0
        self._begin += 1
        self.num_keys -= 1

    def _make_place(self) -> None:
        """The ring is full of keys and of gaps: close the gaps, and double it while it is mostly full of keys."""
        size: i64 = len(self._ring)
        new_size = size
        while self.num_keys * 4 > new_size * 3:
            new_size *= 2
        old = self._ring
        if new_size == size:
            target = self._begin
            for source in range(self._begin, self._end):
                key = old[source & (size - 1)]
                if key != 0:
                    if source != target:
                        old[target & (size - 1)] = key
                        self._notes[target & (size - 1)] = self._notes[source & (size - 1)]
                        old[source & (size - 1)] = 0
                        self._table[self._find_place(key, source)] = target
                    target += 1
            self._end = target
            return
        self._ring = vec[i64]([0] * new_size)
        self._table = vec[i64]([_NOTHING] * (2 * new_size))
        new = self._ring
        old_notes = self._notes
        self._notes = vec[i64]([0] * new_size)
        new_notes = self._notes
        place: i64 = 0
        for source in range(self._begin, self._end):
            key = old[source & (size - 1)]
            if key != 0:
                new[place] = key
                new_notes[place] = old_notes[source & (size - 1)]
                self._table[self._find_place(key, _NOTHING)] = place
                place += 1
        self._begin = 0
        self._end = place

    # -- the table ----------------------------------------------------------------------------------------------------

    def _home(self, key: i64) -> i64:
        size: i64 = len(self._table)
        mixed = ((key ^ (key >> 29)) * _MIXER) & _MASK
        return (mixed >> 24) & (size - 1)

    def _find(self, key: i64) -> i64:
        """Where the table has it, or _NOTHING."""
        table = self._table
        ring = self._ring
        table_mask: i64 = len(table)
        table_mask -= 1
        ring_mask: i64 = len(ring)
        ring_mask -= 1
        at = self._home(key)
        while table[at] != _NOTHING:
            if ring[table[at] & ring_mask] == key:
                return at
            at = (at + 1) & table_mask
        return _NOTHING

    def _find_place(self, key: i64, place: i64) -> i64:
        """Where the table has a key that stood at ``place`` of the ring; with _NOTHING, where a new key goes."""
        table = self._table
        table_mask: i64 = len(table)
        table_mask -= 1
        at = self._home(key)
        while table[at] != place:
            at = (at + 1) & table_mask
        return at

    def _erase(self, at: i64) -> None:
        """Shift back whatever had to step aside for the erased entry. The keys of the others are in the ring."""
        table = self._table
        ring = self._ring
        table_mask: i64 = len(table)
        table_mask -= 1
        ring_mask: i64 = len(ring)
        ring_mask -= 1
        hole = at
        probe = (at + 1) & table_mask
        while table[probe] != _NOTHING:
            home = self._home(ring[table[probe] & ring_mask])
            if (probe - home) & table_mask >= (probe - hole) & table_mask:
                table[hole] = table[probe]
                hole = probe
            probe = (probe + 1) & table_mask
        table[hole] = _NOTHING

    def check_count(self) -> None:
        """Assert the bounds of what is counted; O(1)."""
        assert 0 <= self.num_keys <= self.limit, f"{self.num_keys} keys where {self.limit} are allowed"
        size: i64 = len(self._ring)
        length = self._end - self._begin
        assert self.num_keys <= length <= size, f"{self.num_keys} keys in {length} places of a ring of {size}"

    def check(self) -> None:
        """Evaluate all counts from scratch."""
        size: i64 = len(self._ring)
        num_keys: i64 = 0
        for place in range(self._begin, self._end):
            key = self._ring[place & (size - 1)]
            if key != 0:
                num_keys += 1
                at = self._find(key)
                assert at != _NOTHING and self._table[at] == place, f"key {key} is not found"
        assert num_keys == self.num_keys, f"{num_keys} keys, counted {self.num_keys}"
        in_table = len([one for one in self._table if one != _NOTHING])
        assert in_table == num_keys, f"{in_table} entries for {num_keys} keys"
        assert num_keys <= self.limit, f"{num_keys} keys where {self.limit} are allowed"
