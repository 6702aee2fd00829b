"""Small wrong changes of the sources, made by rule: what a slip of the hand leaves behind, and what a test must notice.

A mutant changes one expression or statement of one file. They are enumerated in the order of the sources, so a seed draws the same
ones as long as the sources are the same. Left out: assertions and what is raised (both only speak), log calls, texts, annotations
and whatever shows a value (`__repr__`). Also what cannot matter by its form: which of two equal numbers is taken for the larger one or
the smaller one, on which side 0 is of what is never 0, and the order of the arguments of sums and maxima.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "kv_cache_manager_v2"
FOLDERS = ("layout", "pools", "storage", "reuse", "sequence")
FILES = ("device/stream_order.py",)
WAITING_FOLDERS = ("sequence", "shared", "durable", "integrations")
_WAIT = re.compile(r"\b(_?settle|await|synchronize|wait)\w*\(")

_COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.Mod: ast.FloorDiv,
}
_TIES: dict[type[ast.cmpop], type[ast.cmpop]] = {ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt}
_IN_ANY_ORDER = ("min", "max", "add_slots", "_larger", "_most", "_share_a_life_cycle")
_NOT_SWAPPED = ("isinstance", "cast", "getattr", *_IN_ANY_ORDER)
_NO_MUTANT = "a tie"
"""The kind of a change that changes nothing: it only counts among those with the same text."""
_NUMBERS = ("i64", "i32", "int", "float")
_ZEROS = {"page_rows": ("PLACE",), "segment_table": ("KEY", "NO_SEGMENT")}
"""By module, names of constants that are 0: adding one is subtracting it, returning one is returning 0."""
_NEVER_ZERO = ("first_page",)
"""Attributes that are above 0 or, as a root's, below it: it does not matter on which side 0 is."""
_LARGEST = 64
"""Larger constants are limits and masks."""


@dataclass(frozen=True)
class Mutant:
    """``key`` names it in the list of equivalent ones, and stays as long as its function does."""

    kind: str
    file: str
    line: int
    function: str
    old: str
    new: str
    occurrence: int
    begin: int
    """Bytes of the file: ``begin .. end - 1`` are replaced."""
    end: int

    @property
    def key(self) -> str:
        number = f" #{self.occurrence}" if self.occurrence else ""
        return f"{self.file} | {self.function} | {self.old} -> {self.new}{number}"

    def apply(self, source: bytes) -> bytes:
        return source[: self.begin] + self.new.encode() + source[self.end :]


def all_files() -> list[str]:
    names = [f"{folder}/{path.name}" for folder in FOLDERS for path in sorted((PACKAGE / folder).glob("*.py"))]
    names += [f"storage/eviction/{path.name}" for path in sorted((PACKAGE / "storage" / "eviction").glob("*.py"))]
    return [*names, *FILES]


def all_mutants() -> list[Mutant]:
    return [mutant for file in all_files() for mutant in mutants_of(file, (PACKAGE / file).read_bytes())]


def all_waits() -> list[Mutant]:
    """Each statement that only waits, left out: of the folders where streams, threads and other machines are waited for. (Without vLLM's
    adapter, whose tests have an environment of their own.)"""
    paths = [path for folder in WAITING_FOLDERS for path in sorted((PACKAGE / folder).glob("*.py"))]
    files = [f"{path.parent.name}/{path.name}" for path in paths if not path.name.startswith("vllm_")]
    found = [mutant for file in files for mutant in mutants_of(file, (PACKAGE / file).read_bytes())]
    return [mutant for mutant in found if mutant.kind == "deleted call" and _WAIT.search(mutant.old)]


def mutants_of(file: str, source: bytes) -> list[Mutant]:
    starts = [0]
    for line in source.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    found: list[Mutant] = []
    seen: dict[str, int] = {}
    for function, node, new, kind in _Walk(ast.parse(source)).changes():
        assert node.end_lineno is not None and node.end_col_offset is not None
        begin = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        old = " ".join(source[begin:end].decode().split())
        if new == old:
            continue
        name = f"{function} | {old} -> {new}"
        occurrence = seen.get(name, 0)
        seen[name] = occurrence + 1
        if kind == _NO_MUTANT:
            continue
        found.append(Mutant(kind, file, node.lineno, function, old, new, occurrence, begin, end))
    return found


Change = tuple[str, ast.expr | ast.stmt, str, str]
"""Function, what is replaced, what stands there instead, the kind of change."""


class _Walk:
    def __init__(self, tree: ast.Module) -> None:
        self._tree = tree
        self._ties = {id(comparison) for node in ast.walk(tree) for comparison in _find_tie(node)}
        """Comparisons of two numbers after which it does not matter what is done where they are equal, and where they never are."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Compare) and isinstance(node.left, ast.Attribute) and node.left.attr in _NEVER_ZERO:
                if isinstance(node.ops[0], (ast.Lt, ast.GtE)) and ast.unparse(node.comparators[0]) == "0":
                    self._ties |= {id(node), id(node.comparators[0])}
        self._zeros = {name for node in ast.walk(tree) for name in _find_zeros(node)}

    def changes(self) -> Iterator[Change]:
        yield from self._of_body(self._tree.body, "")

    def _of_body(self, body: list[ast.stmt], scope: str) -> Iterator[Change]:
        for statement in body:
            if isinstance(statement, ast.ClassDef):
                yield from self._of_body(statement.body, statement.name + ".")
            elif isinstance(statement, ast.FunctionDef) and statement.name not in ("__repr__", "__str__"):
                for inner in statement.body:
                    yield from self._of_statement(inner, scope + statement.name, statement.returns)

    def _of_statement(self, node: ast.stmt, function: str, returns: ast.expr | None) -> Iterator[Change]:
        if isinstance(node, (ast.Assert, ast.Raise, ast.FunctionDef, ast.ClassDef)):
            return
        if isinstance(node, ast.Expr):
            if isinstance(node.value, ast.Constant) or "_logger" in ast.unparse(node):
                return
            if isinstance(node.value, ast.Call):
                yield function, node, "pass", "deleted call"
        if isinstance(node, ast.AugAssign):
            yield function, node, "pass", "deleted assignment"
            other = _OPERATORS.get(type(node.op))
            if other is not None:
                yield function, node, ast.unparse(ast.AugAssign(node.target, other(), node.value)), "operator"
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], (ast.Attribute, ast.Subscript)):
            if not function.endswith(".__init__"):
                yield function, node, "pass", "deleted assignment"
        if isinstance(node, (ast.If, ast.While)):
            yield function, node.test, f"not ({ast.unparse(node.test)})", "negated condition"
        if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
            is_zero = isinstance(node.value, ast.Name) and node.value.id in self._zeros
            for constant in _constants_of(returns):
                if is_zero and constant == "0":
                    continue
                yield function, node.value, constant, "returned constant"
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                yield from self._of_statement(child, function, returns)
            elif isinstance(child, ast.ExceptHandler):
                for inner in child.body:
                    yield from self._of_statement(inner, function, returns)
            elif isinstance(child, ast.expr) and not (isinstance(node, ast.AnnAssign) and child is node.annotation):
                yield from self._of_expression(child, function)

    def _of_expression(self, node: ast.expr, function: str) -> Iterator[Change]:
        if isinstance(node, ast.JoinedStr):
            return
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            for comparison in _COMPARISONS[type(node.ops[0])]:
                is_tie = id(node) in self._ties and comparison is _TIES.get(type(node.ops[0]))
                changed = ast.unparse(ast.Compare(node.left, [comparison()], node.comparators))
                yield function, node, changed, _NO_MUTANT if is_tie else "comparison"
        if isinstance(node, ast.BoolOp):
            either = ast.Or() if isinstance(node.op, ast.And) else ast.And()
            yield function, node, f"({ast.unparse(ast.BoolOp(either, node.values))})", "and / or"
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            yield function, node, f"({ast.unparse(node.operand)})", "negated condition"
        if isinstance(node, ast.BinOp):
            operator = _OPERATORS.get(type(node.op))
            if operator is not None and not (isinstance(node.right, ast.Name) and node.right.id in self._zeros):
                yield function, node, f"({ast.unparse(ast.BinOp(node.left, operator(), node.right))})", "operator"
        if isinstance(node, ast.Constant):
            if isinstance(node.value, bool):
                yield function, node, str(not node.value), "constant"
            elif isinstance(node.value, int) and node.value <= _LARGEST:
                yield function, node, str(node.value + 1), _NO_MUTANT if id(node) in self._ties else "constant"
                if node.value > 0:
                    yield function, node, str(node.value - 1), "constant"
        if isinstance(node, ast.Call):
            yield from self._swapped(node, function)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                yield from self._of_expression(child, function)
            elif isinstance(child, ast.comprehension):
                for part in (child.iter, *child.ifs):
                    yield from self._of_expression(part, function)

    def _swapped(self, node: ast.Call, function: str) -> Iterator[Change]:
        if isinstance(node.func, ast.Name) and node.func.id in _NOT_SWAPPED:
            return
        for position in range(len(node.args) - 1):
            arguments = list(node.args)
            arguments[position : position + 2] = reversed(arguments[position : position + 2])
            if ast.unparse(arguments[position]) != ast.unparse(arguments[position + 1]):
                yield function, node, ast.unparse(ast.Call(node.func, arguments, node.keywords)), "swapped arguments"


def _find_zeros(node: ast.AST) -> list[str]:
    """Constants that are 0 where they are made, and where they are imported."""
    if isinstance(node, ast.ImportFrom) and node.module is not None:
        zeros = _ZEROS.get(node.module.rpartition(".")[2], ())
        return [alias.name for alias in node.names if alias.name in zeros]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(node.value, ast.Constant):
        names = [name for zeros in _ZEROS.values() for name in zeros]
        return [node.target.id] if node.value.value == 0 and node.target.id in names else []
    return []


def _find_tie(node: ast.AST) -> list[ast.Compare]:
    """The comparison of ``a if a > b else b``, ``if a > b: b = a``, ``a - b if a > b else 0`` and ``if a > b: c += a - b``."""
    if not isinstance(node, (ast.If, ast.IfExp)) or not isinstance(node.test, ast.Compare) or len(node.test.ops) != 1:
        return []
    both = {ast.unparse(node.test.left), ast.unparse(node.test.comparators[0])}
    pairs: list[tuple[ast.expr, ast.expr]] = []
    if isinstance(node, ast.IfExp):
        pairs.append((node.body, node.orelse))
        if isinstance(node.orelse, ast.Constant) and node.orelse.value == 0:
            pairs += _operands(node.body)
    elif len(node.body) == 1 and not node.orelse:
        statement = node.body[0]
        if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
            pairs.append((statement.targets[0], statement.value))
        elif isinstance(statement, ast.AugAssign) and isinstance(statement.op, (ast.Add, ast.Sub)):
            pairs += _operands(statement.value)
    return [node.test] if any({ast.unparse(one), ast.unparse(other)} == both for one, other in pairs) else []


def _operands(node: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """Of a difference."""
    return [(node.left, node.right)] if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) else []


def _constants_of(returns: ast.expr | None) -> list[str]:
    text = "" if returns is None else ast.unparse(returns)
    if text == "bool":
        return ["True", "False"]
    if text in _NUMBERS:
        return ["0"]
    return ["None"] if "None" in text else []
