"""Builds the package: its modules through mypyc, as one unit, and the C extension `rawref`.

The core is what an engine imports. The workbench, the folders `testing` and `replay`, is what one measures and tests with; it needs the
core, and nothing in the core needs it.

    pip install .                                             the production package
    KV_CACHE_MANAGER_V2_PURE=1 pip install .                  the interpreted one (`rawref` is C all the same)
    python setup_mypyc.py build --build-lib build/compiled    .py and .so side by side, for PYTHONPATH=build/compiled
    python setup_mypyc.py --package rawref build --build-lib build/interpreted

A vendored copy, from the folder that holds `engine/`, compiled under the name that it has there:

    python .../setup_mypyc.py --package engine.runtime.kv_cache_manager_v2 build --build-lib ...

and without the workbench, whose folders may be there or not:

    KV_CACHE_MANAGER_V2_PARTS=core python .../setup_mypyc.py --package engine.runtime.kv_cache_manager_v2 build --build-lib ...

Environment: KV_CACHE_MANAGER_V2_PURE=1 leaves mypyc out; KV_CACHE_MANAGER_V2_PACKAGE is the same as `--package`;
KV_CACHE_MANAGER_V2_PARTS is what is built and copied, "core" or "core,workbench" (the default);
KV_CACHE_MANAGER_V2_OPT_LEVEL is the C compiler's (default 2; 3 runs no faster; 0 switches mypyc's C assertions on);
KV_CACHE_MANAGER_V2_SYMBOLS=1 keeps debug information and symbols, for a debugger.

Nothing is ever built among the sources: a `.so` there shadows the `.py` beside it, and edits seem to have no effect. So
`--inplace` and `pip install -e` are refused.
"""

import ast
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

from setuptools import Extension, find_namespace_packages, setup  # type: ignore[import-untyped]
from setuptools.command.build_ext import build_ext  # type: ignore[import-untyped]

PACKAGE: Final = "kv_cache_manager_v2"
RAWREF: Final = "rawref"
HERE: Final = Path(__file__).resolve().parent

CORE: Final = "core"
WORKBENCH: Final = "workbench"
WORKBENCH_FOLDERS: Final = ("testing", "replay")
UNIT_NAME: Final = "_native"
"""The module that holds all compiled code; mypyc puts `__mypyc` behind it."""

HOT_FOLDERS: Final = {"base", "kernels", "layout", "manager", "pools", "reuse", "sequence", "stats", "storage"}
"""What the calls of each step and each request run through: one C file, so that the C compiler inlines between all of them."""

COLD_FOLDERS: Final = {"compat", "config", "durable", "introspect", "metrics", "models", "publishing", "replay", "testing"}
"""What no step runs through: the C compiler optimizes them less (-O1), which takes it three fifths of the time."""

UNCOMPILED: Final = {
    "__init__.py": "holds imports or a docstring: nothing to speed up, and folders stay importable from either build",
    "base/given.py": "what it says to mypyc is not what it says to Python",
    "__main__.py": "`python -m` needs a code object, which compiled modules lack",
    "codecs/": "numpy does the work, over arrays of whole pages",
    "shared/": "its threads wait for sockets, hash and copy; between two statements the interpreter lets other threads run",
    "integrations/": "subclasses of other packages' classes, whose time is spent in those packages",
}
"""Files that mypyc leaves out, and why. A name means every such file; a path, from the package's folder, one file or folder."""

KNOWN_TO_MYPYC: Final = {RAWREF, "librt", "mypy_extensions"}
"""Imported packages whose types the generated code is made from."""

# Commands that want names and versions only: pip runs them several times, and mypyc takes minutes.
METADATA_COMMANDS: Final = {"egg_info", "dist_info", "sdist", "clean"}
INPLACE_COMMANDS: Final = {"develop", "editable_wheel", "--inplace", "-i"}


SECONDS_BETWEEN_LINES: Final = 5.0


class Share:
    """How much of a phase is done: units of work, such as bytes of C."""

    def __init__(self) -> None:
        self.whole = 0
        self.done = 0

    def __str__(self) -> str:
        return f"{100 * self.done // self.whole} %, " if self.whole else ""


COMPILED_C: Final = Share()


@contextmanager
def progress(phase: str, share: Share) -> Iterator[None]:
    """Print the phase, its share and its elapsed seconds: at its beginning, every 5 seconds, and at its end."""
    started = time.monotonic()
    is_over = threading.Event()

    def repeat() -> None:
        while not is_over.wait(SECONDS_BETWEEN_LINES):
            print(f"progress: {phase}: {share}{time.monotonic() - started:.0f} s so far", flush=True)

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
    inner = path.relative_to(package_folder).as_posix()
    return path.name not in UNCOMPILED and inner not in UNCOMPILED and f"{inner.split('/')[0]}/" not in UNCOMPILED


def take_parts_from(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The parts to build, as the variable says; both without it."""
    text = environment.get("KV_CACHE_MANAGER_V2_PARTS", "")
    parts = tuple(sorted({part.strip() for part in text.split(",") if part.strip()}))
    if parts not in ((), (CORE,), (CORE, WORKBENCH)):
        raise SystemExit(f"KV_CACHE_MANAGER_V2_PARTS is {text!r}: it must be {CORE!r} or {f'{CORE},{WORKBENCH}'!r}")
    return parts or (CORE, WORKBENCH)


def part_of(path: Path) -> str:
    """Of a file by its path from the package's folder."""
    return WORKBENCH if path.parts[0] in WORKBENCH_FOLDERS else CORE


def compiled_files(package: str, part: str) -> list[str]:
    """The modules of that part that mypyc compiles, as paths from the working directory."""
    folder = Path(*package.split("."))
    files = [path for path in folder.rglob("*.py") if is_compiled_file(path, folder) and part_of(path.relative_to(folder)) == part]
    return sorted(map(str, files))


def mypy_settings(files: Iterable[str]) -> str:
    """mypy's settings file: the types of other packages are Any, whether they are installed or not.

    An isolated build has neither numpy nor cuda-python, and without isolation a later numpy that is typed otherwise would fail it. mypyc
    treats their values as plain objects in any case.
    """
    others: set[str] = set()
    for file in files:
        for node in ast.walk(ast.parse(Path(file).read_bytes())):
            if isinstance(node, ast.Import):
                others.update([alias.name.split(".")[0] for alias in node.names])
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module is not None:
                others.add(node.module.split(".")[0])
    lines = ["[mypy]"]
    for name in sorted(others - sys.stdlib_module_names - KNOWN_TO_MYPYC):
        lines += [f"[mypy-{name},{name}.*]", "follow_imports = skip", "follow_imports_for_stubs = True"]
    return "\n".join(lines) + "\n"


def mypyc_folder(package: str, parts: tuple[str, ...], opt_level: str) -> str:
    """Where mypyc writes its C."""
    return f"build/mypyc-{package}-{'-'.join(parts)}-O{opt_level}"


def compiled_extensions(package: str, parts: tuple[str, ...], opt_level: str) -> list[Extension]:
    """One shared library for all parts, inside the package, and a small shim for each module.

    One, not one for each part: where units are separate mypyc cannot know all subclasses of a class, and looks at every use of an
    attribute whether it is set; that is 4 to 12 % more instructions, everywhere. Its C is compiled in some files: see `join_sources`.
    """
    from mypyc.build import mypycify  # not at the top: interpreted builds need no mypy

    os.environ["MYPYPATH"] = os.pathsep.join(filter(None, [".", str(HERE), os.environ.get("MYPYPATH", "")]))
    target_folder = mypyc_folder(package, parts, opt_level)
    # Nothing is taken from an earlier run: docstrings have been written into what it left.
    shutil.rmtree(target_folder, ignore_errors=True)
    files = [file for part in parts for file in compiled_files(package, part)]
    settings = Path(target_folder) / "mypy.ini"
    settings.parent.mkdir(parents=True)
    settings.write_text(mypy_settings(files))
    options = [
        f"--cache-dir={target_folder}/mypy_cache",
        f"--config-file={settings}",  # whatever settings the surrounding project has
        "--explicit-package-bases",
        "--namespace-packages",
        "--always-true=ANY_OBJECT_IS_GIVEN",  # see base/given.py
        "--ignore-missing-imports",
    ]
    with progress(f"translating {len(files)} modules to C", Share()):
        extensions: list[Extension] = mypycify(
            [*options, *files],
            opt_level=opt_level,
            debug_level="1" if keeps_symbols() else "0",
            group_name=f"{package}.{UNIT_NAME}",
            target_dir=target_folder,
            multi_file=True,
        )
        # Shims hold no tables, and mypyc's own C files are not ours to write.
        add_docstrings(files, [str(path) for path in Path(target_folder).rglob("__native*.c")])
    library = next(extension for extension in extensions if extension.name == f"{package}.{UNIT_NAME}__mypyc")
    join_sources(library, package, files, target_folder)
    if sys.platform != "win32":
        # The first two: what no other library calls is called directly, and inlined, 0.5 ns instead of 1.6 ns each. The third:
        # floats that decisions compare are equal on all processors. -w: with mypyc's -Werror a newer compiler's opinion
        # of generated code would fail an installation. The last: looking for that one thing, even where it is not shown,
        # takes gcc several times as long as the compilation itself.
        flags = ["-fvisibility=hidden", "-fno-semantic-interposition", "-ffp-contract=off", "-w", "-Wno-misleading-indentation"]
        for extension in extensions:
            extension.extra_compile_args = [*extension.extra_compile_args, *flags]
            extension.extra_link_args = [*extension.extra_link_args, *strip_arguments()]
    return extensions


def join_sources(library: Extension, package: str, files: Iterable[str], target_folder: str) -> None:
    """Make a few C files of those that mypyc has written, one for each module: the hot ones together, the others by folder.

    As one file they take more than twice as long, on one core, and 3 GB; each by itself, steps take 3 to 9 % longer.
    """
    units: dict[str, list[str]] = {"hot": []}
    left = {Path(source).name: source for source in library.sources}
    for file in files:
        module = Path(file).with_suffix("").as_posix().replace("/", ".")
        folder = module[len(package) + 1 :].partition(".")[0]
        unit = "hot" if folder in HOT_FOLDERS else folder
        units.setdefault(unit, []).append(left.pop(f"__native_{c_name(*module.split('.'))}.c"))
    # What is left is mypyc's: the tables of all modules, and what its code calls everywhere. That comes first, to be inlined.
    units["hot"] = list(left.values()) + units["hot"]
    sources: list[str] = []
    for unit, parts in units.items():
        source = Path(target_folder) / f"unit_{unit}.c"
        source.write_text("".join([f'#include "{Path(part).absolute().as_posix()}"\n' for part in parts]))
        sources.append(str(source))
    library.sources = sorted(sources, key=lambda source: -sum(os.stat(part).st_size for part in units[Path(source).stem[len("unit_") :]]))
    # mypyc's files name its headers as if they lay beside them.
    library.include_dirs.append(f"{target_folder}/{package.replace('.', '/')}")


class BuildSideBySide(build_ext):  # type: ignore[misc]
    """Compiles the C files of one library side by side, as setuptools does for libraries only, and shims with a header made once."""

    def build_extensions(self) -> None:
        COMPILED_C.whole = sum(work_of(source) for extension in self.extensions for source in extension.sources)
        shims = [extension for extension in self.extensions if len(extension.sources) == 1]
        header = self._precompile_header(shims[0]) if shims and self.compiler.compiler_type == "unix" else None
        for shim in shims if header is not None else []:
            shim.extra_compile_args = [*shim.extra_compile_args, "-include", header]
        super().build_extensions()

    def _precompile_header(self, shim: Extension) -> str | None:
        """A header that includes Python's, compiled: reading that is nearly all the work on a shim. None where the compiler cannot."""
        header = Path(self.build_temp) / "shim.h"
        header.parent.mkdir(parents=True, exist_ok=True)
        header.write_text("#include <Python.h>\n")
        folders = [f"-I{folder}" for folder in [*self.compiler.include_dirs, *shim.include_dirs]]
        command = [*self.compiler.compiler_so, *folders, *shim.extra_compile_args, "-x", "c-header", str(header), "-o", f"{header}.gch"]
        return str(header) if subprocess.run(command, capture_output=True, check=False).returncode == 0 else None

    def build_extension(self, ext: Extension) -> None:
        is_cut_back = any(level in ext.extra_compile_args for level in ("-O2", "-O3"))

        def compile_one(source: str) -> list[str]:
            is_cold = is_cut_back and Path(source).stem.removeprefix("unit_") in COLD_FOLDERS
            objects: list[str] = self.compiler.compile(
                [source],
                output_dir=self.build_temp,
                include_dirs=ext.include_dirs,
                debug=self.debug,
                extra_postargs=[*ext.extra_compile_args, *(["-O1"] if is_cold else [])],
                depends=ext.depends,
            )
            COMPILED_C.done += work_of(source)
            return objects

        work = 0 if len(ext.sources) > 1 else work_of(ext.sources[0])
        if len(ext.sources) > 1:
            with ThreadPoolExecutor(os.cpu_count()) as pool:
                for objects in pool.map(compile_one, ext.sources):
                    ext.extra_objects.extend(objects)
            ext.depends = [*ext.depends, *ext.sources]
            ext.sources = []
        super().build_extension(ext)
        COMPILED_C.done += work


def work_of(source: str) -> int:
    """A C file's share of the work: bytes, of what a unit includes as well, and for each file what reading Python's header is like."""
    text = Path(source).read_text(encoding="utf-8")
    included = re.findall(r'#include "(/.+)"', text) if Path(source).name.startswith("unit_") else []
    return 20_000 + len(text) + sum(os.stat(part).st_size for part in included)


def rawref_extension() -> Extension:
    compile_args = [] if sys.platform == "win32" else ["-O3", "-g" if keeps_symbols() else "-g0"]
    sources = [f"{RAWREF}/{name}.c" for name in ("_rawref", "_ref", "_hidden_slot", "_pack", "_seal")]
    return Extension(
        f"{RAWREF}._rawref",
        sources,
        depends=[f"{RAWREF}/_rawref.h"],
        extra_compile_args=compile_args,
        extra_link_args=strip_arguments(),
    )


# -- docstrings -----------------------------------------------------------------------------------------------------------
#
# Beside them goes what the C compiler cannot know: that an index is nearly always in range. It moved the usual way of each access behind
# the function and back again.
#
# mypyc keeps signatures only, and those not where a default is no literal. So docstrings, and such signatures, are written into the C code
# that it generates. Docstrings of modules, classes, functions, methods and properties, and those below attributes, become the `doc` fields
# of CPython's tables, where `help` finds them. That costs nothing at import, and it is the only way: `__doc__` of a compiled method cannot
# be set. Should another mypyc lay its tables out in another way, docstrings are missing and nothing else; the build says how many it
# placed. Indentation is taken out on the way: mypyc's is so deep that it makes nine tenths of the file.

CLASS: Final = re.compile(r"static PyTypeObject CPyType_(\w+)_template_ = \{")
ATTRIBUTES: Final = re.compile(r"static PyGetSetDef (\w+)_getseters\[\] = \{")
ATTRIBUTE: Final = re.compile(r'\{"(\w+)",$')
FUNCTION: Final = re.compile(r"\(PyCFunction\)CPyPy_(\w+),")
STRING: Final = re.compile(r"(cpy_r_\w+) = (CPyStatics\[\d+\]); /\* '([^']*)' \*/$")
FUNCTION_OF_MODULE: Final = re.compile(r"CPyStatic_(\w+)___globals\)")
MODULE: Final = re.compile(r'"([\w.]+)",$')

INDEX_CHECK: Final = re.compile(r"(cpy_r_\w+) = \(uint64_t\)\w+ < \(uint64_t\)\w+;$")
"""Of an item of a `vec`; where it fails, a negative index is looked at."""

SIGNATURE: Final = re.compile(r'NULL|"((?:[^"\\]|\\.)*)"')

CLASS_DOC: Final = ".tp_doc = PyDoc_STR("
FUNCTION_DOC: Final = "PyDoc_STR("
ATTRIBUTE_END: Final = "NULL, NULL},"
MODULE_DOC: Final = "NULL, /* docstring */"
FILLER: Final = "mypyc filler docstring"
"""What mypyc gives to classes that stay ordinary ones, such as exceptions, just behind the loading of their names."""


def add_docstrings(python_files: Iterable[str], c_files: Iterable[str]) -> int:
    """Write the docstrings of these modules into the C files made from them; returns how many found their place."""
    docstrings = Docstrings()
    for file in python_files:
        docstrings.read_module(file)
    num_placed = 0
    for c_file in c_files:
        rewritten = Path(f"{c_file}.documented")
        writer = TableWriter(docstrings)
        with open(c_file, encoding="utf-8") as source, open(rewritten, "w", encoding="utf-8") as target:
            target.writelines(writer.rewrite(source))
        os.replace(rewritten, c_file)
        num_placed += writer.num_placed
    print(f"{num_placed} of {len(docstrings.texts)} docstrings are in the compiled code", flush=True)
    return num_placed


def c_name(*names: str) -> str:
    """A path of names as mypyc writes it in C."""
    return "___".join(name.replace("___", "___3_") for name in names)


def c_string(text: str) -> str:
    """The text as the inside of a string in C. Octal: its three digits end where they end."""
    escapes = {ord("\n"): "\\n", ord('"'): '\\"', ord("\\"): "\\\\"}
    return "".join(escapes.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in text.encode())


class Docstrings:
    """What the modules say, by the names that mypyc gives to things in C."""

    def __init__(self) -> None:
        self.texts: Final[dict[tuple[str, ...], str]] = {}
        """By full path: module's names, then class, then member."""
        self.by_c_name: Final[dict[str, str]] = {}
        self.signatures: Final[dict[str, str]] = {}
        """Of functions, methods and, by their `__init__`, classes; as CPython expects them before a docstring."""
        self._constants: dict[str, ast.expr] = {}

    def read_module(self, file: str) -> None:
        module = Path(file).with_suffix("").parts
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
        self._constants = {
            statement.target.id: statement.value
            for statement in tree.body
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value is not None
        }
        self._keep(module, (), ast.get_docstring(tree))
        self._read_body(module, (), tree.body)

    def _read_body(self, module: tuple[str, ...], owner: tuple[str, ...], body: list[ast.stmt]) -> None:
        for position, statement in enumerate(body):
            if isinstance(statement, ast.ClassDef):
                self._keep(module, (*owner, statement.name), ast.get_docstring(statement))
                self._read_body(module, (*owner, statement.name), statement.body)
            elif isinstance(statement, ast.FunctionDef):
                self._keep(module, (*owner, statement.name), ast.get_docstring(statement))
                for begin in range(len(module)):
                    self.signatures[c_name(*module[begin:], *owner, statement.name)] = self._describe(statement, bool(owner))
                    if statement.name == "__init__":
                        self.signatures[c_name(*module[begin:], *owner)] = self._describe(statement, True, owner[-1])
                if statement.name == "__init__":
                    self._read_body(module, owner, statement.body)
            elif isinstance(statement, ast.AnnAssign) and position + 1 < len(body):
                following = body[position + 1]
                name = statement.target.attr if isinstance(statement.target, ast.Attribute) else ast.unparse(statement.target)
                if owner and not name.startswith("_") and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                    if isinstance(following.value.value, str):
                        self._keep(module, (*owner, name), following.value.value)

    def _describe(self, function: ast.FunctionDef, is_method: bool, class_name: str = "") -> str:
        """``class_name``: of the class whose `__init__` this is; then its signature."""
        given = function.args
        parts: list[str] = []
        num_required = len(given.posonlyargs) + len(given.args) - len(given.defaults)
        defaults: list[ast.expr | None] = [*([None] * num_required), *given.defaults]
        for position, (argument, default) in enumerate(zip(given.posonlyargs + given.args, defaults, strict=True)):
            parts.append(argument.arg + self._show_default(default))
            if position + 1 == len(given.posonlyargs):
                parts.append("/")
        if given.vararg is not None or given.kwonlyargs:
            parts.append("*" if given.vararg is None else f"*{given.vararg.arg}")
        parts += [one.arg + self._show_default(default) for one, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
        if given.kwarg is not None:
            parts.append(f"**{given.kwarg.arg}")
        if class_name:
            parts = parts[1:]
        elif is_method and not any([isinstance(one, ast.Name) and one.id == "staticmethod" for one in function.decorator_list]):
            parts[0] = f"${parts[0]}"
        return f"{class_name or function.name}({', '.join(parts)})\n--\n\n"

    def _show_default(self, default: ast.expr | None) -> str:
        """Only literals can be told; a constant of the module is one, anything else is shown as three dots."""
        if default is None:
            return ""
        if isinstance(default, ast.Name):
            default = self._constants.get(default.id, default)
        try:
            return f"={ast.literal_eval(default)!r}"
        except ValueError:
            return "=..."

    def _keep(self, module: tuple[str, ...], names: tuple[str, ...], text: str | None) -> None:
        if text is None:
            return
        self.texts[(*module, *names)] = text
        # In C a module goes by the shortest end of its path that no other module has.
        for begin in range(len(module)):
            self.by_c_name[c_name(*module[begin:], *names)] = text
            if len(names) == 2:
                # A method of a class that stays an ordinary one, such as an enumeration, is an object of a class of its own.
                self.by_c_name[c_name(*module[begin:], f"{names[1]}_{names[0]}_obj")] = text


class TableWriter:
    """Copies the lines of a C file, and puts docstrings into the tables in it, and `likely` around checks of indices."""

    def __init__(self, docstrings: Docstrings) -> None:
        self._docstrings: Final = docstrings
        self.num_placed = 0

    def rewrite(self, lines: Iterable[str]) -> Iterator[str]:
        class_name = function = table = attribute = module = namespace = string = check = ""
        for line in map(str.lstrip, lines):
            if check and line.startswith(f"if ({check}) goto "):
                line = line.replace(f"({check})", f"(likely({check}))", 1)
            check = match[1] if (match := INDEX_CHECK.match(line)) else ""
            if match := CLASS.match(line):
                class_name = match[1]
            elif match := ATTRIBUTES.match(line):
                table = match[1]
            elif match := FUNCTION.search(line):
                function = match[1]
            elif table and (match := ATTRIBUTE.match(line)):
                attribute = c_name(match[1])
            elif match := MODULE.match(line):
                module = match[1]
            elif match := FUNCTION_OF_MODULE.search(line):
                namespace = match[1]
            elif match := STRING.match(line):
                if match[3] == FILLER:
                    line = self._replace_filler(line, match[1], match[2], f"{namespace}___{c_name(string)}")
                elif match[3] != "__annotations__":
                    string = match[3]

            if class_name and line.startswith(CLASS_DOC):
                line = self._put_behind(line, CLASS_DOC, class_name)
                class_name = ""
            elif function and FUNCTION_DOC in line:
                line = self._put_behind(line, FUNCTION_DOC, function)
                function = ""
            elif table and line.rstrip().endswith(ATTRIBUTE_END):
                text = self._find(f"{table}___{attribute}")
                if text is not None:
                    line = f'{line.rstrip().removesuffix(ATTRIBUTE_END)}PyDoc_STR("{text}"), NULL}},\n'
            elif table and line.startswith("};"):
                table = ""
            elif module and line.startswith(MODULE_DOC):
                text = self._find(c_name(*module.split(".")))
                if text is not None:
                    line = f'PyDoc_STR("{text}"),\n'
            yield line

    def _find(self, name: str) -> str | None:
        text = self._docstrings.by_c_name.get(name)
        if text is None:
            return None
        self.num_placed += 1
        return c_string(inspect.cleandoc(text))

    def _replace_filler(self, line: str, variable: str, filler: str, class_name: str) -> str:
        """The docstring as an object that is never freed, as the filler; without memory for it, the filler."""
        text = self._find(class_name)
        if text is None:
            return line
        return (
            f'{variable} = PyUnicode_InternFromString("{text}"); '
            f"if ({variable} == NULL) {{ PyErr_Clear(); {variable} = {filler}; }}\n"
        )

    def _put_behind(self, line: str, begin: str, name: str) -> str:
        """Behind the signature, in one string: CPython tells them apart. mypyc has written none where it cannot tell a default."""
        text = self._find(name)
        before, _, after = line.partition(begin)
        match = SIGNATURE.match(after)
        assert match is not None, line
        signature = match[1] or c_string(self._docstrings.signatures.get(name, ""))
        if text is None and not signature:
            return line
        return f'{before}{begin}"{signature}{text or ""}"{after[match.end() :]}'


# -- the build --------------------------------------------------------------------------------------------------------------


def refuse_without_compiler() -> None:
    """One line at the start, instead of an error of the C compiler's after a minute of translation."""
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    header = Path(sysconfig.get_path("include"), "Python.h")
    missing = [] if shutil.which(compiler) else [f"the C compiler {compiler!r}"]
    missing += [] if header.exists() else [f"Python's header {header}"]
    if missing:
        raise SystemExit(
            f"{' and '.join(missing)} cannot be found. Building needs a C compiler and Python's headers (Debian, Ubuntu: apt-get install "
            "gcc python3-dev), with KV_CACHE_MANAGER_V2_PURE=1 too, since `rawref` is C; a wheel needs neither: docs/installing.md"
        )


def main() -> None:
    refused = INPLACE_COMMANDS.intersection(sys.argv)
    if refused:
        raise SystemExit(f"{', '.join(refused)}: refused, a build among the sources would shadow them; see `make help`")
    asked_package = take_package_from(sys.argv)
    package = asked_package or PACKAGE
    is_pure = os.environ.get("KV_CACHE_MANAGER_V2_PURE", "0") not in ("", "0")
    opt_level = os.environ.get("KV_CACHE_MANAGER_V2_OPT_LEVEL", "2")
    parts = take_parts_from(os.environ)
    if parts == (CORE,) and "bdist_wheel" in sys.argv and not asked_package:
        raise SystemExit("KV_CACHE_MANAGER_V2_PARTS=core is for vendored copies: the wheel has the command kvcm, which needs all")

    extensions: list[Extension] = []
    if not METADATA_COMMANDS.intersection(sys.argv):
        refuse_without_compiler()
        if package != RAWREF and not is_pure:
            extensions += compiled_extensions(package, parts, opt_level)
        if asked_package in (None, RAWREF):
            extensions.append(rawref_extension())

    # A wheel takes whatever lies in its build folder, also what an earlier build in another mode left there.
    build_base = f"build/{'interpreted' if is_pure else 'compiled'}-{package}-{'-'.join(parts)}-O{opt_level}"
    if "bdist_wheel" in sys.argv:
        shutil.rmtree(build_base, ignore_errors=True)

    roots = [package] if asked_package else [PACKAGE, RAWREF]
    left_out = [] if WORKBENCH in parts else [f"{package}.{folder}{below}" for folder in WORKBENCH_FOLDERS for below in ("", ".*")]
    with progress("compiling C", COMPILED_C) if len(extensions) > 1 else nullcontext():
        setup(
            name=package.replace("_", "-") if asked_package else None,
            packages=find_namespace_packages(
                include=[name for root in roots for name in (root, f"{root}.*")], exclude=["*.__pycache__", *left_out]
            ),
            package_data={root: ["py.typed", "*.pyi"] for root in roots},
            ext_modules=extensions,
            cmdclass={"build_ext": BuildSideBySide},
            options={"build": {"build_base": build_base}, "build_ext": {"parallel": os.cpu_count()}},
            include_package_data=False,  # the source distribution's files are more than what is installed
            zip_safe=False,
        )
    if "bdist_wheel" in sys.argv:
        # The wheel lies elsewhere by now, and half a gigabyte of C and objects is of no use to the next one.
        for made in (build_base, mypyc_folder(package, parts, opt_level)):
            shutil.rmtree(made, ignore_errors=True)


if __name__ == "__main__":
    main()
