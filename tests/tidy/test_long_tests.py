"""tests/long_tests.txt names tests that there are."""

from .source_tree import ROOT


def test_each_name_is_a_test() -> None:
    names = (ROOT / "tests" / "long_tests.txt").read_text(encoding="utf-8").split()
    assert names == sorted(set(names))
    for name in names:
        file, _, function = name.partition("::")
        assert f"def {function}(" in (ROOT / "tests" / file).read_text(encoding="utf-8"), name
