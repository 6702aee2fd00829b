"""Rules for each file of the package: what it may contain, how long it is, what its classes and names look like."""

import ast
import io
import re
import tokenize
from typing import Final

from .source_tree import PACKAGE, ROOT, Source, build_script, compiled_sources, package_sources, slots_of, sources_of_tests

MAX_LINES: Final = 600
SHOW_THE_PUBLIC_SURFACE: Final = {"kv_cache_manager_v2/manager/kv_cache_manager.py", "kv_cache_manager_v2/manager/kv_cache.py"}

FORBIDDEN_WORDS: Final = {"lc", "pg", "idx", "cnt", "mgr", "ctrl", "cb", "sr", "req", "tmp", "info", "utils", "helpers", "misc"}
FORBIDDEN_NAMES: Final = {"common"}  # alone; `common_prefix` says what is common
# Public names that were given elsewhere.
GIVEN_NAMES: Final = {"beam_idx", "match_info"}

# mypyc puts an underscore before each attribute's name: `_thread` becomes a word of C that no struct can have as a field.
C_WORDS: Final = {"__thread", "__asm", "__inline", "__const", "__volatile", "__signed", "__restrict", "__typeof", "__label__"}

# What these names stand for has plain attributes of the same names as a handle's properties.
NO_HANDLES: Final = {"self", "state"}

FOLDERS_WITH_PUBLIC_NAMES: Final = {"", "compat", "shared", "testing"}

# Bases that mypyc cannot compile into native classes, or that make the class one of its special kinds.
SPECIAL_BASES: Final = {"Enum", "IntEnum", "IntFlag", "Flag", "NamedTuple", "TypedDict", "Protocol"}
KEEP_CLASSES_NATIVE: Final = {"final", "mypyc_attr", "trait"}
NOT_NATIVE: Final = {
    "_Span",  # numpy wants an attribute in the __dict__ of the object
    "CountsDelta",  # base of dataclasses
    "ConfigRecord",  # the same
    "ConfigValue",  # base of values that look at what they are given, which a native class changes first
}
# What runs for each block of a prompt, and constants of theirs that are used once a manager or once a sampled block.
PER_BLOCK_FOLDERS: Final = {"pools", "reuse", "sequence", "stats", "storage"}
BOXED_CONSTANTS: Final = {"MAX_SAMPLES", "NUM_SENTINELS"}
# Their loops go over life cycles, priorities, beams, groups or what a user gave, or are left after one turn.
BOXING_FUNCTIONS: Final = {
    "__init__", "_can_begin", "_copy_pages", "_find_replay", "_reorder_blocks", "close", "find_whole_with_state",
    "lease_blocks", "load", "record",
}  # fmt: skip
EXCEPTION_NAME: Final = re.compile(r"(Error|Exception|Warning|Mismatch|Exit|Failed)$")


def test_files_are_short() -> None:
    lengths = {source.name: len(source.text.splitlines()) for source in package_sources()}
    lengths |= {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "rawref").glob("*.[ch]")}
    assert len(lengths) > 100
    assert {name: length for name, length in lengths.items() if length > MAX_LINES and name not in SHOW_THE_PUBLIC_SURFACE} == {}


# What these know is in values with names: a reader sees at a glance what the many files that are given one may read and write.
MOST_ATTRIBUTES: Final = {"SequenceState": 25, "SharedState": 20}


MAX_FUNCTION_LINES: Final = 60
# A call for each page would cost more than the page.
ONE_LOOP_OVER_PAGES: Final = {"gather", "_put_part"}


def test_functions_fit_a_screen() -> None:
    functions = [
        (source.at(node), (node.end_lineno or node.lineno) - node.lineno + 1)
        for source in package_sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name not in ONE_LOOP_OVER_PAGES
    ]
    assert len(functions) > 4000
    assert [function for function in functions if function[1] > MAX_FUNCTION_LINES] == []


def test_states_that_many_files_share_are_values_with_names() -> None:
    found = {
        node.name: len(set(slots_of(node)))
        for source in package_sources()
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and node.name in MOST_ATTRIBUTES
    }
    assert found.keys() == MOST_ATTRIBUTES.keys() and min(found.values()) > 10
    assert {name: count for name, count in found.items() if count > MOST_ATTRIBUTES[name]} == {}


DECLARED_TWICE: Final = {
    # In memory as in the class body: what a step looks at lies together.
    "SequenceState",
    # Its `__init__` would not fit a screen.
    "Scenario",
}


def test_attributes_are_declared_where_they_are_made() -> None:
    """By `__init__`, once; in the class body stand what other methods set first, and a branch of `__init__`."""
    found = []
    for source in package_sources():
        classes = [node for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef) and node.name not in DECLARED_TWICE]
        for node in classes:
            made = {
                ast.unparse(statement.targets[0]).removeprefix("self.")
                for member in node.body if isinstance(member, ast.FunctionDef) and member.name == "__init__"
                for statement in member.body if isinstance(statement, ast.Assign) and len(statement.targets) == 1
            }  # fmt: skip
            for member in node.body:
                if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name) and member.target.id in made:
                    found.append(f"{source.at(member)}: declare {node.name}.{member.target.id} in __init__, with its value")
    assert not found, "\n" + "\n".join(found)


def test_compiled_code_hides_no_error_of_an_attribute() -> None:
    """Compiled, `hasattr` takes whatever the value raises for "no": `has_attribute` of base/checks.py does not. Modules raise nothing."""
    found = [
        source.at(node)
        for source in compiled_sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hasattr"
        and ast.unparse(node.args[0]) not in ("os", "builtins", "self")
    ]  # fmt: skip
    assert found == []


def test_modules_open_with_their_contract() -> None:
    assert [source.name for source in package_sources() if not ast.get_docstring(source.tree)] == []


def test_init_files_of_folders_hold_a_docstring_only() -> None:
    found = [
        source.name
        for source in package_sources()
        if source.path.name == "__init__.py" and source.folder not in FOLDERS_WITH_PUBLIC_NAMES and len(source.tree.body) != 1
    ]
    assert not found, "\n" + "\n".join(found)


def test_no_checker_is_silenced() -> None:
    """`type: ignore` hides wrong calls, and a wrong call in compiled code is a crash. Missing stubs are excepted."""
    allowed = re.compile(r"#\s*type:\s*ignore\[import-(untyped|not-found)(,\s*import-(untyped|not-found))*\]")
    found = []
    for source in package_sources():
        for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
            if token.type == tokenize.COMMENT and re.search(r"type:\s*ignore|noqa|pragma|pylint", token.string):
                if not allowed.match(token.string):
                    found.append(f"{source.name}:{token.start[0]}: {token.string}")
    assert not found, "\n" + "\n".join(found)


def test_nothing_that_the_compiler_gets_wrong() -> None:
    """`acyclic=True` corrupts memory; the others compile into something else than they say."""
    found = []
    for source in package_sources():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.keyword) and node.arg == "acyclic":
                found.append(f"{source.at(node.value)}: acyclic")
            elif isinstance(node, ast.Name) and node.id in ("cached_property", "runtime_checkable"):
                found.append(f"{source.at(node)}: {node.id}")
            elif isinstance(node, ast.AnnAssign) and is_final_tuple_of_floats(node):
                found.append(f"{source.at(node)}: compiled, its value 'was not set'; annotate it as Final[Sequence[float]]")
    assert not found, "\n" + "\n".join(found)


def is_final_tuple_of_floats(node: ast.AnnAssign) -> bool:
    return (
        isinstance(node.annotation, ast.Name)
        and node.annotation.id == "Final"
        and isinstance(node.value, ast.Tuple)
        and all(isinstance(item, ast.Constant) and isinstance(item.value, float) for item in node.value.elts)
    )


def decorator_name(decorator: ast.expr) -> str:
    function = decorator.func if isinstance(decorator, ast.Call) else decorator
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def base_name(base: ast.expr) -> str:
    if isinstance(base, ast.Subscript):
        base = base.value
    return base.attr if isinstance(base, ast.Attribute) else getattr(base, "id", "")


def mypyc_attributes(node: ast.ClassDef) -> dict[str, object]:
    attributes: dict[str, object] = {}
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Call) and decorator_name(decorator) == "mypyc_attr":
            for keyword in decorator.keywords:
                if keyword.arg is not None and isinstance(keyword.value, ast.Constant):
                    attributes[keyword.arg] = keyword.value.value
    return attributes


def test_classes_are_declared_for_the_compiler() -> None:
    """mypyc silently makes a slow class of one with another decorator or a metaclass; without `@final` calls go through a table."""
    classes = [(source, node) for source in compiled_sources() for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)]
    bases_in_use = {base_name(base) for _, node in classes for base in node.bases}
    found = []
    for source, node in classes:
        bases = {base_name(base) for base in node.bases}
        decorators = {decorator_name(decorator) for decorator in node.decorator_list}
        if bases & SPECIAL_BASES or "dataclass" in decorators or any(EXCEPTION_NAME.search(base) for base in bases):
            continue
        if node.name in NOT_NATIVE:
            continue
        attributes = mypyc_attributes(node)
        metaclasses = {ast.unparse(keyword.value) for keyword in node.keywords}
        if decorators - KEEP_CLASSES_NATIVE or metaclasses - {"ABCMeta"} or attributes.get("native_class") is False:
            found.append(f"{source.at(node)}: {node.name} is no native class")
        is_open = node.name in bases_in_use or attributes.get("allow_interpreted_subclasses") or "trait" in decorators
        if not is_open and "final" not in decorators:
            found.append(f"{source.at(node)}: {node.name} has no subclass and is not @final")
        if "trait" not in decorators and not any(assigns_slots(statement) for statement in node.body):
            found.append(f"{source.at(node)}: {node.name} has no __slots__")
    assert not found, "\n" + "\n".join(found)


def assigns_slots(statement: ast.stmt) -> bool:
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return any(isinstance(target, ast.Name) and target.id == "__slots__" for target in targets)


def test_uncompiled_files_are_listed_with_a_reason() -> None:
    table: dict[str, str] = build_script().UNCOMPILED
    assert all(len(reason) > 20 for reason in table.values())
    for entry in table:
        if "/" in entry:
            assert (PACKAGE / entry).exists(), f"setup_mypyc.py leaves out {entry}, which is not there"
    compiled = {source.path for source in compiled_sources()}
    left_out = {source.path for source in package_sources()} - compiled
    for path in left_out:
        inner = path.relative_to(PACKAGE)
        assert path.name in table or inner.as_posix() in table or f"{inner.parts[0]}/" in table
    assert len(compiled) > len(left_out)


def test_what_is_compiled_together_is_there() -> None:
    compiled = {source.path.relative_to(PACKAGE).parts[0] for source in compiled_sources()}
    assert build_script().HOT_FOLDERS < compiled


def boxed_constants(tree: ast.Module) -> list[ast.AnnAssign]:
    """Numbers that a module computes from another one's: mypyc makes objects of them, which are taken apart at each use."""
    unknown = {alias.asname or alias.name for statement in tree.body if isinstance(statement, ast.ImportFrom) for alias in statement.names}
    found = []
    for statement in tree.body:
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value is not None:
            parts = list(ast.walk(statement.value))
            is_number = all(isinstance(part, NUMBER_PARTS) for part in parts)
            if is_number and any(isinstance(part, ast.Name) and part.id in unknown for part in parts):
                unknown.add(statement.target.id)
                found.append(statement)
    return found


NUMBER_PARTS: Final = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name, ast.Load, ast.operator, ast.unaryop)


def test_constants_on_the_way_of_each_block_are_no_objects() -> None:
    found = []
    for source in compiled_sources():
        if source.path.relative_to(PACKAGE).parts[0] in PER_BLOCK_FOLDERS:
            for constant in boxed_constants(source.tree):
                if ast.unparse(constant.target) not in BOXED_CONSTANTS:
                    found.append(f"{source.at(constant)}: write the number, and assert that it is that of the other module")
    assert found == []


def test_a_constant_computed_from_another_module_is_found() -> None:
    tree = ast.parse("from a import B, make\nC: Final = 1 << B\nD: Final = -C\nE: Final = 3 * 4\nF: Final = E + 1\nG: Final = make(B)")
    assert [ast.unparse(constant.target) for constant in boxed_constants(tree)] == ["C", "D"]


def boxing_choices(tree: ast.Module) -> list[tuple[str, ast.IfExp]]:
    """In loops, by function: ``a if b else CONSTANT``, of which mypyc makes an object where ``a`` is an i64."""
    found: dict[ast.IfExp, str] = {}
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef):
            for loop in ast.walk(function):
                if isinstance(loop, ast.While | ast.For):
                    for node in ast.walk(loop):
                        if isinstance(node, ast.IfExp) and is_constant_number(node.body) != is_constant_number(node.orelse):
                            found[node] = function.name
    return [(name, node) for node, name in found.items()]


def is_constant_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    return isinstance(node, ast.Name) and node.id.isupper() or isinstance(node, ast.Constant) and type(node.value) is int


def test_no_choice_in_a_loop_over_blocks_makes_an_object() -> None:
    found = []
    for source in compiled_sources():
        if source.path.relative_to(PACKAGE).parts[0] in PER_BLOCK_FOLDERS:
            for name, node in boxing_choices(source.tree):
                if name not in BOXING_FUNCTIONS:
                    found.append(f"{source.at(node)}: {name}: write `if` and an assignment in each branch")
    assert found == []


def test_a_choice_with_a_constant_is_found_in_loops_only() -> None:
    loop = "def f(a):\n    while a:\n        b = {}\n"
    assert [name for name, _node in boxing_choices(ast.parse(loop.format("a if c else -1")))] == ["f"]
    assert [name for name, _node in boxing_choices(ast.parse(loop.format("NO if c else a[b]")))] == ["f"]
    assert boxing_choices(ast.parse(loop.format("a if c else b"))) == []
    assert boxing_choices(ast.parse("def f(a):\n    return a if a else 1")) == []


def test_the_build_expects_indices_to_be_in_range() -> None:
    script = build_script()
    check = "cpy_r_r2 = (uint64_t)cpy_r_at < (uint64_t)cpy_r_r1;\n"
    lines = [check, "if (cpy_r_r2) goto CPyL3;\n", "if (cpy_r_r2) goto CPyL4;\n", check, "if (cpy_r_r2) {\n", "if (cpy_r_r5) goto CPyL6;\n"]
    written = list(script.TableWriter(script.Docstrings()).rewrite(lines))
    assert written[1] == "if (likely(cpy_r_r2)) goto CPyL3;\n"
    assert written[:1] + written[2:] == lines[:1] + lines[2:]


def defined_names(source: Source) -> set[tuple[str, str]]:
    """Every name that the file gives to something, with its place."""
    names: set[tuple[str, str]] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add((node.name, source.at(node)))
        elif isinstance(node, ast.arg):
            names.add((node.arg, source.at(node)))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add((node.id, source.at(node)))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names.add((node.attr, source.at(node)))
        elif isinstance(node, ast.alias) and node.asname is not None:
            names.add((node.asname, source.at(node)))
    return names


def test_names_say_what_they_mean() -> None:
    found = []
    for source in package_sources():
        modules = source.path.relative_to(PACKAGE).with_suffix("").parts
        for name, place in sorted(defined_names(source) | {(module, source.name) for module in modules}):
            words = set(re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower().split("_"))
            if (words & FORBIDDEN_WORDS and name not in GIVEN_NAMES) or name in FORBIDDEN_NAMES:
                found.append(f"{place}: {name}")
    for source in sources_of_tests():
        found += [f"{place}: {name}" for name, place in sorted(defined_names(source)) if name in FORBIDDEN_WORDS]
        if source.path.stem in FORBIDDEN_WORDS | FORBIDDEN_NAMES:
            found.append(source.name)
    assert not found, "\n" + "\n".join(found)


def test_attributes_are_no_words_of_c() -> None:
    found = [f"{place}: {name}" for source in compiled_sources() for name, place in sorted(defined_names(source)) if "_" + name in C_WORDS]
    assert not found, "\n" + "\n".join(found)


def test_handlers_of_one_function_name_their_errors_apart() -> None:
    """mypyc gives a name one type in a function: a second handler that catches another class as it raises a TypeError."""
    found = []
    for source in compiled_sources():
        for function in ast.walk(source.tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            classes: dict[str, str] = {}
            for node in ast.walk(function):
                if isinstance(node, ast.ExceptHandler) and node.name is not None and node.type is not None:
                    caught = ast.unparse(node.type)
                    if classes.setdefault(node.name, caught) != caught:
                        found.append(f"{source.at(node)}: {node.name} is {classes[node.name]} and {caught}")
    assert not found, "\n" + "\n".join(found)


# mypyc puts an underscore before the name of an attribute; these are words of C then.
C_WORDS_LESS_AN_UNDERSCORE: Final = {
    "_alignof", "_asm", "_attribute", "_complex", "_const", "_extension", "_imag", "_inline", "_int128", "_label", "_real",
    "_restrict", "_signed", "_thread", "_typeof", "_volatile",
}  # fmt: skip


def test_no_attribute_becomes_a_word_of_c() -> None:
    found = []
    for source in compiled_sources():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Attribute) and node.attr in C_WORDS_LESS_AN_UNDERSCORE:
                found.append(f"{source.at(node)}: {node.attr}")
    assert not found, "\n" + "\n".join(found)


def test_destructors_clear_first_what_others_left() -> None:
    """`base/finalizers.py`: `invalidate` by name, before anything is looked up in a module, and the rest in a ``try``."""
    found = []
    num_destructors = 0
    for source in package_sources():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef) and node.name == "__del__":
                num_destructors += 1
                first, last = node.body[0], node.body[-1]
                if ast.unparse(first) != "invalidate(self)" or not isinstance(last, ast.Try) or "report_failure(" not in ast.unparse(last):
                    found.append(source.at(node))
    assert num_destructors > 5 and not found, "\n".join(found)


def test_destructors_of_half_made_objects_are_silent() -> None:
    """Ctrl-C may come before any line of a constructor: what a ``__del__`` reads is set before that by which it finds an object whole."""
    late = []
    num_destructors = 0
    for source in package_sources():
        for node in ast.walk(source.tree):
            methods = {one.name: one for one in node.body if isinstance(one, ast.FunctionDef)} if isinstance(node, ast.ClassDef) else {}
            if "__del__" not in methods:
                continue
            num_destructors += 1
            first_set: dict[str, int] = {}
            for part in ast.walk(methods["__init__"]):
                if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and ast.unparse(part.value) == "self":
                    first_set[part.attr] = min(part.lineno, first_set.get(part.attr, part.lineno))
            (gate,) = re.findall(r"getattr\(self, '(\w+)', None\)", ast.unparse(methods["__del__"]))
            for name in re.findall(r"\bself\.(\w+)", ast.unparse(methods["__del__"])):
                if name not in methods and first_set[name] > first_set[gate]:
                    late.append(f"{source.at(methods['__init__'])}: self.{name} is set after self.{gate}")
    assert num_destructors > 5 and not late, "\n".join(late)


def test_handles_are_set_through_any() -> None:
    """mypyc 2.4.1 passes a number wrongly to a property's setter that is declared wider than its getter (`Given`)."""
    wide = set()
    for source in package_sources():
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef) and any(ast.unparse(one).endswith(".setter") for one in node.decorator_list):
                if "Given[" in ast.unparse(node.args.args[-1]):
                    wide.add(node.name)
    assert {"beam_width", "enable_swa_scratch_reuse", "cuda_stream"} <= wide
    assert typed_settings(ast.parse("def f(kv_cache: KVCache) -> None:\n    kv_cache.beam_width = 2\n"), wide) == [2]
    assert typed_settings(ast.parse("def f(one: Simulated) -> None:\n    one.handle.beam_width = 2\n"), wide) == [2]
    assert typed_settings(ast.parse("def f(given: KVCache) -> None:\n    h: Any = given\n    h.beam_width += 2\n"), wide) == []
    found = [
        f"{source.name}:{line}"
        for source in compiled_sources()
        if re.search(r"\bKVCache\b|\.handle\b", source.text)
        for line in typed_settings(source.tree, wide)
    ]
    assert not found, "set them on a name that is annotated with Any\n" + "\n".join(found)


def typed_settings(tree: ast.AST, names: set[str]) -> list[int]:
    """Lines that set one of these attributes of a local name which is not annotated with Any."""
    found: list[int] = []
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        untyped = {
            node.target.id
            for node in ast.walk(function)
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and ast.unparse(node.annotation) == "Any"
        }
        untyped |= {arg.arg for arg in function.args.args if arg.annotation is not None and ast.unparse(arg.annotation) == "Any"}
        for node in ast.walk(function):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
            for target in targets:
                if isinstance(target, ast.Attribute) and target.attr in names and ast.unparse(target.value) not in untyped | NO_HANDLES:
                    found.append(target.lineno)
    return found
