"""`help` shows what the sources say, in both builds: modules, classes, functions, methods and properties."""

import ast
import inspect
import pkgutil
import pydoc
import re
from collections.abc import Iterator
from typing import Any
from unittest.mock import create_autospec

import pytest

import kv_cache_manager_v2

from .workshop import ROOT, import_or_skip

DocumentedNode = ast.ClassDef | ast.FunctionDef


def module_names() -> list[str]:
    modules = pkgutil.walk_packages(kv_cache_manager_v2.__path__, prefix="kv_cache_manager_v2.")
    return [module.name for module in modules if not module.name.endswith(("__main__", "_native__mypyc"))]


def documented(body: list[ast.stmt], names: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Public definitions of a module, inside classes too, that have a docstring."""
    for node in body:
        if isinstance(node, DocumentedNode) and not node.name.startswith("_"):
            # Below a getter a setter of the same name may follow, which has none.
            text = ast.get_docstring(node)
            if text is not None:
                yield (*names, node.name), text
            if isinstance(node, ast.ClassDef):
                yield from documented(node.body, (*names, node.name))


@pytest.mark.parametrize("module_name", module_names())
def test_docstrings_are_there_at_run_time(module_name: str) -> None:
    module = import_or_skip(module_name)
    path = ROOT.joinpath(*module_name.split("."))
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))
    expected = dict(documented(tree.body))
    found = {}
    for names in expected:
        value: object = module
        for name in names:
            value = inspect.getattr_static(value, name)
        function = value.__func__ if isinstance(value, staticmethod | classmethod) else value
        found[names] = inspect.cleandoc(getattr(function, "__doc__", None) or "")
    assert found == expected
    assert inspect.cleandoc(module.__doc__ or "") == ast.get_docstring(tree)


def public_callables() -> Iterator[tuple[str, Any, ast.FunctionDef]]:
    """Public functions, classes and their methods, with the definition that has their parameters: of a class its `__init__`."""
    for name in kv_cache_manager_v2.__all__:
        value = getattr(kv_cache_manager_v2, name)
        module = getattr(value, "__module__", None) or ""
        if not module.startswith("kv_cache_manager_v2.") or not callable(value):
            continue
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                yield name, value, node
            elif isinstance(node, ast.ClassDef) and node.name == getattr(value, "__name__", ""):
                for member in node.body:
                    if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                        yield name, value, member
                    elif isinstance(member, ast.FunctionDef) and not member.name.startswith("_") and not member.decorator_list:
                        yield f"{name}.{member.name}", getattr(value, member.name), member


def test_signatures_are_there_at_run_time() -> None:
    """What `help` and editors show as the arguments of public classes, functions and methods, in both builds."""
    found: dict[str, list[str] | None] = {}
    expected: dict[str, list[str] | None] = {}
    for name, value, node in public_callables():
        given = node.args
        names = [one.arg for one in [*given.posonlyargs, *given.args, *given.kwonlyargs]]
        expected[name] = names if "." in name or names[:1] != ["self"] else names[1:]
        try:
            parameters = inspect.signature(value).parameters.values()
        except ValueError:
            method = value.__init__ if inspect.isclass(value) else value
            # Of a class that mypyc keeps an ordinary one (errors, dataclasses) each method is an object without a signature.
            if not type(method).__name__.endswith("_obj"):
                found[name] = None
        else:
            found[name] = [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
    assert len(found) > 300 and len(expected) - len(found) < 8
    assert {name: names for name, names in found.items() if names != expected[name]} == {}
    manager = inspect.signature(kv_cache_manager_v2.KVCacheManager)
    assert manager.parameters["device"].default is None and manager.parameters["device"].kind is inspect.Parameter.KEYWORD_ONLY
    # From Python 3.13 on `help` breaks lines within long signatures.
    assert re.search(r"KVCacheManager\(\s*\|?\s*config\b", pydoc.render_doc(kv_cache_manager_v2.KVCacheManager))


def test_signatures_of_derived_classes_are_their_own() -> None:
    base = kv_cache_manager_v2.HostDevice
    derived = type("Derived", (base,), {"__init__": lambda self, folder: None})
    assert list(inspect.signature(derived).parameters) == ["folder"]
    assert inspect.signature(type("Plain", (base,), {})) == inspect.signature(kv_cache_manager_v2.HostDevice)
    assert create_autospec(kv_cache_manager_v2.KVCacheManager) is not None


def test_there_are_many() -> None:
    """Were the walk wrong, the test above would compare nothing."""
    assert len(module_names()) > 300
    resize = kv_cache_manager_v2.KVCache.resize
    assert "all or nothing" in (inspect.getdoc(resize) or "")
    assert list(inspect.signature(resize).parameters) == ["self", "capacity", "history_length"]
