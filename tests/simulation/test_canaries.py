"""The planted bugs can be planted, whatever the code around them looks like, and the simulation finds a sample."""

import ast
from pathlib import Path

import pytest

from .canaries import CANARIES, Canary
from .planting import NoSuchPlace, plant
from .run_canaries import PACKAGE, find, planted

NUM_PROMISED = 25


def test_there_are_enough() -> None:
    assert len(CANARIES) >= NUM_PROMISED
    assert len({canary.name for canary in CANARIES}) == len(CANARIES)


@pytest.mark.parametrize("canary", CANARIES, ids=lambda canary: canary.name)
def test_each_has_its_place_also_where_the_file_is_written_differently(canary: Canary) -> None:
    """Rewritten by `ast`, the file has no comments, other line breaks, brackets and quotes; and every function begins with one more
    statement."""
    source = Path(PACKAGE, canary.file).read_text()
    changed = planted(canary, source)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
    rewritten = with_a_statement_more(source)
    assert ast.dump(ast.parse(planted(canary, rewritten))) == ast.dump(ast.parse(with_a_statement_more(changed)))


def with_a_statement_more(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.body.insert(0, ast.parse("a_new_name = 1").body[0])
    return ast.unparse(tree)


SOURCE = """
class Row:
    def move(self, to):
        if (self.place
                != to):  # elsewhere
            self.count += 1; self.place = to
        else:
            self.place = to

def move(row, to):
    row.move(to)
"""


@pytest.mark.parametrize(
    ("function", "old", "new", "nth", "count", "line"),
    [
        ("Row.move", "self.place != to", "to", 1, 1, "        if ((to)):  # elsewhere"),
        ("Row.move", "self.count += 1", "pass", 1, 1, "            pass; self.place = to"),
        ("Row.move", "self.place = to", "self.place = 0", 2, 2, "            self.place = 0"),
        ("Row.move", "self.count += 1\nself.place = to", "a = 1\nb = 2", 1, 1, "            b = 2"),
        ("move", "row.move(to)", "return", 1, 1, "    return"),
    ],
)
def test_what_is_planted(function: str, old: str, new: str, nth: int, count: int, line: str) -> None:
    changed = plant(SOURCE, function, old, new, nth, count)
    ast.parse(changed)
    assert line in changed.splitlines() and line not in SOURCE.splitlines()


@pytest.mark.parametrize(
    ("function", "old", "said"),
    [
        ("Row.stay", "self.place = to", "there is no Row.stay"),
        ("Row", "self.place = to", "Row is no function"),
        ("Row.move", "self.place = to", "2 times, not 1"),
        ("move", "row.move(too)", "0 times, not 1"),
    ],
)
def test_a_place_that_is_not_there_or_there_twice_is_said(function: str, old: str, said: str) -> None:
    with pytest.raises(NoSuchPlace, match=said):
        plant(SOURCE, function, old, "pass")


def test_docs_say_how_many_there_are() -> None:
    text = (PACKAGE.parent / "docs" / "testing.md").read_text(encoding="utf-8")
    num_near_a_seed = len([canary for canary in CANARIES if canary.first_seed > 0])
    assert f"There are {len(CANARIES)} of them; {num_near_a_seed} begin near a seed" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reader does not wait for the writer", "scopes share"])
def test_sample_is_found(name: str) -> None:
    canary = next(canary for canary in CANARIES if canary.name == name)
    assert find(canary, 120.0) is not None
