"""No name that nobody uses: imports in any file; functions, classes and constants of the package."""

import ast
import re
from typing import Final

from .source_tree import ROOT, Source, package_sources, slots_of, sources_of_tests

FOR_USERS: Final = {
    "apply_kv_hints",
    "Float8Codec",
    "Int4Codec",
    "LosslessCodec",
    "ManagedBlocks",
    "ManagedScheduler",
    "TieredConnector",
    "clean_copies",
    "convert_batch_into",
    "convert_into",
    "count_drops",
    "export_memory",
    "get_stale_range",
    "to_tokens",
    "ValkeyStore",
    "ObjectStore",
    "MooncakeStore",
    "is_capacity",
    "life_cycle_of",
    "life_cycle_pool_group_indices",
    "next_sequence",
    "num_batches_lost",
    "num_batches_published",
    "num_not_timed",
    "num_replay_tokens",
    "read_batch",
    "storage_statistics",
}
"""Attributes of public values, which only users read; the public methods of classes that users hold need no entry."""
FOLDERS_FOR_USERS: Final = {"compat", "integrations", "kernels", "manager", "shared", "testing"}
"""Whose methods users call."""
FOR_TESTS: Final = {"num_live", "num_timelines", "num_asked"}
"""Read by the tests of their own classes alone, because there is no other way to see a leak, or a loop that never pauses."""


def names_loaded(tree: ast.AST) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            names.add(node.attr)
        elif isinstance(node, (ast.arg, ast.AnnAssign)) and node.annotation is not None:
            names |= names_in_text(node.annotation)
        elif isinstance(node, ast.FunctionDef) and node.returns is not None:
            names |= names_in_text(node.returns)
    return names


def names_in_text(annotation: ast.expr) -> set[str]:
    """Of annotations that are written as strings."""
    texts = [node.value for node in ast.walk(annotation) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {word for text in texts for word in re.findall(r"\w+", text)}


def test_no_import_is_unused() -> None:
    found = []
    for source in (*package_sources(), *sources_of_tests()):
        if source.path.name == "__init__.py":
            continue
        loaded = names_loaded(source.tree) | names_exported(source.tree)
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                continue
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [(alias.asname or alias.name).split(".")[0] for alias in node.names]
                found += [f"{source.at(node)}: {name}" for name in names if name not in loaded]
    assert not found, "\n" + "\n".join(found)


def test_no_definition_is_unused() -> None:
    """Of the package, by the package, the examples and the benchmarks: what tests alone use is dead."""
    exporting = [source for source in package_sources() if source.name.count("/") == 1 or source.name.endswith("tensorrt_llm/__init__.py")]
    public = {name for source in exporting for name in names_of_strings(source)}
    others = [Source(path) for folder in ("examples", "benchmarks") for path in sorted((ROOT / folder).glob("*.py"))]
    loaded = public | FOR_USERS | FOR_TESTS
    for source in (*package_sources(), *others):
        loaded |= names_loaded(source.tree)
    found = []
    for source in package_sources():
        scopes = [node for node in ast.walk(source.tree) if isinstance(node, (ast.Module, ast.ClassDef))]
        for scope in scopes:
            if isinstance(scope, ast.ClassDef) and source.folder in FOLDERS_FOR_USERS:
                continue
            names = [(node, defined_name(node)) for node in scope.body]
            if isinstance(scope, ast.ClassDef):
                names += [(scope, name) for name in slots_of(scope)]
            for node, name in names:
                if name is not None and not name.startswith("__") and name not in loaded:
                    found.append(f"{source.at(node)}: {name}")
    assert not found, "\n" + "\n".join(found)


def names_exported(tree: ast.Module) -> set[str]:
    """What `__all__` of a module names."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(name, ast.Name) and name.id == "__all__" for name in node.targets):
            return set(ast.literal_eval(node.value))
    return set()


def names_of_strings(source: Source) -> set[str]:
    """The exported names, which stand in strings."""
    return {node.value for node in ast.walk(source.tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def defined_name(node: ast.stmt) -> str | None:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return node.name
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    return None
