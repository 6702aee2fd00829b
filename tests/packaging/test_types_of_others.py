"""What is installed beside the package, and how a later version of it is typed, has no say in whether the package compiles."""

import os
import runpy
import sys
from pathlib import Path

import pytest

from .workshop import ROOT, builds_from_sources, needs_compiler, run


def other_packages() -> list[str]:
    """Whose types no generated code is made from."""
    build = runpy.run_path(str(ROOT / "setup_mypyc.py"), run_name="build")
    found: list[str] = []
    for line in build["mypy_settings"](map(str, (ROOT / "kv_cache_manager_v2").rglob("*.py"))).splitlines():
        if line.startswith("[mypy-"):
            found.append(line.removeprefix("[mypy-").split(",")[0])
    return found


def test_all_dependencies_are_known() -> None:
    assert {"numpy", "msgspec", "zmq", "xxhash"} <= set(other_packages())
    assert not {"librt", "mypy_extensions", "rawref", "os", "typing", "kv_cache_manager_v2"} & set(other_packages())


@builds_from_sources
@needs_compiler
def test_a_package_that_is_typed_otherwise_fails_no_build(tmp_path: Path) -> None:
    lines = []
    for name in other_packages():
        (tmp_path / "types" / name).mkdir(parents=True)
        (tmp_path / "types" / name / "__init__.pyi").write_text("def make(text: str) -> bytes: ...\n")
        lines += [f"def use_{name}() -> int:", f"    import {name}", f"    number: int = {name}.make(3)", "    return number"]
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "uses.py").write_text("\n".join([*lines, "", "def own() -> int:", "    return 7", ""]))
    script = [sys.executable, "-P", ROOT / "setup_mypyc.py", "--quiet", "--package", "engine"]
    types = os.pathsep.join([str(tmp_path / "types"), os.environ.get("MYPYPATH", "")])
    variables = {"KV_CACHE_MANAGER_V2_OPT_LEVEL": "0", "MYPYPATH": types}
    run(*script, "build", "--build-lib", tmp_path / "compiled", cwd=tmp_path, variables=variables)
    code = "import engine.uses as u; print(u.own(), u.__file__.endswith('.so'))"
    assert run(sys.executable, "-c", code, cwd=tmp_path, path=(tmp_path / "compiled",)).split() == ["7", "True"]


@builds_from_sources
@needs_compiler
def test_its_own_types_still_count(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "wrong.py").write_text("def own() -> int:\n    return 'seven'\n")
    script = [sys.executable, "-P", ROOT / "setup_mypyc.py", "--quiet", "--package", "engine"]
    with pytest.raises(AssertionError, match="Incompatible return value"):
        run(*script, "build", "--build-lib", tmp_path / "compiled", cwd=tmp_path)
