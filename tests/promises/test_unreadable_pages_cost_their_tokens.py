"""A page that cannot be read, or is not what was written, costs its tokens and not the sequence: `rewind`, and compute them again."""

import array
import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from durable_models import SLOT_BYTES, TOKENS_PER_BLOCK, Process, durable_config, next_process
from hybrid_models import hybrid_config
from lossy_files import LossyDisk, LossyFiles
from small_models import manager_of, new_manager
from unit.device.fake_files import FakeFiles

from kv_cache_manager_v2 import (
    BatchPageTable,
    DiskCacheTierConfig,
    GpuCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    LoadFailed,
    StorageIOError,
    StridedPages,
    SwaScratchReuseConfig,
)
from kv_cache_manager_v2.testing import FakeEngine, Step
from kv_cache_manager_v2.testing.journal_rerun import rerun

TEXT = list(range(100, 126))
NUM_BLOCKS = len(TEXT) // TOKENS_PER_BLOCK
SIZE = TOKENS_PER_BLOCK


def damage(disk: LossyDisk, process: Process, text: list[int], ordinal: int, group: int = 0) -> None:
    """A byte of the page of that block of the text is another one."""
    blocks = process.manager.describe()["tree"][0]["blocks"]
    (found,) = [block for block in blocks if block["tokens"] == text[ordinal * SIZE : (ordinal + 1) * SIZE]]
    (data,) = disk.paths("/data-")
    disk.files[data].content[found["pages"][group]["slot"] * SLOT_BYTES + 3] ^= 1


def resume_to_the_end(process: Process, kv_cache: KVCache, waits: bool) -> list[int]:
    """Resume, with a rewind for each failure; returns the tokens that were kept, each time."""
    kept: list[int] = []
    while True:
        try:
            assert kv_cache.resume(None, waits), process.manager.last_refusal
            while not kv_cache.ready:
                pass
            return kept
        except LoadFailed as error:
            assert kv_cache.rewind(error.first_bad_token) == error.first_bad_token
            kept.append(error.first_bad_token)
            process.manager.check_invariants()
            assert kv_cache.status.name == "SUSPENDED" and kv_cache.committed_tokens == TEXT[: kept[-1]]
            assert kv_cache.history_length == kv_cache.capacity == kept[-1]


def compute_rest(process: Process, kv_cache: KVCache) -> None:
    begin = kv_cache.num_committed_tokens
    assert kv_cache.resize(len(TEXT), begin)
    process.engine.execute([Step(kv_cache, TEXT[begin:], TEXT[:begin])])
    kv_cache.commit(TEXT[begin:])


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "not waiting"])
@pytest.mark.parametrize("ordinal", range(NUM_BLOCKS))
def test_a_damaged_page_costs_what_is_behind_it(tmp_path: object, ordinal: int, waits: bool) -> None:
    disk = LossyDisk()
    config = durable_config(str(tmp_path))
    first, _files = next_process(disk, config)
    first.run(TEXT)
    first.end()
    again, _files = next_process(disk, config)
    damage(disk, again, TEXT, ordinal)
    kv_cache = again.manager.create_kv_cache(None, TEXT)
    assert kv_cache.num_committed_tokens == len(TEXT)
    assert resume_to_the_end(again, kv_cache, waits) == [ordinal * SIZE]
    compute_rest(again, kv_cache)
    kv_cache.close()
    assert again.run(TEXT + [7]) == len(TEXT), "what was computed again is found again, and its bytes are right"
    again.end()


def test_several_damaged_pages_cost_one_rewind(tmp_path: object) -> None:
    disk = LossyDisk()
    config = durable_config(str(tmp_path))
    first, _files = next_process(disk, config)
    first.run(TEXT)
    first.end()
    again, _files = next_process(disk, config)
    for ordinal in (4, 2, 5):
        damage(disk, again, TEXT, ordinal)
    kv_cache = again.manager.create_kv_cache(None, TEXT)
    assert resume_to_the_end(again, kv_cache, True) == [2 * SIZE]
    compute_rest(again, kv_cache)
    kv_cache.close()
    again.end()


@pytest.mark.parametrize("ordinal", range(NUM_BLOCKS))
def test_a_window_needs_what_is_in_front_of_it(tmp_path: object, ordinal: int) -> None:
    """A lost page of a window's layer group: no shorter prefix has its window, but for what the tree still has of it."""
    disk = LossyDisk()
    config = durable_config(str(tmp_path), gpu_slots=40, disk_slots=160, windows=(None, 2 * SIZE))
    first, _files = next_process(disk, config)
    first.run(TEXT)
    first.end()
    again, _files = next_process(disk, config)
    begin = (len(TEXT) + 1 - 2 * SIZE) // SIZE
    in_window = ordinal >= begin
    if in_window:
        damage(disk, again, TEXT, ordinal, 1)
    kv_cache = again.manager.create_kv_cache(None, TEXT)
    assert kv_cache.num_committed_tokens == len(TEXT)
    kept = resume_to_the_end(again, kv_cache, False)
    assert len(kept) == (1 if in_window else 0) and all(number <= ordinal * SIZE for number in kept)
    compute_rest(again, kv_cache)
    kv_cache.close()
    assert again.run(TEXT + [7]) == len(TEXT)
    again.end()


def test_a_failed_read_loses_the_pages_that_it_was_for(tmp_path: object) -> None:
    """Six pages are read by one call, side by side on the disk; the system refuses one of them."""
    files = FakeFiles()
    tiers: list[Any] = [GpuCacheTierConfig(8 * SLOT_BYTES), DiskCacheTierConfig(64 * SLOT_BYTES, str(tmp_path))]
    base = durable_config(str(tmp_path))
    config = type(base)(SIZE, tiers, base.layers, max_util_for_resume=1.0)
    device = HostDevice(files=files)
    with KVCacheManager(config, device=device) as manager, FakeEngine(config, device) as engine:
        bad = 3 * SLOT_BYTES

        def answer(is_write: bool, offset: int, num_bytes: int) -> int:
            if not is_write and offset <= bad < offset + num_bytes:
                raise OSError(errno.EIO, "broken")
            return num_bytes

        def fill(text: list[int]) -> None:
            with manager.create_kv_cache(None, text) as kv_cache:
                assert kv_cache.resume() and kv_cache.resize(len(text), kv_cache.num_committed_tokens)
                begin = kv_cache.num_committed_tokens
                engine.execute([Step(kv_cache, text[begin:], text[:begin])])
                kv_cache.commit(text[begin:])

        text = TEXT[: 6 * SIZE]
        fill(text)
        fill([9000 + position for position in range(8 * SIZE)])
        blocks = [block for block in manager.describe()["tree"][0]["blocks"] if block["tokens"][0] < 9000]
        slots = [block["pages"][0]["slot"] for block in blocks]
        assert [block["pages"][0]["level"] for block in blocks] == [1] * 6 and bad // SLOT_BYTES in slots
        lost = slots.index(bad // SLOT_BYTES)
        files.answer = answer
        for waits in (True, False):
            kv_cache = manager.create_kv_cache(None, text)
            with pytest.raises(LoadFailed) as failure:
                assert kv_cache.resume(None, waits)
                while not kv_cache.ready:
                    pass
            assert failure.value.first_bad_token == lost * SIZE
            assert kv_cache.rewind(failure.value.first_bad_token) == lost * SIZE
            manager.check_invariants()
            assert kv_cache.resume()
            engine.execute([Step(kv_cache, [], text[: lost * SIZE])])
            kv_cache.close()
        try:
            engine.synchronize()
        except StorageIOError:
            pass  # of a read that no call has waited for
        left = [block["tokens"] for block in manager.describe()["tree"][0]["blocks"] if block["tokens"][0] < 9000]
        assert left == [text[ordinal * SIZE : (ordinal + 1) * SIZE] for ordinal in range(lost)]


# -- rewind, without any failure -----------------------------------------------------------------------------------------


def prefill(manager: KVCacheManager, text: list[int], **arguments: Any) -> KVCache:
    kv_cache = manager.create_kv_cache(None, text, **arguments)
    assert kv_cache.resume() and kv_cache.resize(len(text))
    kv_cache.commit(text[kv_cache.num_committed_tokens :])
    return kv_cache


def make_hybrid() -> KVCacheManager:
    return KVCacheManager(hybrid_config((None, 8)), device=HostDevice())


@pytest.mark.parametrize(
    "make", [lambda: new_manager((None,)), lambda: new_manager((None, 8)), lambda: new_manager((6,)), make_hybrid], ids=range(4)
)
def test_it_is_as_if_made_anew(make: Callable[[], KVCacheManager]) -> None:
    for count in range(len(TEXT) + 1):
        with make() as manager, make() as other:
            kv_cache = prefill(manager, TEXT)
            prefill(other, TEXT).close()
            anew = other.create_kv_cache(None, TEXT[:count])
            if count % 2 == 0:
                kv_cache.suspend()
            assert kv_cache.rewind(count) == anew.num_committed_tokens
            manager.check_invariants()
            assert kv_cache.committed_tokens == anew.committed_tokens and kv_cache.match_info == anew.match_info
            assert kv_cache.resume() and anew.resume()
            for group in range(len(manager.layer_grouping)):
                assert list(kv_cache.get_base_page_indices(group)) == list(anew.get_base_page_indices(group))
            assert kv_cache.resize(len(TEXT)) and anew.resize(len(TEXT))
            kv_cache.commit(TEXT[kv_cache.num_committed_tokens :])
            assert kv_cache.committed_tokens == TEXT
            manager.check_invariants()
            kv_cache.close()
            anew.close()


def scratch_model() -> KVCacheManager:
    return new_manager((8,), num_slots=40, swa_scratch_reuse=SwaScratchReuseConfig())


def scratch_that_stays() -> KVCacheManager:
    return new_manager((8,), num_slots=40, swa_scratch_reuse=SwaScratchReuseConfig(), allow_seq_rebasing=False)


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("suspends", [False, True])
@pytest.mark.parametrize("make", [lambda: new_manager((None, 8)), make_hybrid, scratch_model, scratch_that_stays], ids=range(4))
def test_nothing_of_an_unfinished_step_stays(make: Callable[[], KVCacheManager], suspends: bool, stops: bool) -> None:
    """Rewound in the middle of a prompt, with scratch blocks and a partial block: all that is described is as of one made anew."""
    for count in range(11):
        with make() as manager, make() as other:
            kv_cache = manager.create_kv_cache(None, TEXT)
            assert kv_cache.resume() and kv_cache.resize(10)
            kv_cache.commit(TEXT[:10])
            assert kv_cache.resize(len(TEXT))
            if stops:
                kv_cache.stop_committing()
            if suspends:
                kv_cache.suspend()
            kv_cache.rewind(count)
            prefill(other, TEXT[:10]).close()
            anew = other.create_kv_cache(None, TEXT[:count])
            kept = kv_cache.num_committed_tokens
            assert kept == anew.num_committed_tokens
            (described,) = manager.describe()["sequences"]
            (expected,) = other.describe()["sequences"]
            for name in described.keys() - {"id", "stream", "page_slots", "state_slots"}:
                assert described[name] == expected[name], name
            assert kv_cache.resume() and anew.resume()
            for group in range(len(manager.layer_grouping)):
                if manager.life_cycle_of_group(group).has_page_per_block:
                    assert kv_cache.get_scratch_desc(group) == anew.get_scratch_desc(group)
            manager.check_invariants()
            used, expected_use = [
                [counts.total - counts.free - counts.evictable for counts in one.get_storage_statistics(0)] for one in (manager, other)
            ]
            assert used == expected_use
            kv_cache.close()
            anew.close()


def test_what_the_caller_has_set_stays() -> None:
    """Page index buffers, rows of a batch table, the stream, the id, the tokens for `commit_input`."""
    with manager_of((None,)) as manager:
        kv_cache = manager.create_kv_cache(None, TEXT, id=77)
        table = BatchPageTable(manager, 4, 16)
        blocks = table.add_block_table(StridedPages(0))
        table.add(kv_cache)
        buffer = array.array("i", [5] * 16)
        kv_cache.set_base_page_index_buf(0, 0, buffer)
        assert kv_cache.resume() and kv_cache.resize(len(TEXT))
        kv_cache.commit_input(3 * SIZE)
        table.update()
        assert kv_cache.rewind(2 * SIZE + 1) == 2 * SIZE + 1
        assert kv_cache.id == 77 and list(buffer) == [-1] * 16
        assert kv_cache.resume() and kv_cache.resize(4 * SIZE)
        kv_cache.commit_input(SIZE)
        assert kv_cache.committed_tokens == TEXT[: 3 * SIZE + 1]
        table.update()
        assert table.row_of(kv_cache) == 0 and blocks is not None
        assert list(buffer)[:4] == list(kv_cache.get_base_page_indices(0)) and list(buffer)[4:] == [-1] * 12
        table.remove(kv_cache)


def test_beams_end_and_forks_stay() -> None:
    with manager_of((None,)) as manager:
        kv_cache = prefill(manager, TEXT)
        fork = kv_cache.fork()
        kv_cache.beam_width = 3
        assert kv_cache.rewind(SIZE) == SIZE
        assert kv_cache.beam_width == 1 and fork.committed_tokens == TEXT
        manager.check_invariants()


def test_wrong_numbers_change_nothing() -> None:
    with manager_of((None,)) as manager:
        kv_cache = prefill(manager, TEXT)
        digest = manager.state_digest()
        for wrong in (-1, len(TEXT) + 1):
            with pytest.raises(ValueError, match="num_tokens"):
                kv_cache.rewind(wrong)
        assert kv_cache.is_active and kv_cache.committed_tokens == TEXT and manager.state_digest() == digest
        kv_cache.close()
        with pytest.raises(RuntimeError, match="close"):
            kv_cache.rewind(0)


def test_journals_have_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    device = HostDevice()
    with KVCacheManager(new_manager((None, 8)).init_config, device=device, journal=path) as manager:
        kv_cache = prefill(manager, TEXT)
        assert kv_cache.rewind(13) == 13
        assert kv_cache.resume() and kv_cache.resize(len(TEXT))
        kv_cache.commit(TEXT[13:])
        kv_cache.close()
    assert rerun(path, HostDevice(), True).num_digests == 1


def test_other_errors_are_as_before(tmp_path: object) -> None:
    """A `LoadFailed` is a `StorageIOError`: who closed the sequence then may go on doing that."""
    disk = LossyDisk()
    first, _files = next_process(disk, durable_config(str(tmp_path)))
    first.run(TEXT)
    first.end()
    again, files = next_process(disk, durable_config(str(tmp_path)))
    assert isinstance(files, LossyFiles)
    damage(disk, again, TEXT, 0)
    assert again.run(TEXT) == -1 and again.run(TEXT) == 0
    again.end()
