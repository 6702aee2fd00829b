"""Documents against the code, more closely than names: promises and their tests, code that runs, options, attributes.

`test_documents` has the rules for all texts: names exist, links and paths resolve, README.md and CLAUDE.md stay short.
"""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kv_cache_manager_v2

from .source_tree import ROOT, project_files

# Of pytest, mypy, vLLM, AIPerf, cibuildwheel.
FOREIGN_OPTIONS = {
    "--pdb", "--strict", "--scheduler-cls", "--kv-transfer-config", "--additional-config", "--target", "--num-sessions", "--platform"
}  # fmt: skip
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("**/*.md")])


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def test_promises_are_listed() -> None:
    """docs/promises.md and tests/promises name the same files."""
    on_disk = {f"tests/promises/{path.name}" for path in (ROOT / "tests" / "promises").glob("test_*.py")}
    listed = re.findall(r"tests/promises/test_\w+\.py", (ROOT / "docs" / "promises.md").read_text(encoding="utf-8"))
    assert on_disk ^ set(listed) == set() and len(listed) == len(on_disk)


def python_blocks() -> list[tuple[str, str]]:
    """(where, code) of each block that is marked as Python: such a block is complete and runs."""
    found = []
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8")
        for match in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            found.append((f"{name_of(document)}:{text[: match.start()].count(chr(10)) + 1}", match[1]))
    return found


@pytest.mark.parametrize("code", [code for _, code in python_blocks()], ids=[where for where, _ in python_blocks()])
def test_python_blocks_run(code: str) -> None:
    environment = {**os.environ, "KV_CACHE_MANAGER_V2_DEVICE": "host"}
    found = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, timeout=120
    )
    assert found.returncode == 0, found.stderr


@functools.cache
def text_of_the_code() -> str:
    names = ("Makefile",)
    code = [path for path in project_files() if path.suffix in (".py", ".toml", ".c", ".h") or path.name in names]
    return "\n".join(path.read_text(encoding="utf-8") for path in code if path != Path(__file__))


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_options_and_variables_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+\b", text)) - FOREIGN_OPTIONS
    missing = [option for option in options if f'"{option}"' not in text_of_the_code()]
    for variable in set(re.findall(r"\bKV_CACHE_MANAGER_V2_[A-Z_]+", text)):
        if not re.search(rf"\b{variable}\b", text_of_the_code()):
            missing.append(variable)
    assert sorted(missing) == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_members_of_public_classes_exist(document: Path) -> None:
    """`KVCache.resume`, `KVCacheManager.describe()`: the class is public, so the member must be there."""
    missing = []
    for owner, member in re.findall(r"`([A-Z]\w+)\.(\w+)[(`]", document.read_text(encoding="utf-8")):
        public = getattr(kv_cache_manager_v2, owner, None)
        if isinstance(public, type) and not hasattr(public, member):
            missing.append(f"{owner}.{member}")
    assert missing == []


@pytest.mark.parametrize("page", sorted((ROOT / "docs").glob("*.md")), ids=name_of)
def test_each_page_begins_with_what_its_reader_can_do_afterwards(page: Path) -> None:
    assert page.read_text(encoding="utf-8").split("\n")[2].startswith("After this page you can ")
