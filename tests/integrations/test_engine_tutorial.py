"""docs/engine-tutorial.md: its listings are those of examples/torch_engine.py, which prints what the page says."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "engine-tutorial.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "torch_engine.py"


def test_listings_are_those_of_the_example() -> None:
    listings = re.findall(r"^```py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    code = EXAMPLE.read_text(encoding="utf-8")
    assert len(listings) == 6
    for listing in listings:
        assert listing in code, listing


def test_the_example_prints_what_the_page_says() -> None:
    pytest.importorskip("torch")
    found = subprocess.run([sys.executable, "-P", str(EXAMPLE)], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stderr
    assert re.findall(r"^```text\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) == [found.stdout]
    assert found.stderr == ""
