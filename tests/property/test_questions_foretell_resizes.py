"""`find_refusal` says what `resize` and `resize_batch` then do, in small caches where sequences share blocks, and leaves no trace."""

from random import Random

import pytest
from small_models import attention_layers

from kv_cache_manager_v2 import (
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LogicError,
    OutOfPagesError,
    SwaScratchReuseConfig,
)

BLOCK = 4


def small_manager(random: Random, keeps_indices: bool) -> KVCacheManager:
    windows = random.choice(([None], [None, 6], [6], [None, 6, 14]))
    layers = attention_layers(windows, BLOCK)
    block_bytes = sum(buffer.size for layer in layers for buffer in layer.buffers)
    tiers: list[GpuCacheTierConfig | HostCacheTierConfig] = [GpuCacheTierConfig(random.choice((7, 10, 14)) * block_bytes)]
    if random.random() < 0.6:
        tiers.append(HostCacheTierConfig(random.choice((2, 6)) * block_bytes))
    scratch = SwaScratchReuseConfig() if random.random() < 0.3 else None
    config = KVCacheManagerConfig(
        BLOCK, tiers, layers, max_util_for_resume=1.0, swa_scratch_reuse=scratch, allow_seq_rebasing=not keeps_indices
    )
    return KVCacheManager(config, device=HostDevice())


def traces(manager: KVCacheManager) -> tuple[object, ...]:
    levels = range(len(manager.cache_tier_list))
    counts = [manager.get_storage_statistics(level) for level in levels]
    return manager.state_digest(), manager.last_refusal, counts, manager.get_statistics(), manager.describe()


def draw_step(random: Random, kv_cache: KVCache) -> tuple[int, int]:
    least = kv_cache.history_length
    if kv_cache.enable_swa_scratch_reuse:
        return kv_cache.capacity + random.randrange(1, 10), kv_cache.capacity
    history = min(kv_cache.capacity, least + random.choice((0, 0, 1, 5, 9)))
    return history + random.choice((0, 1, 2, 4, 9)), history


class Run:
    """``keeps_indices``: sequences that compute the same blocks side by side keep their own pages."""

    def __init__(self, seed: int, keeps_indices: bool = False) -> None:
        self.random = Random(seed)
        self.keeps_indices = keeps_indices
        self.manager = small_manager(self.random, keeps_indices)
        self.open: list[KVCache] = []
        self.num_batches = self.num_refused = 0

    def act(self) -> None:
        random = self.random
        draw = random.random()
        active = [one for one in self.open if one.is_active]
        if self.keeps_indices and draw < 0.1:
            self.open_side_by_side()
        elif draw < 0.15 or not self.open:
            text = [random.choice((1, 2)) * 100 + position for position in range(random.choice((3, 6, 9)))]
            kv_cache = self.manager.create_kv_cache(input_tokens=text)
            self.open.append(kv_cache)
            if kv_cache.resume() and kv_cache.capacity < len(text) and kv_cache.resize(len(text)):
                kv_cache.commit(text[kv_cache.num_committed_tokens :])
                if random.random() < 0.4:
                    kv_cache.stop_committing()
        elif draw < 0.35:
            try:
                self.open.append(random.choice(self.open).fork())
            except (LogicError, OutOfPagesError):
                pass
        elif draw < 0.45 and active:
            random.choice(active).suspend()
        elif draw < 0.55:
            suspended = [one for one in self.open if not one.is_active]
            if suspended:
                random.choice(suspended).resume()
        elif draw < 0.62:
            self.open.pop(random.randrange(len(self.open))).close()
        elif draw < 0.66 and active:
            kv_cache = random.choice(active)
            try:
                kv_cache.beam_width = random.choice((1, 2, 3))
            except (LogicError, OutOfPagesError):
                pass
        elif active:
            self.step(random.sample(active, random.randrange(1, len(active) + 1)))

    def open_side_by_side(self) -> None:
        """Two or three sequences have pages for the same text before one of them commits it."""
        first = self.random.randrange(1 << 20)
        text = [first + position for position in range(self.random.choice((4, 5, 8)))]
        others = [self.manager.create_kv_cache(input_tokens=text) for _ in range(self.random.choice((2, 2, 3)))]
        ready = [one for one in others if one.resume() and one.resize(len(text))]
        for one in ready:
            one.commit(text)
        self.open += others

    def step(self, batch: list[KVCache]) -> None:
        steps = [draw_step(self.random, kv_cache) for kv_cache in batch]
        capacities, histories = [step[0] for step in steps], [step[1] for step in steps]
        before = traces(self.manager)
        if len(batch) == 1 and self.random.random() < 0.5:
            said = batch[0].find_refusal(*steps[0])
            assert traces(self.manager) == before
            passed = batch[0].resize(*steps[0])
            assert said == (None if passed else self.manager.last_refusal)
            return
        said = self.manager.find_refusal(batch, capacities, histories)
        assert traces(self.manager) == before
        passed = self.manager.resize_batch(batch, capacities, histories) == len(batch)
        assert (said is None) == passed, (said, self.manager.last_refusal)
        self.num_batches += 1
        if said is not None:
            self.num_refused += 1
            made = self.manager.last_refusal
            assert made is not None and (said.level, said.pool_group) == (made.level, made.pool_group)
            for kv_cache in self.random.sample(self.open, len(self.open) // 2):
                self.open.remove(kv_cache)
                kv_cache.close()


# The last ones: a page that a batch's sequences release one after another, a tail that the last of them takes back, scratch slots.
@pytest.mark.parametrize("seed", [*range(60), 61, 69, 76, 135, 172])
def test_questions_foretell_calls(seed: int) -> None:
    play(Run(seed))


@pytest.mark.parametrize("seed", range(40))
def test_questions_foretell_calls_where_indices_stay(seed: int) -> None:
    """The last lock of a published page lets its oldest twin go on as that page, and one slot is free."""
    play(Run(seed, keeps_indices=True))


def play(run: Run) -> None:
    for _ in range(60):
        run.act()
    for kv_cache in run.open:
        kv_cache.close()
    run.manager.check_invariants()
    run.manager.shutdown()


def test_questions_are_answered_both_ways() -> None:
    """That the histories above have what they are for."""
    num_batches = num_refused = 0
    for seed in range(10):
        run = Run(seed)
        for _ in range(60):
            run.act()
        num_batches, num_refused = num_batches + run.num_batches, num_refused + run.num_refused
        for kv_cache in run.open:
            kv_cache.close()
        run.manager.shutdown()
    assert num_refused > 20 and num_batches - num_refused > 60
