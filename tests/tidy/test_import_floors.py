"""Packages of others, and modules that reach the system, enter by few doors, wherever in a file they are imported.

That a folder imports lower ones only, import-linter checks (`[tool.importlinter]` of pyproject.toml).
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from .source_tree import PACKAGE, Source, package_sources

THIRD_PARTY: Final = {
    "numpy", "cuda", "librt", "mypy_extensions", "rawref", "prometheus_client", "zmq", "msgspec", "torch", "transformers",
    "zstandard", "pyarrow", "tokenizers", "xxhash", "vllm", "obstore", "nixl", "mooncake",
}  # fmt: skip

# Modules that only these folders and files import. cuda, mmap and ctypes reach the driver and the operating system; time and
# random would let decisions depend on something else than the calls.
DOORS: Final = {
    "cuda": {"device", "testing"},
    "ctypes": {"device", "testing"},
    "mmap": {"device", "testing"},
    "torch": {"integrations"},
    "transformers": {"integrations"},
    "nixl": {"integrations"},
    "vllm": {"integrations"},
    "prometheus_client": {"metrics", "integrations/vllm_options"},
    "zstandard": {"replay"},
    "pyarrow": {"replay"},
    "tokenizers": {"replay"},
    "argparse": {"replay", "testing"},
    "zmq": {"publishing"},
    "msgspec": {"models", "publishing", "testing"},
    "xxhash": {"device"},
    "obstore": {"shared"},
    "mooncake": {"shared"},
    "time": {"base/fair_turns", "device", "durable", "metrics", "publishing", "shared", "testing", "replay"},
    "random": {"shared/store_workers", "testing", "replay"},  # engines of a fleet write to a store at different times
    "datetime": {"replay"},
    "threading": {"compat", "device", "durable", "events", "metrics", "publishing", "sequence", "shared", "testing", "replay"},
    "weakref": set[str](),
}


def imports_of(source: Source) -> Iterator[tuple[ast.stmt, tuple[str, ...], bool]]:
    """Each imported module: the statement, the path of names, and whether it lies in the package.

    `from ..base import ids` names the package's ("base",): for the floors the folder is what counts.
    """
    here = source.path.relative_to(PACKAGE).parts[:-1]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, tuple(alias.name.split(".")), False
        elif isinstance(node, ast.ImportFrom):
            names = tuple(node.module.split(".")) if node.module else ()
            if node.level == 0:
                yield node, names, False
            else:
                above = node.level - 1
                assert above <= len(here), f"{source.at(node)}: an import from above the package"
                base = here[: len(here) - above]
                if names or base:
                    yield node, base + names, True
                else:
                    for alias in node.names:
                        # `from .. import base` is a folder; any other name comes from the package's __init__.
                        yield node, (alias.name,) if (PACKAGE / alias.name).is_dir() else (), True


def door_violations(source: Source) -> list[str]:
    violations = []
    for node, names, is_inside in imports_of(source):
        if is_inside:
            if source.folder == "":
                continue
            if not names:
                if source.folder != "replay":
                    violations.append(f"{source.at(node)}: imports the façade from below it")
        elif names[0] == PACKAGE.name:
            violations.append(f"{source.at(node)}: imports the package by its name; a vendored copy has another")
        elif names[0] not in sys.stdlib_module_names and names[0] not in THIRD_PARTY:
            violations.append(f"{source.at(node)}: {names[0]} is not among the dependencies")
        elif not {source.folder, f"{source.folder}/{source.path.stem}"} & DOORS.get(names[0], {source.folder}):
            violations.append(f"{source.at(node)}: {names[0]} is for {sorted(DOORS[names[0]])} only")
    return violations


def test_modules_import_by_the_doors_only() -> None:
    found = [violation for source in package_sources() for violation in door_violations(source)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("statement", "is_fine"),
    [
        ("from ..base.ids import LayerId", True),
        ("from . import page", True),
        ("from .page_rows import PageRows", True),
        ("from .. import base", True),
        ("import numpy as np", True),
        ("from ..manager import manager", True),
        ("from .. import KVCacheManager", False),
        ("from kv_cache_manager_v2.base import ids", False),
        ("import torch", False),
        ("import mmap", False),
        ("from cuda.bindings import driver", False),
    ],
)
def test_the_rule_itself(statement: str, is_fine: bool) -> None:
    """As if it stood in storage/."""
    source = Source.__new__(Source)
    source.__dict__.update(path=Path(PACKAGE / "storage" / "x.py"), name="x", text="", tree=ast.parse(statement))
    assert (door_violations(source) == []) is is_fine
