"""Every example runs, on the build under test and without a GPU; the texts that quote one quote what it prints."""

import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kv_cache_manager_v2 import is_compiled

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NEED_MORE = {"torch_engine.py", "prefill_decode.py"}
"""`make engines` and `make transfers` run them, in environments that have torch or NIXL."""


@functools.cache
def output_of(*arguments: str) -> str:
    """What a Python process with the environment of this one prints; -P keeps the sources from shadowing the build."""
    environment = {**os.environ, "KV_CACHE_MANAGER_V2_DEVICE": "host", "PYTHONWARNINGS": "error"}
    found = subprocess.run([sys.executable, "-P", *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    return found.stdout


def text_blocks(document: str) -> list[str]:
    text = (ROOT / document).read_text(encoding="utf-8")
    return [block.strip("\n") for block in re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]


def test_examples_get_the_build_under_test() -> None:
    code = "from kv_cache_manager_v2 import is_compiled; print(is_compiled())"
    assert output_of("-c", code) == f"{is_compiled()}\n"


@pytest.mark.parametrize("example", [path for path in EXAMPLES if path.name not in NEED_MORE], ids=lambda path: path.name)
def test_example_runs(example: Path) -> None:
    assert output_of(str(example))


@pytest.mark.parametrize(("example", "package"), [("torch_engine.py", "torch"), ("prefill_decode.py", "nixl")])
def test_an_example_that_needs_more_says_so_in_one_line(example: str, package: str) -> None:
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    found = subprocess.run([sys.executable, "-P", str(ROOT / "examples" / example)], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert found.returncode == 1 and found.stdout == ""
    assert found.stderr.count("\n") == 1 and "pip install" in found.stderr and package in found.stderr


def test_walkthrough_shows_all_that_its_example_prints() -> None:
    sections = output_of(str(ROOT / "examples" / "walkthrough.py")).strip("\n").split("\n\n")
    assert text_blocks("docs/walkthrough.md") == sections


def test_readme_shows_the_smallest_example() -> None:
    example = ROOT / "examples" / "minimal.py"
    assert f"```python\n{example.read_text(encoding='utf-8')}```" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert text_blocks("README.md")[0] == output_of(str(example)).strip("\n")
