"""The planted bugs can be planted: each names a text that its file has exactly once, and the simulation finds a sample."""

from pathlib import Path

import pytest

from .canaries import CANARIES
from .run_canaries import PACKAGE, find

NUM_PROMISED = 25


def test_there_are_enough_and_each_has_its_place() -> None:
    assert len(CANARIES) >= NUM_PROMISED
    assert len({canary.name for canary in CANARIES}) == len(CANARIES)
    for canary in CANARIES:
        text = Path(PACKAGE, canary.file).read_text()
        assert text.count(canary.old) == 1, canary.name
        assert canary.new != canary.old


def test_docs_say_how_many_there_are() -> None:
    text = (PACKAGE.parent / "docs" / "testing.md").read_text(encoding="utf-8")
    num_near_a_seed = len([canary for canary in CANARIES if canary.first_seed > 0])
    assert f"There are {len(CANARIES)} of them; {num_near_a_seed} begin near a seed" in text


@pytest.mark.slow
@pytest.mark.parametrize("name", ["reader does not wait for the writer", "scopes share"])
def test_sample_is_found(name: str) -> None:
    canary = next(canary for canary in CANARIES if canary.name == name)
    assert find(canary, 120.0) is not None
