"""Docstrings for the compiled build: mypyc keeps signatures only, so they are written into the C code that it generates.

Docstrings of modules, classes, functions, methods and properties, and those below attributes, become the `doc` fields of CPython's
tables, where `help` finds them. That costs nothing at import, and it is the only way: `__doc__` of a compiled method cannot be set.

Should another mypyc lay its tables out in another way, docstrings are missing and nothing else; the build says how many it placed.
Indentation is taken out on the way: mypyc's is so deep that it makes nine tenths of the file.
"""

import ast
import inspect
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

CLASS: Final = re.compile(r"static PyTypeObject CPyType_(\w+)_template_ = \{")
ATTRIBUTES: Final = re.compile(r"static PyGetSetDef (\w+)_getseters\[\] = \{")
ATTRIBUTE: Final = re.compile(r'\{"(\w+)",$')
FUNCTION: Final = re.compile(r"\(PyCFunction\)CPyPy_(\w+),")
STRING: Final = re.compile(r"(cpy_r_\w+) = (CPyStatics\[\d+\]); /\* '([^']*)' \*/$")
FUNCTION_OF_MODULE: Final = re.compile(r"CPyStatic_(\w+)___globals\)")
MODULE: Final = re.compile(r'"([\w.]+)",$')

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
    return "".join(
        escapes.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}") for byte in inspect.cleandoc(text).encode()
    )


class Docstrings:
    """What the modules say, by the names that mypyc gives to things in C."""

    def __init__(self) -> None:
        self.texts: Final[dict[tuple[str, ...], str]] = {}
        """By full path: module's names, then class, then member."""
        self.by_c_name: Final[dict[str, str]] = {}

    def read_module(self, file: str) -> None:
        module = Path(file).with_suffix("").parts
        tree = ast.parse(Path(file).read_text(encoding="utf-8"))
        self._keep(module, (), ast.get_docstring(tree))
        self._read_body(module, (), tree.body)

    def _read_body(self, module: tuple[str, ...], owner: tuple[str, ...], body: list[ast.stmt]) -> None:
        for position, statement in enumerate(body):
            if isinstance(statement, ast.ClassDef):
                self._keep(module, (*owner, statement.name), ast.get_docstring(statement))
                self._read_body(module, (*owner, statement.name), statement.body)
            elif isinstance(statement, ast.FunctionDef):
                self._keep(module, (*owner, statement.name), ast.get_docstring(statement))
            elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and position + 1 < len(body):
                following = body[position + 1]
                if owner and isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                    if isinstance(following.value.value, str):
                        self._keep(module, (*owner, statement.target.id), following.value.value)

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
    """Copies the lines of a C file, and puts docstrings into the tables in it."""

    def __init__(self, docstrings: Docstrings) -> None:
        self._docstrings: Final = docstrings
        self.num_placed = 0

    def rewrite(self, lines: Iterable[str]) -> Iterator[str]:
        class_name = function = table = attribute = module = namespace = string = ""
        for line in map(str.lstrip, lines):
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
        return c_string(text)

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
        """Behind the signature that is there already, in one string: CPython tells them apart."""
        text = self._find(name)
        if text is None:
            return line
        before, _, after = line.partition(begin)
        match = SIGNATURE.match(after)
        assert match is not None, line
        return f'{before}{begin}"{match[1] or ""}{text}"{after[match.end() :]}'
