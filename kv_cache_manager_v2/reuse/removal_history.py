"""The outcome of prefixes, in a bounded number of entries, eight to a bucket; a full bucket forgets.

A prefix is known by a 62-bit hash and 20 bits of its scope. While there is one scope, prefixes are told of only when they go, and a bucket
is a ring: the entry that was written first is overwritten. From the second scope on prefixes that are here have entries too, one each;
then a bucket forgets the entry that was written first of a block that is gone, if there is one.

The table grows by a bucket with every second entry that is written (`GrowingBuckets`), so memory comes with what is recorded, and no call
copies what is there.

Removals are recorded on the path of a call, and a prefix's bucket lies anywhere in the table. So entries are queued, and go to their
buckets together, before the next question at the latest: a processor then fetches many buckets at once.
"""

from typing import Final, final

from librt.vecs import extend, vec
from mypy_extensions import i64, u8

from ..base.growing_arrays import reserve_up_to
from ..base.growing_buckets import GrowingBuckets

IS_HERE: Final = 0
"""The prefix was published, and not dropped; told only once there is a second scope. Other states: `FIRST_DROPPED` + the
`removal_cause`."""
FIRST_DROPPED: Final = 1
NOT_KNOWN: Final = -1
IN_OTHER_SCOPE: Final = -2
SCOPE_MASK: Final = (1 << 20) - 1
NO_PREFIX: Final = -1

_WAYS: Final = 8
# An entry has two words: the prefix; then state (bits 0-7) | scope (8-27) | when it was told of (28-61).
_ENTRY_WORDS: Final = 2
_BUCKET_WORDS: Final = _WAYS * _ENTRY_WORDS
_STATE_MASK: Final = 255
_SCOPE_SHIFT: Final = 8
_TIME_SHIFT: Final = 28
_LAST_TIME: Final = (1 << 34) - 1
_LINE_WORDS: Final = _ENTRY_WORDS * 512
_ENTRIES_A_BUCKET: Final = 2
"""So many are written for each bucket that the table grows by: with 2 some 0.4 % are forgotten early, with 4 it would be 7 %."""


@final
class RemovalHistory:
    __slots__ = (
        "num_entries", "_words", "_turns", "_most_buckets", "_buckets", "_empty", "_time", "_line", "_line_end",
        "_keeps_one_each", "_one",
    )  # fmt: skip

    def __init__(self, num_entries: int) -> None:
        """``num_entries`` is rounded up to a power of two of at least one bucket; an entry is 16 bytes, and one byte a bucket."""
        most = 1
        while most * _WAYS < num_entries:
            most *= 2
        self.num_entries: Final[int] = most * _WAYS
        """That it grows to."""
        self._most_buckets: Final[i64] = most
        self._buckets: Final = GrowingBuckets()
        self._empty: Final = vec[i64]([NO_PREFIX] * _LINE_WORDS)
        """What the table grows by: some empty buckets."""
        self._words: vec[i64] = extend(reserve_up_to(vec[i64](), most * _BUCKET_WORDS + _LINE_WORDS), self._empty)
        """Of buckets."""
        self._turns: Final = vec[u8]([0] * most)
        """By bucket, which entry is overwritten next while it is a ring."""
        self._time: i64 = 0
        self._line: Final = vec[i64]([0] * _LINE_WORDS)
        self._line_end: i64 = 0
        self._one: Final = vec[i64]([NO_PREFIX])
        self._keeps_one_each = False

    def keep_one_each(self) -> None:
        """There is a second scope: from now on prefixes that are here are told of too, and a prefix in a scope has one entry."""
        self._settle()
        self._keeps_one_each = True

    def record(self, prefix: i64, scope: i64, state: i64) -> None:
        """That is so from now on."""
        self._one[0] = prefix
        self.record_run(self._one, 1, scope, state)

    def record_run(self, prefixes: vec[i64], count: i64, scope: i64, state: i64) -> None:
        """`record` the first ``count`` of the prefixes, in order."""
        line = self._line
        at = self._line_end
        time = self._time
        bits = state | (scope << _SCOPE_SHIFT)
        position: i64 = 0
        while position < count:
            if at == _LINE_WORDS:
                self._line_end = at
                self._settle()
                at = 0
            line[at] = prefixes[position]
            line[at + 1] = bits | (time << _TIME_SHIFT)
            at += _ENTRY_WORDS
            position += 1
            if time < _LAST_TIME:
                time += 1
        self._line_end = at
        self._time = time

    def _settle(self) -> None:
        """All that wait go to their buckets, in the order in which they came."""
        line = self._line
        end = self._line_end
        self._line_end = 0
        at: i64 = 0
        words = self._words
        turns = self._turns
        buckets = self._buckets
        while at < end:
            prefix = line[at]
            if buckets.count < self._most_buckets and (line[at + 1] >> _TIME_SHIFT) % _ENTRIES_A_BUCKET == 1:
                self._add_bucket()
                words = self._words
            bucket = buckets.bucket_of(prefix)
            if self._keeps_one_each:
                self._write(bucket, prefix, line[at + 1])
            else:
                turn = i64(turns[bucket])
                turns[bucket] = u8((turn + 1) & (_WAYS - 1))
                place = bucket * _BUCKET_WORDS + turn * _ENTRY_WORDS
                words[place] = prefix
                words[place + 1] = line[at + 1]
            at += _ENTRY_WORDS

    def _add_bucket(self) -> None:
        """One more, which takes its part of the entries of another."""
        buckets = self._buckets
        added = buckets.count
        parted = buckets.add()
        if (added + 1) * _BUCKET_WORDS > len(self._words):
            self._words = extend(self._words, self._empty)
        words = self._words
        turns = self._turns
        begin = parted * _BUCKET_WORDS
        end = begin + _BUCKET_WORDS
        first = i64(turns[parted]) * _ENTRY_WORDS
        if first > 0 and words[end - _ENTRY_WORDS] != NO_PREFIX:
            # A full ring, from now on as it was written.
            ring = words[begin:end]
            for word in range(_BUCKET_WORDS):
                words[begin + word] = ring[(first + word) & (_BUCKET_WORDS - 1)]
        at = begin
        kept = begin
        moved = added * _BUCKET_WORDS
        while at < end and words[at] != NO_PREFIX:
            prefix = words[at]
            entry = words[at + 1]
            words[at] = NO_PREFIX
            if buckets.bucket_of(prefix) == added:
                words[moved] = prefix
                words[moved + 1] = entry
                moved += _ENTRY_WORDS
            else:
                words[kept] = prefix
                words[kept + 1] = entry
                kept += _ENTRY_WORDS
            at += _ENTRY_WORDS
        turns[parted] = u8((kept >> 1) & (_WAYS - 1))
        turns[added] = u8((moved >> 1) & (_WAYS - 1))

    def _write(self, bucket: i64, prefix: i64, entry: i64) -> None:
        """In the place of what was known of this prefix in this scope."""
        words = self._words
        begin = bucket * _BUCKET_WORDS
        scope = (entry >> _SCOPE_SHIFT) & SCOPE_MASK
        place: i64 = -1
        for at in range(begin, begin + _BUCKET_WORDS, _ENTRY_WORDS):
            # Entries are overwritten, never emptied: behind the first empty one there is none.
            known = words[at]
            if known == NO_PREFIX or (known == prefix and ((words[at + 1] >> _SCOPE_SHIFT) & SCOPE_MASK) == scope):
                place = at
                break
        if place < 0:
            place = self._find_room(begin)
        words[place] = prefix
        words[place + 1] = entry

    def find(self, prefix: i64, scope: i64) -> i64:
        """The outcome of the prefix in that scope: IS_HERE or dropped; else IN_OTHER_SCOPE if another one had it, or NOT_KNOWN."""
        if self._line_end > 0:
            self._settle()
        words = self._words
        at = self._buckets.bucket_of(prefix) * _BUCKET_WORDS
        end = at + _BUCKET_WORDS
        newest: i64 = -1
        found: i64 = NOT_KNOWN
        while at < end:
            if words[at] == prefix:
                entry = words[at + 1]
                if ((entry >> _SCOPE_SHIFT) & SCOPE_MASK) != scope:
                    if newest < 0:
                        found = IN_OTHER_SCOPE
                elif entry > newest:
                    # The time is above all else in an entry.
                    newest = entry
                    found = entry & _STATE_MASK
            at += _ENTRY_WORDS
        return found

    def _find_room(self, begin: i64) -> i64:
        """In a full bucket: the oldest entry of a block that is gone; else the oldest."""
        words = self._words
        oldest = begin
        oldest_gone: i64 = -1
        for at in range(begin, begin + _BUCKET_WORDS, _ENTRY_WORDS):
            entry = words[at + 1]
            if (entry >> _TIME_SHIFT) < (words[oldest + 1] >> _TIME_SHIFT):
                oldest = at
            if (entry & _STATE_MASK) != IS_HERE:
                if oldest_gone < 0 or (entry >> _TIME_SHIFT) < (words[oldest_gone + 1] >> _TIME_SHIFT):
                    oldest_gone = at
        return oldest_gone if oldest_gone >= 0 else oldest
