"""Copies of the project in other places, what is run there, and why some of it is not run twice."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

import rawref
from kv_cache_manager_v2.base import build_mode

ROOT: Final = Path(__file__).resolve().parents[2]
SMOKE: Final = ROOT / "tests" / "packaging" / "smoke.py"
VENDORED_NAME: Final = "engine.runtime.kv_cache_manager_v2"

builds_from_sources = pytest.mark.skipif(
    build_mode.is_compiled(),
    reason="builds from the sources whichever build runs the tests: done with the interpreted one",
)
needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")


def copy_folder(source: Path, target: Path) -> None:
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))


def copy_project(target: Path) -> None:
    """What a build needs, and nothing that an earlier build left."""
    target.mkdir()
    for name in ("pyproject.toml", "setup.py", "setup_mypyc.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, target)
    for name in ("kv_cache_manager_v2", "rawref"):
        copy_folder(ROOT / name, target / name)


def copy_rawref(folder: Path) -> Path:
    """The rawref of this run, alone in a folder: a dependency that is installed."""
    assert rawref.__file__ is not None
    shutil.copytree(Path(rawref.__file__).parent, folder / "rawref")
    return folder


def run(*command: object, cwd: Path, path: tuple[Path, ...] = (), variables: Mapping[str, str] = {}) -> str:
    """Run a command that must succeed, with these folders as PYTHONPATH; returns what it printed."""
    environment = os.environ | dict(variables) | {"PYTHONPATH": os.pathsep.join(map(str, path)), "PYTHONSAFEPATH": "1"}
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


def run_smoke(package: str, build: str, cwd: Path, path: tuple[Path, ...]) -> None:
    run(sys.executable, "-P", SMOKE, package, build, cwd=cwd, path=path)
