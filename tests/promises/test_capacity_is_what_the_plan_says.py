"""What `plan_capacity` says before anything is allocated is what a manager then holds, to the slot.

Every figure is compared with a manager that is filled until it refuses, on random configurations.
"""

import random

import pytest

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BatchDesc,
    BufferConfig,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCacheDesc,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    SwaScratchReuseConfig,
    plan_capacity,
)

T = 4


def random_layers(rng: random.Random) -> list[AttentionLayerConfig]:
    """One to four layers with windows, sinks and sizes of their own: any number of layer groups, pool groups, pools."""
    layers = []
    for index in range(rng.randrange(1, 5)):
        window = rng.choice([None, None, 1, 3, 6, 9, 17])
        sinks = rng.choice([None, None, 1, 5]) if window is not None else None
        size = rng.choice([64, 64, 128])
        buffers = [BufferConfig("key", size), BufferConfig("value", size)]
        if rng.random() < 0.3:
            buffers.append(BufferConfig("scale", 8))
        layers.append(AttentionLayerConfig(LayerId(index), buffers, window, sinks))
    return layers


def random_config(rng: random.Random, with_scratch: bool = True, most_bytes: int = 40_000) -> KVCacheManagerConfig:
    scratch = SwaScratchReuseConfig(rng.choice([0, 0, 3])) if with_scratch and rng.random() < 0.5 else None
    return KVCacheManagerConfig(
        T, [GpuCacheTierConfig(rng.randrange(8_000, most_bytes))], random_layers(rng), max_util_for_resume=1.0, swa_scratch_reuse=scratch
    )


def manager_of(config: KVCacheManagerConfig) -> KVCacheManager:
    return KVCacheManager(config, device=HostDevice(4096))


def with_slots(config: KVCacheManagerConfig, slots: list[int]) -> KVCacheManagerConfig:
    """The same model with exactly so many slots by pool group: the ratio of their bytes shares out the whole quota."""
    groups = plan_capacity(config).levels[0].pool_groups
    ratio = [count * group.slot_bytes for count, group in zip(slots, groups, strict=True)]
    quota = sum(count * group.slot_bytes for count, group in zip(slots, groups, strict=True))
    exact = KVCacheManagerConfig(
        T,
        [GpuCacheTierConfig(quota)],
        config.layers,
        max_util_for_resume=1.0,
        initial_pool_ratio=ratio,
        swa_scratch_reuse=config.swa_scratch_reuse,
    )
    assert [group.num_slots for group in plan_capacity(exact).levels[0].pool_groups] == slots
    return exact


@pytest.mark.parametrize("seed", range(25))
def test_slots_are_those_of_the_manager(seed: int) -> None:
    config = random_config(random.Random(seed))
    (level,) = plan_capacity(config).levels
    with manager_of(config) as manager:
        statistics = manager.get_storage_statistics()
        assert [group.num_slots for group in level.pool_groups] == [group.total for group in statistics]
        assert [group.slot_bytes for group in level.pool_groups] == [sum(group.slot_sizes) for group in statistics]
        assert level.num_bytes == sum(group.total * sum(group.slot_sizes) for group in statistics) <= level.quota
        assert sorted(group for part in level.pool_groups for group in part.layer_groups) == list(range(len(manager.layer_grouping)))


@pytest.mark.parametrize("seed", range(25))
def test_longest_sequence(seed: int) -> None:
    """Token by token until the manager refuses."""
    config = random_config(random.Random(100 + seed), most_bytes=20_000)
    plan = plan_capacity(config)
    limit = 1500
    with manager_of(config) as manager, manager.create_kv_cache() as kv_cache:
        assert kv_cache.resume()
        length = 0
        while length < limit and kv_cache.resize(length + 1, length):
            length += 1
        assert length == (limit if plan.longest_sequence is None else plan.longest_sequence)
        if length < limit:
            assert manager.clamp_max_seq_len_for_mem(1, 10**9) == length
            # What refuses the block is full, or as good as full.
            assert manager.last_refusal is not None
            if len(plan.levels[0].pool_groups) == 1:
                assert manager.last_refusal.pool_group == plan.limiting_pool_group == 0
        assert manager.clamp_max_seq_len_for_mem(1, max(1, length - 1)) == max(1, length - 1)


@pytest.mark.parametrize("seed", range(25))
def test_longest_prompt(seed: int) -> None:
    """In one step from nothing, scratch slots included."""
    config = random_config(random.Random(200 + seed), most_bytes=14_000)
    plan = plan_capacity(config)
    limit = 400
    with manager_of(config) as manager:
        length = 0
        while length < limit:
            with manager.create_kv_cache() as kv_cache:
                assert kv_cache.resume()
                if not kv_cache.resize(length + 1, 0):
                    break
            length += 1
        assert length == (limit if plan.longest_prompt is None or plan.longest_prompt > limit else plan.longest_prompt)


@pytest.mark.parametrize("seed", range(25))
def test_clamp_beside_minimal_sequences(seed: int) -> None:
    rng = random.Random(300 + seed)
    config = random_config(rng, most_bytes=20_000)
    batch_size = rng.randrange(1, 9)
    with manager_of(config) as manager:
        clamped = manager.clamp_max_seq_len_for_mem(batch_size, 700)
        sequences = [manager.create_kv_cache() for _ in range(batch_size)]
        fits = all(kv_cache.resume() and kv_cache.resize(1, 0) for kv_cache in sequences)
        length = 1 if fits else 0
        while fits and length < 700 and sequences[0].resize(length + 1, length):
            length += 1
        assert clamped == length
        for kv_cache in sequences:
            kv_cache.close()


def run(manager: KVCacheManager, batch: BatchDesc) -> bool:
    """Bring all sequences of the batch to their lengths at once; the shared part is reused, not computed again."""
    prompt = list(range(batch.system_prompt_length // T * T))
    sequences = []
    fits = True
    for desc in batch.kv_caches:
        # Its history came from elsewhere: no inputs, so it never takes more than the batch does.
        kv_cache = manager.create_kv_cache(input_tokens=prompt[: desc.history_length])
        sequences.append(kv_cache)
        fits = fits and kv_cache.resume()
        start = min(len(prompt), desc.history_length)
        if fits and kv_cache.num_committed_tokens < start:
            fits = kv_cache.resize(start, start)
            if fits:
                kv_cache.commit(prompt[kv_cache.num_committed_tokens : start])
        fits = fits and kv_cache.resize(desc.history_length, desc.history_length)
        fits = fits and kv_cache.resize(desc.capacity, desc.history_length)
    manager.check_invariants()
    for kv_cache in sequences:
        kv_cache.close()
    return fits


def random_batch(rng: random.Random, with_prompt: bool) -> BatchDesc:
    prompt = rng.choice([0, 8, 11, 24]) if with_prompt else 0
    descs = []
    for _ in range(rng.randrange(1, 6)):
        history = rng.randrange(prompt, prompt + 60)
        descs.append(KVCacheDesc(history + rng.choice([1, 1, 1, 7, 30]), history))
    return BatchDesc(descs, prompt)


@pytest.mark.parametrize("seed", range(40))
def test_a_batch_runs_in_the_slots_that_are_named_and_not_in_one_less(seed: int) -> None:
    rng = random.Random(400 + seed)
    # A sequence that takes over a system prompt begins behind it, and scratch reuse needs steps without a gap.
    with_prompt = seed % 2 == 0
    config = random_config(rng, with_scratch=not with_prompt)
    batch = random_batch(rng, with_prompt)
    groups = plan_capacity(config, batch).levels[0].pool_groups
    needed = [group.batch_slots for group in groups]
    if any(count is None or count <= group.min_slots + 1 for count, group in zip(needed, groups, strict=True)):
        batch = BatchDesc([*batch.kv_caches] * 4, batch.system_prompt_length)
        groups = plan_capacity(config, batch).levels[0].pool_groups
        needed = [group.batch_slots for group in groups]
    slots = [count for count in needed if count is not None]
    exact = with_slots(config, slots)
    plan = plan_capacity(exact, batch)
    assert plan.batch_fits and plan.missing_slots == 0
    with manager_of(exact) as manager:
        assert run(manager, batch)
    for index in range(len(slots)):
        fewer = [count - (position == index) for position, count in enumerate(slots)]
        less = plan_capacity(with_slots(config, fewer), batch)
        assert not less.batch_fits and less.missing_slots == 1 and less.limiting_pool_group == index
        with manager_of(with_slots(config, fewer)) as manager:
            assert not run(manager, batch)


@pytest.mark.parametrize("seed", range(25))
def test_a_batch_runs_with_the_quota_that_is_named_and_not_with_a_byte_less(seed: int) -> None:
    """As a constraint: then every pool group has what the batch takes, whatever the typical step is."""
    rng = random.Random(500 + seed)
    with_prompt = seed % 2 == 0
    config = random_config(rng, with_scratch=not with_prompt)
    batch = random_batch(rng, with_prompt)
    quota = plan_capacity(config, batch).batch_quota
    assert quota is not None

    def constrained(num_bytes: int) -> KVCacheManagerConfig:
        return KVCacheManagerConfig(
            T,
            [GpuCacheTierConfig(num_bytes)],
            config.layers,
            max_util_for_resume=1.0,
            constraints=[batch],
            typical_step=BatchDesc([KVCacheDesc(500, 499)]),
            swa_scratch_reuse=config.swa_scratch_reuse,
        )

    assert plan_capacity(constrained(quota), batch).batch_fits
    with manager_of(constrained(quota)) as manager:
        assert run(manager, batch)
    with pytest.raises(ValueError):
        plan_capacity(constrained(quota - 1))
    with pytest.raises(ValueError):
        manager_of(constrained(quota - 1))


@pytest.mark.parametrize("seed", range(25))
def test_largest_batch_of_a_length(seed: int) -> None:
    rng = random.Random(600 + seed)
    with_prompt = seed % 2 == 0
    config = random_config(rng, with_scratch=not with_prompt)
    plan = plan_capacity(config)
    prompt = rng.choice([0, 8, 24]) if with_prompt else 0
    history = rng.randrange(prompt, prompt + 50)
    capacity = history + rng.choice([1, 1, 25])
    size = plan.max_batch_size(capacity, history, prompt)
    assert size is not None
    if capacity == history + 1:
        assert plan.max_batch_size(capacity, system_prompt_length=prompt) == size
    with manager_of(config) as manager:
        assert size == 0 or run(manager, BatchDesc([KVCacheDesc(capacity, history)] * size, prompt))
        manager.clear_reusable_blocks()
        assert not run(manager, BatchDesc([KVCacheDesc(capacity, history)] * (size + 1), prompt))


def test_numbers_of_a_small_model() -> None:
    """A full layer and one with a window of 8, T = 4, slots of 128 bytes in one pool group; 40 of them.

    A decoding sequence of n blocks takes n and min(n, ceil(7 / 4) + 1 = 3): 37 blocks, 148 tokens. In one step without
    scratch both take all blocks: 20, 80 tokens.
    """
    layers = [
        AttentionLayerConfig(LayerId(index), [BufferConfig("key", 64), BufferConfig("value", 64)], window)
        for index, window in enumerate((None, 8))
    ]
    config = KVCacheManagerConfig(4, [GpuCacheTierConfig(40 * 128), HostCacheTierConfig(10 * 128)], layers)
    plan = plan_capacity(config)
    assert (plan.longest_sequence, plan.longest_prompt) == (148, 80)
    assert [level.pool_groups[0].num_slots for level in plan.levels] == [40, 10]
    # Capacity 17, history 16: 5 blocks, and of the window's floor((17 - 8) / 4) = 2 are stale: 3. 40 // 8 = 5.
    assert plan.max_batch_size(17) == 5
    # Two blocks of a system prompt: the window's layer needs neither. So 2 once, then 3 + 3: (40 - 2) // 6 = 6.
    assert plan.max_batch_size(17, 16, 8) == 6
    batch = BatchDesc([KVCacheDesc(17, 16)] * 6)
    asked = plan_capacity(config, batch)
    assert asked.batch_fits is False and asked.missing_slots == 8 and asked.batch_quota == 48 * 128
    table = asked.table()
    for text in ("GPU_MEM", "HOST_MEM", "lacks 8 slots", "6,144 bytes", "148 tokens"):
        assert text in table
    scratch = KVCacheManagerConfig(4, config.cache_tiers, layers, swa_scratch_reuse=SwaScratchReuseConfig())
    # One layer of two buffers: a scratch block takes a slot, so nothing is gained but for the rule.
    assert plan_capacity(scratch).longest_prompt == 80


def test_windows_alone_have_no_longest_sequence() -> None:
    layers = [AttentionLayerConfig(LayerId(0), [BufferConfig("key", 64)], 8)]
    plan = plan_capacity(KVCacheManagerConfig(4, [GpuCacheTierConfig(10 * 64)], layers))
    assert plan.longest_sequence is None and "any length" in plan.table()
    # 3 slots each: ceil(7 / 4) + 1, or less where the length divides.
    assert plan.max_batch_size(4001) == 3


def test_wrong_arguments() -> None:
    layers = [AttentionLayerConfig(LayerId(0), [BufferConfig("key", 64)], 8)]
    config = KVCacheManagerConfig(4, [GpuCacheTierConfig(10 * 64)], layers)
    with manager_of(config) as manager:
        for arguments in ((0, 10), (-1, 10), (1, -1)):
            with pytest.raises(ValueError):
                manager.clamp_max_seq_len_for_mem(*arguments)
