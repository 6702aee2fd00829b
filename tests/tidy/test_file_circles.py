"""Files of the package do not import each other in a circle, as folders do not: also under `TYPE_CHECKING` and inside functions."""

import ast
from graphlib import CycleError, TopologicalSorter
from typing import Final

from .source_tree import PACKAGE, package_sources
from .test_import_floors import imports_of

# A handle names what it came from in its public signature, and that makes such handles.
BACK_REFERENCES: Final = {
    ("manager/kv_cache.py", "manager/kv_cache_manager.py"): "KVCache.manager",
    ("shared/remote_request.py", "shared/shared_level.py"): "a request's level",
    ("integrations/transformers_cache.py", "integrations/transformers.py"): "PagedCache's pool",
    ("integrations/transformers_batching.py", "integrations/transformers.py"): "the pool that is entered for batching",
    ("compat/tensorrt_llm/engine_sequence.py", "compat/tensorrt_llm/engine_manager.py"): "KVCache.manager, as TensorRT-LLM names it",
    ("sequence/planned_blocks.py", "sequence/sequence_state.py"): "the writer and the readers of a planned block, which are sequences",
}


def files_imported() -> dict[str, set[str]]:
    """By file, those of the package that it imports; packages' own ``__init__`` are left out, as they hold imports alone."""
    found: dict[str, set[str]] = {}
    for source in package_sources():
        name = source.path.relative_to(PACKAGE).as_posix()
        if source.path.name == "__init__.py":
            continue
        found[name] = set()
        for node, names, is_inside in imports_of(source):
            if is_inside:
                assert isinstance(node, ast.Import | ast.ImportFrom)
                for path in ("/".join(names), *["/".join((*names, alias.name)) for alias in node.names]):
                    if (PACKAGE / f"{path}.py").is_file() and f"{path}.py" != name:
                        found[name].add(f"{path}.py")
    return found


def test_files_import_in_no_circle() -> None:
    imports = files_imported()
    assert len(imports) > 400
    for one, other in BACK_REFERENCES:
        assert other in imports[one], f"{one} does not import {other} any more: take it out of BACK_REFERENCES"
        imports[one].discard(other)
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        raise AssertionError(f"a circle: {' -> '.join(reversed(error.args[1]))}") from None
