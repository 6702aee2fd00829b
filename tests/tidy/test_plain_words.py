"""The project's words are the field's: docs/glossary.md lists them, and prose and names use no dialect for the same things.

Prose is docstrings, comments, messages and pages. `EXEMPT` names what is not clean yet; it may only get shorter.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from typing import Final

from .source_tree import ROOT, Source, package_sources, sources_of_tests

GLOSSARY: Final = ROOT / "docs" / "glossary.md"

# Dialect, and what to write instead.
DIALECT: Final = {
    r"(no|some|every|any)body('s)?|whoever|whomever": "name the actor: the caller, another sequence, the GPU, a thread",
    r"his|him|he|she|hers": "their, them, they",
    r"(give|gives|given|giving|gave) (\w+ ){0,3}(back|up|way)": "release, free, evict; return",
    r"let(s|ting)? (\w+ )?go( of)?": "release",
    r"first in line|in no line|waiting lines?": "evict-first; in no queue; queue",
    r"far ends?": "leaf, tail",
    r"(go|goes|going|gone|went) (down|out)|(come|comes|came|coming) (up|down)": "is offloaded, is dropped; is onboarded",
    r"standings?": "level and priority",
    r"worth": "value; useful",
    r"passed pages?|windows? (has|have) passed": "out-of-window pages",
    r"books?": "counters, accounting, state",
    r"what (became|becomes|has become) of": "the outcome of",
    r"(make|makes|made|making) room|room makers?": "evict, reclaim slots; slot reclaimer",
    r"mend(s|ed|ing)?": "repair",
    r"pictures? of (a|the|its) (manager|state|tree)s?": "state dump",
    r"rescue tables?|disk trails?": "failed writes; disk dependencies",
}
DIALECT_IN_PROSE: Final = re.compile(rf"\b({'|'.join(DIALECT)})\b", re.IGNORECASE)
DIALECT_IN_NAMES: Final = re.compile(
    r"(^|_)((no|some|every|any)body|whoever|his|give_(back|up|way)|first_in_line|far_end|standings?|books?|mend(s|ed)?|pictures?|"
    r"room_maker|rescue_table|disk_trail)(_|$)"
)

# A folder of the package, a page, a folder of tests.
EXEMPT: Final = {
    "CHANGELOG.md",
    "docs/notes/",  # notebooks of measurements
    "docs/performance",
    "tests/",
}
QUOTES_DIALECT: Final = {"tests/tidy/test_plain_words.py", "CHANGELOG.md"}


def is_exempt(name: str) -> bool:
    return name in QUOTES_DIALECT or any(name.startswith(exempt) for exempt in EXEMPT)


def prose_of(source: Source) -> Iterator[tuple[int, str]]:
    """Docstrings, comments and messages, each with its first line's number."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, line
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def names_of(source: Source) -> Iterator[tuple[int, str]]:
    for node in ast.walk(source.tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            yield node.lineno, node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg


def found_in_code(source: Source) -> list[str]:
    if not DIALECT_IN_PROSE.search(re.sub(r"(?<=[a-z])(?=[A-Z])|_", " ", source.text)):
        return []  # nearly always; to parse all files takes seconds
    found = [f"{source.name}:{line}: {match[0]!r} in a name" for line, name in names_of(source) if (match := in_name(name))]
    found += [
        f"{source.name}:{line}: {match[0]!r}" for line, text in prose_of(source) if (match := DIALECT_IN_PROSE.search(text))
    ]
    return found


def in_name(name: str) -> re.Match[str] | None:
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower()  # also SlotReclaimer
    return DIALECT_IN_NAMES.search(words)


def found_in_page(name: str) -> list[str]:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return [f"{name}:{number}: {match[0]!r}" for number, line in enumerate(lines, 1) if (match := DIALECT_IN_PROSE.search(line))]


def test_code_uses_the_words_of_the_field() -> None:
    sources = [source for source in (*package_sources(), *sources_of_tests()) if not is_exempt(source.name)]
    found = [place for source in sources for place in found_in_code(source)]
    assert not found, "\n" + "\n".join(found)


def test_tests_have_plain_names() -> None:
    """Their prose is exempt so far, their names are not."""
    found = [
        f"{source.name}:{line}: {name}"
        for source in sources_of_tests()
        if source.name not in QUOTES_DIALECT
        for line, name in names_of(source)
        if in_name(name)
    ]
    assert not found, "\n" + "\n".join(found)


def test_pages_use_the_words_of_the_field() -> None:
    pages = [path.relative_to(ROOT).as_posix() for path in sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])]
    found = [place for name in pages if not is_exempt(name) for place in found_in_page(name)]
    assert not found, "\n" + "\n".join(found)


def test_dialect_is_found() -> None:
    """Each pattern finds its kind, and the field's words pass."""
    for text in (
        "nobody waits", "somebody's", "it gives its slots back", "first in line", "goes down or out", "what became of it",
        "his stream", "the far end", "makes room", "a picture of the state", "the books", "mends it", "let it go",
    ):  # fmt: skip
        assert DIALECT_IN_PROSE.search(text), text
    for text in ("release the slot", "evict-first", "is offloaded", "the leaf", "the slot reclaimer", "this history", "bookkeeping"):
        assert not DIALECT_IN_PROSE.search(text), text
    for name in ("give_back", "Picture", "UsageBooks", "mend_page", "test_nobody_waits", "RoomMaker", "_Books"):
        assert in_name(name), name
    for name in ("release_page", "StateDump", "this", "history", "SlotReclaimer", "outcome"):
        assert not in_name(name), name


def test_the_glossary_has_one_line_a_term() -> None:
    rows = [line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("| ") and "---" not in line]
    terms = [term.strip() for row in rows for term in row.split("|")[1].split(",") if term.strip() != "term"]
    assert all(len(row.split("|")) == 4 for row in rows) and len(terms) > 50
    assert sorted({term for term in terms if terms.count(term) > 1}) == []
    assert "docs/glossary.md" in (ROOT / "README.md").read_text(encoding="utf-8")
