"""After an orderly end the next process evicts in the order in which the last one would have: what was hot stays as long. After a kill a
prefix is as old as the latest block that was written below it."""

from pathlib import Path

import pytest
from durable_models import TOKENS_PER_BLOCK, Process, durable_config, next_process
from lossy_files import LossyDisk

from kv_cache_manager_v2 import EvictionPolicy

GPU_SLOTS, DISK_SLOTS = 16, 200
HOT = list(range(100, 100 + 8 * TOKENS_PER_BLOCK))
MOST = 400
POLICIES = [EvictionPolicy.LRU, EvictionPolicy.LEARNED]


def cold_prompt(number: int) -> list[int]:
    return [10_000 + 10 * number + position for position in range(2 * TOKENS_PER_BLOCK)]


def count_outlived(folder: Path, policy: EvictionPolicy, num_uses: int, restarts: bool, is_killed: bool = False) -> int:
    """Cold prompts of two blocks each that the hot prefix outlives from its last use on: half of them before the restart. Before a kill
    each use of it writes a block below."""
    folder.mkdir()
    disk = LossyDisk()
    config = durable_config(str(folder), gpu_slots=GPU_SLOTS, disk_slots=DISK_SLOTS, policy=policy)
    process, files = next_process(disk, config)
    number = 0
    process.run(HOT)
    # What is hot was written early: in the order of the writes it would go first.
    for use in range(num_uses):
        for _cold in range(20):
            process.run(cold_prompt(number))
            number += 1
        assert process.run([*HOT, use] if is_killed else HOT) == len(HOT)
    begin = number
    while number < begin + 40:
        process.run(cold_prompt(number))
        number += 1
    if is_killed:
        process.settle()
        files.kill()
    if restarts:
        process.end()
        process, files = next_process(disk, config)
    while number < begin + MOST and process.manager.probe_reuse(None, HOT) == len(HOT):
        process.run(cold_prompt(number))
        number += 1
    process.end()
    return number - begin


@pytest.mark.parametrize("num_uses", [1, 6])
def test_a_hot_prefix_outlives_as_many_cold_prompts(tmp_path: Path, num_uses: int) -> None:
    """All 200 slots are filled anew by 100 prompts of two blocks. A restart leaves level 0 empty, which is as much as eight of them."""
    killed = count_outlived(tmp_path / "killed", EvictionPolicy.LRU, num_uses, True, True)
    with_restart = {policy: count_outlived(tmp_path / f"{policy}", policy, num_uses, True) for policy in POLICIES}
    without = count_outlived(tmp_path / "without", EvictionPolicy.LRU, num_uses, False)
    assert without >= 90 and abs(with_restart[EvictionPolicy.LRU] - without) <= GPU_SLOTS // 2
    assert abs(killed - without) <= GPU_SLOTS // 2
    assert with_restart[EvictionPolicy.LEARNED] >= without, "what is used again outlives what is not"


def descriptions(process: Process) -> list[tuple[int, int]]:
    """When each page was used last, and what the policy knows of it."""
    found = [described for queue in process.manager._shared.storage.queues for described in queue.describe_all()]
    return sorted((used_at, description) for used_at, _page, description in found)


def test_what_learned_knows_of_each_page_is_there_again(tmp_path: Path) -> None:
    config = durable_config(str(tmp_path), gpu_slots=GPU_SLOTS, disk_slots=DISK_SLOTS, policy=EvictionPolicy.LEARNED)
    process = Process(config)
    for number in range(40):
        process.run(cold_prompt(number))
        process.run(HOT[: TOKENS_PER_BLOCK * (1 + number % 8)])
    expected = descriptions(process)
    assert len({description for _used_at, description in expected}) > 4
    shadow = process.manager._shared.storage._records[0].shadow
    account = shadow.save_account()
    assert min(account) > 0, "nothing that it may lose against recency"
    process.end()
    for _restart in range(2):
        process = Process(config)
        assert descriptions(process) == expected
        assert process.manager._shared.storage._records[0].shadow.save_account() == account
        process.manager.keep_restored(process.manager.restored())
        assert descriptions(process) == expected
        process.end()


@pytest.mark.parametrize("policy", POLICIES)
def test_it_is_there_after_a_kill_too(tmp_path: Path, policy: EvictionPolicy) -> None:
    """Of the process that has found it, and used nothing yet."""
    disk = LossyDisk()
    config = durable_config(str(tmp_path), gpu_slots=GPU_SLOTS, disk_slots=DISK_SLOTS, policy=policy)
    first, _files = next_process(disk, config)
    for number in range(40):
        first.run(cold_prompt(number))
        first.run(HOT)
    first.end()
    second, files = next_process(disk, config)
    names = second.manager.restored()
    second.settle()
    files.kill()
    second.end()
    third, _files = next_process(disk, config)
    assert third.manager.restored() == names
    assert len(names) == 88 + (policy is EvictionPolicy.LEARNED), "a page for each block, and the model"
    third.end()
