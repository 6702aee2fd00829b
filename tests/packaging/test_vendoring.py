"""The folder works where an engine puts it, under the name that it has there: interpreted as it is, and compiled."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .workshop import ROOT, VENDORED_NAME, builds_from_sources, copy_folder, copy_rawref, needs_compiler, run, run_smoke


@builds_from_sources
def test_a_vendored_copy_runs_interpreted(tmp_path: Path) -> None:
    copy_folder(ROOT / "kv_cache_manager_v2", tmp_path / "engine" / "runtime" / "kv_cache_manager_v2")
    installed = copy_rawref(tmp_path / "installed")
    run_smoke(VENDORED_NAME, "interpreted", tmp_path, (tmp_path, installed))


@builds_from_sources
def test_the_core_runs_where_the_workbench_was_never_copied(tmp_path: Path) -> None:
    """All of its modules can be imported: nothing in the core needs the workbench."""
    copy = tmp_path / "engine" / "runtime" / "kv_cache_manager_v2"
    copy_folder(ROOT / "kv_cache_manager_v2", copy)
    for folder in ("testing", "replay"):
        shutil.rmtree(copy / folder)
    installed = copy_rawref(tmp_path / "installed")
    run_smoke(VENDORED_NAME, "interpreted", tmp_path, (tmp_path, installed), parts=("core",))


@builds_from_sources
@needs_compiler
@pytest.mark.slow
@pytest.mark.builds
def test_a_vendored_core_compiles_alone_under_its_own_name(tmp_path: Path) -> None:
    copy_folder(ROOT / "kv_cache_manager_v2", tmp_path / "engine" / "runtime" / "kv_cache_manager_v2")
    installed = copy_rawref(tmp_path / "installed")
    compiled = tmp_path / "compiled"
    script = [sys.executable, "-P", ROOT / "setup_mypyc.py", "--quiet", "--package", VENDORED_NAME]
    variables = {"KV_CACHE_MANAGER_V2_OPT_LEVEL": "0", "KV_CACHE_MANAGER_V2_PARTS": "core"}
    run(*script, "build", "--build-lib", compiled, cwd=tmp_path, variables=variables)
    assert not list((tmp_path / "engine").rglob("*.so"))
    run_smoke(VENDORED_NAME, "compiled", tmp_path, (compiled, installed), parts=("core",))


@pytest.mark.parametrize("parts", ["cores", "workbench", "core,replay"])
def test_parts_that_are_none_are_refused(tmp_path: Path, parts: str) -> None:
    result = ask_for_parts(tmp_path, parts, "build")
    assert result.returncode != 0
    assert repr(parts) in result.stderr and "core,workbench" in result.stderr


def test_a_wheel_has_both_parts(tmp_path: Path) -> None:
    result = ask_for_parts(tmp_path, "core", "bdist_wheel")
    assert result.returncode != 0
    assert "vendored" in result.stderr and "kvcm" in result.stderr


def ask_for_parts(folder: Path, parts: str, command: str) -> "subprocess.CompletedProcess[str]":
    script = [sys.executable, "-P", str(ROOT / "setup_mypyc.py"), command]
    environment = os.environ | {"KV_CACHE_MANAGER_V2_PARTS": parts}
    return subprocess.run(script, cwd=folder, env=environment, capture_output=True, text=True)
