"""Filters and handlers of `logging` are the user's. Whatever they raise, no call fails, waits for ever or decides otherwise."""

import errno
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from durable_models import PROMPTS, Process, durable_config, next_process
from lossy_files import LossyDisk

from kv_cache_manager_v2.testing.simulation.history import run_history
from kv_cache_manager_v2.testing.simulation.scenario import Scenario

LOGGER = logging.getLogger("kv_cache_manager_v2")


class WantsRequestIds(logging.Filter):
    """A usual slip: the attribute is there only where the server logs by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.num_asked = 0

    def filter(self, record: logging.LogRecord) -> bool:
        self.num_asked += 1
        return bool(record.__dict__["request_id"])


@pytest.fixture
def raising_filter() -> Iterator[WantsRequestIds]:
    found = WantsRequestIds()
    LOGGER.addFilter(found)
    level = LOGGER.level
    LOGGER.setLevel(logging.DEBUG)
    yield found
    LOGGER.removeFilter(found)
    LOGGER.setLevel(level)


SEEDS_THAT_LOG = (1, 3, 7, 10, 11)


def test_histories_with_faults_decide_alike(raising_filter: WantsRequestIds) -> None:
    with_filter = [run_history(Scenario(seed, 200)) for seed in SEEDS_THAT_LOG]
    assert [history.error for history in with_filter] == [None] * len(SEEDS_THAT_LOG)
    assert raising_filter.num_asked > 10
    LOGGER.removeFilter(raising_filter)
    assert [history.digest for history in with_filter] == [run_history(Scenario(seed, 200)).digest for seed in SEEDS_THAT_LOG]


@pytest.mark.parametrize("lose", [shutil.rmtree, None], ids=["its folder vanishes", "all is well"])
def test_a_durable_level_ends_where_its_writer_cannot_log(
    lose: Callable[[Path], None] | None, tmp_path: Path, raising_filter: WantsRequestIds
) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    process = Process(durable_config(str(folder)))
    assert process.run(PROMPTS[0]) == 0
    process.settle()
    if lose is not None:
        lose(folder)
    for text in PROMPTS:
        assert process.run(text) == (32 if text is PROMPTS[0] else 20)
        process.settle()
    assert raising_filter.num_asked > 0 or lose is None
    ending = threading.Thread(target=process.end)
    ending.start()
    ending.join(60)
    assert not ending.is_alive(), "shutdown waits for a writer that has died"


def test_a_disk_that_fails_is_the_only_fault(tmp_path: Path, raising_filter: WantsRequestIds) -> None:
    """A write that fails closes the level: prompts are served on."""
    process, files = next_process(LossyDisk(), durable_config(str(tmp_path)))
    assert process.run(PROMPTS[0]) == 0
    files.failing_writes = errno.EIO
    for text in PROMPTS:
        process.run(text)
        process.manager.check_invariants()
    assert raising_filter.num_asked > 0
    process.end()
