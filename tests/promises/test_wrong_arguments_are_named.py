"""A wrong argument is a `TypeError` or `ValueError` that names it and says what was given, in both builds, and nothing has changed."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from public_calls import CALLS, Call, World, find_calls

from kv_cache_manager_v2 import KVCache, LogicError, OutOfPagesError, Priority


class Index:
    """As torch's scalars are: no int, but good for one."""

    def __init__(self, value: int) -> None:
        self._value = value

    def __index__(self) -> int:
        return self._value

    def __repr__(self) -> str:
        return f"Index({self._value if self._value < 2**100 else 'huge'})"


class Nothing:
    pass


VALUES: list[Any] = [
    "x", "", None, 1.5, float("nan"), True, False, -1, 2**31, 2**63, 2**70, b"x", b"", [], [None], ["x"], [1.5], [True], {}, {"x": 1},
    (), Nothing(), np.float32(1.5), np.zeros(2, np.int32), np.int64(-1), Index(2**70), Priority, Ellipsis,
    np.complex64(0.5 + 3j), 0.5 + 3j, np.int64(7), bytearray(b"a"), memoryview(b"ab"), [2**70], [10**5000], [np.True_], [np.zeros(2)],
    "\udcff", "a\0b", "\ud800", "/tmp", {1: 2}, {"x": "y"}, 2**40, [0.5 + 3j], 5,
    10**5000, -(10**5000), Index(10**5000), np.True_, np.array(3), np.array(1.5), {1, 2}, frozenset({1}), [[0], [1, 2]], [[1, 2], [3, 4]],
    np.ones(1),
]  # fmt: skip
FOREIGN = "a sequence of another manager"

_NUMBER = ("SupportsIndex", "int", "LayerId", "BeamIndex", "TokenId")
_TEXT = ("str", "DataRole")


def is_int(value: Any) -> bool:
    if isinstance(value, np.ndarray) and value.ndim == 0:
        return np.issubdtype(value.dtype, np.integer)
    return isinstance(value, (int, Index, np.integer)) and not isinstance(value, bool)


def is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple)) or (isinstance(value, np.ndarray) and value.ndim > 0)


def fits(annotation: str, value: Any) -> bool:
    """Whether the value might be of that type: then it may be taken, or be refused for what it is."""
    annotation = re.sub(r"^Given\[(.*)\]$", r"\1", annotation)
    kinds = [kind.strip() for kind in re.split(r"\|(?![^\[]*\])", annotation)]
    return any([_fits_one(kind, value) for kind in kinds])


def _fits_one(kind: str, value: Any) -> bool:
    if kind == "None":
        return value is None
    if kind in _NUMBER:
        return is_int(value)
    if kind in ("float", "SupportsFloat"):
        return is_int(value) or isinstance(value, (float, np.floating))
    if kind == "bool":
        return isinstance(value, bool)
    if kind in _TEXT:
        return isinstance(value, str)
    if kind == "BlockHash":
        return isinstance(value, str) or is_int(value)
    if kind in ("bytes", "os.PathLike[str]"):
        return isinstance(value, (bytes, bytearray, memoryview))
    if kind == "Mapping[str, Any]":
        return isinstance(value, dict)
    if kind in ("Mapping[str, str]", "Mapping[int, str]"):
        keys = int if "int" in kind else str
        return isinstance(value, dict) and all([isinstance(key, keys) and isinstance(item, str) for key, item in value.items()])
    if kind == "Tokens":
        # A bool among tokens is a token, see docs/edges.md.
        return is_list(value) and all([is_int(item) or isinstance(item, (bool, bytes)) for item in value])
    match = re.match(r"(?:Sequence|Iterable|list|tuple)\[(.*?)(?:, \.\.\.)?\]$", kind)
    if match is not None:
        return is_list(value) and all([fits(match[1], item) for item in value])
    if kind == "PriorityCallback":
        return callable(value)
    if kind in ("object", "Any"):
        # Streams, arrays and tokens of beams: anything may have the right methods.
        return value is None or is_int(value) or is_list(value) or isinstance(value, (bytes, bytearray, memoryview))
    return False


def is_huge(value: Any) -> bool:
    """Python refuses to write it."""
    return is_int(value) and int(value.__index__()).bit_length() > 10_000


def show(value: Any) -> str:
    if is_huge(value):
        return type(value).__name__ + "_huge"
    if is_list(value) and len(value) > 0:
        return f"{type(value).__name__}_of_{type(value[0]).__name__}"
    return type(value).__name__ + "_" + re.sub(r"[^\w.\-]+", "_", ascii(value))[:16]


def shown(value: Any) -> str:
    try:
        return repr(value)
    except ValueError:
        return "a number that Python refuses to write"


def mentions(message: str, value: Any) -> bool:
    """What was given: a number itself, anything else at least by its type."""
    name = type(value).__name__
    if isinstance(value, (str, bytes, list, tuple, dict)) and len(value) == 0 and re.search("empty|no |0|\\bone\\b", message):
        return True
    if isinstance(value, (bytearray, memoryview)) and "bytes" in message:
        return True
    if "has the dtype" in message or "has the shape" in message:
        return True
    if is_huge(value):
        return f"{int(value.__index__()).bit_length()} bits" in message or name in message
    if is_int(value):
        return str(int(value.__index__())) in message or name in message
    if is_list(value) and len(value) > 0:
        # A list of a wrong length is told by its length, one of wrong items by the first of them.
        items = [*value, *np.asarray(value, object).tolist()]
        return name in message or str(len(value)) in message or shown(value) in message or any([mentions(message, item) for item in items])
    if isinstance(value, dict) and any([mentions(message, item) for item in value.values()]):
        return True
    return name in message or shown(value) in message or str(value) in message


CASES = find_calls()


def test_every_public_call_has_an_example() -> None:
    """A new public call is added to `tests/public_calls.py`, or left out there with a reason."""
    names = [call.name for call in CASES]
    assert [name for name in names if name not in CALLS] == []
    assert [name for name in CALLS if name not in names] == []
    world = World()
    for call in CASES:
        assert {parameter.name for parameter in call.parameters} == {*CALLS[call.name](world)[1]}, call.name
    world.close()


def close(made: Any) -> None:
    end = getattr(made, "shutdown", None) or getattr(made, "close", None) or getattr(made, "settle", None)
    if end is not None:
        end()


@pytest.mark.parametrize("call", CASES, ids=[call.name for call in CASES])
def test_the_examples_are_right(call: Call) -> None:
    """Also with numpy's integers and arrays, and with what stands for an integer, wherever one is welcome."""
    variants: list[tuple[str, Any]] = [("", None)]
    for parameter in call.parameters:
        if fits(parameter.annotation, 7) or fits(parameter.annotation, [7]):
            variants += [(parameter.name, kind) for kind in (np.int32, np.int64, Index)]
    for name, kind in variants:
        world = World()
        function, arguments = CALLS[call.name](world)
        given = arguments.get(name)
        if is_int(given):
            arguments = {**arguments, name: kind(given)}
        elif isinstance(given, list) and given and all(map(is_int, given)):
            arguments = {**arguments, name: np.array(given, kind) if kind is np.int32 and "." in call.name else [*map(kind, given)]}
        close(function(**arguments))
        world.close()


PARAMETERS = [(call, parameter) for call in CASES for parameter in call.parameters]


@pytest.mark.parametrize(("call", "parameter"), PARAMETERS, ids=[f"{call.name}-{one.name}" for call, one in PARAMETERS])
def test_a_wrong_argument_is_named_and_changes_nothing(
    call: Call, parameter: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a journal may be made
    world = World()
    names = [parameter.name, call.name.partition(".")[2].rstrip("=") if call.name.endswith("=") else parameter.name]
    named = re.compile(rf"\b({'|'.join(names)})\b")
    # Where two of them do not fit together, either may be named.
    any_named = re.compile(rf"\b({'|'.join([*names, *[one.name for one in call.parameters]])})\b")
    failures = []
    bounds: set[str] = set()
    for value in [*VALUES, 0, FOREIGN]:
        wrong = world.foreign if value is FOREIGN else value
        function, arguments = CALLS[call.name](world)
        if isinstance(wrong, KVCache) and isinstance(arguments[parameter.name], list):
            wrong = [wrong]
        before = world.fingerprint()
        what = f"{parameter.name}={show(value)}"
        is_wrong_type = not fits(parameter.annotation, wrong)
        try:
            close(function(**{**arguments, parameter.name: wrong}))
        except (TypeError, ValueError, LogicError, OutOfPagesError, OSError) as error:
            message = str(error)
            if is_int(wrong) and named.search(message):
                bounds.update(re.findall(r"must be from (-?\d+ to \d+)", message))
            if is_wrong_type and not isinstance(error, TypeError) and value is not FOREIGN and not is_list(value):
                failures.append(f"{what}: {type(error).__name__} rather than TypeError: {message}")
            if isinstance(error, (TypeError, ValueError, OSError)) and not (named if is_wrong_type else any_named).search(message):
                failures.append(f"{what}: unnamed: {message}")
            elif isinstance(error, (TypeError, ValueError)) and not mentions(message, wrong) and value is not FOREIGN:
                failures.append(f"{what}: not what was given: {message}")
            if "object expected; got" in message:
                failures.append(f"{what}: only the compiler's words: {message}")
            if world.fingerprint() != before and not isinstance(error, OutOfPagesError):
                failures.append(f"{what}: changed something, and said {message}")
                world.close()
                world = World()
        except Exception as error:  # whatever else comes is a slip
            failures.append(f"{what}: {type(error).__name__}: {error}")
        else:
            if is_wrong_type and value is not FOREIGN:
                failures.append(f"{what}: taken")
            world.close()
            world = World()
    world.close()
    if len(bounds) > 1:
        failures.append(f"{parameter.name} has several bounds: {sorted(bounds)}")
    assert not failures, "\n".join(failures)
