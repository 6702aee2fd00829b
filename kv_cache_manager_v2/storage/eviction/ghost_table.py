"""Content that is gone, known by its key, with its kind and when it was last there: four entries a slot, four bytes each.

Buckets of four entries, the youngest first; a fifth pushes the oldest out. An entry has 20 bits of its key beside the bucket's number:
of a million contents that are not there, four are taken for one that is. Made in pieces as they are first written, so that nothing is
made per slot before pages go.

    entry = key (bits 11-30, never 0) | tick, modulo 1024 (1-10) | kind (0)
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i32, i64, mypyc_attr

NOT_THERE: Final = -1
WAYS: Final = 4
_PIECE_BITS: Final = 10
_PIECE_BUCKETS: Final = 1 << _PIECE_BITS
_MIXER: Final = 0x2545F4914F6CDD1D & ((1 << 61) - 1)
_MASK: Final = (1 << 62) - 1
_KEY_BITS: Final = 20
_TICK_MASK: Final = 1023
_NOTE_BITS: Final = 11


@final
@mypyc_attr(native_class=True)
class _Piece:
    __slots__ = ("entries",)

    entries: vec[i32]

    def __init__(self, num_buckets: i64) -> None:
        self.entries = vec[i32]([0] * (num_buckets * WAYS))


@final
@mypyc_attr(native_class=True)
class GhostTable:
    __slots__ = ("_num_buckets", "_pieces")

    _num_buckets: i64
    _pieces: list[_Piece | None]

    def __init__(self) -> None:
        self._num_buckets = 0
        self._pieces = []

    def set_num_buckets(self, num_buckets: i64) -> None:
        """Forgets everything, unless there are as many already."""
        if num_buckets != self._num_buckets:
            self._num_buckets = num_buckets
            self._pieces = [None] * ((num_buckets + _PIECE_BUCKETS - 1) >> _PIECE_BITS)

    def add(self, key: i64, kind: i64, tick: i64) -> None:
        if self._num_buckets == 0:
            return
        mixed = _mix(key)
        bucket = _bucket_of(mixed, self._num_buckets)
        number = bucket >> _PIECE_BITS
        piece = self._pieces[number]
        if piece is None:
            left = self._num_buckets - (number << _PIECE_BITS)
            piece = _Piece(left if left < _PIECE_BUCKETS else _PIECE_BUCKETS)
            self._pieces[number] = piece
        entries = piece.entries
        at = (bucket & (_PIECE_BUCKETS - 1)) * WAYS
        entries[at + 3] = entries[at + 2]
        entries[at + 2] = entries[at + 1]
        entries[at + 1] = entries[at]
        entries[at] = i32((_short_key(mixed) << _NOTE_BITS) | ((tick & _TICK_MASK) << 1) | kind)

    def take(self, key: i64, now: i64) -> i64:
        """The content's tick and kind, as ``tick * 2 + kind``; it is there no more. NOT_THERE if it was not."""
        if self._num_buckets == 0:
            return NOT_THERE
        mixed = _mix(key)
        bucket = _bucket_of(mixed, self._num_buckets)
        piece = self._pieces[bucket >> _PIECE_BITS]
        if piece is None:
            return NOT_THERE
        entries = piece.entries
        short_key = _short_key(mixed)
        at = (bucket & (_PIECE_BUCKETS - 1)) * WAYS
        end = at + WAYS
        while at < end:
            entry = i64(entries[at])
            if entry >> _NOTE_BITS == short_key:
                entries[at] = 0
                age = (now - (entry >> 1)) & _TICK_MASK
                return (now - age) * 2 + (entry & 1)
            at += 1
        return NOT_THERE


def bucket_of(key: i64, num_buckets: i64) -> i64:
    return _bucket_of(_mix(key), num_buckets)


def _bucket_of(mixed: i64, num_buckets: i64) -> i64:
    return ((mixed >> 30) * num_buckets) >> 32


def _mix(key: i64) -> i64:
    mixed = ((key ^ (key >> 29)) * _MIXER) & _MASK
    return mixed ^ (mixed >> 31)


def _short_key(mixed: i64) -> i64:
    """Bits that the bucket's number does not come from."""
    short_key = mixed & ((1 << _KEY_BITS) - 1)
    return short_key if short_key != 0 else 1
