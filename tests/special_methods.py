"""A program: does to every public class what Python lets one do to an object, and says what came of it.

    special_methods.py cases FIRST     each case from number FIRST on: its name goes to stdout before, its outcome behind
    special_methods.py save FILE       a pickle of each value, and what it says
    special_methods.py load FILE       reads such a file, of this build or of the other; says what differs

Its parent, tests/promises/test_values_travel_and_handles_stay.py, starts it again behind a case that ended the process.
"""

import copy
import enum
import gc
import importlib.util
import inspect
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

if importlib.util.find_spec("public_classes") is None:
    sys.path.append(__file__.rpartition("/")[0])  # for the modules beside this one, behind the build

import numpy as np

from kv_cache_manager_v2 import is_compiled
from public_classes import find_all_classes
from public_samples import PUBLIC, WITHOUT_SAMPLE, Samples, is_handle, is_value, load_class

Case = tuple[str, Callable[[], object]]

ARGUMENT_ERRORS: Final = ("TypeError", "AttributeError")
REFUSED: Final = ("TypeError",)
NAMED: Final = (*ARGUMENT_ERRORS, "ValueError", "KVCacheManagerError", "NotImplementedError", "BufferError")
GARBAGE: Final = (None, -1, 1 << 70, "text", b"", [], object())
NOT_TO_BE_CALLED: Final = {
    "freeze": "hides all objects from the collector, for good",
    "synchronize_event": "waits",
    "synchronize_stream": "waits",
}


def class_cases(name: str, found: Any) -> Iterator[Case]:
    """What can be done with the class alone. Methods of classes that nobody sees are not called: they promise nothing."""
    is_public = PUBLIC.get(found.__name__) == name.rpartition(".")[0]
    yield f"{name}: signature", lambda: signature(found)
    yield f"{name}: dir, vars and hash of the class", lambda: (dir(found), dict(vars(found)), hash(found), repr(found))
    yield f"{name}: pickle of the class", lambda: expect(pickle.loads(pickle.dumps(found)) is found, "another class")
    yield f"{name}: subclass", lambda: use_subclass(found, is_public)
    if is_public:
        yield f"{name}: call without arguments", lambda: attempt(lambda: touch(found(), True), NAMED)
    for maker_name, maker in (("own", lambda: found.__new__(found)), ("object's", lambda: object.__new__(found))):
        yield f"{name}: use of what its {maker_name} __new__ makes", lambda maker=maker: use_half_made(maker, is_public)


def object_cases(name: str, get: Callable[[], Any]) -> Iterator[Case]:
    """What can be done with an object; ``get`` gives one that nobody has spoilt."""
    sample = get()
    found = type(sample)
    yield f"{name}: touch", lambda: touch(get(), False)
    yield f"{name}: a second __init__ without arguments", lambda: init_again(get(), ())
    yield f"{name}: a second __init__ with garbage", lambda: init_again(get(), GARBAGE)
    yield f"{name}: compare and hash", lambda: compare(get())
    yield f"{name}: __class__", lambda: attempt(lambda: setattr(get(), "__class__", found), ARGUMENT_ERRORS)
    yield f"{name}: __setstate__", lambda: set_states(get())
    yield f"{name}: del each attribute", lambda: for_each_attribute(get(), delete)
    yield f"{name}: set each attribute", lambda: for_each_attribute(get(), overwrite)
    for protocol in range(6):
        yield f"{name}: __reduce_ex__({protocol})", lambda protocol=protocol: reduce(get(), protocol)
    yield f"{name}: copy", lambda: copied(get(), copy.copy)
    yield f"{name}: deepcopy", lambda: copied(get(), copy.deepcopy)
    for protocol in range(2, 6):
        yield f"{name}: pickle {protocol}", lambda protocol=protocol: copied(get(), lambda item: repickled(item, protocol))
    yield f"{name}: deepcopy of what holds it", lambda: copied(get(), lambda item: copy.deepcopy({"request": [item]})["request"][0])


# -- what is done -----------------------------------------------------------------------------------------------------


class Wrong(Exception):
    """Something other than a crash or an exception."""


def expect(condition: bool, text: str) -> None:
    if not condition:
        raise Wrong(text)


def attempt(call: Callable[[], object], allowed: tuple[str, ...]) -> BaseException | None:
    """The exception, if it is one of those; another one is the case's outcome."""
    try:
        call()
    except Exception as error:
        if not any(base.__name__ in allowed for base in type(error).__mro__):
            raise
        expect(str(error) != "", f"a {type(error).__name__} without a text")
        return error
    return None


def signature(found: Any) -> None:
    attempt(lambda: inspect.signature(found), (*ARGUMENT_ERRORS, "ValueError"))
    for name in public_names(found):
        member = inspect.getattr_static(found, name)
        if callable(member):
            attempt(lambda member=member: inspect.signature(member), (*ARGUMENT_ERRORS, "ValueError"))


def public_names(item: object) -> list[str]:
    return [name for name in dir(item) if not name.startswith("_") and name not in NOT_TO_BE_CALLED]


def touch(item: Any, calls: bool) -> None:
    """Look at everything; and call every method without arguments."""
    for look in (repr, str, format, hash, dir, vars, bool, len, iter, sys.getsizeof):
        attempt(lambda look=look: look(item), NAMED)
    for name in public_names(item):
        value: list[Any] = []
        attempt(lambda name=name, value=value: value.append(getattr(item, name)), NAMED)
        if calls and value and callable(value[0]):
            attempt(value[0], NAMED)


def use_half_made(maker: Callable[[], Any], calls: bool) -> None:
    """An object without `__init__` is refused, or says so whatever is asked of it."""
    made: list[Any] = []
    attempt(lambda: made.append(maker()), NAMED)
    if made:
        touch(made[0], calls)
        attempt(lambda: made[0] == made[0], NAMED)
        for operation in (copy.copy, copy.deepcopy, pickle.dumps):
            attempt(lambda operation=operation: operation(made[0]), (*NAMED, "PicklingError"))
    made.clear()


def use_subclass(found: Any, is_public: bool) -> None:
    made: list[Any] = []
    attempt(lambda: made.append(type("Sub", (found,), {"__slots__": ("more",)})), ARGUMENT_ERRORS)
    attempt(lambda: made.append(type("SubWithDict", (found,), {})), ARGUMENT_ERRORS)
    for subclass in made:
        attempt(subclass, NAMED)
        use_half_made(lambda subclass=subclass: subclass.__new__(subclass), is_public)


def init_again(item: Any, arguments: tuple[object, ...]) -> None:
    error = attempt(lambda: item.__init__(*arguments), (*ARGUMENT_ERRORS, "ValueError"))
    if is_handle(type(item)) and type(item).__init__ is not object.__init__:
        expect(isinstance(error, TypeError), "a second __init__ passes")
    touch(item, False)


class EqualToAll:
    """Of another library, and compares itself with ours."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = object.__hash__


def compare(item: Any) -> None:
    for other in (item, None, 3, "text", object(), type(item)):
        attempt(lambda other=other: item == other, ())
        attempt(lambda other=other: item != other, ())
        for order in ("__lt__", "__le__", "__gt__", "__ge__"):
            attempt(lambda other=other, order=order: getattr(item, order)(other), NAMED)
    expect(item == item and item != object(), "it is not equal to itself, or equal to something else")
    expect(item == EqualToAll(), "it says no for a class that it does not know, which is not asked")
    attempt(lambda: hash(item), REFUSED)


def set_states(item: Any) -> None:
    for state in (None, {}, {"capacity": 3}, {"_state": None}, (None, {"x": 1}), 3):
        attempt(lambda state=state: item.__setstate__(state), NAMED)


def for_each_attribute(item: Any, act: Callable[[Any, str], None]) -> None:
    """Private ones only where deleting is refused: who deletes or sets those means it, and enums are for all of the process."""
    for attribute in sorted(set(dir(item)) - set(dir(object))):
        if attribute.startswith("_") and (not is_compiled() or isinstance(item, enum.Enum) or attribute == "__rawref__"):
            continue  # of `__rawref__` rawref's own tests say what becomes of it
        print(f"- {attribute}", flush=True)
        try:
            act(item, attribute)
        except Exception as error:
            raise Wrong(f"{attribute}: {type(error).__name__}: {error}") from error
    touch(item, False)


def delete(item: Any, attribute: str) -> None:
    static = inspect.getattr_static(type(item), attribute, None)
    error = attempt(lambda: delattr(item, attribute), ARGUMENT_ERRORS)
    if is_handle(type(item)) and inspect.isdatadescriptor(static) and not inspect.ismemberdescriptor(static):
        expect(error is not None, "a property is deleted")


def overwrite(item: Any, attribute: str) -> None:
    values: list[object] = []
    attempt(lambda: values.append(getattr(item, attribute)), NAMED)
    for value in values if attribute.startswith("_") else (*values, *GARBAGE):
        attempt(lambda value=value: setattr(item, attribute, value), NAMED)


def repickled(item: Any, protocol: int) -> Any:
    return pickle.loads(pickle.dumps(item, protocol))


def expect_copy_refused(item: Any, error: BaseException | None) -> None:
    text = str(error)
    expect(isinstance(error, TypeError) and type(item).__name__ in text and "neither copied nor pickled" in text, text)


def reduce(item: Any, protocol: int) -> None:
    error = attempt(lambda: item.__reduce_ex__(protocol), REFUSED)
    if is_handle(type(item)):
        expect_copy_refused(item, error)
    touch(item, False)


def copied(item: Any, make: Callable[[Any], Any]) -> None:
    if is_handle(type(item)):
        expect_copy_refused(item, attempt(lambda: make(item), REFUSED))
        touch(item, False)
        return
    other = make(item)
    expect(type(other) is type(item), f"a {type(other).__name__}")
    expect(said_by(other) == said_by(item), f"it says {said_by(other)!r}")
    if not isinstance(item, BaseException):
        expect(other == item, "the copy is not equal")
        if attempt(lambda: hash(item), REFUSED) is None:
            expect(hash(other) == hash(item), "the copy has another hash")


def said_by(item: Any) -> Any:
    """What a value consists of, in terms that are the same in both builds."""
    if isinstance(item, BaseException):
        return type(item).__name__, said_by(item.args), said_by(getattr(item, "__dict__", {}))
    if isinstance(item, enum.Enum):
        return type(item).__name__, item.name
    if isinstance(item, np.ndarray):
        return str(item.dtype), item.tolist()
    if isinstance(item, dict):
        return {repr(said_by(key)): said_by(value) for key, value in item.items()}
    if isinstance(item, (list, tuple)):
        return [said_by(part) for part in item]
    if is_value(type(item)):
        return type(item).__name__, said_by(item.__reduce__()[1])
    return repr(item)


# -- the program ------------------------------------------------------------------------------------------------------


def has_sample(name: str) -> bool:
    found = load_class(name, PUBLIC[name])
    is_base = any(found in base.__mro__[1:] for _, base in find_all_classes())
    is_protocol = getattr(found, "_is_protocol", False)
    return not is_protocol and name not in WITHOUT_SAMPLE and (not is_base or issubclass(found, BaseException))


def all_cases(samples: Samples) -> Iterator[Case]:
    for name, found in find_all_classes():
        yield from class_cases(name, found)
    for name in PUBLIC:
        if has_sample(name):
            def get(name: str = name) -> Any:
                return samples.get(name)

            yield from object_cases(name, get)
            samples.close()


def run_cases(first: int) -> None:
    samples = Samples()
    unraisable: list[str] = []
    find_all_classes()
    gc.collect()
    gc.freeze()  # so that each case's collection looks at its own objects only
    sys.unraisablehook = lambda entry: unraisable.append(f"{entry.exc_type.__name__}: {entry.exc_value}")
    for number, (name, run) in enumerate(all_cases(samples)):
        if number < first:
            continue
        print(f"{number}\t{name}", flush=True)
        outcome = "passed"
        try:
            run()
        except Exception as error:
            outcome = f"{type(error).__name__}: {error}"
        gc.collect(0)
        if unraisable:
            outcome = f"unraisable: {unraisable}"
            unraisable.clear()
        print(outcome.replace("\n", " "), flush=True)
        samples.renew()
    samples.close()
    print("end", flush=True)


def save(path: str) -> None:
    samples = Samples()
    saved: dict[str, tuple[bytes, str]] = {}
    for name in PUBLIC:
        if has_sample(name) and not is_handle(load_class(name, PUBLIC[name])):
            value = samples.get(name)
            saved[name] = pickle.dumps(value), repr(said_by(value))
    with open(path, "wb") as file:
        pickle.dump(saved, file)


def load(path: str) -> None:
    with open(path, "rb") as file:
        saved: dict[str, tuple[bytes, str]] = pickle.load(file)
    samples = Samples()
    for name, (text, said) in saved.items():
        value = pickle.loads(text)
        if repr(said_by(value)) != said:
            print(f"{name}: {said_by(value)} instead of {said}")
        if not isinstance(value, BaseException) and value != samples.get(name):
            print(f"{name}: not equal to one that is made here")
    print(f"{len(saved)} values read")


def main() -> None:
    warnings.simplefilter("ignore")
    command, argument = sys.argv[1:]
    if command == "cases":
        run_cases(int(argument))
    elif command == "save":
        save(argument)
    else:
        load(argument)


if __name__ == "__main__":
    main()
