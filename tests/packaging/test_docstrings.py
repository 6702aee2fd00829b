"""`help` shows what the sources say, in both builds: modules, classes, functions, methods and properties."""

import ast
import inspect
import pkgutil
from collections.abc import Iterator

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


def test_there_are_many() -> None:
    """Were the walk wrong, the test above would compare nothing."""
    assert len(module_names()) > 300
    resize = kv_cache_manager_v2.KVCache.resize
    assert "all or nothing" in (inspect.getdoc(resize) or "")
    assert list(inspect.signature(resize).parameters) == ["self", "capacity", "history_length"]
