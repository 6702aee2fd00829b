"""Threads, several interpreters, and the end of one."""

import os
import subprocess
import sys
import threading
from types import ModuleType
from typing import Any

import pytest

import rawref

PRELUDE = """
import rawref, sys
class Closing:
    __slots__ = ("__rawref__", "peer")
    def __del__(self):
        rawref.invalidate(self)
class Forgetful:
    __slots__ = ("__rawref__", "peer")
class Plain:
    pass
"""


def run_to_the_end(program: str) -> str:
    """Run a program in an interpreter of its own; it must end well. Returns what it wrote to stderr."""
    command = [sys.executable, "-P", "-X", "faulthandler", "-c", PRELUDE + program]
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONSAFEPATH": "1"})
    assert result.returncode == 0, result.stderr
    return result.stderr


@pytest.mark.parametrize(
    "program",
    [
        "target = Closing(); reference = rawref.ref(target)",
        "target = Forgetful(); reference = rawref.ref(target)",
        "target = Plain(); reference = rawref.ref(target)",
        "target = Forgetful(); target.peer = target; reference = rawref.ref(target)",
        "t = Forgetful(); t.peer = sys.modules; rawref.held = rawref.ref(t); rawref.target = t; del t",
        "t = Forgetful(); sys.modules['rawref']._rawref.target = t; reference = rawref.ref(t); del t",
        "import builtins; builtins.target = Forgetful(); builtins.reference = rawref.ref(builtins.target)",
        "t = Forgetful(); reference = rawref.ref(t); del sys.modules['rawref'], sys.modules['rawref._rawref'], rawref",
        """
class Late:
    def __init__(self, reference): self.reference = reference
    def __del__(self): self.reference(); self.reference.is_valid; repr(self.reference)
target = Forgetful(); reference = rawref.ref(target); late = Late(reference)
target.peer = Late(reference); target.peer.target = target
""",
    ],
)
def test_the_end_of_the_interpreter_is_quiet(program: str) -> None:
    assert run_to_the_end(program) == ""


def test_a_report_before_the_end_is_printed() -> None:
    assert "ReferenceError: a Forgetful" in run_to_the_end("target = Forgetful(); rawref.ref(target); del target")


def test_threads(targets: ModuleType) -> None:
    """Refs made, followed and cut by several threads at once, on targets that die meanwhile."""
    shared = [targets.Closing(str(number)) for number in range(16)]
    failures: list[BaseException] = []

    def work(start: int) -> None:
        try:
            for turn in range(2_000):
                position = (start + turn) % len(shared)
                target = shared[position]
                reference = rawref.ref(target)
                found = reference()
                assert found is None or found is target
                if turn % 7 == start:
                    rawref.invalidate(target)
                if turn % 5 == start:
                    shared[position] = targets.Closing("new")
        except BaseException as failure:
            failures.append(failure)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    threads = [threading.Thread(target=work, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.setswitchinterval(interval)
    assert failures == []


def test_subinterpreters() -> None:
    """Each interpreter has its own module, types and NULL, and can end before the others."""
    name = "_interpreters" if sys.version_info >= (3, 13) else "_xxsubinterpreters"
    interpreters: Any = pytest.importorskip(name, reason="this Python has no module to drive interpreters with")
    reference = rawref.ref(Keeper.kept)
    for _ in range(3):
        interpreter = interpreters.create()
        program = "t = Closing(); r = rawref.ref(t); assert r() is t; p = Plain(); q = rawref.ref(p)"
        interpreters.run_string(interpreter, PRELUDE + program)
        interpreters.run_string(interpreter, "del t; assert r() is None; u = Closing(); s = rawref.ref(u)")
        interpreters.destroy(interpreter)
        assert reference() is Keeper.kept
    assert rawref.ref(Keeper.kept) is reference


class Kept:
    __slots__ = ("__rawref__",)


class Keeper:
    kept = Kept()


rawref.invalidate(Keeper.kept)


def test_a_second_copy_of_the_module() -> None:
    """The types of two copies know nothing of each other; the attribute then belongs to the first that used it."""
    program = """
first = rawref
import importlib
del sys.modules["rawref"], sys.modules["rawref._rawref"]
second = importlib.import_module("rawref")
assert first.ref is not second.ref
target = Closing(); reference = first.ref(target)
try:
    second.ref(target)
except TypeError:
    pass
else:
    raise SystemExit("two guards for one target")
assert reference() is target
first.invalidate(target)
del target
"""
    assert run_to_the_end(program) == ""


def test_reloading_leaks_nothing() -> None:
    """Modules, types and refs of a copy that was thrown away are collected."""
    program = """
import gc, importlib, weakref
def turn():
    global rawref
    del sys.modules["rawref"], sys.modules["rawref._rawref"]
    rawref = importlib.import_module("rawref")
    class Passing:
        __slots__ = ("__rawref__",)
        def __del__(self): rawref.invalidate(self)
    rawref.ref(Passing())
    return weakref.ref(rawref.ref)
types = [turn() for _ in range(4)]
gc.collect()
assert [type() is None for type in types] == [True, True, True, False], types
"""
    assert run_to_the_end(program) == ""
