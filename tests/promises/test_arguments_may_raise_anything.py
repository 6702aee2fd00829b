"""An argument whose own code raises (an `AssertionError`, Ctrl-C, no memory), answers twice differently, or calls the manager, costs its
call and nothing else: nothing has changed, and the manager works on. Nothing of an argument's own code runs in later calls."""

import gc
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
from public_calls import CALLS, Call, World, find_calls

from kv_cache_manager_v2 import KVCache, LogicError, ReuseScope

CALLED = (
    "__index__ __int__ __float__ __bool__ __len__ __getitem__ __iter__ __contains__ __eq__ __hash__ __call__ __fspath__ __repr__ "
    "__array__ __buffer__ __lt__ __getattr__"
).split()
READ = "__class__ __cuda_stream__ tolist __array_interface__ __cuda_array_interface__ __dlpack__ dtype shape keys".split()


class Mine(AssertionError):
    """Told apart from the library's own."""


class MyMemoryError(MemoryError):
    pass


class MyInterrupt(KeyboardInterrupt):
    pass


ERRORS: list[type[BaseException]] = [Mine, MyInterrupt, MyMemoryError]


@cache
def hostile_class(names: tuple[str, ...], error: type[BaseException], base: type) -> type:
    def raises(self: object, *arguments: object) -> Any:
        raise error("the argument's own")

    return type("Hostile", (base,), {name: property(raises) if name in READ else raises for name in names})


def hostile(names: str, error: type[BaseException] = Mine, base: type = object) -> Any:
    """An object of which these methods and attributes raise when they are called or read."""
    make: Any = hostile_class
    return make(tuple(names.split()), error, base)()


class Answers:
    """A number that is another one each time it is asked."""

    def __init__(self, *numbers: int) -> None:
        self._numbers = [*numbers]

    def __index__(self) -> int:
        return self._numbers.pop(0) if len(self._numbers) > 1 else self._numbers[0]

    __int__ = __index__

    def __float__(self) -> float:
        return float(self.__index__())


class Growing(list[Any]):
    """A list that is longer each time it is gone through, and says another length."""

    num_asked = 0

    def __iter__(self) -> Any:
        self.num_asked += 1
        return iter([self[0]] * self.num_asked)

    def __len__(self) -> int:
        self.num_asked += 1
        return self.num_asked


class Changes:
    """An item that changes the list in which it is when it is asked for its number."""

    def __init__(self, change: Callable[[list[Any]], object], is_long: bool) -> None:
        self.change = change
        self.home: list[Any] = [*[1] * 20, self, *[1] * 20] if is_long else [1, self, b"digest", b"another", 1]

    def __index__(self) -> int:
        self.change(self.home)
        return 1


class Reentrant:
    """Calls the manager, which may be in a call."""

    num_done = 0
    """Calls that were not refused: those of functions that have not begun their own, or are no call of the manager's."""

    def __init__(self, call: Callable[[], object]) -> None:
        self._function = call

    def _call(self) -> None:
        self._function()
        Reentrant.num_done += 1

    def __index__(self) -> int:
        self._call()
        return 1

    def __len__(self) -> int:
        return self.__index__()

    def __iter__(self) -> Any:
        self._call()
        return iter([1])

    def __getitem__(self, at: int) -> int:
        return self.__index__()

    def __float__(self) -> float:
        return float(self.__index__())


def items(error: type[BaseException]) -> Iterator[int]:
    yield 1
    raise error("the argument's own")


def lists_that(raising: type[BaseException]) -> list[Callable[[], Any]]:
    """Lists, numbers and texts that are what they should be, and raise when they are used, or where one item is."""

    def item() -> Any:
        return hostile("__index__ __float__", raising)

    def text() -> Any:
        return hostile("__eq__ __hash__ __len__ __iter__", raising, str)

    return [
        lambda: [item()], lambda: [1, item()], lambda: (1, item()), lambda: [[item()]], lambda: {"a": item()}, text, lambda: [text()],
        lambda: hostile("__iter__", raising, list), lambda: hostile("__len__", raising, list), lambda: items(raising),
        lambda: hostile("__getitem__ __len__ __iter__", raising, tuple), lambda: hostile("__index__ __eq__ __lt__", raising, int),
        lambda: hostile("keys __iter__ items get __getitem__", raising, dict), lambda: [item(), hostile("__repr__", raising)],
        lambda: hostile("__len__ __getitem__", raising, bytes), lambda: [hostile("__len__ __hash__", raising, bytes)],
    ]  # fmt: skip


Maker = Callable[[World], Any]


def raising(names: str, error: type[BaseException]) -> Maker:
    return lambda world: hostile(names, error)


def listing(number: int, error: type[BaseException]) -> Maker:
    return lambda world: lists_that(error)[number]()


def answering(numbers: tuple[int, ...], in_a_list: bool) -> Maker:
    return lambda world: [Answers(*numbers)] if in_a_list else Answers(*numbers)


def changing(change: Callable[[list[Any]], object], is_long: bool) -> Maker:
    return lambda world: Changes(change, is_long).home


def calling(call: Callable[[World], object], in_a_list: bool) -> Maker:
    def make(world: World) -> Any:
        caller = Reentrant(lambda: call(world))
        return [caller] if in_a_list else caller

    return make


def make_and_close(world: World) -> None:
    world.manager.create_kv_cache().close()


def makers() -> list[Maker]:
    """What makes objects of which each raises, changes or calls."""
    found = [raising(name, ERRORS[number % 3]) for number, name in enumerate([*CALLED, *READ])]
    found += [raising(name, Mine) for name in ("__index__", "__iter__", "__repr__", "__class__")]
    found += [raising(" ".join([*CALLED, *READ]), error) for error in ERRORS]
    for number in range(len(lists_that(Mine))):
        found += [listing(number, Mine), listing(number, ERRORS[1 + number % 2])]
    for numbers in ((1, 2**62), (1, -1), (1, 2, 3), (2, 1, 0)):
        found += [answering(numbers, in_a_list) for in_a_list in (False, True)]
    found.append(lambda world: Growing([1]))
    for is_long in (False, True):
        found += [changing(list.clear, is_long), changing(lambda home: home.extend([1] * 5000), is_long)]
    calls: list[Callable[[World], object]] = [
        make_and_close, lambda world: world.manager.clear_reusable_blocks(), lambda world: world.active.suspend()
    ]  # fmt: skip
    return [*found, *[calling(call, in_a_list) for call in calls for in_a_list in (False, True)]]


MAKERS = makers()
CASES = find_calls()
IDS = [call.name for call in CASES]


def check(world: World) -> str:
    """What is wrong with the managers of a world; "" if nothing is."""
    for manager in world._managers:
        try:
            manager.check_invariants()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""


def close(made: Any) -> None:
    end = getattr(made, "shutdown", None) or getattr(made, "close", None) or getattr(made, "settle", None)
    if end is not None:
        end()


@pytest.mark.parametrize("call", CASES, ids=IDS)
def test_whatever_an_argument_raises_is_its_own(call: Call, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    failures: list[str] = []
    world = World()
    for parameter in call.parameters:
        for number, make in enumerate(MAKERS):
            function, arguments = CALLS[call.name](world)
            wrong = make(world)
            before, num_done = world.fingerprint(), Reentrant.num_done
            what = f"{parameter.name}, number {number}"
            try:
                close(function(**{**arguments, parameter.name: wrong}))
                outcome = "returned"
            except BaseException as error:
                outcome = type(error).__name__
                if not isinstance(error, (*ERRORS, TypeError, ValueError, OSError, AttributeError)) and not outcome.startswith("OutOf"):
                    if outcome not in ("LogicError", "CopyListError", "UnknownBufferError"):
                        failures.append(f"{what}: {outcome}: {error}")
            if call.name == "KVCacheManager.shutdown" and outcome == "returned":
                world = World()
                continue
            fault = check(world)
            if fault:
                failures.append(f"{what}: {outcome}, and then {fault}")
            elif outcome != "returned" and world.fingerprint() == before:
                continue
            elif outcome != "returned" and Reentrant.num_done == num_done:
                failures.append(f"{what}: changed something, and raised {outcome}")
            try:
                world.close()
            except BaseException as error:
                failures.append(f"{what}: at the end {type(error).__name__}: {error}")
            world = World()
    world.close()
    assert not failures, "\n".join(failures)


def test_the_call_of_an_argument_is_refused() -> None:
    """One caller at a time, also from inside an argument."""
    world = World()
    kv_cache: KVCache = world.active
    with pytest.raises(Exception, match="while another call on the same manager was running"):
        kv_cache.resize(Reentrant(kv_cache.suspend), 7)
    assert kv_cache.is_active
    world.close()


def test_a_refused_call_keeps_no_sequence_alive() -> None:
    """One that is dropped after it is closed by the next call, rather than by one in the middle of which the collector finds it."""
    world = World()
    manager = world.manager
    gc.disable()
    try:
        for call in (manager.clear_reusable_blocks, manager.create_kv_cache):
            kv_cache: KVCache | None = manager.create_kv_cache()
            assert kv_cache is not None and kv_cache.resume()
            with pytest.raises(LogicError, match="while another call on the same manager was running"):
                kv_cache.resize(Reentrant(call), 0)
            with pytest.warns(ResourceWarning, match="without close"):
                kv_cache = None
            assert manager.open_kv_caches == []
    finally:
        gc.enable()
    world.close()


class Armed:
    is_on = False


def later(value: Any) -> Any:
    """An equal value of a class of one's own, lists with their items, whose methods all raise once `Armed` is on."""
    kind = type(value)
    if kind not in (int, float, str, bytes, list, tuple, dict):
        return value
    make: Any = late_class
    if kind is dict:
        return make(kind)({later(key): later(item) for key, item in value.items()})
    return make(kind)([later(item) for item in value]) if kind in (list, tuple) else make(kind)(value)


@cache
def late_class(base: type) -> type:
    def make(name: str) -> Any:
        inherited = getattr(base, name)

        def method(self: object, *arguments: Any, **keywords: Any) -> Any:
            if Armed.is_on:
                raise Mine(f"{name} of an argument of an earlier call")
            return inherited(self, *arguments, **keywords)

        return method

    kept = "__new__ __init__ __class__ __init_subclass__ __subclasshook__ __getattribute__ __setattr__ __delattr__ __doc__ __dir__".split()
    names = [name for name in dir(base) if callable(getattr(base, name)) and name not in kept]
    return type(f"Late_{base.__name__}", (base,), {name: make(name) for name in names if name != "__class_getitem__"})


def use(world: World) -> None:
    """What later calls would look at: scopes, tokens, lengths, names."""
    for manager in world._managers:
        manager.describe()
        manager.check_invariants()
        if len(manager.copy_layout) > 0:
            continue  # Each step would need a list, and its pools stay as they are.
        for scope in (None, ReuseScope(1), ReuseScope(3, "a"), ReuseScope(5)):
            manager.probe_reuse(scope, [1, 2, 3, 4])
        for kv_cache in manager.open_kv_caches:
            repr(kv_cache)
            if kv_cache.is_active:
                kv_cache.resize(kv_cache.capacity + 5, None)
                kv_cache.suspend()
            if kv_cache.status is KVCache.Status.SUSPENDED:
                kv_cache.resume()
        with manager.create_kv_cache(ReuseScope(1), [1, 2, 3, b"x"]) as another:
            if another.resume() and another.resize(8):
                tokens: list[int | bytes] = [1, 2, 3, b"x", 4]
                another.commit(tokens[another.num_committed_tokens :])
        manager.get_statistics()
        if manager.event_manager is not None:
            manager.event_manager.get_latest_events(0)
        manager.adjust()


@pytest.mark.parametrize("call", CASES, ids=IDS)
def test_nothing_of_an_argument_is_asked_later(call: Call, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers, texts and lists of classes of one's own that begin to raise when their call is over."""
    monkeypatch.chdir(tmp_path)
    world = World()
    try:
        function, arguments = CALLS[call.name](world)
        made = function(**{name: value if name == "source" else later(value) for name, value in arguments.items()})
        Armed.is_on = True
        if call.name != "KVCacheManager.shutdown":
            use(world)
        repr(made)
        close(made)
        world.close()
    finally:
        Armed.is_on = False
