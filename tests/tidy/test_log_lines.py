"""docs/operations.md explains every line that the library logs, and every `ResourceWarning`, and none that there is not."""

import ast
import re
from typing import Final

from .source_tree import ROOT, Source, package_sources

LEVELS: Final = {name: name.upper() for name in ("debug", "info", "warning", "error", "critical")} | {
    "exception": "ERROR", "inform": "INFO", "log": "INFO",
}  # fmt: skip
PLACEHOLDER: Final = re.compile(r"%[sdr]")
ROW: Final = re.compile(r"^\| ([A-Z]\w+) \| `([^`]+)` \| ([^|]+) \| ([^|]+) \|$", re.MULTILINE)
VALUE: Final = "..."
LOG: Final = "kv_cache_manager_v2/base/package_log.py"
LOG_OF_THE_USER: Final = "kv_cache_manager_v2/metrics/statistics_log.py"


def message_of(text: ast.expr, values: list[ast.expr], source: Source) -> str:
    """What is written, with `VALUE` for what is filled in. A lone placeholder stands for the text that is its value."""
    if isinstance(text, ast.Constant) and isinstance(text.value, str):
        if text.value == "%s":
            return message_of(values[0], [], source)
        return PLACEHOLDER.sub(VALUE, text.value)
    if isinstance(text, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else VALUE for part in text.values)
    if isinstance(text, ast.BoolOp):
        return message_of(text.values[-1], [], source)
    assert isinstance(text, ast.Name), f"{source.at(text)}: write the message where it is logged, so that the page can list it"
    (assigned,) = [
        node.value
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == text.id
    ]
    return message_of(assigned, [], source)


def logged_in(source: Source) -> list[tuple[str, str]]:
    """(level, message) of each call on a logger."""
    found = []
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.Call):
            continue
        if isinstance(node.func, ast.Attribute) and node.func.attr in LEVELS and ast.unparse(node.func.value).endswith("_logger"):
            text, *values = node.args[1:] if node.func.attr == "log" else node.args
            found.append((LEVELS[node.func.attr], message_of(text, values, source)))
        elif isinstance(node.func, ast.Name) and node.func.id == "warn_of_leak":
            text = node.args[0]
            if not isinstance(text, ast.Name):  # else it is logged as well, under its level
                found.append(("ResourceWarning", message_of(text, [], source)))
    return found


def test_every_line_is_explained() -> None:
    logged = {line for source in package_sources() if source.name != LOG for line in logged_in(source)}
    assert len(logged) > 30
    rows = ROW.findall((ROOT / "docs" / "operations.md").read_text(encoding="utf-8").partition("## Log lines")[2])
    listed = {(level, message) for level, message, _, _ in rows}
    assert len(listed) == len(rows), "a line is listed twice"
    assert sorted(logged - listed) == [], "docs/operations.md does not list them"
    assert sorted(listed - logged) == [], "docs/operations.md lists what is not logged"


def test_loggers_have_one_name_and_messages_are_found() -> None:
    """The rule above looks at `_logger`, so no logger may have another name; and it sees each form of a message. All but the user's own are
    a `PackageLog`, as filters and handlers may raise."""
    for source in package_sources():
        if source.folder in ("testing", "replay") or source.name in (LOG, LOG_OF_THE_USER):
            continue
        assert "logging.getLogger" not in source.text, source.name
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and "PackageLog(" in ast.unparse(node.value):
                assert isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "_logger", source.at(node)
    source = Source.__new__(Source)
    text = 'x = f"page {n} is gone"\n_logger.error("%s", x)\n_logger.log(level, "%s of %d", a, b)\nwarn_of_leak("lost")\n'
    source.__dict__.update(name="x", tree=ast.parse(text + 'other.error("no")\n'))
    assert logged_in(source) == [("ERROR", "page ... is gone"), ("INFO", "... of ..."), ("ResourceWarning", "lost")]
