"""With ``allow_seq_rebasing=False`` no commit, stop or resize changes a valid index of an active sequence; what is reused stays the same.

An engine whose workers only append block ids runs on it unchanged: `take_changed_blocks` names new blocks only.
"""

import random
from pathlib import Path
from typing import Any

import pytest
from small_models import config_of, manager_of, run_prompt, used_slots
from tiered_models import tiered_config

from kv_cache_manager_v2 import BAD_PAGE_INDEX, HostDevice, KVCacheManager
from kv_cache_manager_v2.replay.rerun import rerun
from kv_cache_manager_v2.testing import FakeEngine, SimulatedDevice, Step

PROMPT = list(range(100, 112))
"""Three blocks of 4 tokens."""


def indices(kv_cache: Any, group: int = 0) -> list[int]:
    found: list[int] = kv_cache.get_base_page_indices(group).tolist()
    return found


def side_by_side(manager: KVCacheManager, count: int, tokens: list[int] = PROMPT) -> list[Any]:
    """Sequences with pages for the same prompt, none of it committed."""
    found = []
    for _number in range(count):
        kv_cache = manager.create_kv_cache(input_tokens=tokens)
        assert kv_cache.num_committed_tokens == 0 and kv_cache.resume() and kv_cache.resize(len(tokens))
        found.append(kv_cache)
    return found


def close_all(kv_caches: list[Any]) -> None:
    for kv_cache in kv_caches:
        kv_cache.close()


@pytest.mark.parametrize("stays", [True, False])
def test_a_commit_of_published_blocks_keeps_the_indices(stays: bool) -> None:
    """Both have three pages in slots of their own. By default the second takes those of the first over."""
    with manager_of(allow_seq_rebasing=not stays) as manager:
        assert manager.allow_seq_rebasing is not stays
        first, second = side_by_side(manager, 2)
        before = indices(second)
        assert second.take_changed_blocks(0)
        first.commit(PROMPT)
        second.commit(PROMPT)
        assert (second.take_changed_blocks(0) == []) is stays
        assert indices(second) == (before if stays else indices(first))
        assert used_slots(manager) == (6 if stays else 3)
        assert second.resize(16)
        assert [(changed.beg, changed.end) for changed in second.take_changed_blocks(0)] == [(3, 4)] if stays else True
        manager.check_invariants()
        close_all([first, second])
        manager.check_invariants()
        assert used_slots(manager) == 3


def test_what_no_active_sequence_uses_is_replaced_in_place() -> None:
    """The first is suspended: its pages give way to equal ones, which keep their slots. Nothing is stored twice."""
    with manager_of(allow_seq_rebasing=False) as manager:
        first, second = side_by_side(manager, 2)
        first.commit(PROMPT)
        first.suspend()
        before = indices(second)
        second.commit(PROMPT)
        assert indices(second) == before and used_slots(manager) == 3
        assert first.resume() and indices(first) == before
        manager.check_invariants()
        close_all([first, second])


def test_the_oldest_twin_becomes_the_published_page() -> None:
    """Of four equal sequences the second's pages serve once the first has ended, and the third's once the second has."""
    with manager_of(allow_seq_rebasing=False) as manager:
        kv_caches = side_by_side(manager, 4)
        kept = [indices(kv_cache) for kv_cache in kv_caches]
        for kv_cache in kv_caches:
            kv_cache.commit(PROMPT)
        assert used_slots(manager) == 12
        for ended in range(3):
            kv_caches[ended].close()
            manager.check_invariants()
            assert used_slots(manager) == 12 - 3 * (ended + 1)
            assert [indices(kv_cache) for kv_cache in kv_caches[ended + 1 :]] == kept[ended + 1 :]
            with manager.create_kv_cache(input_tokens=PROMPT) as reader:
                assert reader.num_committed_tokens == 12 and reader.resume()
                assert indices(reader) == kept[ended + 1]
        kv_caches[3].close()


def test_published_pages_that_others_lock_are_not_evicted_and_descendants_stay_reachable() -> None:
    """The second sequence publishes below blocks of the first. With 8 slots: 2 shared blocks twice, then 2 blocks of the second alone."""
    with manager_of(num_slots=8, allow_seq_rebasing=False) as manager:
        first, second = side_by_side(manager, 2, PROMPT[:8])
        first.commit(PROMPT[:8])
        second.commit(PROMPT[:8])
        assert second.resize(16)
        second.commit([1, 2, 3, 4, 5, 6, 7, 8])
        before = indices(second)
        first.close()
        assert used_slots(manager) == 4 and indices(second) == before
        other = manager.create_kv_cache(input_tokens=[9])
        assert other.resume() and other.resize(16)
        manager.check_invariants()
        assert manager.probe_reuse(input_tokens=[*PROMPT[:8], 1, 2, 3, 4, 5, 6, 7, 8]) == 16
        close_all([second, other])


def test_missing_pages_are_attached_in_place() -> None:
    """Window 8: the first's decode drops the pages of its first blocks, and six slots leave no room for them. The second brings them."""
    with manager_of(windows=(8,), num_slots=6, allow_seq_rebasing=False) as manager:
        first = run_prompt(manager, list(range(16)))
        second = manager.create_kv_cache(input_tokens=[*range(4), 50])
        assert second.num_committed_tokens in (0, 4)
        second.close()
        third = manager.create_kv_cache()
        assert third.resume() and third.resize(12)
        before = indices(third)
        third.commit(list(range(12)))
        assert all(now in (was, BAD_PAGE_INDEX) for now, was in zip(indices(third), before))
        manager.check_invariants()
        close_all([first, third])


def test_stop_committing_leaves_the_last_block_to_close() -> None:
    """By default it is published at once, and the next resize copies it."""
    for stays in (False, True):
        with manager_of(allow_seq_rebasing=not stays) as manager:
            kv_cache = run_prompt(manager, PROMPT[:6])
            kv_cache.take_changed_blocks(0)
            kv_cache.stop_committing()
            assert manager.probe_reuse(input_tokens=PROMPT[:6]) == (4 if stays else 6)
            assert kv_cache.resize(7)
            assert (kv_cache.take_changed_blocks(0) == []) is stays
            manager.check_invariants()
            kv_cache.close()
            assert manager.probe_reuse(input_tokens=PROMPT[:6]) == 6
            manager.check_invariants()


def test_suspension_gives_twins_up_and_resume_finds_the_published_pages() -> None:
    with manager_of(allow_seq_rebasing=False) as manager:
        first, second = side_by_side(manager, 2)
        first.commit(PROMPT)
        second.commit(PROMPT)
        second.suspend()
        assert used_slots(manager) == 3
        assert second.resume() and indices(second) == indices(first)
        assert [(changed.beg, changed.end) for changed in second.take_changed_blocks(0)] == [(0, 3)]
        manager.check_invariants()
        close_all([first, second])


def test_forks_share_twins_and_the_last_one_frees_them() -> None:
    with manager_of(allow_seq_rebasing=False) as manager:
        first, second = side_by_side(manager, 2)
        first.commit(PROMPT)
        second.commit(PROMPT)
        before = indices(second)
        child = second.fork()
        assert indices(child) == indices(second) == before and used_slots(manager) == 6
        assert child.resize(13) and indices(child)[:3] == before
        second.close()
        manager.check_invariants()
        assert indices(child)[:3] == before and used_slots(manager) == 7
        child.suspend()
        assert used_slots(manager) == 4
        close_all([child, first])


def test_forks_of_uncommitted_blocks_keep_their_indices_too() -> None:
    """The fork shares blocks that its parent then commits, and that another sequence has published."""
    with manager_of(allow_seq_rebasing=False) as manager:
        first, second = side_by_side(manager, 2)
        child = second.fork()
        before = indices(second)
        first.commit(PROMPT)
        second.commit(PROMPT)
        manager.check_invariants()
        assert indices(second) == indices(child) == before
        child.commit(PROMPT)
        manager.check_invariants()
        assert indices(child) == before
        first.close()
        manager.check_invariants()
        assert indices(second) == indices(child) == before and used_slots(manager) == 3
        close_all([second, child])


@pytest.mark.parametrize("leases_first", [True, False])
@pytest.mark.parametrize("first_to_go", ["publisher", "keeper"])
def test_leased_twins_stay_in_their_slots(leases_first: bool, first_to_go: str) -> None:
    with manager_of(allow_seq_rebasing=False) as manager:
        first, second = side_by_side(manager, 2)
        before = indices(second)
        lease = second.reserve_transfer() if leases_first else None
        first.commit(PROMPT)
        second.commit(PROMPT)
        if lease is None:
            lease = second.reserve_transfer()
        assert indices(second) == before
        manager.check_invariants()
        for kv_cache in (first, second) if first_to_go == "publisher" else (second, first):
            kv_cache.close()
            manager.check_invariants()
        again = run_prompt(manager, PROMPT)
        manager.check_invariants()
        again.close()
        lease.settle()
        manager.check_invariants()
        manager.clear_reusable_blocks()
        assert used_slots(manager) == 0


def test_beams_take_published_pages_over() -> None:
    """Beams are listed among what still moves: all beams share each committed block, which is stored once."""
    with manager_of(allow_seq_rebasing=False) as manager:
        first, second = side_by_side(manager, 2)
        first.commit(PROMPT)
        second.commit(PROMPT)
        second.beam_width = 3
        manager.check_invariants()
        assert second.resize(16)
        second.commit([1, 2, 3, 4])
        second.reorder_beams([2, 0, 0])
        manager.check_invariants()
        second.beam_width = 1
        close_all([first, second])
        manager.check_invariants()


def test_pages_on_colder_levels_come_up_in_place() -> None:
    """The published pages are on the host: the committing sequence's own pages on level 0 take their place."""
    config = tiered_config(6, [("host", 12)], allow_seq_rebasing=False)
    with KVCacheManager(config, device=HostDevice()) as manager:
        first, second = side_by_side(manager, 2)
        first.commit(PROMPT)
        first.close()
        other = manager.create_kv_cache(input_tokens=[7])
        assert other.resume() and other.resize(12)  # evicts the three pages of the first
        assert manager.get_storage_statistics(1)[0].free == 9
        before = indices(second)
        second.commit(PROMPT)
        assert indices(second) == before and manager.get_storage_statistics(1)[0].free == 12
        manager.check_invariants()
        close_all([second, other])


def test_journals_repeat_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    with KVCacheManager(config_of(allow_seq_rebasing=False), device=HostDevice(), journal=path) as manager:
        first, second = side_by_side(manager, 2)
        first.commit(PROMPT)
        second.commit(PROMPT)
        second.stop_committing()
        first.close()
        second.close()
        digest = manager.state_digest()
    result = rerun(path, HostDevice(), check_invariants=True)
    assert result.digest == digest


class AppendingEngine:
    """An engine whose workers get page indices once: it asks for changes after each call, and takes new blocks only."""

    def __init__(self, manager: KVCacheManager, kv_cache: Any, num_groups: int) -> None:
        self.kv_cache = kv_cache
        self.num_groups = num_groups
        self.told: list[list[int]] = [[] for _ in range(num_groups)]

    def start(self) -> None:
        for group in range(self.num_groups):
            self.kv_cache.take_changed_blocks(group)
            self.told[group] = indices(self.kv_cache, group)

    def look(self) -> None:
        for group in range(self.num_groups):
            now = indices(self.kv_cache, group)
            for changed in self.kv_cache.take_changed_blocks(group):
                for ordinal in range(changed.beg, changed.end):
                    # New, or it has left its window.
                    assert ordinal >= len(self.told[group]) or now[ordinal] == BAD_PAGE_INDEX, (group, ordinal)
            self.told[group] = now


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_elsewhere_workers_that_only_append_are_right(seed: int) -> None:
    """Up to six sequences of three prompts, on three streams, with windows and a host level; every byte that a layer reads is checked."""
    rng = random.Random(seed)
    windows: list[int | None] = [None, 8, 5][: 1 + seed % 3]
    lower = [("host", 12)] if seed % 2 else []
    config = tiered_config(10 * len(windows) + 2 * (seed % 4), lower, windows=windows, allow_seq_rebasing=False)
    device = SimulatedDevice(seed)
    manager = KVCacheManager(config, device=device)
    engine = FakeEngine(config, device)
    streams = [device.default_stream(), device.create_stream(), device.create_stream()]
    running: list[tuple[AppendingEngine, list[int], list[int]]] = []
    num_kept = 0
    for turn in range(100):
        while len(running) < 6 and rng.random() < 0.5:
            number = 3 * (turn // 15) + rng.randrange(3)  # new ones again and again
            prompt = [1000 * number + position for position in range(18)]
            kv_cache = manager.create_kv_cache(input_tokens=prompt)
            if kv_cache.resume(rng.choice(streams)):
                worker = AppendingEngine(manager, kv_cache, len(windows))
                worker.start()
                running.append((worker, list(prompt[: kv_cache.num_committed_tokens]), list(prompt)))
            else:
                kv_cache.close()
        for worker, text, prompt in rng.sample(running, len(running)):
            kv_cache = worker.kv_cache
            count = rng.choice((1, 2, 4, 7))
            inputs = (prompt[len(text) :] + [rng.randrange(2) for _ in range(count)])[:count]
            if not kv_cache.resize(len(text) + len(inputs), len(text)):
                continue
            worker.look()
            engine.execute([Step(kv_cache, inputs, list(text))])
            text.extend(inputs)
            kind = rng.random()
            if kind < 0.8 and kv_cache.num_committed_tokens < len(text):
                try_commit(kv_cache, text, rng)
                worker.look()
            num_kept += sum(len(groups) for one in manager.describe()["sequences"] for groups in one.get("twins", []))
        manager.check_invariants()
        for entry in list(running):
            kind = rng.random()
            if kind < 0.12 or len(entry[1]) > 40:
                entry[0].kv_cache.close()
                running.remove(entry)
            elif kind < 0.2:
                entry[0].kv_cache.suspend()
                if entry[0].kv_cache.resume():
                    entry[0].start()
                else:
                    entry[0].kv_cache.close()
                    running.remove(entry)
            elif kind < 0.25:
                entry[0].kv_cache.stop_committing()
                entry[0].look()
            manager.check_invariants()
    assert num_kept > 0
    close_all([entry[0].kv_cache for entry in running])
    engine.synchronize()
    assert not device.races
    manager.check_invariants()
    manager.clear_reusable_blocks()
    assert used_slots(manager) == 0
    engine.close()
    manager.shutdown()


def try_commit(kv_cache: Any, text: list[int], rng: random.Random) -> None:
    """Some of what is computed; nothing after `stop_committing`."""
    begin = kv_cache.num_committed_tokens
    end = rng.randint(begin, len(text))
    try:
        kv_cache.commit(text[begin:end])
    except Exception as error:
        assert "stop_committing" in str(error)
