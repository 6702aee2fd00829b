"""A ref never dangles, however its target dies: forgotten, in a cycle, resurrected, with its guard held elsewhere."""

import gc
import sys
import weakref
from random import Random
from types import ModuleType
from typing import Any

import pytest

import rawref


class Witness:
    """Follows a ref at the moment when it is destroyed itself."""

    def __init__(self, reference: Any, seen: list[object]) -> None:
        self.reference = reference
        self.seen = seen

    def __del__(self) -> None:
        self.seen.append(self.reference())


def test_a_forgotten_invalidate_is_reported(targets: ModuleType, reports: Any) -> None:
    target = targets.Forgetful()
    reference = rawref.ref(target)
    del target
    assert reference() is None
    assert len(reports.texts) == 1
    assert "Forgetful" in reports.texts[0]


def test_a_correct_target_is_not_reported(targets: ModuleType, reports: Any) -> None:
    target = targets.Closing("a")
    reference = rawref.ref(target)
    del target
    gc.collect()
    assert reference() is None
    assert reports.texts == []


def test_a_pending_exception_survives_the_report(targets: ModuleType, reports: Any) -> None:
    def fail_with_a_target() -> None:
        target = targets.Forgetful()
        rawref.ref(target)
        raise KeyError("the caller's own")

    with pytest.raises(KeyError):
        fail_with_a_target()
    gc.collect()
    assert len(reports.texts) == 1


def test_a_hook_that_fails_and_looks(targets: ModuleType, capfd: pytest.CaptureFixture[str]) -> None:
    seen: list[object] = []

    def hook(unraisable: Any) -> None:
        seen.append(unraisable.object())
        raise ValueError("from the hook")

    previous = sys.unraisablehook
    sys.unraisablehook = hook
    try:
        target = targets.Forgetful()
        rawref.ref(target)
        del target
    finally:
        sys.unraisablehook = previous
    assert seen == [None]
    assert "from the hook" in capfd.readouterr().err


@pytest.mark.parametrize("has_ref", [False, True])
def test_finalizers_of_one_collection(targets: ModuleType, has_ref: bool) -> None:
    """What one leaves behind neither stops the next one nor gets lost."""
    seen: list[tuple[type[BaseException], object]] = []

    def hook(unraisable: Any) -> None:
        seen.append((unraisable.exc_type, unraisable.object))

    ends: list[str] = []
    previous = sys.unraisablehook
    sys.unraisablehook = hook
    try:
        gc.collect()
        for _ in range(3):
            targets.Failing()
            cautious = targets.Cautious(ends)
            if has_ref:
                rawref.ref(cautious)
            del cautious
        gc.collect()
    finally:
        sys.unraisablehook = previous
    assert ends == ["reached"] * 3
    assert sorted(error.__name__ for error, _ in seen) == ["KeyError"] * 3 + ["ValueError"] * 3
    assert [place for error, place in seen if error is KeyError] == ["a place"] * 3


def test_an_exception_to_report_keeps_its_traceback() -> None:
    seen: list[Any] = []
    previous = sys.unraisablehook
    sys.unraisablehook = lambda unraisable: seen.append((unraisable.exc_value, unraisable.exc_traceback))
    try:
        raised = KeyError("the one")
        try:
            raise raised
        except KeyError as error:
            rawref.write_unraisable(error, None)
        unraised = ValueError("never raised")
        rawref.write_unraisable(unraised, None)
    finally:
        sys.unraisablehook = previous
    assert seen[0] == (raised, raised.__traceback__) and raised.__traceback__ is not None
    assert raised.__context__ is None
    assert seen[1][0] is unraised


@pytest.mark.parametrize("arguments", [(), (KeyError(),), (KeyError, None), ("text", None), (KeyError(), None, None)])
def test_wrong_arguments_of_write_unraisable(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        rawref.write_unraisable(*arguments)


@pytest.mark.parametrize("attribute", ["before", "after"])
def test_the_ref_is_dead_while_its_target_is_torn_down(targets: ModuleType, reports: Any, attribute: str) -> None:
    target = targets.Forgetful()
    seen: list[object] = []
    setattr(target, attribute, Witness(rawref.ref(target), seen))
    del target
    assert seen == [None]


def test_a_cycle(targets: ModuleType, reports: Any) -> None:
    first, second = targets.Forgetful(), targets.Forgetful()
    first.after, second.after = second, first
    references = [rawref.ref(first), rawref.ref(second)]
    del first, second
    assert references[0]() is not None  # nobody has collected them yet
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    assert len(reports.texts) == 2


def test_a_cycle_of_correct_targets(reports: Any) -> None:
    class Member:
        __slots__ = ("peer", "__rawref__")
        peer: object

        def __del__(self) -> None:
            rawref.invalidate(self)

    first, second = Member(), Member()
    first.peer, second.peer = second, first
    references = [rawref.ref(first), rawref.ref(second)]
    del first, second
    gc.collect()
    assert [reference() for reference in references] == [None, None]
    assert reports.texts == []


def test_a_cycle_through_the_ref(targets: ModuleType, reports: Any) -> None:
    """The target owns its ref twice, by the guard and by an attribute: no cycle, since a ref owns nothing."""
    target = targets.Forgetful()
    target.before = reference = rawref.ref(target)
    target.after = [reference, reference]
    del target
    assert reference() is None


def test_a_witness_inside_a_cycle(targets: ModuleType, reports: Any) -> None:
    """Finalizers run before the collector clears anything: what they see is whole, and may be brought back by them."""
    target = targets.Forgetful()
    target.after = target
    seen: list[Any] = []
    target.before = Witness(rawref.ref(target), seen)
    del target
    gc.collect()
    assert len(seen) == 1
    assert seen[0] is not None and seen[0].after is seen[0]
    seen[0].after = None
    seen.clear()
    assert len(reports.texts) == 1


@pytest.mark.parametrize("cuts", [False, True])
def test_resurrection(targets: ModuleType, reports: Any, cuts: bool) -> None:
    target = targets.Rising(cuts)
    reference = rawref.ref(target)
    address = id(target)
    del target
    (back,) = targets.Rising.risen
    targets.Rising.risen.clear()
    assert id(back) == address
    assert reference() is (None if cuts else back)
    assert rawref.ref(back)() is back
    last = rawref.ref(back)
    del back  # __del__ does not run a second time
    assert last() is None and targets.Rising.risen == []
    assert len(reports.texts) == 1


def test_a_guard_held_elsewhere(compiled_targets: ModuleType) -> None:
    """Only the class's own compiled code can get at the guard. A ref whose guard has two holders refuses to guess."""
    target = compiled_targets.Closing("a")
    reference = rawref.ref(target)
    guard = target.held_in_the_attribute()
    assert guard is not reference
    with pytest.raises(ReferenceError):
        reference()
    assert reference() is None  # for good
    with pytest.raises(ReferenceError):
        rawref.ref(target)
    del guard
    assert rawref.ref(target).is_valid
    with pytest.raises(TypeError):
        target.held_in_the_attribute()()


def test_a_guard_in_the_wrong_target(compiled_targets: ModuleType) -> None:
    first: Any = compiled_targets.Closing("first")
    second: Any = compiled_targets.Closing("second")
    reference = rawref.ref(first)
    second.adopt(first.held_in_the_attribute())
    with pytest.raises(ReferenceError):
        rawref.ref(second)
    del first
    assert reference() is None
    with pytest.raises(ReferenceError):
        rawref.ref(second)
    second.adopt(None)
    assert rawref.ref(second)() is second


def test_a_guard_held_by_introspection(targets: ModuleType) -> None:
    target = targets.Closing("a")
    reference = rawref.ref(target)
    held = [item for item in gc.get_referents(target) if type(item).__name__ == "_Guard"]
    assert len(held) == 1
    with pytest.raises(ReferenceError):
        reference.is_valid
    del target
    assert reference() is None
    held.clear()
    assert reference() is None


def test_no_guard_among_the_collectors_objects(targets: ModuleType) -> None:
    target = targets.Closing("a")
    reference = rawref.ref(target)
    assert not any(type(item).__name__ == "_Guard" for item in gc.get_objects())
    assert reference() is target


def test_a_class_can_go() -> None:
    def make() -> tuple[Any, Any]:
        class Passing:
            __slots__ = ("__rawref__", "__weakref__")

            def __del__(self) -> None:
                rawref.invalidate(self)

        return weakref.ref(Passing), rawref.ref(Passing())

    passing, reference = make()
    gc.collect()
    assert passing() is None and reference() is None


@pytest.mark.parametrize("seed", range(4))
def test_random_lives(targets: ModuleType, reports: Any, seed: int) -> None:
    """A ref is valid exactly while its target is in the model: whatever is kept, linked, cut, dropped and collected."""
    random = Random(seed)
    kept: list[Any] = []
    references: list[tuple[int, Any]] = []  # the target's address is its name while it lives
    for step in range(3_000):
        choice = random.randrange(10)
        if choice < 4 or not kept:
            target = targets.Closing(str(step)) if random.random() < 0.5 else targets.Forgetful()
            kept.append(target)
            references.append((id(target), rawref.ref(target)))
            del target
        elif choice < 6:
            target = random.choice(kept)
            assert rawref.ref(target)() is target
            if isinstance(target, targets.Forgetful):
                target.after = random.choice(kept)
            del target
        elif choice < 9:
            kept.pop(random.randrange(len(kept)))
        else:
            target = random.choice(kept)
            rawref.invalidate(target)
            references.append((id(target), rawref.ref(target)))
            del target
        if step % 100 == 0:
            gc.collect()
            addresses = reachable_addresses(kept)
            references = [(address, reference) for address, reference in references if reference.is_valid]
            for address, reference in references:
                target = reference()
                assert id(target) == address and address in addresses, f"seed {seed}, step {step}"
                del target
    reports.texts.clear()
    kept.clear()
    gc.collect()
    assert not any(reference.is_valid for _, reference in references), f"seed {seed}"


def reachable_addresses(kept: list[Any]) -> set[int]:
    addresses: set[int] = set()
    waiting = list(kept)
    while waiting:
        item = waiting.pop()
        if item is not None and id(item) not in addresses:
            addresses.add(id(item))
            waiting.append(getattr(item, "after", None))
    return addresses
