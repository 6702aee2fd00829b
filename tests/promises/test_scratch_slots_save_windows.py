"""In a prefill step the blocks of windowed layers that are stale right after it share a few scratch slots.

Each number is worked out from the rule: input blocks [ceil(H/T), ceil(C/T)) that are stale at history C - max_rewind_len.
"""

import pytest
from small_models import config_of, manager_of, used_slots

from kv_cache_manager_v2 import (
    BAD_PAGE_INDEX,
    AttentionLayerConfig,
    BufferConfig,
    GpuCacheTierConfig,
    HalfOpenRange,
    HostDevice,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    LogicError,
    PageIndexMode,
    SwaScratchReuseConfig,
)


def many_layers(num_layers: int, window: int, num_slots: int, **settings: object) -> KVCacheManagerConfig:
    layers = [
        AttentionLayerConfig(LayerId(i), [BufferConfig("key", 64), BufferConfig("value", 64)], window)
        for i in range(num_layers)
    ]
    slot_bytes = num_layers * 2 * 64
    return KVCacheManagerConfig(32, [GpuCacheTierConfig(num_slots * slot_bytes)], layers, **settings)  # type: ignore[arg-type]


def test_1024_tokens_in_5_slots_instead_of_32() -> None:
    """32 layers, window 128, T = 32: at 1024 blocks 0..27 are stale, ceil(28 / 32) = 1 scratch slot, 4 pages."""
    scratch = SwaScratchReuseConfig()
    with KVCacheManager(many_layers(32, 128, 5, swa_scratch_reuse=scratch), device=HostDevice()) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(1024, 0)
            assert used_slots(manager) == 5
            desc = kv_cache.get_scratch_desc(0)
            assert desc is not None and desc.range == HalfOpenRange(0, 28) and len(desc.slot_ids) == 1
            indices = kv_cache.get_base_page_indices(0).tolist()
            assert indices[:28] == [BAD_PAGE_INDEX] * 28 and BAD_PAGE_INDEX not in indices[28:]
            # Scratch slots hold no page: those of blocks 28 to 31 were allocated.
            (counted,) = kv_cache.statistics.layer_groups
            assert (counted.allocated, counted.peak_pages) == (4, 4)
            assert kv_cache.has_scratch_slots and not kv_cache.supports_index_mode(PageIndexMode.SHARED)
            assert kv_cache.supports_index_mode(PageIndexMode.PER_LAYER)
            manager.check_invariants()
            kv_cache.commit(list(range(1024)))
            # The first step after it, 1 token: block 32 comes, block 28 is still in the window: floor((1024+1-128)/32) = 28.
            assert kv_cache.resize(1025, 1024)
            assert not kv_cache.get_scratch_desc(0) and used_slots(manager) == 5
            manager.check_invariants()
    with KVCacheManager(many_layers(32, 128, 32), device=HostDevice()) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(1024, 0)
            assert used_slots(manager) == 32


def test_exact_repeat_is_reused_and_its_prefix_is_not() -> None:
    scratch = SwaScratchReuseConfig()
    with KVCacheManager(many_layers(32, 128, 16, swa_scratch_reuse=scratch), device=HostDevice()) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(1024, 0)
            kv_cache.commit(list(range(1024)))
        assert manager.probe_reuse(None, list(range(1024))) == 1024
        assert manager.probe_reuse(None, list(range(896))) == 0
        with manager.create_kv_cache(None, list(range(1024))) as again:
            assert again.resume()
            assert used_slots(manager) == 4


@pytest.mark.parametrize(("rewind", "expected"), [(0, 7), (64, 5)])
def test_window_of_32(rewind: int, expected: int) -> None:
    """256 tokens: stale at 256: floor((257 - 32) / 32) = 7; at 256 - 64: floor((193 - 32) / 32) = 5."""
    with manager_of([32], tokens_per_block=32, swa_scratch_reuse=SwaScratchReuseConfig(rewind)) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(256, 0)
            desc = kv_cache.get_scratch_desc(0)
            assert desc is not None and desc.range == HalfOpenRange(0, expected)


@pytest.mark.parametrize(("rewind", "first", "second"), [(0, (0, 6), (8, 9)), (32, (0, 5), None)])
def test_chunks_of_two_windows(rewind: int, first: tuple[int, int], second: tuple[int, int] | None) -> None:
    """Layer 0 window 64, layer 1 window 256. 256 tokens: floor((257 - 64) / 32) = 6. Then 256..351: floor((353-64)/32) = 9."""
    scratch = SwaScratchReuseConfig(rewind)
    with manager_of([64, 256], tokens_per_block=32, swa_scratch_reuse=scratch) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume()
            for (capacity, history), expected in (((256, 0), first), ((352, 256), second)):
                assert kv_cache.resize(capacity, history)
                desc = kv_cache.get_scratch_desc(0)
                assert desc is not None
                assert (desc.range == HalfOpenRange(*expected)) if expected else not desc
                assert not kv_cache.get_scratch_desc(1)
                manager.check_invariants()


def test_slots_move_by_difference_and_sleep_without_them() -> None:
    """One layer of two buffers: one scratch slot holds one block (2 sub-pages, 2 of them the layer's)."""
    with manager_of([8], num_slots=40, swa_scratch_reuse=SwaScratchReuseConfig()) as manager:
        kv_cache = manager.create_kv_cache()
        assert kv_cache.resume() and kv_cache.resize(64, 0)
        first = kv_cache.get_scratch_desc(0)
        # Stale at 64: floor((65 - 8) / 4) = 14.
        assert first is not None and first.range == HalfOpenRange(0, 14) and len(first.slot_ids) == 14
        assert kv_cache.resize(96, 64)
        second = kv_cache.get_scratch_desc(0)
        # floor((97 - 8) / 4) = 22, from ceil(64 / 4) = 16.
        assert second is not None and second.range == HalfOpenRange(16, 22)
        assert set(second.slot_ids) <= set(first.slot_ids)
        # Pages of 14, 15 (the window before the inputs), 22, 23, and 6 scratch slots.
        assert used_slots(manager) == 10
        kv_cache.suspend()
        assert used_slots(manager) == 4
        with pytest.raises(LogicError):
            kv_cache.get_scratch_desc(0)
        manager.check_invariants()
        assert kv_cache.resume()
        assert used_slots(manager) == 10
        manager.check_invariants()
        kv_cache.close()
        assert used_slots(manager) == 0


@pytest.mark.parametrize("is_committed", [True, False])
def test_slots_leave_with_their_chunk(is_committed: bool) -> None:
    """Once the history has passed all of their blocks; from then on the sequence is as one that never had them."""
    with manager_of([8], num_slots=40, swa_scratch_reuse=SwaScratchReuseConfig()) as manager:
        kv_cache, other = manager.create_kv_cache(), manager.create_kv_cache()
        assert kv_cache.resume() and kv_cache.resize(64, 0) and used_slots(manager) == 16
        kv_cache.suspend()
        assert used_slots(manager) == 2
        assert kv_cache.resume() and used_slots(manager) == 16, "before, it still needs them"
        if is_committed:
            kv_cache.commit(list(range(60)))
        else:
            assert kv_cache.resize(None, 60)
        assert used_slots(manager) == 16, "block 13 is stale at 63 tokens"
        if is_committed:
            kv_cache.commit(list(range(60, 64)))
        else:
            assert kv_cache.resize(None, 64)
        assert not kv_cache.get_scratch_desc(0) and not kv_cache.has_scratch_slots and used_slots(manager) == 2
        assert kv_cache.supports_index_mode(PageIndexMode.SHARED)
        kv_cache.enable_swa_scratch_reuse = False
        manager.check_invariants()
        kv_cache.suspend()
        assert other.resume() and other.resize(120, 0) and used_slots(manager) == 32
        assert kv_cache.resume(), "its two pages are there: nothing is asked for"
        assert used_slots(manager) == 32
        manager.check_invariants()
        kv_cache.close()
        other.close()


def test_a_step_takes_over_the_slots_of_the_last_one_in_a_full_pool() -> None:
    """One `resize` ends a range of scratch blocks, begins a larger one, and evicts what its own window has left behind."""
    with manager_of([8], num_slots=14, swa_scratch_reuse=SwaScratchReuseConfig()) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(32, 0)
            kv_cache.commit(list(range(32)))
            # Pages of blocks 6 and 7; blocks 8 to 13 are stale at 64 tokens, 14 and 15 get pages.
            assert kv_cache.resize(64, 32)
            assert used_slots(manager) == 10
            # At 64 tokens the window begins with block 14: 6 and 7 are droppable. Blocks 16 to 25 are stale at 112, 26 and 27 get pages:
            # 6 of the 10 scratch slots are there, 4 slots are free, and the 2 that are missing are those of blocks 6 and 7.
            assert kv_cache.resize(112, 64)
            desc = kv_cache.get_scratch_desc(0)
            assert desc is not None and desc.range == HalfOpenRange(16, 26) and len(desc.slot_ids) == 10
            assert used_slots(manager) == 14
            manager.check_invariants()


def test_steps_that_would_need_lost_bytes_are_refused() -> None:
    with manager_of([8], num_slots=40, swa_scratch_reuse=SwaScratchReuseConfig(4)) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(64, 0)
            before = manager.describe()
            for capacity, history in ((80, 59), (80, 65), (80, 0), (40, 40), (63, 0)):
                with pytest.raises(ValueError):
                    kv_cache.resize(capacity, history)
            with pytest.raises(ValueError):
                kv_cache.capacity = 80
            with pytest.raises(ValueError):
                kv_cache.enable_swa_scratch_reuse = False
            assert manager.describe() == before
            assert kv_cache.resize(80, 60), "4 draft tokens are taken back"
            manager.check_invariants()


def test_switch_per_sequence() -> None:
    with manager_of([8], num_slots=40, swa_scratch_reuse=SwaScratchReuseConfig()) as manager:
        with manager.create_kv_cache() as kv_cache:
            kv_cache.enable_swa_scratch_reuse = False
            assert kv_cache.resume() and kv_cache.resize(64, 0)
            assert kv_cache.get_scratch_desc(0) is None and used_slots(manager) == 16
            with pytest.raises(ValueError):
                kv_cache.enable_swa_scratch_reuse = True
            kv_cache.commit(list(range(64)))
            kv_cache.enable_swa_scratch_reuse = True
            assert kv_cache.resize(96, 64) and kv_cache.has_scratch_slots
    with manager_of([8]) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert not kv_cache.enable_swa_scratch_reuse
            with pytest.raises(ValueError):
                kv_cache.enable_swa_scratch_reuse = True


@pytest.mark.parametrize("max_rewind_len", [0, 2])
@pytest.mark.parametrize("history", range(13))
def test_after_the_switch_the_next_step_is_possible(history: int, max_rewind_len: int) -> None:
    """From every place in a step without scratch blocks, which a window of 8 tokens has up to 10; also after a fork and a suspension."""
    scratch = SwaScratchReuseConfig(max_rewind_len)
    for capacity in range(history, 13):
        with KVCacheManager(config_of([8], swa_scratch_reuse=scratch), device=HostDevice()) as manager, manager.create_kv_cache() as first:
            first.enable_swa_scratch_reuse = False
            assert first.resume() and first.resize(capacity, history)
            try:
                first.enable_swa_scratch_reuse = True
            except ValueError:
                assert capacity - history >= 11 - max_rewind_len, "a step of 11 tokens is the first with a block that is stale after it"
                continue
            for next_history in range(history, capacity + 1):
                for next_capacity in range(next_history, capacity + 16):
                    with first.fork() as step:
                        step.suspend()
                        assert step.resume() and step.resize(next_capacity, next_history)
                        if next_capacity != capacity and next_history < next_capacity - max_rewind_len:
                            with pytest.raises(ValueError, match="never shrinks|must begin where the last one ended"):
                                step.resize(next_capacity + 1, next_capacity - max_rewind_len - 1)
                        manager.check_invariants()


def test_mode_is_required_where_scratch_is_configured() -> None:
    with KVCacheManager(config_of([8], swa_scratch_reuse=SwaScratchReuseConfig()), device=HostDevice()) as manager:
        with pytest.raises(ValueError):
            manager.get_mem_pool_base_address(0, "key")
        assert manager.supports_index_mode(PageIndexMode.SHARED) is None
        assert manager.supports_index_mode(PageIndexMode.PER_LAYER) is True


def test_refused_step_keeps_the_old_scratch() -> None:
    with manager_of([None, 8], num_slots=36, swa_scratch_reuse=SwaScratchReuseConfig()) as manager:
        with manager.create_kv_cache() as kv_cache:
            # 32 tokens: 8 pages; floor((33-8)/4) = 6 scratch blocks and 2 pages: 16 slots.
            assert kv_cache.resume() and kv_cache.resize(32, 0)
            before = manager.describe()
            assert not kv_cache.resize(132, 32)
            assert manager.describe() == before
            manager.check_invariants()
            assert kv_cache.resize(64, 32)
            manager.check_invariants()


def test_the_capacity_is_set_where_the_sequence_uses_no_scratch() -> None:
    """The manager is configured for scratch slots; a sequence that has them off is as without them."""
    with manager_of([None, 8], swa_scratch_reuse=SwaScratchReuseConfig()) as manager, manager.create_kv_cache() as kv_cache:
        assert kv_cache.resume()
        with pytest.raises(ValueError, match="capacity.*enable_swa_scratch_reuse"):
            kv_cache.capacity = 10
        kv_cache.enable_swa_scratch_reuse = False
        kv_cache.capacity = 10
        assert kv_cache.capacity == 10 and used_slots(manager) == 6
        manager.check_invariants()


@pytest.mark.parametrize("first", [8, 10, 11, 12])
def test_a_step_that_begins_before_the_last_ones_end_is_refused_with_scratch_blocks_or_without(first: int) -> None:
    """Window of 8 tokens, 4 per block: a step of 11 tokens is the first with a block that is stale right after it."""
    with KVCacheManager(config_of([8], swa_scratch_reuse=SwaScratchReuseConfig()), device=HostDevice()) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(first, 0)
            assert kv_cache.has_scratch_slots == (first >= 11)
            for capacity in (9, 10, 11, 12):
                if capacity != first:
                    with pytest.raises(ValueError, match="must begin where the last one ended"):
                        kv_cache.resize(capacity, 0)
            assert kv_cache.capacity == first
            assert kv_cache.resize(13, first)
            manager.check_invariants()
