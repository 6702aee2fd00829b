"""Arrays that grow without being copied: address space is reserved for all items at the start, memory is used as they are added."""

from typing import Final

from librt.vecs import extend, vec
from mypy_extensions import i32, i64

_FILLED_AT_ONCE: Final = 1024


def reserve_words(words: vec[i64], num_words: i64) -> vec[i64]:
    """An array of these items with capacity for ``num_words`` items in all."""
    # Through a view, which leaves the spare capacity untouched: `vec(capacity=...)` alone writes zeros into all of it.
    return vec[i64](memoryview(words), capacity=num_words)


def reserve_up_to(words: vec[i64], num_words: i64) -> vec[i64]:
    """`reserve_words`, with less capacity where the process may not have so many addresses: then items are copied as the array grows."""
    while num_words > len(words):
        try:
            return reserve_words(words, num_words)
        except MemoryError:
            num_words = num_words // 2
    return words


def reserve_numbers(numbers: vec[i32], count: i64) -> vec[i32]:
    """`reserve_up_to` for numbers of four bytes."""
    while count > len(numbers):
        try:
            return vec[i32](memoryview(numbers), capacity=count)
        except MemoryError:
            count = count // 2
    return numbers


def fill_words(words: vec[i64], count: i64, value: i64) -> vec[i64]:
    """An array of these items, followed by ``value`` up to ``count`` items in all."""
    while len(words) < count:
        missing: i64 = count - len(words)
        if missing > _FILLED_AT_ONCE:
            missing = _FILLED_AT_ONCE
        words = extend(words, vec[i64]([value] * missing))
    return words


def fill_numbers(numbers: vec[i32], count: i64, value: i32) -> vec[i32]:
    """`fill_words` for numbers of four bytes."""
    while len(numbers) < count:
        missing: i64 = count - len(numbers)
        if missing > _FILLED_AT_ONCE:
            missing = _FILLED_AT_ONCE
        numbers = extend(numbers, vec[i32]([value] * missing))
    return numbers
