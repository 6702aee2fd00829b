"""From a clean clone to a running program, without a package index: the source distribution, both wheels, and what is in them.

Builds are isolated, as `pip install .` makes them: numpy and all other packages of the run time are absent. And the wheels run in
environments that hold them, their dependencies and nothing else.
"""

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from tidy.source_tree import project_files

from .workshop import (
    ROOT,
    build_requirements,
    builds_from_sources,
    copy_project,
    needs_compiler,
    pack_wheels,
    run,
    run_smoke,
    run_time_requirements,
)

PIP: Final = [sys.executable, "-P", "-m", "pip", "--disable-pip-version-check", "--quiet"]
MAKE_SDIST: Final = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"


def make_sdist(project: Path, folder: Path) -> Path:
    folder.mkdir()
    run(sys.executable, "-P", "-c", MAKE_SDIST, folder, cwd=project)
    (sdist,) = folder.iterdir()
    return sdist


def unpack(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (project,) = folder.iterdir()
    return project


def contents(sdist: Path) -> dict[str, bytes]:
    """All files but setuptools' list of them, which knows of its own setup.cfg the second time only."""
    with tarfile.open(sdist) as archive:
        members = [member for member in archive if member.isfile() and not member.name.endswith("/SOURCES.txt")]
        files = {member.name: archive.extractfile(member) for member in members}
        return {name: file.read() for name, file in files.items() if file is not None}


def build_wheel(project: Path, packages: Path, folder: Path, variables: Mapping[str, str]) -> Path:
    """In isolation, as `pip install .` does; what the build asks for comes from the folder of packages."""
    index = ["--no-index", "--find-links", packages]
    run(*PIP, "wheel", *index, "--no-deps", "-w", folder, project, cwd=project, variables=variables)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, packages: Path, folder: Path) -> Path:
    """An environment with the wheel and its dependencies; returns the folder of its programs."""
    run(sys.executable, "-P", "-m", "venv", "--without-pip", folder, cwd=wheel.parent)
    index = ["--no-index", "--find-links", packages]
    run(*PIP, "--python", folder / "bin" / "python", "install", *index, wheel, cwd=wheel.parent)
    return folder / "bin"


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return [name for name in archive.namelist() if ".dist-info/" not in name]


def check_programs(programs: Path, build: str, folder: Path) -> None:
    """What README tells a new user to run, and that every module is of this build."""
    python = programs / "python"
    host = {"KV_CACHE_MANAGER_V2_DEVICE": "host"}
    run_smoke("kv_cache_manager_v2", build, folder, (), python)
    printed = run(python, "-P", ROOT / "examples" / "minimal.py", cwd=folder, variables=host)
    assert printed in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "requests" in run(programs / "kvcm", "replay", "--limit", "20", cwd=folder, variables=host)
    assert "tokens" in run(programs / "kvcm", "plan", "--gpu-memory", "40g", cwd=folder)


def check_types(programs: Path, folder: Path) -> None:
    """A user's programs, the examples, against the installed package; torch is not among what it is installed with."""
    folder.mkdir()
    files = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name != "torch_engine.py")
    mypy = [sys.executable, "-P", "-m", "mypy", "--strict", "--config-file=", "--cache-dir", folder / "cache"]
    run(*mypy, "--python-executable", programs / "python", *files, cwd=folder)


@builds_from_sources
@needs_compiler
@pytest.mark.slow
@pytest.mark.builds
def test_from_a_clean_clone_to_both_installations(tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    copy_project(clone)
    sdist = make_sdist(clone, tmp_path / "sdist")
    project = unpack(sdist, tmp_path / "unpacked")
    assert contents(make_sdist(project, tmp_path / "sdist of the sdist")) == contents(sdist)
    for path in project_files():
        assert (project / path.relative_to(ROOT)).read_bytes() == path.read_bytes(), "MANIFEST.in leaves it out"

    for_builds = tmp_path / "for builds"
    assert not {"numpy", "cuda-python", "pyzmq"} & set(pack_wheels(build_requirements(), for_builds))
    for_users = tmp_path / "for users"
    pack_wheels(run_time_requirements(), for_users)

    wheel = build_wheel(project, for_builds, tmp_path / "compiled wheel", {"KV_CACHE_MANAGER_V2_OPT_LEVEL": "0"})
    assert any(name.startswith("kv_cache_manager_v2/_native__mypyc.") for name in names_in(wheel))
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                machine_code = archive.read(name)
                assert b".debug_info" not in machine_code and b".symtab" not in machine_code, f"{name} is not stripped"
    programs = install(wheel, for_users, tmp_path / "compiled")
    check_programs(programs, "compiled", tmp_path)
    check_types(programs, tmp_path / "types")

    # Right after the other one, in the same folder: nothing of it may be left.
    wheel = build_wheel(project, for_builds, tmp_path / "interpreted wheel", {"KV_CACHE_MANAGER_V2_PURE": "1"})
    expected = {("kv_cache_manager_v2", ".py"), ("kv_cache_manager_v2", ".typed")}
    expected |= {("rawref", suffix) for suffix in (".py", ".pyi", ".so", ".typed")}
    assert {(name.partition("/")[0], Path(name).suffix) for name in names_in(wheel)} == expected
    check_programs(install(wheel, for_users, tmp_path / "interpreted"), "interpreted", tmp_path)

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
