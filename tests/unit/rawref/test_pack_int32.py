"""Ints of a list side by side, as ``array`` writes them; None where one is no int of that range."""

from array import array
from typing import Any

import pytest

import rawref

EDGES = (0, 1, -1, 2**30 - 1, 2**30, -(2**30), 2**31 - 1, -(2**31))


class Number(int):
    """Its own code could change the list, so it is left to the caller."""


def test_items_are_written_as_an_array_writes_them() -> None:
    for items in ([], list(EDGES), [*EDGES] * 100, list(range(-2000, 2000))):
        for begin, end in ((0, len(items)), (len(items) // 3, len(items) // 2), (len(items), len(items))):
            packed = rawref.pack_int32(items, begin, end, -(2**31))
            assert packed == array("i", items[begin:end]).tobytes()


@pytest.mark.parametrize("bad", [2**31, -(2**31) - 1, 1 << 62, 1 << 64, -(1 << 200), True, 1.0, "1", None, b"digest", Number(1)])
def test_one_that_is_no_such_int_makes_none_of_all(bad: Any) -> None:
    for position in (0, 5, 9):
        items: list[Any] = list(range(10))
        items[position] = bad
        assert rawref.pack_int32(items, 0, 10, -(2**31)) is None
        assert rawref.pack_int32(items, position + 1, 10, 0) is not None


def test_none_below_the_least() -> None:
    for least in (-1, 0, 7):
        assert rawref.pack_int32([least, least + 1], 0, 2, least) is not None
        assert rawref.pack_int32([least, least - 1], 0, 2, least) is None


def test_wrong_arguments() -> None:
    call: Any = rawref.pack_int32
    wrong: list[Any] = [(), ([1], 0, 1), ((1, 2), 0, 1, 0), ([1], "0", 1, 0), ([1], 0, None, 0), (array("i", [1]), 0, 1, 0)]
    for arguments in wrong:
        with pytest.raises(TypeError):
            call(*arguments)
    for begin, end in ((-1, 1), (1, 0), (0, 3), (3, 3)):
        with pytest.raises(IndexError, match=f"no items {begin} to {end} in a list of 2"):
            call([1, 2], begin, end, 0)
    with pytest.raises(OverflowError):
        call([1], 0, 1 << 70, 0)
