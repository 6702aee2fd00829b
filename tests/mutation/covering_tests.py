"""Which tests begin which suite of statements, found once by running them on a copy of the package that notes the suites it begins.

A suite is the body of a function, of a branch, a loop, a handler. A mutant that lies in a suite can only be noticed by tests that begin
it, so those are run, cheap ones first. The map takes some twenty minutes of a processor and is kept in `build`; tests whose file is new or
changed are run again, the rest stays, as a map of older sources chooses almost as well.
"""

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

if __package__:
    from .mutants import PACKAGE, Mutant, all_files, all_waits
else:
    from mutants import PACKAGE, Mutant, all_files, all_waits

ROOT = PACKAGE.parent
MAP = ROOT / "build" / "covering_tests.json"
_SEEN = Path(__file__).parent / "suites_seen.py"
_PLACES = (
    *[f"tests/unit/{folder}" for folder in ("layout", "pools", "storage", "reuse", "sequence", "shared", "durable", "integrations")],
    *[f"tests/unit/device/test_{name}.py" for name in ("stream_order_calls", "stream_order", "streams_that_come_and_go")],
    "tests/property",
    "tests/promises",
)
_ALIKE = 4
"""So many cases of one test come in its turn, the rest after all others."""


@dataclass(frozen=True)
class Suite:
    """Lines ``begin .. end`` of one function; the innermost one that has a line is its suite."""

    function: str
    begin: int
    end: int


def mark_suites(source: bytes, first: int) -> tuple[str, list[Suite]]:
    """The source with a note at the head of each suite, numbered from `first`; the suites."""
    tree = ast.parse(source)
    suites: list[Suite] = []
    _mark_body(tree.body, "", first, suites)
    first_imports = [position for position, node in enumerate(tree.body) if isinstance(node, (ast.Import, ast.ImportFrom))]
    futures = [position for position, node in enumerate(tree.body) if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    at = futures[-1] + 1 if futures else first_imports[0] if first_imports else 1
    tree.body.insert(at, ast.parse("from suites_seen import SEEN as _SEEN").body[0])
    return ast.unparse(ast.fix_missing_locations(tree)), suites


def _mark_body(body: list[ast.stmt], scope: str, first: int, suites: list[Suite]) -> None:
    for node in body:
        if isinstance(node, ast.ClassDef):
            _mark_body(node.body, node.name + ".", first, suites)
        elif isinstance(node, ast.FunctionDef):
            _mark(node.body, scope + node.name, first, suites)


def _mark(body: list[ast.stmt], function: str, first: int, suites: list[Suite]) -> None:
    end = body[-1].end_lineno
    assert end is not None
    number = first + len(suites)
    suites.append(Suite(function, body[0].lineno, end))
    for node in body:
        for name in ("body", "orelse", "finalbody"):
            inner = getattr(node, name, None)
            if inner:
                _mark(inner, function, first, suites)
        for handler in getattr(node, "handlers", ()):
            _mark(handler.body, function, first, suites)
    is_text = isinstance(body[0], ast.Expr) and isinstance(body[0].value, ast.Constant)
    body.insert(1 if is_text else 0, ast.parse(f"_SEEN[{number}] = 1").body[0])


def _name_suites(file: str, suites: list[Suite]) -> list[str]:
    """Names that stay while their function keeps its suites: the how-manieth of which function of which file."""
    counts: Counter[str] = Counter()
    names: list[str] = []
    for suite in suites:
        names.append(f"{file} | {suite.function} | {counts[suite.function]}")
        counts[suite.function] += 1
    return names


def name_suite_of(mutant: Mutant) -> str:
    suites = mark_suites((PACKAGE / mutant.file).read_bytes(), 0)[1]
    names = _name_suites(mutant.file, suites)
    around = [
        (suite.end - suite.begin, name)
        for suite, name in zip(suites, names, strict=True)
        if suite.function == mutant.function and suite.begin <= mutant.line <= suite.end
    ]
    return min(around)[1]


@dataclass
class CoveringTests:
    digests: dict[str, str] = field(default_factory=dict)
    """By file of tests, what it was when its tests were run."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Of the processor, by name of a test."""
    tests: dict[str, list[str]] = field(default_factory=dict)
    """By name of a suite: the tests that begin it."""

    @staticmethod
    def read(path: Path) -> "CoveringTests":
        digests, seconds, numbers = json.loads(path.read_text(encoding="utf-8"))
        names = list(seconds)
        return CoveringTests(digests, seconds, {suite: [names[number] for number in begun] for suite, begun in numbers.items()})

    def write(self, path: Path) -> None:
        """With a number for each test: most suites are begun by hundreds."""
        number_of = {test: number for number, test in enumerate(self.seconds)}
        numbers = {suite: [number_of[test] for test in begun] for suite, begun in self.tests.items()}
        path.write_text(json.dumps([self.digests, self.seconds, numbers]), encoding="utf-8")

    def choose(self, mutant: Mutant, seconds: float) -> list[str]:
        """Tests that begin the mutant's suite, for so many seconds: those first whose file names the module, then short ones; after a third
        of the time those of the module's folder: most tests begin what is central, and few ask about it."""
        stem = Path(mutant.file).stem
        names_it = {file: stem in (ROOT / file).read_text(encoding="utf-8") for file in self.digests}
        begun = self.tests.get(name_suite_of(mutant), [])
        if not begun:  # by none, or when modules are imported
            begun = [test for test in self.seconds if names_it[test.partition("::")[0]]]
        alike: Counter[str] = Counter()
        ranked: list[tuple[bool, bool, float, str]] = []
        for test in sorted(begun, key=lambda test: self.seconds[test]):
            one = test.partition("[")[0]
            alike[one] += 1
            ranked.append((alike[one] > _ALIKE, not names_it[test.partition("::")[0]], self.seconds[test], test))
        ordered = [test for *_, test in sorted(ranked)]
        folder = f"/{mutant.file.partition('/')[0]}/"
        own = [test for test in ordered if folder in test.partition("::")[0]]
        left = seconds / 3
        chosen: dict[str, None] = {}
        for test in ordered:
            left -= self.seconds[test]
            if left < 0:
                break
            chosen[test] = None
        left = seconds - sum([self.seconds[test] for test in chosen])
        for test in (*own, *ordered):
            if test not in chosen and self.seconds[test] <= left:
                chosen[test] = None
                left -= self.seconds[test]
        return list(chosen)

    def refresh(self, places: tuple[str, ...] = _PLACES) -> None:
        """Run what is new or changed, and forget what is gone."""
        paths = [path for place in places for path in _list_tests(ROOT / place)]
        now = {str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
        changed = {file for file in now if self.digests.get(file) != now[file]}
        kept = {test for test in self.seconds if test.partition("::")[0] in now.keys() - changed}
        self.seconds = {test: self.seconds[test] for test in self.seconds if test in kept}
        self.tests = {name: [test for test in tests if test in kept] for name, tests in self.tests.items()}
        self.digests = now
        if changed:
            print(f"     {len(changed)} files of tests are run to see which suites they begin", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                self._run(sorted(changed), Path(folder))

    def _run(self, files: list[str], folder: Path) -> None:
        names = _copy_marked(folder)
        notes = folder / "notes"
        notes.touch()
        environment = {
            **os.environ,
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
            "PYTHONPYCACHEPREFIX": str(folder / "pycache"),
            "KV_CACHE_MANAGER_V2_EXPECT_BUILD": "interpreted",
            "SUITES_SEEN": str(notes),
        }
        options = ["-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly", "-p", "suites_seen", "-m", "not slow and not long"]
        run = subprocess.run([sys.executable, "-P", "-m", "pytest", *options, *files], env=environment, cwd=ROOT, text=True, stdout=-1)
        if run.returncode not in (0, 1):
            raise SystemExit(f"the tests cannot be run on a marked copy:\n{run.stdout[-2000:]}")
        for line in run.stdout.splitlines():
            if line.startswith(("FAILED ", "ERROR ")):
                print(f"     left out: {line[:150]}", flush=True)
        for line in notes.read_text(encoding="utf-8").splitlines():
            test, seconds, numbers = json.loads(line)
            self.seconds[test] = seconds
            for number in numbers:
                self.tests.setdefault(names[number], []).append(test)


def _copy_marked(folder: Path) -> list[str]:
    """A marked copy of the package, and the names of its suites."""
    shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
    shutil.copy(_SEEN, folder)
    names: list[str] = []
    for file in sorted({*all_files(), *[mutant.file for mutant in all_waits()]}):
        text, suites = mark_suites((PACKAGE / file).read_bytes(), len(names))
        (folder / PACKAGE.name / file).write_text(text, encoding="utf-8")
        names += _name_suites(file, suites)
    return names


def _list_tests(place: Path) -> list[Path]:
    return [place] if place.is_file() else sorted(place.rglob("test_*.py"))


def read_map(path: Path = MAP) -> CoveringTests:
    """The map that is kept, if there is one, with what has changed since."""
    covering = CoveringTests()
    if path.exists():
        covering = CoveringTests.read(path)
    covering.refresh()
    covering.write(path)
    return covering
