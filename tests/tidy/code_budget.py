"""How many lines of code each room of the package may have: code_budget.toml, and what counts as one.

A line of code is a line of a package module that holds more than blanks, a comment, a docstring, an import, or `__slots__`.

`__slots__` says nothing that the annotations below it do not say. It stays because the builds differ without it: measured on one class,
a mistyped attribute is an AttributeError compiled and is taken interpreted, where each object also gets a `__dict__` (56 bytes for 40,
and half as long again to make).

Run as a program (`make budget`), it lowers each room's number to what the room has now. Nothing raises a number but a person, by a table
`[[ROOM.raised]]` that names the feature, how many lines it may take, and what it replaced.
"""

import ast
import io
import re
import sys
import tokenize
import tomllib
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).resolve().parent
PACKAGE: Final = HERE.parents[1] / "kv_cache_manager_v2"
BUDGET: Final = HERE / "code_budget.toml"
_NO_CODE: Final = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER
}  # fmt: skip


def code_lines(text: str) -> int:
    """The lines of code of a module with this text."""
    uncounted = set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom) or (isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__"):
            uncounted.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and ast.get_docstring(node) is not None:
            docstring = node.body[0]
            uncounted.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    lines = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - uncounted)


def lines_of_rooms() -> dict[str, int]:
    """The lines of code of each folder of the package; those of its own files are the room "root"."""
    rooms: dict[str, int] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).parts
        room = parts[0] if len(parts) > 1 else "root"
        rooms[room] = rooms.get(room, 0) + code_lines(path.read_text(encoding="utf-8"))
    return rooms


def read_budget(text: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads(text)


def limit_of(room: dict[str, Any]) -> int:
    """A room's lines, with what features by name have added."""
    return int(room["lines"]) + sum(int(raised["lines"]) for raised in room.get("raised", []))


def lower(text: str, rooms: dict[str, int]) -> str:
    """The text of a budget with each room's number lowered to what it has now."""
    for name, room in read_budget(text).items():
        spare = limit_of(room) - rooms.get(name, 0)
        if spare > 0:
            text = re.sub(rf"(?m)^(\[{name}\]\nlines = )\d+$", rf"\g<1>{int(room['lines']) - spare}", text)
    return text


def main() -> int:
    text = BUDGET.read_text(encoding="utf-8")
    rooms = lines_of_rooms()
    BUDGET.write_text(lower(text, rooms), encoding="utf-8")
    over = {name: count - limit_of(room) for name, room in read_budget(text).items() if (count := rooms.get(name, 0)) > limit_of(room)}
    for name, lines in over.items():
        print(f"{name}: {lines} lines over its budget: take as many away, or name the feature in tests/tidy/code_budget.toml")
    print(f"{sum(rooms.values())} lines of code in {len(rooms)} rooms")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
