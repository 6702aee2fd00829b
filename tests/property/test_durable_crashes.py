"""A process that is killed, or loses its power, at any write: the next one never reads a wrong byte, leaks no slot, and what it finds
has all its ancestors. What was on the disk before a kill is found."""

import os
import random
from pathlib import Path

import pytest
from durable_models import TOKENS_PER_BLOCK, Process, durable_config, next_process
from lossy_files import LossyDisk

NUM_STEPS = 40
NUM_SEEDS = int(os.environ.get("DURABLE_CRASH_SEEDS", "24"))


def random_text(choices: random.Random) -> list[int]:
    """A few shared beginnings, branches and ends."""
    text: list[int] = []
    for depth in range(choices.randrange(1, 4)):
        branch = choices.randrange(3)
        text += [1000 * depth + 100 * branch + position for position in range(choices.choice((3, 4, 8, 9)))]
    return text


def serve(process: Process, choices: random.Random, num_steps: int) -> None:
    for _step in range(num_steps):
        process.run(random_text(choices))
    process.manager.check_invariants()


def check_restart(process: Process, choices: random.Random) -> None:
    """Everything that is found is read, compared byte by byte and used again; then all slots are free."""
    serve(process, choices, NUM_STEPS)
    process.manager.clear_reusable_blocks()
    for level in range(len(process.manager.cache_tier_list)):
        for counts in process.manager.get_storage_statistics(level):
            assert counts.free == counts.total
    process.end()


def make_snapshots(process: Process, choices: random.Random) -> None:
    """Of the index, often, seldom or never while it is used."""
    durable = process.manager._shared.storage.durable
    assert durable is not None
    durable.writer.least_log_bytes = choices.choice((100, 1000, 1 << 20))


def _make_paths(tmp_path: Path) -> list[str]:
    (tmp_path / "second").mkdir()
    return [str(tmp_path / "second")]


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_killed_at_any_write(seed: int, tmp_path: Path) -> None:
    choices = random.Random(seed)
    disk = LossyDisk()
    config = durable_config(
        str(tmp_path),
        gpu_slots=choices.choice((10, 16)),
        host_slots=choices.choice((0, 6)),
        disk_slots=choices.choice((12, 24, 80)),
        windows=choices.choice(((None,), (None,), (8,))),
        more_paths=[] if seed % 3 > 0 else _make_paths(tmp_path),
    )
    for _crash in range(3):
        process, files = next_process(disk, config, choices.randrange(1, 200))
        make_snapshots(process, choices)
        serve(process, choices, NUM_STEPS)
        process.settle()
        if not files.is_dead:
            files.kill()
        if seed % 2 == 1:
            disk.fail_power(choices.randrange(1 << 30))
        process.end()
    last, _files = next_process(disk, config)
    check_restart(last, choices)


@pytest.mark.parametrize("seed", range(4))
def test_what_was_on_the_disk_is_found(seed: int, tmp_path: object) -> None:
    """Between two writes, with room for everything: the next process finds what the last one could have reused."""
    choices = random.Random(seed)
    disk = LossyDisk()
    config = durable_config(str(tmp_path), gpu_slots=12, host_slots=6 * (seed % 2), disk_slots=200)
    texts = [random_text(choices) for _text in range(12)]
    for _crash in range(3):
        process, files = next_process(disk, config)
        make_snapshots(process, choices)
        for text in texts:
            assert process.run(text) >= 0
        process.settle()
        expected = [process.manager.probe_reuse(None, text) for text in texts]
        files.kill()
        disk.fail_power(seed)
        again, files = next_process(disk, config)
        found = [again.manager.probe_reuse(None, text) for text in texts]
        assert all(number >= least for number, least in zip(found, expected, strict=True)), (found, expected)
        files.kill()
        process.end()
        again.end()
    assert min(expected) >= min(len(text) for text in texts) // TOKENS_PER_BLOCK * TOKENS_PER_BLOCK
