"""A module uses its own folder and lower floors only, wherever in the file it imports; the rest enters by few doors."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from .source_tree import PACKAGE, Source, package_sources

# From the ground up. Folders of one row do not see each other. "" is the package's own __init__, which sees them all.
FLOORS: Final = (
    ("base",),
    ("config",),
    ("events",),
    ("stats",),
    ("layout",),
    ("device",),
    ("durable",),
    ("pools",),
    ("storage",),
    ("reuse",),
    ("journal",),
    ("sequence",),
    ("introspect",),
    ("manager",),
    ("kernels", "metrics", "models", "publishing"),
    ("compat", "integrations", "shared"),
    ("testing",),
    ("replay",),
)
LEVEL_OF_FOLDER: Final = {folder: level for level, row in enumerate(FLOORS) for folder in row}

THIRD_PARTY: Final = {
    "numpy", "cuda", "librt", "mypy_extensions", "rawref", "rich", "plotly", "prometheus_client", "zmq", "msgspec", "torch", "transformers",
    "opentelemetry", "zstandard", "tokenizers", "xxhash", "nixl",
}  # fmt: skip

# Modules that only these folders import. cuda, mmap and ctypes reach the driver and the operating system; time and
# random would let decisions depend on something else than the calls.
DOORS: Final = {
    "cuda": {"device", "testing"},
    "ctypes": {"device", "testing"},
    "mmap": {"device", "testing"},
    "rich": {"replay"},
    "plotly": {"replay"},
    "torch": {"integrations"},
    "transformers": {"integrations"},
    "nixl": {"integrations"},
    "prometheus_client": {"metrics"},
    "opentelemetry": {"metrics"},
    "zstandard": {"replay"},
    "tokenizers": {"replay"},
    "argparse": {"replay", "testing"},
    "zmq": {"publishing"},
    "msgspec": {"models", "publishing"},
    "xxhash": {"device"},
    "time": {"device", "durable", "metrics", "publishing", "shared", "testing", "replay"},
    "random": {"testing", "replay"},
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


def floor_violations(source: Source) -> list[str]:
    own_level = LEVEL_OF_FOLDER.get(source.folder)
    violations = []
    for node, names, is_inside in imports_of(source):
        if is_inside:
            if source.folder == "":
                continue
            if not names:
                if source.folder != "replay":
                    violations.append(f"{source.at(node)}: imports the façade from below it")
            elif own_level is None:
                violations.append(f"{source.at(node)}: {source.folder} is not in the list of floors")
            elif names[0] != source.folder and LEVEL_OF_FOLDER.get(names[0], own_level) >= own_level:
                violations.append(
                    f"{source.at(node)}: {source.folder} imports {'.'.join(names)}, which is not below it"
                )
        elif names[0] == PACKAGE.name:
            violations.append(f"{source.at(node)}: imports the package by its name; a vendored copy has another")
        elif names[0] not in sys.stdlib_module_names and names[0] not in THIRD_PARTY:
            violations.append(f"{source.at(node)}: {names[0]} is not among the dependencies")
        elif source.folder not in DOORS.get(names[0], {source.folder}):
            violations.append(f"{source.at(node)}: {names[0]} is for {sorted(DOORS[names[0]])} only")
    return violations


def test_modules_import_their_own_folder_and_lower_floors() -> None:
    found = [violation for source in package_sources() for violation in floor_violations(source)]
    assert not found, "\n" + "\n".join(found)


def test_every_folder_has_a_floor() -> None:
    folders = {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= LEVEL_OF_FOLDER.keys()


@pytest.mark.parametrize(
    ("statement", "is_fine"),
    [
        ("from ..base.ids import LayerId", True),
        ("from . import page", True),
        ("from .page_rows import PageRows", True),
        ("from .. import base", True),
        ("import numpy as np", True),
        ("from ..manager.manager import KVCacheManager", False),
        ("from ..manager import manager", False),
        ("from .. import manager", False),
        ("from .. import KVCacheManager", False),
        ("def f():\n    from ..reuse import radix_tree", False),
        ("if TYPE_CHECKING:\n    from ..sequence.kv_cache import KVCache", False),
        ("from kv_cache_manager_v2.base import ids", False),
        ("import torch", False),
        ("import mmap", False),
        ("from cuda.bindings import driver", False),
    ],
)
def test_the_rule_itself(statement: str, is_fine: bool) -> None:
    """As if it stood in storage/, which lies above pools and below reuse."""
    source = Source.__new__(Source)
    source.__dict__.update(path=Path(PACKAGE / "storage" / "x.py"), name="x", text="", tree=ast.parse(statement))
    assert (floor_violations(source) == []) is is_fine
