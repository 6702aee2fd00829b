"""docs/testing.md says which fault at which call is tested where: each row names what is in its tests, and no test is left out."""

import ast
import re
from pathlib import Path

import pytest

from .source_tree import ROOT

PROMISES = ROOT / "tests" / "promises"
FAULTS = frozenset(
    "copy wait record create_stream fill map unmap synchronize disk_read disk_write"
    " cuEventQuery cuEventRecord cuEventSynchronize cuStreamQuery cuStreamSynchronize cuStreamWaitEvent cuStreamWaitValue32"
    " cuStreamWriteValue32 cuCtxSynchronize".split()
)
"""Words that name a fault, as the simulated device and the fake drivers take them."""

INJECTORS = ("fail", "refuse")
ROW = re.compile(r"^\| `(?P<file>test_\w+)` \| (?P<tests>[^|]*) \| (?P<faults>[^|]*) \| (?P<calls>[^|]*) \|$", re.MULTILINE)
SPAN = re.compile(r"`([^`]+)`")


def rows() -> list[tuple[str, list[str], set[str], set[str]]]:
    text = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    found = [
        (row["file"], SPAN.findall(row["tests"]), set(SPAN.findall(row["faults"])), set(SPAN.findall(row["calls"])))
        for row in ROW.finditer(text)
    ]
    assert len(found) > 5, "the table was not found"
    return found


class Words:
    """Of each test of a file: the strings in it and in what it uses of its file."""

    def __init__(self, path: Path) -> None:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        self.parts: dict[str, ast.AST] = {}
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                self.parts[node.name] = node
            elif isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        self.parts[target.id] = node
        self.tests = [name for name, node in self.parts.items() if name.startswith("test_") and isinstance(node, ast.FunctionDef)]

    def used_by(self, name: str) -> list[ast.AST]:
        """The part and all parts that it names, and so on."""
        seen = [name]
        for part in seen:
            for node in ast.walk(self.parts[part]):
                if isinstance(node, ast.Name) and node.id in self.parts and node.id not in seen:
                    seen.append(node.id)
        return [self.parts[part] for part in seen]

    def strings(self, name: str) -> set[str]:
        return {
            node.value
            for part in self.used_by(name)
            for node in ast.walk(part)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }

    def attributes(self, name: str) -> set[str]:
        return {node.attr for part in self.used_by(name) for node in ast.walk(part) if isinstance(node, ast.Attribute)}

    def faults(self, name: str) -> set[str]:
        """Those that it injects: it names them, and something that it uses injects."""
        injects = any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in INJECTORS
            for part in self.used_by(name)
            for node in ast.walk(part)
        )
        return self.strings(name) & FAULTS if injects else set()


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row[0]}, {row[1][0] if row[1] else 'no test'}")
def test_each_row_is_so(row: tuple[str, list[str], set[str], set[str]]) -> None:
    file, tests, faults, calls = row
    words = Words(PROMISES / f"{file}.py")
    assert tests and faults and calls
    for test in tests:
        assert test in words.tests, f"{file} has no {test}"
        assert faults <= words.faults(test), test
        assert calls <= words.strings(test) | words.attributes(test), test


def test_no_test_is_left_out() -> None:
    listed = {(file, test) for file, tests, _, _ in rows() for test in tests}
    found = set()
    for path in sorted(PROMISES.glob("test_*.py")):
        words = Words(path)
        found |= {(path.stem, test) for test in words.tests if words.faults(test)}
    assert found == listed
    assert FAULTS == {fault for _, _, faults, _ in rows() for fault in faults}
