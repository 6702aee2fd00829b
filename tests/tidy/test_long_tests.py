"""tests/long_tests.txt names tests that there are, and leaves `make test` some of every promise."""

import re

from .source_tree import ROOT

NAMES = (ROOT / "tests" / "long_tests.txt").read_text(encoding="utf-8").splitlines()


def test_each_name_is_a_test() -> None:
    assert NAMES == sorted(set(NAMES))
    for name in NAMES:
        file, _, function = name.partition("[")[0].partition("::")
        assert f"def {function}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), name


def test_every_promise_has_a_test_that_is_short() -> None:
    for file in sorted((ROOT / "tests" / "promises").glob("test_*.py")):
        functions = re.findall(r"^(?:async )?def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert {f"promises/{file.name}::{function}" for function in functions} - {*NAMES}, file
