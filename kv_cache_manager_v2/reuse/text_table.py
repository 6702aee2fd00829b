"""What became of texts, in a fixed number of entries, eight to a bucket; a full bucket forgets.

A text is known by a 62-bit hash and 20 bits of its scope. While there is one scope, texts are told of only when they go, and a bucket
is a ring: the entry that was written first is overwritten. From the second scope on texts that are here have entries too, one each;
then a bucket forgets the entry that was written first of a block that is gone, if there is one.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

IS_HERE: Final = 0
"""The text was published, and not dropped; told only once there is a second scope. Other states: `FIRST_DROPPED` + the
`removal_cause`."""
FIRST_DROPPED: Final = 1
NOT_KNOWN: Final = -1
IN_OTHER_SCOPE: Final = -2
SCOPE_MASK: Final = (1 << 20) - 1
NO_TEXT: Final = -1

_WAYS: Final = 8
# A bucket: how many entries `write_next` has written, and the entries, of two words each: the text; then state (bits 0-7) |
# scope (8-27) | when it was written (28-61).
_BUCKET_WORDS: Final = 1 + 2 * _WAYS
_STATE_MASK: Final = 255
_SCOPE_SHIFT: Final = 8
_TIME_SHIFT: Final = 28
_LAST_TIME: Final = (1 << 34) - 1


@final
@mypyc_attr(native_class=True)
class TextTable:
    __slots__ = ("_words", "_bucket_mask", "_time")

    _words: Final[vec[i64]]
    _bucket_mask: Final[i64]
    _time: i64

    def __init__(self, num_entries: int) -> None:
        """``num_entries`` is rounded up to a power of two of at least one bucket; an entry is 17 bytes."""
        num_buckets = 1
        while num_buckets * _WAYS < num_entries:
            num_buckets *= 2
        words = vec[i64]([NO_TEXT] * (num_buckets * _BUCKET_WORDS))
        begin: i64 = 0
        while begin < len(words):
            words[begin] = 0
            begin += _BUCKET_WORDS
        self._words = words
        self._bucket_mask = num_buckets - 1
        self._time = 0

    @property
    def num_entries(self) -> int:
        return int(self._bucket_mask + 1) * _WAYS

    def find(self, text: i64, scope: i64) -> i64:
        """What became of the text in that scope: IS_HERE or dropped; else IN_OTHER_SCOPE if another one had it, or NOT_KNOWN."""
        words = self._words
        at = (text & self._bucket_mask) * _BUCKET_WORDS + 1
        end = at + 2 * _WAYS
        newest: i64 = -1
        found: i64 = NOT_KNOWN
        while at < end:
            if words[at] == text:
                entry = words[at + 1]
                if ((entry >> _SCOPE_SHIFT) & SCOPE_MASK) != scope:
                    if newest < 0:
                        found = IN_OTHER_SCOPE
                elif entry > newest:
                    # The time is above all else in an entry.
                    newest = entry
                    found = entry & _STATE_MASK
            at += 2
        return found

    def write_next(self, text: i64, scope: i64, state: i64) -> None:
        """In the place of the entry that was written first; of one text there may be several."""
        words = self._words
        begin = (text & self._bucket_mask) * _BUCKET_WORDS
        turn = words[begin]
        words[begin] = turn + 1
        at = begin + 1 + 2 * (turn & (_WAYS - 1))
        time = self._time
        words[at] = text
        words[at + 1] = state | (scope << _SCOPE_SHIFT) | (time << _TIME_SHIFT)
        if time < _LAST_TIME:
            self._time = time + 1

    def write(self, text: i64, scope: i64, state: i64) -> None:
        """In the place of what was known of this text in this scope."""
        words = self._words
        begin = (text & self._bucket_mask) * _BUCKET_WORDS + 1
        place: i64 = -1
        at = begin
        while at < begin + 2 * _WAYS:
            # Entries are overwritten, never emptied: behind the first empty one there is none.
            known = words[at]
            if known == NO_TEXT or (known == text and ((words[at + 1] >> _SCOPE_SHIFT) & SCOPE_MASK) == scope):
                place = at
                break
            at += 2
        if place < 0:
            place = self._find_room(begin)
        time = self._time
        words[place] = text
        words[place + 1] = state | (scope << _SCOPE_SHIFT) | (time << _TIME_SHIFT)
        if time < _LAST_TIME:
            self._time = time + 1

    def _find_room(self, begin: i64) -> i64:
        """In a full bucket: the oldest entry of a block that is gone; else the oldest."""
        words = self._words
        oldest = begin
        oldest_gone: i64 = -1
        at = begin
        while at < begin + 2 * _WAYS:
            entry = words[at + 1]
            if (entry >> _TIME_SHIFT) < (words[oldest + 1] >> _TIME_SHIFT):
                oldest = at
            if (entry & _STATE_MASK) != IS_HERE:
                if oldest_gone < 0 or (entry >> _TIME_SHIFT) < (words[oldest_gone + 1] >> _TIME_SHIFT):
                    oldest_gone = at
            at += 2
        return oldest_gone if oldest_gone >= 0 else oldest
