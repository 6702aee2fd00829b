"""`seal` closes what mypyc leaves open in its classes, and changes nothing else."""

import gc
import inspect
import sys
from types import ModuleType
from typing import Any

import pytest

import rawref


def test_properties_work_and_cannot_be_deleted(targets: ModuleType) -> None:
    sealed = targets.Sealed(3)
    for _ in range(100):
        sealed.size = sealed.size + 1
    assert (sealed.size, sealed.double, sealed.plain) == (103, 206, "plain")
    for name in ("size", "double"):
        with pytest.raises(AttributeError):
            delattr(sealed, name)
    with pytest.raises(ValueError, match="negative"):
        sealed.size = -1
    with pytest.raises(AttributeError):
        sealed.double = 3
    assert sealed.size == 103


def test_a_compiled_constructor_runs_once(compiled_targets: ModuleType) -> None:
    sealed = compiled_targets.Sealed(3)
    for arguments in ((), (5,), (None, None)):
        with pytest.raises(TypeError, match="made once"):
            sealed.__init__(*arguments)
    with pytest.raises(TypeError, match="made once"):
        compiled_targets.Sealed.__init__(sealed, 5)
    assert sealed.size == 3
    assert compiled_targets.Sealed(7).size == 7
    with pytest.raises(TypeError):
        compiled_targets.Sealed("text")
    with pytest.raises(TypeError):
        compiled_targets.Sealed.__init__(object(), 5)


def test_a_sealed_constructor_shows_its_arguments(targets: ModuleType) -> None:
    for class_name in ("Sealed", "SealedWithoutArguments"):
        sealed = getattr(targets, class_name)
        names = ["size"] if class_name == "Sealed" else []
        assert list(inspect.signature(sealed).parameters) == names
        assert list(inspect.signature(sealed.__init__).parameters) == ["self", *names]


def test_a_subclass_in_python_calls_the_constructor(targets: ModuleType) -> None:
    base: Any = targets.Sealed

    class Sub(base):  # type: ignore[misc]
        def __init__(self, size: int) -> None:
            super().__init__(size + 1)

    class SubOfSub(Sub):
        pass

    for made in (Sub(3), SubOfSub(3)):
        assert made.size == 4
        made.size = 8
        assert made.double == 16
        with pytest.raises(AttributeError):
            del made.size
    with pytest.raises(TypeError):
        Sub("text")  # type: ignore[arg-type]


def test_what_mypyc_calls_itself_is_gone(compiled_targets: ModuleType) -> None:
    assert "__internal_mypyc_setup" not in vars(compiled_targets.Sealed)
    assert compiled_targets.Sealed(3).size == 3


def test_sealing_again_and_what_needs_no_sealing(targets: ModuleType) -> None:
    class Plain:
        pass

    for sealed_class in (targets.Sealed, Plain, int, object):
        rawref.seal(sealed_class)
    sealed = targets.Sealed(3)
    sealed.size = 5
    assert sealed.size == 5
    with pytest.raises(AttributeError):
        del sealed.size


def test_a_sealed_target_has_refs(targets: ModuleType, reports: Any) -> None:
    sealed = targets.Sealed(3)
    reference = rawref.ref(sealed)
    assert reference() is sealed
    del sealed
    assert reference() is None and reports.texts == []


def test_nothing_leaks(targets: ModuleType) -> None:
    sealed = targets.Sealed(3)
    value = [1]
    count = sys.getrefcount(value)
    for _ in range(1000):
        sealed.plain = value
        with pytest.raises(AttributeError):
            del sealed.size
        with pytest.raises(AttributeError):
            sealed.double = value
        sealed.plain = None
        sealed.size = 3
    gc.collect()
    assert sys.getrefcount(value) == count


@pytest.mark.parametrize("argument", [None, 3, "text", object()])
def test_only_classes_can_be_sealed(argument: Any) -> None:
    with pytest.raises(TypeError):
        rawref.seal(argument)
