"""Every class that a user can get hold of, found in the sources: by the public names, and by what their members return.

Begins with the public names of the package and of `testing`, and with what examples and documents import from elsewhere; goes on
with the bases and subclasses of what it has, and with the classes in the annotations of public attributes and of what public
methods and functions return.
"""

import ast
import functools
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import kv_cache_manager_v2

ROOT: Final = Path(__file__).resolve().parents[1]
SOURCES: Final = ROOT / "kv_cache_manager_v2"
WORD: Final = re.compile(r"\w+")
IMPORTED: Final = r"^\s*from (?:kv_cache_manager_v2(?!\.replay)|\.)[\w.]* import \(?([\w, \n]+)"


@functools.cache
def package_modules() -> tuple[tuple[str, ast.Module], ...]:
    """Each module's name, and its source."""
    return tuple(_parse_modules())


def _parse_modules() -> Iterator[tuple[str, ast.Module]]:
    # Those of other projects' names come last: where a class has a name of the library's own, that one is meant.
    for path in sorted(SOURCES.rglob("*.py"), key=lambda path: ("compat" in path.parts, path)):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if parts[-1] != "__main__":
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), ast.parse(path.read_text(encoding="utf-8"))


def names_in(node: ast.AST | None) -> set[str]:
    """Also those in annotations that are texts."""
    found: set[str] = set()
    for part in ast.walk(node) if node is not None else ():
        if isinstance(part, ast.Name):
            found.add(part.id)
        elif isinstance(part, ast.Attribute):
            found.add(part.attr)
        elif isinstance(part, ast.Constant) and isinstance(part.value, str):
            found.update(WORD.findall(part.value))
    return found


def names_given_out(node: ast.ClassDef) -> set[str]:
    """By public attributes (of values, also those that `__init__` makes), properties and methods, and by its bases."""
    found: set[str] = set()
    for base in node.bases:
        found |= names_in(base)
    for member in node.body:
        if isinstance(member, ast.FunctionDef) and not member.name.startswith("_"):
            found |= names_in(member.returns)
        is_made = isinstance(member, ast.FunctionDef) and member.name == "__init__" and found & {"Value", "KVCacheEventData", "WireEvent"}
        for part in member.body if isinstance(member, ast.FunctionDef) and is_made else [member]:
            if isinstance(part, ast.AnnAssign) and not ast.unparse(part.target).removeprefix("self.").startswith("_"):
                found |= names_in(part.annotation)
    return found


def documented_names() -> set[str]:
    """What examples and documents import, but for the workbench: its policies are inside the library's own port."""
    found = set(kv_cache_manager_v2.__all__)
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*.py"), SOURCES / "testing" / "__init__.py"]
    for page in pages:
        for names in re.findall(IMPORTED, page.read_text(), re.MULTILINE):
            found.update(WORD.findall(names))
    return found


@functools.cache
def find_public_classes() -> dict[str, str]:
    """Their modules, by name."""
    classes: dict[str, tuple[str, ast.ClassDef]] = {}
    subclasses: dict[str, set[str]] = {}
    waiting = documented_names()
    functions: dict[str, ast.FunctionDef] = {}
    for module, tree in package_modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, (module, node))
                for base in node.bases:
                    for name in names_in(base):
                        subclasses.setdefault(name, set()).add(node.name)
            elif isinstance(node, ast.FunctionDef):
                functions[node.name] = node
    for name in list(waiting):
        if name in functions:
            waiting |= names_in(functions[name].returns)
    found: dict[str, str] = {}
    while waiting:
        name = waiting.pop()
        if name in classes and name not in found:
            module, node = classes[name]
            found[name] = module
            waiting |= names_given_out(node) | subclasses.get(name, set())
    return {name: module for name, module in sorted(found.items()) if can_be_imported(module)}


def can_be_imported(module: str) -> bool:
    """Not if it is of an extra that is not installed."""
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True


def load_class(name: str, module: str) -> Any:
    return getattr(importlib.import_module(module), name)


@functools.cache
def find_all_classes() -> tuple[tuple[str, Any], ...]:
    """Every class of the package, also those that no user sees, by its full name."""
    return tuple(_load_classes())


def _load_classes() -> Iterator[tuple[str, Any]]:
    for module, tree in package_modules():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                try:
                    yield f"{module}.{node.name}", load_class(node.name, module)
                except ImportError:  # of an extra that is not installed
                    continue
