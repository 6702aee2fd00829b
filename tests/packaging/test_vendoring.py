"""The folder works where an engine puts it, under the name that it has there: interpreted as it is, and compiled."""

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
@needs_compiler
@pytest.mark.slow
def test_a_vendored_copy_compiles_under_its_own_name(tmp_path: Path) -> None:
    copy_folder(ROOT / "kv_cache_manager_v2", tmp_path / "engine" / "runtime" / "kv_cache_manager_v2")
    installed = copy_rawref(tmp_path / "installed")
    compiled = tmp_path / "compiled"
    script = [sys.executable, "-P", ROOT / "setup_mypyc.py", "--quiet", "--package", VENDORED_NAME]
    run(*script, "build", "--build-lib", compiled, cwd=tmp_path, variables={"KV_CACHE_MANAGER_V2_OPT_LEVEL": "0"})
    assert not list((tmp_path / "engine").rglob("*.so"))
    run_smoke(VENDORED_NAME, "compiled", tmp_path, (compiled, installed))
