"""Where workers own the memory, lists of copies move their pages: executed in order, however late, every token is where a step reads it."""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from small_models import attention_layers

from kv_cache_manager_v2 import (
    CacheTier,
    CopyListError,
    CopyWorker,
    DecodeBatch,
    ExternalCacheTierConfig,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LogicError,
)
from kv_cache_manager_v2.replay.cli import main

BLOCK = 4
NUM_WORKERS = 2
LATE = 3
"""Steps that a worker is behind the scheduler."""


def listing_config(num_slots: int = 8, num_below: int = 12, **settings: Any) -> KVCacheManagerConfig:
    tiers = [ExternalCacheTierConfig([num_slots], copy_workers=NUM_WORKERS), ExternalCacheTierConfig([num_below], tier=CacheTier.HOST_MEM)]
    return KVCacheManagerConfig(BLOCK, tiers, attention_layers([None], BLOCK), **settings)


class Worker(CopyWorker):
    """One number a token, in numpy arrays."""

    def __init__(self, manager: KVCacheManager) -> None:
        super().__init__(manager.copy_layout)
        self.memory = [[np.full((count, BLOCK), -1) for count in counts] for counts in manager.copy_layout]

    def copy(self, from_level: int, from_slot: int, to_level: int, to_slot: int, pool_group: int) -> None:
        self.memory[to_level][pool_group][to_slot] = self.memory[from_level][pool_group][from_slot]

    def run(self, step: Any) -> None:
        number, copies, table, tokens, begin = step
        self.execute(number, copies)
        pages = self.memory[0][0]
        for position in range(begin, len(tokens)):
            pages[table[position // BLOCK], position % BLOCK] = tokens[position]
        found = [int(pages[table[position // BLOCK], position % BLOCK]) for position in range(len(tokens))]
        assert found == tokens, f"step {number}"


Spoil = Callable[[int, Any], Any]


def serve(manager: KVCacheManager, seed: int, spoil: Spoil | None = None) -> int:
    """Random steps of a few sequences that share beginnings; how many copies were listed. ``spoil``: changes a list that workers get."""
    random = Random(seed)
    workers = [Worker(manager) for _ in range(NUM_WORKERS)]
    queue: deque[Any] = deque()
    open_ones: list[tuple[KVCache, list[int]]] = []
    texts = [[first] * 3 + [random.randrange(1000) for _ in range(21)] for first in (1, 2, 3)]
    number = num_copies = 0

    def work() -> None:
        step = queue.popleft()
        for index, worker in enumerate(workers):
            worker.run(step)
            manager.report_copies(step[0], index, worker.layout)

    for _ in range(120):
        for kv_cache, _tokens in list(open_ones):
            if random.random() < 0.15 or len(_tokens) > 26:
                kv_cache.close()
                open_ones.remove((kv_cache, _tokens))
            elif kv_cache.is_active and random.random() < 0.3:
                kv_cache.suspend()
        if len(open_ones) < 3:
            text = random.choice(texts)
            tokens = text[: random.randrange(2, len(text))] + [random.randrange(1000)]
            open_ones.append((manager.create_kv_cache(input_tokens=tokens[:-1]), tokens))
        if len(open_ones) == 1 and random.random() < 0.5:
            parent, tokens = open_ones[0]
            if parent.is_active and (child := parent.fork()) is not None:
                open_ones.append((child, [*tokens]))
        kv_cache, tokens = random.choice(open_ones)
        if not (kv_cache.is_active or kv_cache.resume()):
            continue
        begin = kv_cache.num_committed_tokens
        if begin == len(tokens):
            tokens.append(random.randrange(1000))
        if not kv_cache.resize(len(tokens)):
            continue
        number, copies = manager.take_copies(number)
        num_copies += len(copies)
        sent = copies if spoil is None else spoil(number, copies)
        queue.append((number, sent, kv_cache.get_base_page_indices(0).tolist(), [*tokens], begin))
        kv_cache.commit(tokens[begin:])
        if len(queue) > LATE:
            work()
    for kv_cache, _tokens in open_ones:
        kv_cache.close()
    while queue:
        work()
    return num_copies


@pytest.mark.parametrize("settings", [{}, {"write_policy": "through"}, {"allow_seq_rebasing": False}, {"reserve_null_slot": True}])
def test_every_token_is_where_a_late_step_reads_it(settings: dict[str, Any]) -> None:
    num_copies = 0
    for seed in range(8):
        with KVCacheManager(listing_config(**settings)) as manager:
            num_copies += serve(manager, seed)
            manager.check_invariants()
    assert num_copies > 100


def spoil_one(what: Callable[[Any], Any]) -> Spoil:
    return lambda number, copies: what(copies) if number % 3 == 0 else copies


@pytest.mark.parametrize("what", [lambda copies: [], lambda copies: copies[::-1], lambda copies: copies[:1]], ids=["lost", "turned", "cut"])
def test_a_list_that_is_not_executed_as_it_is_shows_in_the_bytes(what: Callable[[Any], Any]) -> None:
    for seed in range(60):
        with KVCacheManager(listing_config()) as manager:
            try:
                serve(manager, seed, spoil_one(what))
            except AssertionError:
                for kv_cache in manager.open_kv_caches:
                    kv_cache.close()
                return
    raise AssertionError("no step has read a wrong token")


def begin_step(manager: KVCacheManager, num_tokens: int = 6) -> KVCache:
    kv_cache = manager.create_kv_cache(input_tokens=list(range(num_tokens)))
    assert kv_cache.resume() and kv_cache.resize(num_tokens)
    return kv_cache


def test_no_page_is_published_before_the_list_of_its_step() -> None:
    with KVCacheManager(listing_config()) as manager, begin_step(manager) as kv_cache:
        batch = DecodeBatch(manager, 1, 8)
        batch.join(kv_cache)
        before = manager.describe()
        calls: list[Callable[[], object]] = [
            lambda: kv_cache.commit_input(),
            lambda: kv_cache.commit(list(range(6))),
            lambda: kv_cache.commit([0]),
            lambda: manager.commit_batch([kv_cache], [0]),
            lambda: batch.step([0]),
        ]
        for call in calls:
            with pytest.raises(CopyListError, match=r"take_copies\(\) comes between its resize\(\) and its commit\(\)"):
                call()
        assert manager.describe() == before
        assert manager.take_copies(0) == (1, [])
        kv_cache.commit(list(range(6)))
        assert manager.probe_reuse(None, list(range(6))) == 4


def test_lists_out_of_order_are_named_before_anything_changes() -> None:
    with KVCacheManager(listing_config()) as manager:
        worker = Worker(manager)
        assert manager.copy_layout == ((8,), (12,), (2,))
        with pytest.raises(CopyListError, match="reports list 1 .*0 is the last"):
            manager.report_copies(1, 0, worker.layout)
        assert manager.take_copies(0) == (1, []) and manager.take_copies(1) == (2, [])
        with pytest.raises(CopyListError, match="after is 1, and the last list that was taken is 2: another scheduler") as other:
            manager.take_copies(1)
        assert other.value.number == 2
        with pytest.raises(CopyListError, match=r"worker 1 has the slots \(\(9,\).*and the manager \(\(8,\)"):
            manager.report_copies(1, 1, [[9], [12], [1]])
        manager.report_copies(1, 0, worker.layout)
        with pytest.raises(CopyListError, match="worker 0 reports list 1 .*has reported 1 already"):
            manager.report_copies(1, 0, worker.layout)
        with pytest.raises(ValueError, match="worker is 2"):
            manager.report_copies(1, NUM_WORKERS, worker.layout)
        with pytest.raises(CopyListError, match="list 1 of copies is lost, 2 came"):
            worker.execute(2, [])
        worker.execute(1, [])
        with pytest.raises(CopyListError, match="list 1 of copies was executed already"):
            worker.execute(1, [])
        with pytest.raises(CopyListError, match="slot 12 of pool group 0 of level 1, which has 12"):
            worker.execute(2, [(0, 1, 1, 11, 0), (0, 0, 1, 12, 0)])
        with pytest.raises(CopyListError, match="pool group 0 of level 3"):
            worker.execute(2, [(3, 0, 0, 1, 0)])
        assert worker.num_done == 1 and (worker.memory[1][0] == -1).all()


def test_after_a_lost_list_only_a_reset_goes_on() -> None:
    with KVCacheManager(listing_config()) as manager:
        layout = manager.copy_layout
        with begin_step(manager, 8) as kv_cache:
            manager.take_copies(0)
            kv_cache.commit(list(range(8)))
            manager.take_copies(1)
            with pytest.raises(CopyListError, match="list 1 of copies is lost") as lost:
                manager.report_copies(2, 0, layout)
            assert lost.value.number == 1
            for call in (lambda: manager.take_copies(2), lambda: manager.report_copies(1, 0, layout)):
                with pytest.raises(CopyListError, match="list 1 of copies is lost"):
                    call()
            with pytest.raises(LogicError, match="1 open sequences"):
                manager.reset_copies()
        assert manager.probe_reuse(None, list(range(8))) == 8
        assert manager.reset_copies() == 2
        assert manager.probe_reuse(None, list(range(8))) == 0
        assert manager.take_copies(2) == (3, [])
        manager.report_copies(3, 0, layout)


def test_pages_are_ready_when_all_workers_have_reported() -> None:
    with KVCacheManager(listing_config(4)) as manager:
        number = 0
        for first in (0, 100):
            tokens = list(range(first, first + 16))
            with manager.create_kv_cache(input_tokens=tokens) as kv_cache:
                assert kv_cache.resume() and kv_cache.resize(16)
                number, _ = manager.take_copies(number)
                kv_cache.commit(tokens)
        kv_cache = manager.create_kv_cache(input_tokens=list(range(16)))
        assert kv_cache.resume(wait=False) and kv_cache.num_committed_tokens > 0
        number, copies = manager.take_copies(number)
        assert (1, 0) in [(source, target) for source, _, target, _, _ in copies]
        for index in range(NUM_WORKERS):
            assert not kv_cache.ready
            for done in range(1, number + 1):
                manager.report_copies(done, index, manager.copy_layout)
        assert kv_cache.ready
        kv_cache.close()


@pytest.mark.parametrize(
    ("tiers", "message"),
    [
        ([ExternalCacheTierConfig([8], copy_workers=1), HostCacheTierConfig(1 << 20)], "2 tiers, 1 of other memory"),
        ([GpuCacheTierConfig(1 << 20), ExternalCacheTierConfig([8], tier=CacheTier.HOST_MEM)], "make both so, or neither"),
        ([ExternalCacheTierConfig([8], copy_workers=1), ExternalCacheTierConfig([8], copy_workers=1, tier=CacheTier.HOST_MEM)], "alone"),
        ([ExternalCacheTierConfig([8]), ExternalCacheTierConfig([8], tier=CacheTier.HOST_MEM)], "copy_workers"),
        ([ExternalCacheTierConfig([8], copy_workers=1), ExternalCacheTierConfig([8])], "GPU_MEM"),
        ([ExternalCacheTierConfig([8], copy_workers=1), ExternalCacheTierConfig([8, 8], tier=CacheTier.HOST_MEM)], "2 numbers"),
    ],
)
def test_tiers_that_do_not_fit_are_refused(tiers: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KVCacheManager(
            KVCacheManagerConfig(BLOCK, tiers, attention_layers([None], BLOCK), enable_partial_reuse=False, allow_seq_rebasing=False)
        )


def test_a_manager_that_lists_nothing_says_so_and_a_journal_is_done_again(tmp_path: Path) -> None:
    config = KVCacheManagerConfig(BLOCK, [GpuCacheTierConfig(1 << 20)], attention_layers([None], BLOCK))
    with KVCacheManager(config) as manager, pytest.raises(LogicError, match="take_copies: no worker copies.*copy_workers"):
        manager.take_copies(0)
    path = tmp_path / "journal"
    with KVCacheManager(listing_config(), journal=path) as manager:
        assert serve(manager, 1) > 0
    assert main(["rerun", str(path)]) == 0
