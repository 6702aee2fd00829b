"""Environments that make targets set up for other packages have what this library needs at run time."""

import re
import tomllib

import pytest

from .source_tree import ROOT

# What each installs beside the packages that it is for; those are installed from files of their own, without what they ask for.
FOR_OTHERS_ALONE = {"tests/integrations/trained_model_requirements.txt", "tests/transfers/requirements.txt"}
FILES = sorted({str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("*requirements.txt")} - FOR_OTHERS_ALONE)
WITHOUT_A_GPU = {"cuda-python"}


def names_in(text: str) -> set[str]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {re.split(r"[ <>=!~;\[(]", line)[0].lower() for line in lines}


@pytest.mark.parametrize("file", FILES)
def test_the_library_can_be_imported_there(file: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = names_in("\n".join(project["dependencies"])) - WITHOUT_A_GPU
    assert not needed - names_in((ROOT / file).read_text(encoding="utf-8"))
