"""A sequence that is rewound is one request: its prompt counts as it was at first, and what a disk lost of it is missed, not hit."""

import errno
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from durable_models import SLOT_BYTES, TOKENS_PER_BLOCK, Process, durable_config
from lossy_files import LossyDisk, LossyFiles
from small_models import manager_of, run_prompt

from kv_cache_manager_v2 import DropReason, KVCache, LoadFailed, MissCause
from public_calls import Clock
from kv_cache_manager_v2.testing import Step

SIZE = TOKENS_PER_BLOCK
NUM_TOKENS = 4 * SIZE
PROMPTS = [[1000 * number + position for position in range(NUM_TOKENS)] for number in range(12)]
NUM_PAGES = 12 * 4


class Files(LossyFiles):
    """Of a disk whose reads fail, once it is broken."""

    is_broken = False

    def transfer(self, file: int, is_write: bool, addresses: Sequence[int], sizes: Sequence[int], offset: int) -> int:
        if self.is_broken and not is_write:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().transfer(file, is_write, addresses, sizes, offset)


def serve_and_reopen(tmp_path: object) -> tuple[Process, "Files"]:
    """The first prompt is on the disk, and another process has it; its files."""
    disk = LossyDisk()
    config = durable_config(str(tmp_path))
    first = Process(config, Files(disk))
    first.run(PROMPTS[0])
    first.end()
    files = Files(disk)
    return Process(config, files), files


def cut(disk: LossyDisk, files: Files) -> None:
    (path,) = disk.paths("/data-")
    del disk.files[path].content[:]


def break_reads(disk: LossyDisk, files: Files) -> None:
    files.is_broken = True


def flip(disk: LossyDisk, files: Files) -> None:
    (path,) = disk.paths("/data-")
    content = disk.files[path].content
    content[:] = bytes(byte ^ 1 for byte in content)


def bring(kv_cache: KVCache, waits: bool) -> None:
    assert kv_cache.resume(None, waits)
    while not kv_cache.ready:
        pass


def compute_rest(process: Process, kv_cache: KVCache, text: list[int]) -> None:
    begin = kv_cache.num_committed_tokens
    assert kv_cache.resize(len(text), begin)
    process.engine.execute([Step(kv_cache, text[begin:], text[:begin])])
    kv_cache.commit(text[begin:])


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "not waiting"])
@pytest.mark.parametrize("fail", [cut, break_reads, flip])
def test_what_a_disk_lost_is_missed_counted_and_logged(
    tmp_path: object, fail: Callable[[LossyDisk, Files], None], waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk = LossyDisk()
    config = durable_config(str(tmp_path))
    first = Process(config, Files(disk))
    for text in PROMPTS:
        first.run(text)
    first.end()
    files = Files(disk)
    again = Process(config, files)
    manager = again.manager
    fail(disk, files)
    for text in PROMPTS:
        kv_cache = manager.create_kv_cache(None, text)
        assert kv_cache.num_committed_tokens == NUM_TOKENS
        # A try more than is needed: nothing counts twice.
        for _ in range(2):
            with pytest.raises(LoadFailed) as failure:
                bring(kv_cache, waits)
            if kv_cache.is_active:
                kv_cache.suspend()
        assert failure.value.first_bad_token == 0 == kv_cache.rewind(0)
        bring(kv_cache, waits)
        compute_rest(again, kv_cache, text)
        own = kv_cache.statistics
        assert own.requests == 1 and own.prompts.tokens == NUM_TOKENS
        assert own.prompts.missed_tokens == {MissCause.LOAD_FAILED: NUM_TOKENS} and sum(own.prompts.hit_tokens) == 0
        assert (own.missed, own.layer_groups[0].reused_full, own.layer_groups[0].reused_partial) == (4, 0, 0)
        kv_cache.close()
    usage = manager.get_statistics()
    assert usage.requests == 12 and usage.prompts.tokens == 12 * NUM_TOKENS
    assert usage.prompts.missed_tokens == {MissCause.LOAD_FAILED: 12 * NUM_TOKENS} and sum(usage.prompts.hit_tokens) == 0
    assert usage.count_drops(DropReason.FAILURE) == NUM_PAGES
    assert [drop.level for drop in usage.drops if drop.reason is DropReason.FAILURE] == [1]
    (group,) = manager.get_storage_statistics(1)
    assert group.damaged_pages == (NUM_PAGES if fail is flip else 0)
    lines = [record for record in caplog.records if "pages" in record.getMessage() and record.levelno >= logging.WARNING]
    assert [line.levelno for line in lines] == [logging.WARNING if fail is flip else logging.ERROR], "once"
    said = "not what was written" if fail is flip else "level 1 (DISK) could not read pages back"
    assert said in lines[0].getMessage()
    # All that is left goes: those that the disk has still were counted.
    manager.clear_reusable_blocks()
    assert manager.get_statistics().count_drops(DropReason.FAILURE) == NUM_PAGES
    again.end()


@pytest.mark.parametrize("windows", [(None,), (None, 16 * SIZE)], ids=str)
def test_a_page_that_is_lost_in_the_middle_leaves_the_hits_before_it(tmp_path: object, windows: tuple[int | None, ...]) -> None:
    """A page of the first layer group. The second one has a window that is longer than the prompt."""
    disk = LossyDisk()
    config = durable_config(str(tmp_path), gpu_slots=32, windows=windows)
    first = Process(config, Files(disk))
    first.run(PROMPTS[0])
    first.end()
    again = Process(config, Files(disk))
    blocks = again.manager.describe()["tree"][0]["blocks"]
    (found,) = [block for block in blocks if block["tokens"] == PROMPTS[0][SIZE : 2 * SIZE]]
    (path,) = disk.paths("/data-")
    disk.files[path].content[found["pages"][0]["slot"] * SLOT_BYTES + 3] ^= 1
    kv_cache = again.manager.create_kv_cache(None, PROMPTS[0] + [7])
    with pytest.raises(LoadFailed):
        kv_cache.resume()
    assert kv_cache.rewind(SIZE) == SIZE
    assert kv_cache.resume()
    compute_rest(again, kv_cache, PROMPTS[0] + [7])
    prompts = again.manager.get_statistics().prompts
    # Of 17 tokens 4 are there, the 12 behind them were, and one was never.
    assert prompts.hit_tokens == (0, 4)
    assert prompts.missed_tokens == {MissCause.LOAD_FAILED: 12, MissCause.NOT_REMEMBERED: 1}
    assert again.manager.get_statistics().count_drops(DropReason.FAILURE) == 1
    # The page was counted when it was found to be lost; here the sequence has one block left, and has made four.
    for group in kv_cache.statistics.layer_groups:
        assert (group.reused_full, group.reused_partial, group.missed) == (1, 0, 4)
    kv_cache.close()
    again.end()


@pytest.mark.parametrize("how", ["again", "closed"])
def test_a_sequence_that_did_not_wait_is_counted_once_it_is_known(tmp_path: object, how: str) -> None:
    """Resumed and not there yet, it is in no total; what it turns out to be is, once it has got room."""
    again, files = serve_and_reopen(tmp_path)
    files.is_broken = True
    kv_cache = again.manager.create_kv_cache(None, PROMPTS[0])
    with pytest.raises(LoadFailed):
        bring(kv_cache, False)
    assert again.manager.get_statistics().requests == 0 and kv_cache.statistics.resumes == 1
    if how == "again":
        kv_cache.rewind(0)
        assert kv_cache.resume() and kv_cache.resize(NUM_TOKENS)
    else:
        kv_cache.close()
    usage = again.manager.get_statistics()
    assert (usage.requests, usage.resumes) == ((1, 2) if how == "again" else (0, 0))
    assert usage.prompts.missed_tokens == ({MissCause.LOAD_FAILED: NUM_TOKENS} if how == "again" else {})
    assert sum(usage.prompts.hit_tokens) == 0
    kv_cache.close()
    again.end()


def test_a_second_try_that_succeeds_is_a_hit(tmp_path: object) -> None:
    again, files = serve_and_reopen(tmp_path)
    files.is_broken = True
    kv_cache = again.manager.create_kv_cache(None, PROMPTS[0])
    with pytest.raises(LoadFailed):
        kv_cache.resume()
    files.is_broken = False
    assert kv_cache.resume() and kv_cache.resize(NUM_TOKENS)
    usage = again.manager.get_statistics()
    assert usage.prompts.hit_tokens == (0, NUM_TOKENS) and usage.prompts.missed_tokens == {}
    assert usage.count_drops(DropReason.FAILURE) == 4, "the disk could not read them, once"
    kv_cache.close()
    again.end()


@pytest.mark.parametrize("how", ["evicted", "cleared", "lowest"])
def test_a_page_that_goes_after_its_read_has_failed_counts_once(tmp_path: object, how: str) -> None:
    """It is on the disk still, and no sequence computes it again."""
    disk = LossyDisk()
    # Windowed pages go alone, those of whole paths together.
    windows = (2 * SIZE,) if how == "lowest" else (None,)
    config = durable_config(str(tmp_path), gpu_slots=8, disk_slots=8, windows=windows)
    first = Process(config, Files(disk))
    first.run(PROMPTS[0])
    first.end()
    files = Files(disk)
    again = Process(config, files)
    num_held = count_pages(again)
    files.is_broken = True
    kv_cache = again.manager.create_kv_cache(None, PROMPTS[0])
    with pytest.raises(LoadFailed):
        kv_cache.resume()
    kv_cache.close()
    num_failed = again.manager.get_statistics().count_drops(DropReason.FAILURE)
    assert num_failed == (2 if how == "lowest" else 4)
    files.is_broken = False
    num_made = 0
    if how == "cleared":
        again.manager.clear_reusable_blocks()
    else:
        for text in PROMPTS[1:6]:
            assert again.run(text) == 0
        num_made = 5 * 4
    assert again.manager.probe_reuse(None, PROMPTS[0]) == 0
    usage = again.manager.get_statistics()
    assert usage.count_drops(DropReason.FAILURE) == num_failed
    assert sum([drop.blocks for drop in usage.drops]) == num_held + num_made - count_pages(again)
    again.end()


def count_pages(process: Process) -> int:
    (blocks,) = [scope["blocks"] for scope in process.manager.describe()["tree"]] or [[]]
    return sum([1 for block in blocks for page in block["pages"] if page is not None])


@pytest.mark.parametrize("how", ["resized", "suspended", "forked", "arrived"])
def test_what_a_call_waits_for_is_counted_by_that_call(tmp_path: object, how: str) -> None:
    again, files = serve_and_reopen(tmp_path)
    manager = again.manager
    files.is_broken = how in ("resized", "suspended")
    kv_cache = manager.create_kv_cache(None, PROMPTS[0])
    assert kv_cache.resume(None, False)
    assert manager.get_statistics().requests == 0
    if how == "resized":
        with pytest.raises(LoadFailed):
            kv_cache.resize(NUM_TOKENS + 1)
    elif how == "suspended":
        kv_cache.suspend()
        with pytest.raises(LoadFailed):
            kv_cache.resume()
    elif how == "forked":
        kv_cache.fork().close()
    else:
        while not kv_cache.ready:
            pass
    usage = manager.get_statistics()
    assert usage.count_drops(DropReason.FAILURE) == (4 if files.is_broken else 0)
    assert usage.requests == 0
    if not files.is_broken:
        assert kv_cache.resize(NUM_TOKENS) and manager.get_statistics().requests == 1
    kv_cache.close()
    again.end()


def test_hits_of_a_sequence_that_ran_stay(tmp_path: object) -> None:
    """They were used; what it loses while it is suspended is computed again, and is no prompt."""
    disk = LossyDisk()
    config = durable_config(str(tmp_path), gpu_slots=6)
    first = Process(config, Files(disk))
    first.run(PROMPTS[0])
    first.end()
    files = Files(disk)
    again = Process(config, files)
    kv_cache = again.manager.create_kv_cache(None, PROMPTS[0])
    bring(kv_cache, True)
    assert kv_cache.resize(NUM_TOKENS)
    kv_cache.suspend()
    assert again.run(PROMPTS[1]) == 0
    files.is_broken = True
    with pytest.raises(LoadFailed) as failure:
        bring(kv_cache, True)
    assert kv_cache.rewind(failure.value.first_bad_token) < NUM_TOKENS
    bring(kv_cache, True)
    compute_rest(again, kv_cache, PROMPTS[0])
    kv_cache.close()
    for prompts in (kv_cache.statistics.prompts, again.manager.get_statistics().prompts):
        assert prompts.hit_tokens == (0, NUM_TOKENS) and MissCause.LOAD_FAILED not in prompts.missed_tokens
    assert kv_cache.statistics.requests == 1 and kv_cache.statistics.resumes == 2
    again.end()


def test_what_another_sequence_has_repaired_is_a_hit(tmp_path: object) -> None:
    again, files = serve_and_reopen(tmp_path)
    files.is_broken = True
    kv_cache = again.manager.create_kv_cache(None, PROMPTS[0])
    with pytest.raises(LoadFailed):
        bring(kv_cache, False)
    other = again.manager.create_kv_cache()
    assert other.resume()
    compute_rest(again, other, PROMPTS[0])
    assert kv_cache.ready and kv_cache.resize(NUM_TOKENS)
    other.close()
    kv_cache.close()
    usage = again.manager.get_statistics()
    assert usage.prompts.hit_tokens == (0, NUM_TOKENS) and usage.prompts.missed_tokens == {}
    assert usage.count_drops(DropReason.FAILURE) == 4, "the disk could not read them, whatever they are now"
    again.end()


# -- rewind, without any failure -----------------------------------------------------------------------------------------


def figures_of(kv_cache: KVCache) -> Any:
    usage = kv_cache.statistics
    return usage.prompts, usage.layer_groups


def blocks_of(kv_cache: KVCache) -> tuple[int, int, int]:
    (group,) = kv_cache.statistics.layer_groups
    return group.reused_full, group.missed, group.generated


@pytest.mark.parametrize("kept", [0, 5, 8, 16])
def test_a_prompt_keeps_the_figures_of_its_first_resume(kept: int) -> None:
    text = list(range(67))
    with manager_of() as manager:
        run_prompt(manager, text[:48]).close()
        before = manager.get_statistics()
        kv_cache = run_prompt(manager, text)
        figures = figures_of(kv_cache)
        assert sum(figures[0].hit_tokens) == 48 and figures[0].missed_tokens == {MissCause.NOT_REMEMBERED: 19}
        kv_cache.suspend()
        assert kv_cache.rewind(kept) == kept
        assert figures_of(kv_cache) == figures, "at once"
        assert kv_cache.resume() and kv_cache.resize(67)
        kv_cache.commit(text[kept:])
        own = kv_cache.statistics
        assert own.prompts == figures[0] and own.missed == figures[1][0].missed
        assert (own.requests, own.resumes, own.suspends) == (1, 2, 1)
        usage = manager.get_statistics()
        assert usage.requests - before.requests == 1 and usage.resumes - before.resumes == 2 and usage.suspends == 1
        assert usage.prompts.tokens - before.prompts.tokens == 67


def test_rewound_before_it_ever_ran_and_never_run() -> None:
    text = list(range(16))
    with manager_of() as manager:
        run_prompt(manager, text).close()
        before = manager.get_statistics()
        kv_cache = manager.create_kv_cache(input_tokens=text)
        kv_cache.rewind(4)
        kv_cache.close()
        assert manager.get_statistics() == before
        kv_cache = manager.create_kv_cache(input_tokens=text)
        kv_cache.rewind(4)
        assert kv_cache.resume() and kv_cache.resize(17)
        assert blocks_of(kv_cache) == (4, 0, 1), "the fifth is new, the others were found"
        usage = manager.get_statistics()
        assert usage.requests - before.requests == 1
        assert sum(usage.prompts.hit_tokens) - sum(before.prompts.hit_tokens) == 16


@pytest.mark.parametrize("runs", [True, False])
def test_a_rewound_prompt_is_one_lookup_of_its_blocks(runs: bool) -> None:
    """A rewind asks for no block once more."""
    with manager_of(block_times_sampling=1) as manager:
        times = manager.record_block_times(Clock())
        assert times is not None
        run_prompt(manager, list(range(16))).close()
        kv_cache = manager.create_kv_cache(input_tokens=list(range(16)))
        if runs:
            assert kv_cache.resume() and kv_cache.resize(16)
        kv_cache.rewind(8)
        assert kv_cache.resume() and kv_cache.resize(16)
        kv_cache.close()
        # The second prompt found four blocks, or the two that it had when it ran.
        assert sum(times.reuse_gaps.counts) == (4 if runs else 2)


def test_a_fork_that_is_rewound_is_no_request() -> None:
    with manager_of() as manager:
        kv_cache = run_prompt(manager, list(range(16)))
        fork = kv_cache.fork()
        fork.rewind(8)
        assert fork.resume()
        assert fork.statistics.requests == 0 and fork.statistics.prompts.tokens == 0
        assert manager.get_statistics().requests == 1 and manager.get_statistics().prompts.tokens == 16
