"""What documents say is true of the code: names, paths, links, commands exist. Nothing leads out of the repository."""

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import kv_cache_manager_v2

from .source_tree import ROOT, package_sources, project_files

DOCUMENTS: Final = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md"), *ROOT.glob("*/README.md")])
TEXT_SUFFIXES: Final = {".py", ".pyi", ".c", ".h", ".md", ".toml", ".yml", ".cfg", ".in", ""}
MAX_LINES: Final = {"README.md": 109, "CLAUDE.md": 150}

# TensorRT-LLM's class, what docs/tensorrt-llm.md says is not offered, and what docs/integrations.md says of transformers' batching and of
# SGLang.
FOREIGN_NAMES: Final = {
    "KVCacheManagerV2",
    "fetch_sparse_pages",
    "copy_base_page_indices_to_device",
    "add_stored_event_from_block",
    "add_removed_event_from_block",
    "add_stored_block_event_from_block",
    "add_stored_life_cycle_event_from_block",
    "add_removed_life_cycle_event",
    "drop_cpp",
    "ContinuousBatchingManager",
    "cpu_offload_space",
    "max_batch_tokens",
    "max_memory_percent",
    "num_blocks",
    "page_size",
    "PagedAttentionCache",
    "BasePrefixCache",
    "inc_lock_ref",
    "dec_lock_ref",
    "Request",
    "generate_batch",
    "lora/ops/torch_ops",
}

# Pieces of these are put together here, so that this file does not find itself.
WORKPLACE: Final = re.compile(r"(?<![\w.~-])/" + r"work\b(?!-)")
NEIGHBOUR: Final = re.compile(r"\.\./" + r"shared\b")
ISSUE_NUMBER: Final = re.compile(r"\bissue\s+#?\d", re.IGNORECASE)


def texts() -> Iterator[tuple[str, str]]:
    for path in project_files():
        if path.suffix in TEXT_SUFFIXES and path.name != "LICENSE":
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def places(pattern: re.Pattern[str], is_allowed: re.Pattern[str] | None = None) -> list[str]:
    return [
        f"{name}:{number}: {line.strip()}"
        for name, text in texts()
        if is_allowed is None or not is_allowed.search(name)
        for number, line in enumerate(text.splitlines(), start=1)
        if pattern.search(line)
    ]


def test_no_path_leads_out_of_the_repository() -> None:
    assert places(WORKPLACE) == []
    assert places(NEIGHBOUR, re.compile(r"^tests/")) == []  # tests look there for traces, and skip without them


def test_no_issue_numbers() -> None:
    assert places(ISSUE_NUMBER) == []


@functools.cache
def words_of_the_project() -> frozenset[str]:
    """Every word in code, build files and file names."""
    words: set[str] = set()
    for path in project_files():
        words.update(re.findall(r"\w+", path.relative_to(ROOT).as_posix()))
        if path.suffix in (".py", ".pyi", ".c", ".h", ".toml", ".yml") or path.name == "Makefile":
            words.update(re.findall(r"\w+", path.read_text(encoding="utf-8")))
    return frozenset(words)


@functools.cache
def make_targets() -> frozenset[str]:
    return frozenset(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def code_spans(text: str) -> list[str]:
    without_blocks = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", without_blocks)


def missing_from_project(span: str) -> list[str]:
    """What a piece of `code` in a text names, and the project does not have."""
    if match := re.fullmatch(r"make ([a-z-]+).*", span):
        return [] if match[1] in make_targets() else [f"make {match[1]}"]
    if span in FOREIGN_NAMES or span.startswith(("build/", ".venv")):
        return []
    if re.fullmatch(r"[\w.-]+(/[\w.*-]*)+", span):
        path = span.rstrip("/")
        return [] if any(ROOT.glob(path)) or any(ROOT.glob(f"kv_cache_manager_v2/{path}")) else [span]
    if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*(\(.*\))?", span):
        return [name for name in span.partition("(")[0].split(".") if name not in words_of_the_project()]
    return []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_documents_name_what_exists(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    missing = [name for span in code_spans(text) for name in missing_from_project(span)]
    blocks = "\n".join(re.findall(r"^```.*?^```", text, re.MULTILINE | re.DOTALL))
    for command in re.findall(r"^\s*(?:\$ )?make ([a-z-]+)", blocks, re.MULTILINE):
        if command not in make_targets():
            missing.append(f"make {command}")
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in link and not (document.parent / link).exists():
            missing.append(link)
    assert missing == []


def unfinished_paragraphs(text: str) -> list[str]:
    """Paragraphs and list items that end in mid-sentence. What ends with a link, a bracket or an image, or is a heading in bold, a label
    of a list (up to 80 characters) or followed by a block of code, needs no full stop."""
    text = re.sub(r"^ *```.*?^ *```$", "```", text, flags=re.MULTILINE | re.DOTALL)
    pieces: list[str] = [""]
    for line in [part.strip() for part in text.splitlines()]:
        is_item = re.match(r"([-*]|\d+\.) ", line) is not None
        if line.startswith("```"):
            # It belongs to what is before it.
            pieces = pieces[:-1] if pieces[-1] else pieces[:-2] if len(pieces) > 1 else pieces
            pieces.append("")
        elif line == "" or line.startswith(("#", "|")):
            pieces.append("")
        elif is_item or not pieces[-1]:
            pieces.append(line)
        else:
            pieces[-1] += " " + line
    ends = re.compile(r"""[.:!?;)]["'`*)]*$|^\*\*[^*]+\*\*$|^([-*]|\d+\.) .{,80}$""")
    return [piece[-100:] for piece in pieces if piece and not ends.search(piece)]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_paragraph_ends_in_mid_sentence(document: Path) -> None:
    assert unfinished_paragraphs(document.read_text(encoding="utf-8")) == []


def test_a_cut_sentence_is_found() -> None:
    cut = "- **The guard** precedes every call: forgotten sequences are closed, then the callers' overlap, if there is one, is a"
    assert unfinished_paragraphs(f"# T\n\nWhole.\n{cut}\n\n## N\n\nAll of this is\nso. And the goal\n\nprints\n\n```\nx\n```\n") == [
        cut[-100:], "All of this is so. And the goal"
    ]  # fmt: skip


INSIDE: Final = {"design.md", "ownership.md", "invariants.md", "testing.md", "CHANGELOG.md", "CLAUDE.md", "CONTRIBUTING.md"}
"""Pages about how the library is made, as docs/notes and sections called "In the code" are: classes there are the library's own."""


@functools.cache
def names_of_modules() -> dict[str, set[str]]:
    """Module of the package -> the classes that it has, or imports."""
    found: dict[str, set[str]] = {}
    for source in package_sources():
        module = source.name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        names: set[str] = set()
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                names.add(node.name)
            elif isinstance(node, ast.ImportFrom) and node.level > 0:
                names.update([alias.asname or alias.name for alias in node.names])
        found[module] = names
    return found


FOR_USERS: Final = [path for path in DOCUMENTS if path.name not in INSIDE and path.parent.name != "notes"]


@pytest.mark.parametrize("document", FOR_USERS, ids=lambda path: path.name)
def test_classes_in_pages_for_users_can_be_imported(document: Path) -> None:
    """A class of the package that a page names is public, or the page says where it is: `kv_cache_manager_v2.<module>`."""
    text = document.read_text(encoding="utf-8")
    for_users = re.sub(r"^##+ In the code\n.*?(?=^##? |\Z)", "", text, flags=re.MULTILINE | re.DOTALL)
    said: set[str] = set(kv_cache_manager_v2.__all__)
    for path in re.findall(r"kv_cache_manager_v2(?:\.[a-z_][a-z0-9_]*)+", text):
        said |= names_of_modules().get(path, set())
    all_classes = set().union(*names_of_modules().values())
    named = {match[1] for span in code_spans(for_users) if (match := re.fullmatch(r"([A-Z]\w*[a-z]\w*)(\.\w+)*(\(.*\))?", span))}
    assert (named & all_classes) - said - FOREIGN_NAMES == set()


def test_a_subject_has_one_home() -> None:
    """No two pages have a section of one name; the other one links to it. Titles of one word ("Policies") aside."""
    homes: dict[str, list[str]] = {}
    for document in sorted((ROOT / "docs").glob("*.md")):
        text = re.sub(r"^```.*?^```", "", document.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
        for title in re.findall(r"^##+ (.+)$", text, re.MULTILINE):
            # What a heading adds behind a comma or a colon is no other subject.
            subject = re.split(r"[,:]", title)[0].strip().lower()
            if " " in subject:
                homes.setdefault(subject, []).append(document.name)
    assert {subject: pages for subject, pages in homes.items() if len(set(pages)) > 1} == {}


@pytest.mark.parametrize("name", MAX_LINES)
def test_documents_stay_short(name: str) -> None:
    if not (ROOT / name).exists():
        pytest.skip(f"there is no {name} yet")
    assert len((ROOT / name).read_text().splitlines()) <= MAX_LINES[name]


def test_every_make_target_is_helped_or_private() -> None:
    """`make help` lists what has a `##`; a target without one carries a `#` that says why it is there."""
    text = (ROOT / "Makefile").read_text()
    silent = re.findall(r"^([a-z-]+):(?!.*##)(?!.*# ).*$", text, re.MULTILINE)
    assert silent == []
