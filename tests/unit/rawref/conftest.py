"""The target classes in both builds, and what reaches `sys.unraisablehook`."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rawref

SOURCE = Path(__file__).with_name("targets.py")

SETUP = """
import sys
from setuptools import setup
from mypyc.build import mypycify
options = ["--config-file=", "--ignore-missing-imports", "targets.py"]
setup(name="targets", py_modules=[], ext_modules=mypycify(options, opt_level="0"))
"""


def load(path: Path) -> ModuleType:
    specification = importlib.util.spec_from_file_location("targets", path)
    assert specification is not None and specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def compiled_targets(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    pytest.importorskip("mypyc", reason="mypy is not installed: no compiled targets")
    folder = tmp_path_factory.mktemp("compiled_targets")
    (folder / "targets.py").write_text(SOURCE.read_text())
    (folder / "setup.py").write_text(SETUP)
    environment = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "PYTHONMALLOC")}
    assert rawref.__file__ is not None
    environment["MYPYPATH"] = str(Path(rawref.__file__).parent.parent)
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    subprocess.run(command, cwd=folder, env=environment, check=True)
    return load(folder / ("targets" + sysconfig.get_config_var("EXT_SUFFIX")))


@pytest.fixture(params=["interpreted", pytest.param("compiled", marks=pytest.mark.slow)])
def targets(request: pytest.FixtureRequest) -> ModuleType:
    """The module targets.py, whose classes the test refers to."""
    if request.param == "compiled":
        module = request.getfixturevalue("compiled_targets")
        assert isinstance(module, ModuleType)
        return module
    return load(SOURCE)  # a fresh copy: rawref changes a class at its first ref


class Reports:
    """The messages that reached `sys.unraisablehook`."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def hook(self, unraisable: Any) -> None:
        assert unraisable.exc_type is ReferenceError
        self.texts.append(str(unraisable.exc_value))


@pytest.fixture
def reports() -> Iterator[Reports]:
    """Collects reports of targets that died without invalidate. Without it, pytest turns them into failures."""
    collected = Reports()
    previous = sys.unraisablehook
    sys.unraisablehook = collected.hook
    yield collected
    sys.unraisablehook = previous
