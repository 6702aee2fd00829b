"""Places in the sources by function and statement, whatever the lines around them look like, and other code in such a place.

Code is compared as Python understands it: comments, line breaks and brackets that change nothing do not count, nor what else is in the
function.
"""

import ast
import textwrap

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


class NoSuchPlace(Exception):
    """Says what was looked for, where, and how often it is there."""


def plant(source: str, function: str, old: str, new: str, nth: int = 1, count: int = 1) -> str:
    """The source with ``new`` in place of ``old`` in that function or method (``Class.method``).

    ``old`` is one statement, several that follow one another, or the expression behind an `if` or `while`; ``new`` is as many
    statements as one likes, or an expression. The function has it ``count`` times; the ``nth`` is meant.
    """
    body = find_function(ast.parse(source), function)
    places = find_statements(body, ast.parse(old).body) or find_conditions(body, old)
    if len(places) != count:
        raise NoSuchPlace(f"{function} has {old!r} {len(places)} times, not {count}")
    first, last = places[nth - 1]
    return replace(source, first, last, new)


def find_function(tree: ast.Module, name: str) -> FunctionNode:
    found: ast.Module | ast.ClassDef | FunctionNode = tree
    for part in name.split("."):
        named = [
            node for node in found.body if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == part
        ]
        if not named:
            raise NoSuchPlace(f"there is no {name}")
        found = named[-1]  # a property's setter is behind its getter
    if not isinstance(found, FunctionNode):
        raise NoSuchPlace(f"{name} is no function")
    return found


def find_statements(function: FunctionNode, wanted: list[ast.stmt]) -> list[tuple[ast.AST, ast.AST]]:
    """First and last statement of each run that is the wanted one."""
    dumps = [ast.dump(statement) for statement in wanted]
    places: list[tuple[ast.AST, ast.AST]] = []
    for node in ast.walk(function):
        for body in bodies_of(node):
            for first in range(len(body) - len(dumps) + 1):
                run = body[first : first + len(dumps)]
                if [ast.dump(statement) for statement in run] == dumps:
                    places.append((run[0], run[-1]))
    return in_order(places)


def find_conditions(function: FunctionNode, old: str) -> list[tuple[ast.AST, ast.AST]]:
    try:
        wanted = ast.dump(ast.parse(old, mode="eval").body)
    except SyntaxError:
        return []
    tests = [node.test for node in ast.walk(function) if isinstance(node, ast.If | ast.While)]
    return in_order([(test, test) for test in tests if ast.dump(test) == wanted])


def bodies_of(node: ast.AST) -> list[list[ast.stmt]]:
    """All lists of statements that the node holds."""
    return [getattr(node, name) for name in ("body", "orelse", "finalbody") if isinstance(getattr(node, name, None), list)]


def in_order(places: list[tuple[ast.AST, ast.AST]]) -> list[tuple[ast.AST, ast.AST]]:
    return sorted(places, key=lambda place: (place[0].lineno, place[0].col_offset))  # type: ignore[attr-defined]


def replace(source: str, first: ast.AST, last: ast.AST, new: str) -> str:
    """With ``new`` from where ``first`` begins to where ``last`` ends."""
    lines = source.encode().splitlines(keepends=True)
    begin = b"".join(lines[: first.lineno - 1]) + lines[first.lineno - 1][: first.col_offset]  # type: ignore[attr-defined]
    end = lines[last.end_lineno - 1][last.end_col_offset :] + b"".join(lines[last.end_lineno :])  # type: ignore[attr-defined]
    if isinstance(first, ast.stmt):
        indented = textwrap.indent(new, " " * first.col_offset)
        return (begin + indented.lstrip().encode() + end).decode()
    return f"{begin.decode()}({new}){end.decode()}"
