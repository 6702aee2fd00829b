"""Mutants can be made: each changes one piece of a file that still parses, and what is listed as equivalent exists."""

import ast
import random
from functools import cache
from pathlib import Path

import pytest

from .covering_tests import CoveringTests, mark_suites, name_suite_of
from .mutants import PACKAGE, WAITING_FOLDERS, Mutant, all_mutants, all_waits, mutants_of
from .run_mutants import find_killer, read_equivalent


@cache
def list_mutants() -> list[Mutant]:
    return all_mutants()


SOURCE = b"""
def f(self, a: int, b: i64 = 1) -> bool:
    \"\"\"Text 3.\"\"\"
    assert a > 2
    if a < 1 and not b:
        self.call(a, b)
        self.x = a + 1
    _logger.info(a, b)
    return a is b
"""


def test_what_is_changed_and_what_is_not() -> None:
    """Counted by hand. `if`: the condition negated, `and` to `or`, `<` to `<=` and `>`, 1 to 2 and 0, `not b` to `b`."""
    mutants = mutants_of("x.py", SOURCE)
    changes = [(mutant.old, mutant.new) for mutant in mutants if mutant.line == 5]
    assert sorted(changes) == sorted(
        [
            ("a < 1 and not b", "not (a < 1 and (not b))"),
            ("a < 1 and not b", "(a < 1 or not b)"),
            ("a < 1", "a <= 1"),
            ("a < 1", "a > 1"),
            ("1", "2"),
            ("1", "0"),
            ("not b", "(b)"),
        ]
    )
    assert sorted([(mutant.old, mutant.new) for mutant in mutants if mutant.line == 6]) == [
        ("self.call(a, b)", "pass"),
        ("self.call(a, b)", "self.call(b, a)"),
    ]
    # The assignment, + to -, and the constant twice.
    assert len([mutant for mutant in mutants if mutant.line == 7]) == 4
    # `is` to `is not`, and both constants.
    assert len([mutant for mutant in mutants if mutant.line == 9]) == 3
    assert {mutant.line for mutant in mutants} == {5, 6, 7, 9}


TIES = b"""
def f(a: int, b: int, c: int) -> int:
    d = a if a > b else b
    if a < d:
        d = a
    if b >= c:
        c += b - c
    e = b - a if b > a else 0
    if a > b:
        d = c
    if a > b:
        b = a
    else:
        c = a
    return _larger(a, b) + larger(a, b)
"""


def test_what_is_equal_either_way_is_left_out() -> None:
    """The first four are a maximum, a minimum, and two differences that are 0 where both are equal; of the last two a tie is a change. The
    numbers of mutants with one text count those that are left out."""
    comparisons = [mutant for mutant in mutants_of("x.py", TIES) if mutant.kind == "comparison"]
    assert [(mutant.line, mutant.new, mutant.occurrence) for mutant in comparisons] == [
        (3, "a < b", 0),
        (4, "a > d", 0),
        (6, "b <= c", 0),
        (8, "b < a", 0),
        (9, "a >= b", 1),
        (9, "a < b", 1),
        (11, "a >= b", 2),
        (11, "a < b", 2),
    ]
    assert [mutant.old for mutant in mutants_of("x.py", TIES) if mutant.kind == "swapped arguments"] == ["larger(a, b)"]


def test_what_is_never_zero_is_compared_with_it_either_way() -> None:
    mutants = mutants_of("x.py", b"def f(a: Block) -> bool:\n    return a.first_page < 0 or a.first_page >= 0 or a.first_page < 2")
    assert [(mutant.old, mutant.new) for mutant in mutants if mutant.kind in ("comparison", "constant")] == [
        ("a.first_page < 0", "a.first_page > 0"),
        ("a.first_page >= 0", "a.first_page <= 0"),
        ("a.first_page < 2", "a.first_page <= 2"),
        ("a.first_page < 2", "a.first_page > 2"),
        ("2", "3"),
        ("2", "1"),
    ]


def test_every_mutant_can_be_told_apart_and_parses() -> None:
    mutants = list_mutants()
    assert len({mutant.key for mutant in mutants}) == len(mutants) > 10_000
    for mutant in random.Random(3).sample(mutants, 200):
        changed = mutant.apply((PACKAGE / mutant.file).read_bytes())
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse((PACKAGE / mutant.file).read_bytes()))


def test_waits_are_statements_that_only_wait() -> None:
    waits = all_waits()
    assert {mutant.file.split("/")[0] for mutant in waits} <= set(WAITING_FOLDERS) and len(waits) > 40
    found = {mutant.old for mutant in waits}
    assert "self._device.synchronize_stream(self._out.stream)" in found and "await_arrivals(state)" in found
    assert {mutant.new for mutant in waits} == {"pass"}


def test_what_is_listed_as_equivalent_exists() -> None:
    known = {mutant.key for mutant in list_mutants()}
    for key, reason in read_equivalent().items():
        assert key in known, key
        assert len(reason) > 20


SUITES = b"""
from suites_seen import SEEN

def f(a: int) -> int:
    \"\"\"Text.\"\"\"
    if a > 2:
        return 1
    elif a:
        try:
            a = 1 // a
        except ZeroDivisionError:
            a = 2
    for i in range(a):
        a += i
    return a
"""


def test_each_suite_that_is_begun_is_noted() -> None:
    """In their order: the function, `return 1`, the `elif`, which is the statement of an `else`, its body, what is tried, the handler, the
    loop."""
    text, suites = mark_suites(SUITES, 10)
    assert [(suite.begin, suite.end) for suite in suites] == [(5, 15), (7, 7), (8, 12), (9, 12), (10, 10), (12, 12), (14, 14)]
    noted: dict[int, list[int]] = {}
    for argument in (0, 1, 3):
        seen = bytearray(20)
        names = {"_SEEN": seen}
        exec(text.replace("from suites_seen import SEEN as _SEEN", "").replace("from suites_seen import SEEN", ""), names)
        names["f"](argument)  # type: ignore[operator]
        noted[argument] = [number - 10 for number, byte in enumerate(seen) if byte]
    assert noted == {0: [0, 2], 1: [0, 2, 3, 4, 6], 3: [0, 1]}


def test_tests_are_chosen_that_begin_the_suite_of_a_mutant() -> None:
    """Of those that do, the one whose file names the module comes first, then short ones as long as there is time; after a third of it
    those of the module's folder."""
    mutant = next(one for one in list_mutants() if one.file == "sequence/resize.py" and one.function == "_add_blocks")
    naming, other = "tests/mutation/test_mutants.py", "tests/mutation/mutants.py"
    seconds = {f"{naming}::a": 3.0, f"{other}::b": 2.0, f"{other}::c": 1.0, f"{other}::d": 0.5}
    begun = [f"{naming}::a", f"{other}::b", f"{other}::c"]
    covering = CoveringTests({naming: "", other: ""}, seconds, {name_suite_of(mutant): begun})
    assert covering.choose(mutant, 10) == [f"{naming}::a", f"{other}::c", f"{other}::b"]
    assert covering.choose(mutant, 5) == [f"{naming}::a", f"{other}::c"]
    of_folder = "tests/unit/sequence/test_call_guard.py::e"
    covering.seconds[of_folder], covering.digests[of_folder.partition("::")[0]] = 6.0, ""
    begun.append(of_folder)
    assert covering.choose(mutant, 9.5) == [f"{naming}::a", of_folder]
    assert covering.choose(mutant, 12.0) == [f"{naming}::a", f"{other}::c", of_folder, f"{other}::b"]
    unknown = CoveringTests(covering.digests, seconds)
    assert unknown.choose(mutant, 10) == [f"{naming}::a"]


def test_what_tests_begin_is_read_as_it_was_written(tmp_path: Path) -> None:
    covering = CoveringTests({"a": "1"}, {"a::x": 1.5, "a::y": 0.25}, {"f | g | 0": ["a::y", "a::x"], "f | g | 1": []})
    covering.write(tmp_path / "map.json")
    assert CoveringTests.read(tmp_path / "map.json") == covering


def test_every_mutant_is_in_a_suite() -> None:
    for mutant in [*random.Random(5).sample(list_mutants(), 60), *all_waits()[:20]]:
        assert name_suite_of(mutant).startswith(f"{mutant.file} | {mutant.function} | ")


@pytest.mark.slow
def test_a_sample_is_killed() -> None:
    """A resize that adds other blocks than it says, which the first seeds find."""
    mutants = [one for one in list_mutants() if one.file == "sequence/resize.py" and one.function == "_add_blocks"]
    (mutant,) = [one for one in mutants if one.new == "(num_blocks + old_num_blocks)" and one.occurrence == 1]
    assert find_killer(mutant, False) is not None
