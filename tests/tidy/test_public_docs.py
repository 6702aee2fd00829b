"""Every public class, function and member says what it is: in its docstring, or in that of the method it overrides."""

import ast

import kv_cache_manager_v2

from .source_tree import Source, package_sources


def has_doc(node: ast.ClassDef | ast.FunctionDef) -> bool:
    return ast.get_docstring(node) is not None


def classes_by_name() -> dict[str, tuple[Source, ast.ClassDef]]:
    found: dict[str, tuple[Source, ast.ClassDef]] = {}
    for source in package_sources():
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                found[node.name] = (source, node)
    return found


def lineage(name: str, classes: dict[str, tuple[Source, ast.ClassDef]]) -> list[tuple[Source, ast.ClassDef]]:
    """The class and its bases in the package, nearest first."""
    if name not in classes:
        return []
    found = [classes[name]]
    for base in classes[name][1].bases:
        if isinstance(base, ast.Name):
            found += lineage(base.id, classes)
    return found


def test_public_names_have_docstrings() -> None:
    classes = classes_by_name()
    functions = [(source, node) for source in package_sources() for node in source.tree.body if isinstance(node, ast.FunctionDef)]
    found = [source.at(node) for source, node in functions if node.name in kv_cache_manager_v2.__all__ and not has_doc(node)]
    num_members = 0
    for name in kv_cache_manager_v2.__all__:
        family = lineage(name, classes)
        if not family:
            continue
        if not has_doc(family[0][1]):
            found.append(f"{family[0][0].at(family[0][1])}: {name}")
        documented = {node.name for _, owner in family for node in owner.body if isinstance(node, ast.FunctionDef) and has_doc(node)}
        for source, owner in family:
            for node in owner.body:
                if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                    num_members += 1
                    if node.name not in documented:
                        found.append(f"{source.at(node)}: {name}.{node.name}")
    assert num_members > 200
    assert not found, "\n" + "\n".join(sorted(set(found)))
