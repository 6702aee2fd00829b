"""The project's files, parsed once, for the rules in this folder.

Rules look at the sources of the repository, whichever build the tests run on.
"""

import ast
import functools
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "kv_cache_manager_v2"
TESTS: Final = ROOT / "tests"

# Folders that git ignores.
MADE_FOLDERS: Final = {".git", ".venv", "build", "dist", "__pycache__", ".mypy_cache", ".pytest_cache", ".hypothesis", ".ruff_cache"}


class Source:
    """One Python file."""

    def __init__(self, path: Path) -> None:
        self.path: Final = path
        self.name: Final = path.relative_to(ROOT).as_posix()
        self.text: Final = path.read_text(encoding="utf-8")
        self.tree: Final = ast.parse(self.text, filename=self.name)

    def at(self, node: ast.AST) -> str:
        """The place of a node, as editors understand it."""
        return f"{self.name}:{getattr(node, 'lineno', 1)}"

    @property
    def folder(self) -> str:
        """The floor of a package module: its first folder, or "" for the package's own files."""
        parts = self.path.relative_to(PACKAGE).parts
        return parts[0] if len(parts) > 1 else ""


def slots_of(node: ast.ClassDef) -> list[str]:
    """The names of a class's attributes."""
    found = [one.value for one in node.body if isinstance(one, ast.Assign) and ast.unparse(one.targets[0]) == "__slots__"]
    return [part.value for value in found for part in ast.walk(value) if isinstance(part, ast.Constant) and isinstance(part.value, str)]


def project_files() -> Iterator[Path]:
    """Every file that belongs to the project."""
    waiting = [ROOT]
    while waiting:
        for path in sorted(waiting.pop().iterdir()):
            if path.is_dir():
                if path.name not in MADE_FOLDERS and not path.name.endswith(".egg-info"):
                    waiting.append(path)
            elif path.suffix not in (".pyc", ".so") and path.name != ".git":  # a file in a work tree of git
                yield path


@functools.cache
def package_sources() -> tuple[Source, ...]:
    return tuple(Source(path) for path in sorted(PACKAGE.rglob("*.py")))


@functools.cache
def sources_of_tests() -> tuple[Source, ...]:
    return tuple(Source(path) for path in sorted(TESTS.rglob("*.py")))


@functools.cache
def build_script() -> ModuleType:
    """setup_mypyc.py, as a module; it builds nothing on import."""
    specification = importlib.util.spec_from_file_location("setup_mypyc", ROOT / "setup_mypyc.py")
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def compiled_sources() -> list[Source]:
    """The package modules that mypyc compiles."""
    is_compiled_file = build_script().is_compiled_file
    return [source for source in package_sources() if is_compiled_file(source.path, PACKAGE)]
