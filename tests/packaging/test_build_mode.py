"""The tests run on the build that they say they run on, all of it, and nothing lies among the sources."""

import os
import pkgutil
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import kv_cache_manager_v2
from kv_cache_manager_v2.base import build_mode

from .workshop import ROOT, import_or_skip

SUFFIXES = (".so", ".pyd") if build_mode.is_compiled() else (".py",)


def module_names() -> list[str]:
    modules = pkgutil.walk_packages(kv_cache_manager_v2.__path__, prefix="kv_cache_manager_v2.")
    return [module.name for module in modules if not module.name.endswith(("__main__", "_native__mypyc"))]


@pytest.mark.parametrize("name", module_names())
def test_every_module_is_of_this_build(name: str) -> None:
    file = Path(import_or_skip(name).__file__ or "")
    left_out = runpy.run_path(str(ROOT / "setup_mypyc.py"), run_name="build")["UNCOMPILED"]
    inner = file.relative_to(Path(kv_cache_manager_v2.__path__[0])).as_posix()
    is_left_out = file.name in left_out or inner in left_out or f"{inner.split('/')[0]}/" in left_out
    assert is_left_out or file.name.endswith(SUFFIXES)


def test_is_compiled_is_public() -> None:
    assert kv_cache_manager_v2.is_compiled() is build_mode.is_compiled()


def test_one_version() -> None:
    assert kv_cache_manager_v2.__version__ == build_mode.VERSION


def test_nothing_is_built_among_the_sources() -> None:
    for folder in ("kv_cache_manager_v2", "rawref"):
        assert list((ROOT / folder).rglob("*.so")) == []


def test_the_compiled_tree_holds_what_the_sources_hold() -> None:
    assert kv_cache_manager_v2.__file__ is not None
    tree = Path(kv_cache_manager_v2.__file__).parent
    sources = ROOT / "kv_cache_manager_v2"
    expected = {path.relative_to(sources): path.read_text() for path in sources.rglob("*.py")}
    assert {path.relative_to(tree): path.read_text() for path in tree.rglob("*.py")} == expected
    assert (tree / "py.typed").is_file()


def test_no_compiler_is_one_line(tmp_path: Path) -> None:
    folders = ["--build-base", str(tmp_path), "--build-lib", str(tmp_path / "lib")]
    command = [sys.executable, "-P", str(ROOT / "setup_mypyc.py"), "build", *folders]
    for environment in ({"CC": "nocc -O2"}, {"CC": "nocc", "KV_CACHE_MANAGER_V2_PURE": "1"}):
        done = subprocess.run(command, env={**os.environ, **environment}, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1].startswith("the C compiler 'nocc' cannot be found. Building needs"), done.stderr
        assert not (tmp_path / "lib").exists()
