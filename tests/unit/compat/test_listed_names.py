"""docs/tensorrt-llm.md lists every name and member with its signature and a test: the list is the code's, and the tests exist."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import kv_cache_manager_v2.compat.tensorrt_llm as runtime

ROOT: Final = Path(__file__).resolve().parents[3]
PAGE: Final = ROOT / "docs" / "tensorrt-llm.md"
SOURCES: Final = ROOT / "kv_cache_manager_v2"
ATTRIBUTE: Final = "attribute"
SETTABLE: Final = "attribute, can be set"
OURS: Final = {"core", "to_core", "resize_batch", "commit_batch"}
"""Members beside TensorRT-LLM's, which the page names in its text."""
PRIVATE: Final = {
    "KVCacheManager": {"_life_cycles"},
    "_KVCache": {
        "_get_last_cached_token_level", "_get_num_reusable_tokens_before_pruning", "_get_num_reusable_tokens_before_hybrid_pruning",
        "_residency_group", "_set_residency_window",
    },
    "KVCacheIterationStatsDelta": {"_field_names"},
}  # fmt: skip
"""Members that the engine calls in spite of their names."""
ROW: Final = re.compile(r"\| `(\w+)` \| yes \| (.*) \| `(test_\w+)` \|")


@functools.cache
def parse(path: Path) -> dict[str, ast.ClassDef | ast.FunctionDef]:
    return {
        node.name: node
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef | ast.FunctionDef)
    }


def node_of(value: object) -> ast.ClassDef | ast.FunctionDef | None:
    """The definition of a class or function of the package."""
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", None)
    if not isinstance(name, str) or not str(module).startswith(f"{SOURCES.name}."):
        return None
    return parse(ROOT / f"{str(module).replace('.', '/')}.py").get(name)


def show_parameters(function: ast.FunctionDef) -> str:
    """As they are called: no self, no types."""
    arguments = function.args
    names = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(names) - len(arguments.defaults)) + list(arguments.defaults)
    shown = [show_parameter(name, default) for name, default in zip(names, defaults, strict=True) if name.arg not in ("self", "cls")]
    if arguments.vararg is not None:
        shown.append(f"*{arguments.vararg.arg}")
    elif arguments.kwonlyargs:
        shown.append("*")
    return ", ".join(shown + [show_parameter(*pair) for pair in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)])


def show_parameter(name: ast.arg, default: ast.expr | None) -> str:
    return name.arg if default is None else f"{name.arg}={ast.unparse(default)}"


def show_form(parameters: str) -> str:
    return f"`({parameters})`"


def forms_of(value: type) -> dict[str, str]:
    """Member: how it is called; "" is the constructor."""
    found: dict[str, str] = {}
    for base in reversed(value.__mro__):
        node = node_of(base)
        if not isinstance(node, ast.ClassDef):
            continue
        fields = []
        for item in node.body:
            if isinstance(item, ast.FunctionDef):
                decorators = [ast.unparse(decorator) for decorator in item.decorator_list]
                if item.name == "__init__":
                    found[""] = show_form(show_parameters(item))
                elif any(decorator.endswith(".setter") for decorator in decorators):
                    found[item.name] = SETTABLE
                elif not item.name.startswith("__"):
                    found[item.name] = ATTRIBUTE if "property" in decorators else show_form(show_parameters(item))
            elif isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and "ClassVar" not in ast.unparse(item.annotation):
                fields.append(item.target.id + ("" if item.value is None else f"={ast.unparse(item.value)}"))
        is_record = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
        if fields and (is_record or any(ast.unparse(item) == "NamedTuple" for item in node.bases)):
            found[""] = show_form(", ".join(fields))
    return found


def declared() -> dict[str, dict[str, str]]:
    """Class, or "" for the names of the package: name: how it is called."""
    found: dict[str, dict[str, str]] = {"": {}}
    for name in runtime.__all__:
        value = getattr(runtime, name)
        form = "value"
        if isinstance(value, type):
            members = forms_of(value)
            form = members.pop("", "class")
            if name in ("_KVCache", "PlannedDropHandle"):
                form = "class"  # made by the manager and by a sequence
            if value.__module__.startswith(runtime.__name__):
                kept = PRIVATE.get(name, set())
                shown = {member: of for member, of in members.items() if member in kept or member[0] != "_" and member not in OURS}
                if shown and not issubclass(value, int | tuple):
                    found[name] = shown
        elif isinstance(node := node_of(value), ast.FunctionDef):
            form = show_form(show_parameters(node))
        found[""][name] = form
    return found


def listed() -> Iterator[tuple[str, str, str, str]]:
    """(class, name, form, test) of each row of the page."""
    owner = ""
    for line in PAGE.read_text(encoding="utf-8").splitlines():
        if heading := re.fullmatch(r"### `(\w+)`", line):
            owner = heading[1]
        elif line.startswith("## "):
            owner = ""
        elif row := ROW.fullmatch(line):
            yield owner, row[1], row[2], row[3]


def test_the_page_lists_every_name_and_member() -> None:
    on_page: dict[str, dict[str, str]] = {}
    for owner, name, form, _test in listed():
        assert name not in on_page.setdefault(owner, {}), f"{owner} {name} is listed twice"
        on_page[owner][name] = form
    in_code = declared()
    assert on_page.keys() == in_code.keys()
    for owner, forms in in_code.items():
        assert on_page[owner] == forms, owner


def test_the_tests_of_the_page_exist() -> None:
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").glob("**/test_*.py"))
    defined = set(re.findall(r"^def (test_\w+)\(", tests, re.MULTILINE))
    named = {test for _owner, _name, _form, test in listed()}
    assert named and named <= defined


@pytest.mark.parametrize("owner", [owner for owner in declared() if owner])
def test_listed_members_are_there(owner: str) -> None:
    """At run time, too; members that only instances have are left to the tests that the page names."""
    value = getattr(runtime, owner)
    assert [name for name, form in declared()[owner].items() if form != ATTRIBUTE and not hasattr(value, name)] == []
