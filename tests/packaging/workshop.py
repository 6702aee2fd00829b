"""Copies of the project in other places, what is run there, and why some of it is not run twice."""

import importlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
from packaging.requirements import Requirement

import rawref
from kv_cache_manager_v2.base import build_mode
from tidy.source_tree import project_files

ROOT: Final = Path(__file__).resolve().parents[2]
SMOKE: Final = ROOT / "tests" / "packaging" / "smoke.py"
VENDORED_NAME: Final = "engine.runtime.kv_cache_manager_v2"

builds_from_sources = pytest.mark.skipif(
    build_mode.is_compiled(), reason="builds from the sources whichever build runs the tests: done with the interpreted one"
)
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def copy_folder(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))


def copy_project(target: Path) -> None:
    """The project as a clean clone has it: nothing that a build left."""
    for path in project_files():
        copy = target / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)


def build_requirements() -> list[str]:
    requirements: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    return requirements


def run_time_requirements() -> list[str]:
    requirements: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return requirements


def pack_wheels(requirements: list[str], folder: Path) -> list[str]:
    """Wheels of these packages and of all that they need, made from what is installed here; returns the names.

    So pip can fill an environment of its own without a package index.
    """
    folder.mkdir()
    waiting = [Requirement(text) for text in requirements]
    packed: list[str] = []
    while waiting:
        requirement = waiting.pop()
        if requirement.name in packed or (requirement.marker is not None and not requirement.marker.evaluate({"extra": ""})):
            continue
        packed.append(requirement.name)
        distribution = importlib.metadata.distribution(requirement.name)
        pack_wheel(distribution, folder)
        waiting += [Requirement(text) for text in distribution.requires or []]
    return packed


def pack_wheel(distribution: importlib.metadata.Distribution, folder: Path) -> None:
    made_by_pip = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
    files = [
        file
        for file in distribution.files or []
        if ".." not in file.parts and "__pycache__" not in file.parts and file.name not in made_by_pip
    ]
    (metadata,) = [file for file in files if file.name == "METADATA" and len(file.parts) == 2]
    tag = re.search(r"^Tag: (\S+)$", distribution.read_text("WHEEL") or "", re.MULTILINE)
    assert tag is not None
    record = metadata.parent / "RECORD"
    with zipfile.ZipFile(folder / f"{metadata.parent.name.removesuffix('.dist-info')}-{tag[1]}.whl", "w") as archive:
        for file in files:
            archive.write(str(distribution.locate_file(file)), file.as_posix())
        archive.writestr(record.as_posix(), "".join(f'"{file.as_posix()}",,\n' for file in [*files, record]))


def import_or_skip(name: str) -> ModuleType:
    """A module of the package; skips the test where it says that an optional package is missing."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if "needs the package " not in str(error) and error.name not in ("torch", "transformers", "vllm"):
            raise
        pytest.skip(str(error))


def copy_rawref(folder: Path) -> Path:
    """The rawref of this run, alone in a folder: a dependency that is installed."""
    assert rawref.__file__ is not None
    shutil.copytree(Path(rawref.__file__).parent, folder / "rawref")
    return folder


def run(*command: object, cwd: Path, path: tuple[Path, ...] = (), variables: Mapping[str, str] = {}) -> str:
    """Run a command that must succeed, with these folders as PYTHONPATH; returns what it printed."""
    environment = os.environ | dict(variables) | {"PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONSAFEPATH": "1"}
    result = subprocess.run(
        [str(word) for word in command], cwd=cwd, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


def run_smoke(
    package: str, build: str, cwd: Path, path: tuple[Path, ...], python: object = sys.executable, parts: tuple[str, ...] = ()
) -> None:
    run(python, "-P", SMOKE, package, build, *parts, cwd=cwd, path=path)
