"""Each room of the package keeps within its budget of code lines, and the budget follows a room that shrinks."""

from .code_budget import BUDGET, code_lines, limit_of, lines_of_rooms, lower, read_budget

# How far a room may be under its budget before the number must be lowered.
_SPARE_LINES = 10


def test_rooms_keep_their_budgets() -> None:
    rooms = lines_of_rooms()
    budget = read_budget(BUDGET.read_text(encoding="utf-8"))
    assert sorted(budget) == sorted(rooms), "each folder of the package, and root, has a number in code_budget.toml"
    over = {name: f"{rooms[name]} of {limit_of(room)}" for name, room in budget.items() if rooms[name] > limit_of(room)}
    assert not over, f"over their budgets: {over}; take lines away, or name the feature that needs them in code_budget.toml"
    under = [name for name, room in budget.items() if rooms[name] < limit_of(room) - _SPARE_LINES]
    assert not under, f"these rooms have shrunk: lower their numbers with `make budget`: {under}"


def test_a_raise_names_its_feature_and_what_it_replaced() -> None:
    for name, room in read_budget(BUDGET.read_text(encoding="utf-8")).items():
        features = [raised["feature"] for raised in room.get("raised", [])]
        assert len(set(features)) == len(features) and room["lines"] >= 0, f"{name} has a feature twice, or fewer lines than none"
        for raised in room.get("raised", []):
            assert set(raised) == {"lines", "feature", "replaced"}, f"{name}: {raised}"
            assert raised["lines"] > 0 and raised["feature"] and raised["replaced"], f"{name}: {raised}"


def test_what_counts_as_a_line_of_code() -> None:
    text = '"""A module."""\n\nimport sys\nfrom a import (\n    b,\n)\n\n# a comment\n\n\ndef f():\n    """Docs,\n    two lines."""\n'
    assert code_lines(text) == 1  # def f()
    assert code_lines('class C:\n    __slots__ = (\n        "a",\n    )\n    a: int\n') == 2
    assert code_lines(text + '    x = """a\n\n    b"""  # why\n    return (\n        x\n    )\n') == 1 + 3 + 3


def test_a_budget_only_falls() -> None:
    text = '[a]\nlines = 10\n\n[[a.raised]]\nlines = 5\nfeature = "f"\nreplaced = "nothing"\n\n[b]\nlines = 7\n'
    assert lower(text, {"a": 12, "b": 9}) == text.replace("lines = 10", "lines = 7")
