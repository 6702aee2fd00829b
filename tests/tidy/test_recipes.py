"""CLAUDE.md's recipes: each names at most six files, which exist; and what they say of the tree's door is so."""

import re

from .source_tree import ROOT


def recipes() -> list[str]:
    text = (ROOT / "CLAUDE.md").read_text(encoding="utf-8")
    section = text.partition("## Recipes\n")[2].partition("\n## ")[0]
    return [part for part in re.split(r"^- ", section, flags=re.MULTILINE)[1:]]


def test_each_names_files_that_exist() -> None:
    found = recipes()
    assert len(found) == 3
    for recipe in found:
        files = set(re.findall(r"`([\w/]+\.(?:py|md))`", recipe)) - {"listed_queue.py"}
        assert 4 <= len(files) <= 6, files
        for file in files:
            assert (ROOT / file).exists(), file


def test_blocks_enter_the_tree_by_one_door() -> None:
    """A restore from a durable level attaches whole paths itself, before any call."""
    package = ROOT / "kv_cache_manager_v2"
    doors = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"\btree\.attach(_run)?\(", path.read_text(encoding="utf-8"))
    }
    assert doors == {"sequence/publishing.py", "manager/durable_restore.py"}
