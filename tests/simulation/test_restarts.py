"""Histories with restarts in the middle: the next process has what the model says, and the same again decides the same."""

from pathlib import Path

import pytest

from .restarts import Restarts

NUM_LIVES = 4
NUM_CALLS = 250


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_next_process_has_what_it_must(tmp_path: Path, has_state: bool, seed: int) -> None:
    run = Restarts(has_state, seed, str(tmp_path))
    digest = run.run(NUM_LIVES, NUM_CALLS)
    assert max(run.found) > 10 and max(run.ends) > 10 and (has_state or run.num_probes > 20)
    assert seed > 0 or Restarts(has_state, seed, str(tmp_path)).run(NUM_LIVES, NUM_CALLS) == digest
