"""Copies as three arrays of 64-bit words, as the CUDA driver reads them: destinations, sources, sizes.

The arrays are reused. Their addresses change only when they grow, so filling them makes no Python objects.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from .host_array import word_array_address

_FIRST_CAPACITY: Final = 64
_WORD_BYTES: Final = 8


@final
class CopyArrays:
    """``count`` copies in one piece of memory: ``_capacity`` destinations, then as many sources, then as many sizes."""

    __slots__ = ("count", "_words", "_capacity", "_address")

    def __init__(self) -> None:
        self.count: i64 = 0
        self._capacity: i64 = _FIRST_CAPACITY
        self._words = vec[i64]([0] * (3 * _FIRST_CAPACITY))
        self._address: int = word_array_address(self._words)

    def clear(self) -> None:
        """Empty the arrays and keep their memory."""
        self.count = 0

    def add(self, dst: i64, src: i64, num_bytes: i64) -> None:
        index = self.count
        if index == self._capacity:
            self._grow()
        words = self._words
        capacity = self._capacity
        words[index] = dst
        words[capacity + index] = src
        words[2 * capacity + index] = num_bytes
        self.count = index + 1

    def dst(self, index: i64) -> i64:
        return self._words[index]

    def src(self, index: i64) -> i64:
        return self._words[self._capacity + index]

    def num_bytes(self, index: i64) -> i64:
        return self._words[2 * self._capacity + index]

    @property
    def dst_array(self) -> int:
        """The address of the first destination. Like the next two addresses it is valid until the next `add`."""
        return self._address

    @property
    def src_array(self) -> int:
        return self._address + _WORD_BYTES * int(self._capacity)

    @property
    def size_array(self) -> int:
        return self._address + 2 * _WORD_BYTES * int(self._capacity)

    def _grow(self) -> None:
        old_words = self._words
        old_capacity = self._capacity
        capacity = 2 * old_capacity
        words = vec[i64]([0] * int(3 * capacity))
        for array in range(3):
            for index in range(old_capacity):
                words[array * capacity + index] = old_words[array * old_capacity + index]
        self._words = words
        self._capacity = capacity
        self._address = word_array_address(words)
