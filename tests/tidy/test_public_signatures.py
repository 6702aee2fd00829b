"""Whatever a public signature names is public too: a user can write the type of each argument, result and attribute."""

import ast
from collections.abc import Iterator
from typing import Final

import kv_cache_manager_v2

from .source_tree import Source, package_sources

PUBLIC: Final = set(kv_cache_manager_v2.__all__)


def annotations_of(node: ast.stmt) -> Iterator[ast.expr]:
    """Of a public function, or of a public member of a class."""
    if isinstance(node, ast.FunctionDef) and (not node.name.startswith("_") or node.name == "__init__"):
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg]
        yield from (argument.annotation for argument in arguments if argument is not None and argument.annotation is not None)
        if node.returns is not None:
            yield node.returns
    elif isinstance(node, ast.AnnAssign) and not ast.unparse(node.target).removeprefix("self.").startswith("_"):
        yield node.annotation
    elif isinstance(node, ast.ClassDef):
        makers = [member for member in node.body if isinstance(member, ast.FunctionDef) and member.name == "__init__"]
        made = [part for maker in makers for part in maker.body if isinstance(part, ast.AnnAssign) and "self." in ast.unparse(part)]
        yield from (annotation for member in (*node.body, *made) for annotation in annotations_of(member))


def names_in(annotation: ast.expr) -> Iterator[str]:
    for node in ast.walk(annotation):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from names_in(ast.parse(node.value, mode="eval").body)


def own_names(source: Source) -> set[str]:
    """Names in this module that come from the package: defined here, or imported from a module of it."""
    names: set[str] = set()
    for node in source.tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.If):
            names |= {alias.asname or alias.name for child in ast.walk(node) if isinstance(child, ast.ImportFrom) and child.level
                      for alias in child.names}  # fmt: skip
        elif isinstance(node, ast.ImportFrom) and node.level:
            names |= {alias.asname or alias.name for alias in node.names}
    return names


INTERNAL: Final = {
    "BatchRows", "IndexLimits", "PageRule", "SequenceState", "ChangedBlocks", "OpenSequences", "SharedState", "TransferLeaseState",
    "MemoryLease", "CacheFigures", "CallDoor", "CudaKernel", "LayerGroupFacts", "EventLog", "SharedSource", "SlotWatch",
    "EqualSlots",
}  # fmt: skip
"""Of these only the library makes values, and hands them on: to constructors that only it calls, and to the tables of a batch."""


def test_names_in_public_signatures_are_public() -> None:
    found: dict[str, set[str]] = {}
    num_names = 0
    for source in package_sources():
        if source.folder == "compat":  # its classes of the same names have signatures of another project
            continue
        own = own_names(source)
        for node in source.tree.body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef) or node.name not in PUBLIC:
                continue
            for annotation in annotations_of(node):
                for name in names_in(annotation):
                    if name == "Given":  # says who checks the type, and is that type to a caller
                        continue
                    num_names += 1
                    if name in own and name not in PUBLIC | INTERNAL:
                        found.setdefault(name, set()).add(f"{source.name}: {node.name}")
    assert num_names > 1000
    assert found == {}
