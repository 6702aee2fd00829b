"""A ref gives its target back, does not keep it alive, and is one per target."""

import copy
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, get_origin

import pytest

import rawref


class Plain:
    """A class that knows nothing of rawref."""


class Slotted:
    __slots__ = ("__weakref__",)


class Frozen:
    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("frozen")


def test_call_returns_the_target(targets: ModuleType) -> None:
    target = targets.Closing("a")
    reference = rawref.ref(target)
    assert reference() is target
    assert reference.is_valid


def test_a_ref_does_not_count(targets: ModuleType) -> None:
    target = targets.Closing("a")
    count = sys.getrefcount(target)
    reference = rawref.ref(target)
    assert sys.getrefcount(target) == count
    del target
    assert reference() is None
    assert not reference.is_valid


def test_one_ref_per_target(targets: ModuleType) -> None:
    target, other = targets.Closing("a"), targets.Closing("b")
    reference = rawref.ref(target)
    assert rawref.ref(target) is reference
    assert rawref.ref(other) is not reference
    assert rawref.ref(other)() is other


def test_the_ref_outlives_its_holders(targets: ModuleType) -> None:
    target = targets.Closing("a")
    identity = id(rawref.ref(target))
    assert id(rawref.ref(target)) == identity  # the target keeps it


@pytest.mark.parametrize("how", ["ref", "module", "close", "attribute"])
def test_invalidate_reaches_all_holders(targets: ModuleType, how: str) -> None:
    target = targets.Closing("a")
    held_here, held_there = rawref.ref(target), rawref.ref(target)
    if how == "ref":
        held_here.invalidate()
    elif how == "module":
        rawref.invalidate(target)
    elif how == "close":
        target.close()
    else:
        target.held_in_the_attribute().invalidate()
    assert held_here() is None and held_there() is None
    assert not held_here.is_valid
    held_here.invalidate()
    rawref.invalidate(target)


def test_an_invalidated_target_gets_a_new_ref(targets: ModuleType) -> None:
    target = targets.Closing("a")
    first = rawref.ref(target)
    first.invalidate()
    second = rawref.ref(target)
    assert second is not first
    assert second() is target and first() is None
    del target
    assert second() is None


def test_invalidate_without_a_ref(targets: ModuleType) -> None:
    rawref.invalidate(targets.Closing("a"))
    rawref.invalidate(targets.Forgetful())
    rawref.ref(targets.Closing("b")).invalidate()  # from here on the class is known to rawref
    rawref.invalidate(targets.Closing("c"))
    for anything in (targets.Undeclared(), Plain(), object(), 7, None, int):
        rawref.invalidate(anything)


def test_reading_the_attribute_from_outside_yields_the_ref(targets: ModuleType) -> None:
    target = targets.Closing("a")
    reference = rawref.ref(target)
    assert target.__rawref__ is reference
    assert targets.Closing("b").__rawref__ is rawref.NULL
    target.__rawref__ = reference  # changes nothing
    assert reference() is target


def test_the_attribute_takes_nothing_else(targets: ModuleType) -> None:
    target = targets.Closing("a")
    rawref.ref(target).invalidate()
    with pytest.raises(TypeError):
        target.__rawref__ = 7


def test_something_else_in_the_attribute() -> None:
    class Unmet:  # no ref was made to one of these, so that the attribute is still an ordinary one
        __slots__ = ("__rawref__",)
        __rawref__: object

    target = Unmet()
    target.__rawref__ = 7
    with pytest.raises(TypeError):
        rawref.ref(target)
    with pytest.raises(TypeError):
        rawref.invalidate(target)
    target.__rawref__ = None
    reference = rawref.ref(target)
    assert reference() is target
    rawref.invalidate(target)


def test_assigning_null_releases_the_ref(targets: ModuleType, reports: Any) -> None:
    target = targets.Forgetful()
    reference = rawref.ref(target)
    target.__rawref__ = rawref.NULL
    assert reference() is None
    assert len(reports.texts) == 1  # it was valid, and nobody said that it should end
    assert rawref.ref(target)() is target
    rawref.invalidate(target)


def test_null() -> None:
    assert rawref.NULL() is None
    assert not rawref.NULL.is_valid
    rawref.NULL.invalidate()
    assert "dead" in repr(rawref.NULL)


def test_a_plain_class_needs_no_preparation() -> None:
    target = Plain()
    reference = rawref.ref(target)
    assert reference() is target and rawref.ref(target) is reference
    rawref.invalidate(target)
    assert reference() is None
    reference = rawref.ref(target)
    del target
    assert reference() is None and not reference.is_valid


def test_a_frozen_plain_class() -> None:
    target = Frozen()
    assert rawref.ref(target)() is target


def test_an_interpreted_subclass(targets: ModuleType) -> None:
    subclass: Any = type("Subclass", (targets.Forgetful,), {})
    target = subclass()
    reference = rawref.ref(target)
    assert reference() is target and rawref.ref(target) is reference
    rawref.invalidate(target)
    assert reference() is None


@pytest.mark.parametrize("make", [Slotted, object, dict, lambda: 7, lambda: None, lambda: Plain, lambda: len])
def test_unfit_targets(make: Any) -> None:
    with pytest.raises(TypeError):
        rawref.ref(make())


def test_an_undeclared_attribute(targets: ModuleType) -> None:
    target = targets.Undeclared()
    with pytest.raises(TypeError):
        rawref.ref(target)


def test_a_copy_has_refs_of_its_own() -> None:
    target = Plain()
    reference = rawref.ref(target)
    twin = copy.copy(target)
    assert rawref.ref(twin)() is twin
    assert reference() is target


def test_a_slotted_copy_has_refs_of_its_own(reports: Any) -> None:
    class Copied:
        __slots__ = ("__rawref__", "number")
        number: int

    target = Copied()
    target.number = 5
    reference = rawref.ref(target)
    twin = copy.copy(target)
    assert twin.number == 5
    del target
    assert reference() is None
    assert rawref.ref(twin)() is twin
    rawref.invalidate(twin)
    assert len(reports.texts) == 1


def test_wrong_arguments() -> None:
    untyped: Any = rawref.ref
    reference: Any = rawref.ref(Plain())
    wrong_calls: tuple[Callable[[], object], ...] = (
        lambda: untyped(),
        lambda: untyped(1, 2),
        lambda: untyped(target=1),
        lambda: reference(1),
        lambda: reference(a=1),
    )
    for call in wrong_calls:
        with pytest.raises(TypeError):
            call()
    with pytest.raises(TypeError):
        type("Subclass", (untyped,), {})
    with pytest.raises(TypeError):
        untyped.extra = 1


def test_repr_and_generic_alias(targets: ModuleType) -> None:
    target = targets.Closing("a")
    reference = rawref.ref(target)
    assert "Closing" in repr(reference)
    target.close()
    assert "dead" in repr(reference)
    assert get_origin(rawref.ref[int]) is rawref.ref
    assert len({reference, rawref.NULL, reference}) == 2
