"""`pip install .` brings the compiled package, and the interpreted one where KV_CACHE_MANAGER_V2_PURE=1 asks for it."""

import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from .workshop import ROOT, builds_from_sources, copy_project, needs_compiler, run, run_smoke


def install(project: Path, site: Path, variables: Mapping[str, str]) -> list[str]:
    """Build a wheel of the project and unpack it as pip does; returns the names in it."""
    wheels = site.with_suffix(".wheels")
    pip = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check"]
    # Without isolation and dependencies, so that the test needs no package index.
    run(*pip, "wheel", "--no-build-isolation", "--no-deps", "-w", wheels, project, cwd=project, variables=variables)
    (wheel,) = wheels.glob("*.whl")
    run(*pip, "install", "--no-deps", "--target", site, wheel, cwd=project)
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def folders_and_suffixes(names: list[str]) -> set[tuple[str, str]]:
    return {(name.partition("/")[0], Path(name).suffix) for name in names if ".dist-info/" not in name}


@builds_from_sources
@needs_compiler
@pytest.mark.slow
def test_both_installations(tmp_path: Path) -> None:
    project = tmp_path / "project"
    copy_project(project)

    names = install(project, tmp_path / "compiled", {"KV_CACHE_MANAGER_V2_OPT_LEVEL": "0"})
    assert any(name.startswith("kv_cache_manager_v2/_native__mypyc.") for name in names)
    run_smoke("kv_cache_manager_v2", "compiled", tmp_path, (tmp_path / "compiled",))

    # Right after the other one, in the same folder: nothing of it may be left.
    names = install(project, tmp_path / "interpreted", {"KV_CACHE_MANAGER_V2_PURE": "1"})
    expected = {("kv_cache_manager_v2", ".py"), ("kv_cache_manager_v2", ".typed")}
    expected |= {("rawref", suffix) for suffix in (".py", ".pyi", ".so", ".typed")}
    assert folders_and_suffixes(names) == expected
    run_smoke("kv_cache_manager_v2", "interpreted", tmp_path, (tmp_path / "interpreted",))
    assert (tmp_path / "interpreted" / "bin" / "kvcm").is_file()

    for folder in ("kv_cache_manager_v2", "rawref"):
        assert not list((project / folder).rglob("*.so"))


@pytest.mark.parametrize("command", [["build_ext", "--inplace"], ["develop"], ["editable_wheel"]])
def test_builds_among_the_sources_are_refused(tmp_path: Path, command: list[str]) -> None:
    copy_project(tmp_path / "project")
    script = [sys.executable, "-P", str(ROOT / "setup_mypyc.py"), *command]
    result = subprocess.run(script, cwd=tmp_path / "project", capture_output=True, text=True)
    assert result.returncode != 0
    assert "refused" in result.stderr
    assert not list((tmp_path / "project").rglob("*.so"))
