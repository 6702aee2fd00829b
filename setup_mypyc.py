"""Builds the package: all modules through mypyc as one unit, and the C extension `rawref`.

    pip install .                                             the production package
    KV_CACHE_MANAGER_V2_PURE=1 pip install .                  the interpreted one (`rawref` is C all the same)
    python setup_mypyc.py build --build-lib build/compiled    .py and .so side by side, for PYTHONPATH=build/compiled
    python setup_mypyc.py --package rawref build --build-lib build/interpreted

A vendored copy, from the folder that holds `engine/`, compiled under the name that it has there:

    python .../setup_mypyc.py --package engine.runtime.kv_cache_manager_v2 build --build-lib ...

Environment: KV_CACHE_MANAGER_V2_PURE=1 leaves mypyc out; KV_CACHE_MANAGER_V2_PACKAGE is the same as `--package`;
KV_CACHE_MANAGER_V2_OPT_LEVEL is the C compiler's (default 2; 3 runs no faster; 0 switches mypyc's C assertions on);
KV_CACHE_MANAGER_V2_SYMBOLS=1 keeps debug information and symbols, for a debugger.

Nothing is ever built among the sources: a `.so` there shadows the `.py` beside it, and edits seem to have no effect. So
`--inplace` and `pip install -e` are refused.
"""

import os
import runpy
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from setuptools import Extension, find_namespace_packages, setup  # type: ignore[import-untyped]

PACKAGE: Final = "kv_cache_manager_v2"
RAWREF: Final = "rawref"
HERE: Final = Path(__file__).resolve().parent

UNCOMPILED: Final = {
    "__init__.py": "holds imports or a docstring: nothing to speed up, and folders stay importable from either build",
    "base/given.py": "what it says to mypyc is not what it says to Python",
    "__main__.py": "`python -m` needs a code object, which compiled modules lack",
}
"""Files that mypyc leaves out, and why. A name means every such file; a path, from the package's folder, one file."""

# Commands that want names and versions only: pip runs them several times, and mypyc takes minutes.
METADATA_COMMANDS: Final = {"egg_info", "dist_info", "sdist", "clean"}
INPLACE_COMMANDS: Final = {"develop", "editable_wheel", "--inplace", "-i"}


SECONDS_BETWEEN_LINES: Final = 20.0


@contextmanager
def progress(phase: str) -> Iterator[None]:
    """Print the phase with its elapsed seconds: at its beginning, every 20 seconds, and at its end."""
    started = time.monotonic()
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(SECONDS_BETWEEN_LINES):
            print(f"progress: {phase}: {time.monotonic() - started:.0f} s so far", flush=True)

    print(f"progress: {phase}", flush=True)
    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
        print(f"progress: {phase}: done, {time.monotonic() - started:.0f} s", flush=True)
    finally:
        is_over.set()
        thread.join()


def keeps_symbols() -> bool:
    return os.environ.get("KV_CACHE_MANAGER_V2_SYMBOLS", "0") not in ("", "0")


def strip_arguments() -> list[str]:
    """For the linker: leave the symbols out that only debuggers read."""
    if keeps_symbols() or sys.platform == "win32":
        return []
    return ["-Wl,-x"] if sys.platform == "darwin" else ["-Wl,--strip-all"]


def take_package_from(arguments: list[str]) -> str | None:
    """The value of `--package`, removed from the arguments, or of the variable; None for the whole distribution."""
    if "--package" in arguments:
        position = arguments.index("--package")
        package = arguments[position + 1]
        del arguments[position : position + 2]
        return package
    return os.environ.get("KV_CACHE_MANAGER_V2_PACKAGE")


def is_compiled_file(path: Path, package_folder: Path) -> bool:
    return path.name not in UNCOMPILED and path.relative_to(package_folder).as_posix() not in UNCOMPILED


def compiled_files(package: str) -> list[str]:
    """The modules of the package that mypyc compiles, as paths from the working directory."""
    folder = Path(*package.split("."))
    return sorted(str(path) for path in folder.rglob("*.py") if is_compiled_file(path, folder))


def compiled_extensions(package: str, opt_level: str) -> list[Extension]:
    """One shared library inside the package, and a small shim for each module."""
    from mypyc.build import mypycify  # not at the top: interpreted builds need no mypy

    os.environ["MYPYPATH"] = os.pathsep.join(filter(None, [".", str(HERE), os.environ.get("MYPYPATH", "")]))
    target_folder = f"build/mypyc-{package}-O{opt_level}"
    options = [
        f"--cache-dir={target_folder}/mypy_cache",
        "--config-file=",  # whatever settings the surrounding project has
        "--explicit-package-bases",
        "--namespace-packages",
        "--always-true=ANY_OBJECT_IS_GIVEN",  # see base/given.py
        # An isolated build has neither numpy nor cuda-python. mypyc treats their values as plain objects in any case.
        "--ignore-missing-imports",
    ]
    files = compiled_files(package)
    with progress(f"translating {len(files)} modules to C"):
        extensions: list[Extension] = mypycify(
            [*options, *files],
            opt_level=opt_level,
            debug_level="1" if keeps_symbols() else "0",
            group_name=f"{package}._native",
            target_dir=target_folder,
        )
        add_docstrings = runpy.run_path(str(HERE / "compiled_docstrings.py"))["add_docstrings"]
        # Shims hold no tables, and mypyc's own C files are not ours to write.
        add_docstrings(files, [str(path) for path in Path(target_folder).rglob("__native*.c")])
    if sys.platform != "win32":
        # The first lets the C compiler inline calls between our own functions: 0.5 ns instead of 1.6 ns each. The second:
        # floats that decisions compare are equal on all processors. -w: with mypyc's -Werror a newer compiler's opinion
        # of generated code would fail an installation. The last: looking for that one thing, even where it is not shown,
        # takes gcc several times as long as the compilation itself.
        flags = ["-fno-semantic-interposition", "-ffp-contract=off", "-w", "-Wno-misleading-indentation"]
        for extension in extensions:
            extension.extra_compile_args = [*extension.extra_compile_args, *flags]
            extension.extra_link_args = [*extension.extra_link_args, *strip_arguments()]
    return extensions


def rawref_extension() -> Extension:
    compile_args = [] if sys.platform == "win32" else ["-O3", "-g" if keeps_symbols() else "-g0"]
    sources = [f"{RAWREF}/{name}.c" for name in ("_rawref", "_ref", "_hidden_slot", "_seal")]
    return Extension(
        f"{RAWREF}._rawref",
        sources,
        depends=[f"{RAWREF}/_rawref.h"],
        extra_compile_args=compile_args,
        extra_link_args=strip_arguments(),
    )


def main() -> None:
    refused = INPLACE_COMMANDS.intersection(sys.argv)
    if refused:
        raise SystemExit(f"{', '.join(refused)}: refused, a build among the sources would shadow them; see `make help`")
    asked_package = take_package_from(sys.argv)
    package = asked_package or PACKAGE
    is_pure = os.environ.get("KV_CACHE_MANAGER_V2_PURE", "0") not in ("", "0")
    opt_level = os.environ.get("KV_CACHE_MANAGER_V2_OPT_LEVEL", "2")

    extensions: list[Extension] = []
    if not METADATA_COMMANDS.intersection(sys.argv):
        if package != RAWREF and not is_pure:
            extensions += compiled_extensions(package, opt_level)
        if asked_package in (None, RAWREF):
            extensions.append(rawref_extension())

    # A wheel takes whatever lies in its build folder, also what an earlier build in another mode left there.
    build_base = f"build/{'interpreted' if is_pure else 'compiled'}-{package}-O{opt_level}"
    if "bdist_wheel" in sys.argv:
        shutil.rmtree(build_base, ignore_errors=True)

    roots = [package] if asked_package else [PACKAGE, RAWREF]
    with progress("compiling C") if len(extensions) > 1 else nullcontext():
        setup(
            name=package.replace("_", "-") if asked_package else None,
            packages=find_namespace_packages(
                include=[name for root in roots for name in (root, f"{root}.*")], exclude=["*.__pycache__"]
            ),
            package_data={root: ["py.typed", "*.pyi"] for root in roots},
            ext_modules=extensions,
            options={"build": {"build_base": build_base}, "build_ext": {"parallel": os.cpu_count()}},
            include_package_data=False,  # the source distribution's files are more than what is installed
            zip_safe=False,
        )


if __name__ == "__main__":
    main()
