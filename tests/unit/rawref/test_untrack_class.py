"""Objects of an untracked class: the garbage collector neither sees nor counts them, and they are freed as others are."""

import gc
import sys
from types import ModuleType
from typing import Any

import pytest

import rawref

COUNTS_BLOCKS = sys.getallocatedblocks() > 0
"""CPython counts its own blocks alone: none with PYTHONMALLOC=malloc, which AddressSanitizer needs."""


def fresh_class() -> type:
    return type("Fresh", (), {"__slots__": ("value",)})


def hide(cls: type) -> None:
    """The compiled module is loaded once for all tests, and its class hidden by the first of them."""
    try:
        assert rawref.untrack_class(cls) is True
    except TypeError:
        assert not gc.is_tracked(cls(0))


def test_objects_are_neither_seen_nor_counted(targets: ModuleType) -> None:
    untracked = targets.Linked
    hide(untracked)
    gc.collect()
    gc.disable()
    try:
        before = gc.get_count()[0]
        made = [untracked(number) for number in range(5000)]
        assert gc.get_count()[0] - before < 100
    finally:
        gc.enable()
    assert not any(gc.is_tracked(one) for one in made)
    assert [one.number for one in made] == list(range(5000))
    for one, following in zip(made, made[1:], strict=False):
        one.next = following
    gc.collect()
    assert sum(1 for one in made[:-1] if one.next is not None) == 4999


def test_they_are_freed_with_all_that_they_hold(targets: ModuleType) -> None:
    untracked = targets.Linked
    hide(untracked)
    held = fresh_class()()
    holders = sys.getrefcount(held)
    made = []
    for number in range(3000):
        made.append(untracked(number))
        made[-1].held = held
    assert sys.getrefcount(held) == holders + 3000
    allocated = sys.getallocatedblocks()
    made.clear()
    assert sys.getrefcount(held) == holders
    assert not COUNTS_BLOCKS or sys.getallocatedblocks() <= allocated - 3000


def test_the_class_is_held_by_its_objects_alone() -> None:
    """mypyc's classes are never freed: their objects do not let go of them."""
    untracked = fresh_class()
    rawref.untrack_class(untracked)
    references = sys.getrefcount(untracked)
    made = [untracked() for _ in range(100)]
    assert sys.getrefcount(untracked) == references + 100
    made.clear()
    assert sys.getrefcount(untracked) == references


def test_a_long_chain_is_freed(targets: ModuleType) -> None:
    untracked = targets.Linked
    hide(untracked)
    first = last = untracked(0)
    for number in range(1, 100_000):
        last.next = untracked(number)
        last = last.next
    allocated = sys.getallocatedblocks()
    del last
    first = None
    assert first is None and (not COUNTS_BLOCKS or sys.getallocatedblocks() <= allocated - 99_999)


def test_a_subclass_is_as_before() -> None:
    base: Any = fresh_class()
    rawref.untrack_class(base)
    derived = type("Derived", (base,), {"__slots__": ()})
    made = derived()
    made.value = [made]
    assert gc.is_tracked(made) and not gc.is_tracked(base())
    made.value = None


UNFIT = [5, None, int, list, dict, object, type, rawref.ref, type("Plain", (), {}), type("Pair", (tuple,), {"__slots__": ()})]


@pytest.mark.parametrize("unfit", UNFIT)
def test_what_is_no_class_with_slots_alone_is_refused(unfit: Any) -> None:
    with pytest.raises(TypeError, match="untrack_class takes a class with __slots__ alone"):
        rawref.untrack_class(unfit)


def test_a_second_time_is_refused() -> None:
    once = fresh_class()
    assert rawref.untrack_class(once)
    with pytest.raises(TypeError, match="each class once"):
        rawref.untrack_class(once)
