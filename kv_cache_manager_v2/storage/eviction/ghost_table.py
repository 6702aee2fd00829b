"""Content that is gone, known by its key, with its kind and when it was last there: four entries a slot, four bytes each.

Buckets of four entries, the youngest first; a fifth pushes the oldest out. An entry has 18 bits of its key beside the bucket's number:
of a million contents that are not there, sixteen are taken for one that is. Made in pieces as they are first written, so that nothing is
made per slot before pages go.

    bucket = two words, entries 0 and 1, 2 and 3: the younger in bits 0-30, the older in 31-61
    entry  = key (bits 13-30, never 0) | stamp, modulo 4096 (1-12) | kind (0); 0 where there is none
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

NOT_THERE: Final = -1
_WORDS: Final = 2
_PIECE_BITS: Final = 10
_PIECE_BUCKETS: Final = 1 << _PIECE_BITS
_MIXER: Final = 0x2545F4914F6CDD1D & ((1 << 61) - 1)
_MASK: Final = (1 << 62) - 1
_KEY_MASK: Final = (1 << 18) - 1
_STAMP_MASK: Final = 4095
_NOTE_BITS: Final = 13
_ENTRY_BITS: Final = 31
_ENTRY_MASK: Final = (1 << _ENTRY_BITS) - 1
_OLDER_KEY: Final = _ENTRY_BITS + _NOTE_BITS
_KEY_IN_ENTRY: Final = _ENTRY_MASK - ((1 << _NOTE_BITS) - 1)


@final
@mypyc_attr(native_class=True)
class _Piece:
    __slots__ = ("words",)

    words: vec[i64]

    def __init__(self, num_buckets: i64) -> None:
        self.words = vec[i64]([0] * (num_buckets * _WORDS))


@final
@mypyc_attr(native_class=True)
class GhostTable:
    """``is_empty``: nothing was ever added, so nobody need ask."""

    __slots__ = ("is_empty", "_num_buckets", "_pieces", "_reserved")

    is_empty: bool
    _num_buckets: i64
    _pieces: list[_Piece | None]
    _reserved: list[_Piece | None]
    """For the next `set_num_buckets`, if it is long enough."""

    def __init__(self) -> None:
        self.is_empty = True
        self._num_buckets = 0
        self._pieces = []
        self._reserved = []

    def reserve_buckets(self, num_buckets: i64) -> None:
        """`set_num_buckets` of that number allocates nothing."""
        self._reserved = [None] * ((num_buckets + _PIECE_BUCKETS - 1) >> _PIECE_BITS)

    def set_num_buckets(self, num_buckets: i64) -> None:
        """Forgets everything, unless there are as many already."""
        if num_buckets != self._num_buckets:
            if len(self._reserved) != (num_buckets + _PIECE_BUCKETS - 1) >> _PIECE_BITS:
                self.reserve_buckets(num_buckets)
            self.is_empty = True
            self._num_buckets = num_buckets
            self._pieces = self._reserved
        self._reserved = []

    def add(self, key: i64, kind: i64, stamp: i64) -> None:
        self._add(key, pack_entry(kind, stamp))

    def add_run(self, keys: vec[i64], entries: vec[i64], count: i64) -> None:
        """The first ``count`` of the keys, each with its `pack_entry`."""
        position: i64 = 0
        while position < count:
            self._add(keys[position], entries[position])
            position += 1

    def _add(self, key: i64, entry: i64) -> None:
        if self._num_buckets == 0:
            return
        mixed = _mix(key)
        bucket = ((mixed >> 30) * self._num_buckets) >> 32
        piece = self._pieces[bucket >> _PIECE_BITS]
        if piece is None:
            piece = self._make_piece(bucket >> _PIECE_BITS)
        words = piece.words
        at = (bucket & (_PIECE_BUCKETS - 1)) * _WORDS
        young = words[at]
        short_key = mixed & _KEY_MASK
        if short_key == 0:
            short_key = 1
        words[at] = ((young & _ENTRY_MASK) << _ENTRY_BITS) | (short_key << _NOTE_BITS) | entry
        at += 1
        words[at] = ((words[at] & _ENTRY_MASK) << _ENTRY_BITS) | (young >> _ENTRY_BITS)

    def _make_piece(self, number: i64) -> _Piece:
        left = self._num_buckets - (number << _PIECE_BITS)
        piece = _Piece(left if left < _PIECE_BUCKETS else _PIECE_BUCKETS)
        self._pieces[number] = piece
        self.is_empty = False
        return piece

    def take(self, key: i64, now: i64) -> i64:
        """The content's stamp and kind, as ``stamp * 2 + kind``; it is there no more. NOT_THERE if it was not."""
        if self.is_empty:
            return NOT_THERE
        mixed = _mix(key)
        bucket = ((mixed >> 30) * self._num_buckets) >> 32
        piece = self._pieces[bucket >> _PIECE_BITS]
        if piece is None:
            return NOT_THERE
        words = piece.words
        short_key = mixed & _KEY_MASK
        if short_key == 0:
            short_key = 1
        at = (bucket & (_PIECE_BUCKETS - 1)) * _WORDS
        end = at + _WORDS
        while at < end:
            word = words[at]
            if (word & _KEY_IN_ENTRY) >> _NOTE_BITS == short_key:
                words[at] = word & ~_ENTRY_MASK
                return _describe(word & _ENTRY_MASK, now)
            if word >> _OLDER_KEY == short_key:
                words[at] = word & _ENTRY_MASK
                return _describe(word >> _ENTRY_BITS, now)
            at += 1
        return NOT_THERE


def pack_entry(kind: i64, stamp: i64) -> i64:
    """What is remembered beside the key; of the stamp, the lower bits are enough."""
    return ((stamp & _STAMP_MASK) << 1) | kind


def _describe(entry: i64, now: i64) -> i64:
    age = (now - (entry >> 1)) & _STAMP_MASK
    return (now - age) * 2 + (entry & 1)


def bucket_of(key: i64, num_buckets: i64) -> i64:
    return ((_mix(key) >> 30) * num_buckets) >> 32


def _mix(key: i64) -> i64:
    """Its upper 32 bits say which bucket, its lower 20 which entry."""
    mixed = ((key ^ (key >> 29)) * _MIXER) & _MASK
    return mixed ^ (mixed >> 31)
