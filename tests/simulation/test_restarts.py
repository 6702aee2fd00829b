"""Histories with restarts in the middle: the next process has what the model says, and the same again decides the same."""

from pathlib import Path

import pytest

from kv_cache_manager_v2 import ColdPageCodec
from kv_cache_manager_v2.codecs.lossless_codec import LosslessCodec
from kv_cache_manager_v2.testing.reversing_codec import ReversingCodec

from .restarts import Restarts

NUM_LIVES = 4
NUM_CALLS = 250
CODECS = [ReversingCodec(5), ReversingCodec(0, False), LosslessCodec("bfloat16")]


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_next_process_has_what_it_must(tmp_path: Path, has_state: bool, seed: int) -> None:
    run = Restarts(has_state, seed, str(tmp_path))
    digest = run.run(NUM_LIVES, NUM_CALLS)
    assert max(run.found) > 10 and max(run.ends) > 10 and (has_state or run.num_probes > 20)
    assert seed > 0 or Restarts(has_state, seed, str(tmp_path)).run(NUM_LIVES, NUM_CALLS) == digest


@pytest.mark.parametrize("seed", range(5, 7))
def test_a_level_on_several_disks(tmp_path: Path, seed: int) -> None:
    """All disks are there in each life. What each had lost when the power failed is another part of the slots."""
    run = Restarts(False, seed, str(tmp_path), num_paths=3)
    run.run(NUM_LIVES, NUM_CALLS)
    assert max(run.found) > 10 and max(run.ends) > 10 and run.num_probes > 20
    assert all(run.disk.paths(f"/more-{number}/") for number in (1, 2))


@pytest.mark.parametrize("codec", CODECS, ids=lambda codec: codec.identity)
@pytest.mark.parametrize("has_state", [False, True])
def test_packed_pages_outlive_their_processes(tmp_path: Path, has_state: bool, codec: ColdPageCodec) -> None:
    """In each life what the one before must have left; of pages that were packed with loss an exact request matches none."""
    run = Restarts(has_state, 8, str(tmp_path), codec=codec)
    run.run(NUM_LIVES, NUM_CALLS)
    assert max(run.found) > 10 and max(run.ends) > 10 and (has_state or run.num_probes > 20)


@pytest.mark.parametrize("has_state", [False, True])
@pytest.mark.parametrize("seed", range(3, 5))
def test_snapshots_of_the_index_meanwhile_cost_nothing(tmp_path: Path, has_state: bool, seed: int) -> None:
    """Made all the time. What is left of blocks that have left the tree may depend on when: only the least is compared."""
    run = Restarts(has_state, seed, str(tmp_path), least_log_bytes=500)
    run.run(NUM_LIVES, NUM_CALLS)
    assert max(run.found) > 10 and max(run.ends) > 10 and (has_state or run.num_probes > 20)
    numbers = [int(path.rpartition("-")[2]) for path in run.disk.paths("/log-")]
    assert max(numbers) > NUM_LIVES, "a log is begun at each start, and for each snapshot meanwhile"
