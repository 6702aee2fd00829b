"""With a residency window a running sequence keeps old pages below level 0; what it requires is there for a step, byte for byte."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_models import attention_layers

from kv_cache_manager_v2 import (
    DiskCacheTierConfig, GpuCacheTierConfig, HostCacheTierConfig, KVCacheManager, KVCacheManagerConfig, LayerId, LogicError,
    RetentionConfig, SwaScratchReuseConfig,
)  # fmt: skip
from kv_cache_manager_v2.codecs.float8_codec import Float8Codec
from kv_cache_manager_v2.device.host_device import HostDevice

T = 4
SLOT_BYTES = 2 * 8 * T
"""A key and a value buffer of 8 bytes a token."""


def manager_of(num_slots: int = 8, num_below: int = 64, windows: tuple[int | None, ...] = (None,), **settings: Any) -> KVCacheManager:
    gpu, host = GpuCacheTierConfig(num_slots * SLOT_BYTES), HostCacheTierConfig(max(num_below, 1) * SLOT_BYTES)
    config = KVCacheManagerConfig(T, [gpu, host] if num_below > 0 else [gpu], attention_layers(windows, T), **settings)
    return KVCacheManager(config, device=HostDevice())


def valid(kv_cache: Any, group: int = 0) -> list[int]:
    return [ordinal for ordinal, slot in enumerate(kv_cache.get_base_page_indices(group)) if slot >= 0]


def grow(kv_cache: Any, end: int) -> None:
    """Compute and commit tokens up to ``end``, a block at a time; token ``i`` is ``i``."""
    for begin in range(kv_cache.num_committed_tokens, end, T):
        assert kv_cache.resize(begin + T, begin), kv_cache.manager.last_refusal
        kv_cache.commit(range(begin, begin + T))


def test_sinks_window_and_what_may_be_written_are_locked() -> None:
    """History 16, capacity 20, window 5, 4 sink tokens: the next token reads 12 to 16, so blocks 3 and 4, and the sinks block 0."""
    with manager_of() as manager, manager.create_kv_cache() as kv_cache:
        assert kv_cache.get_residency_window(0) is None
        kv_cache.set_residency_window(0, 5, 3)
        assert kv_cache.get_residency_window(0) == (5, 4), "sinks are whole blocks"
        assert kv_cache.resume() and kv_cache.resize(16, 0) and kv_cache.resize(20, 16)
        assert valid(kv_cache) == [0, 3, 4]
        assert kv_cache.get_block_levels(0).format == "b" and kv_cache.get_block_levels(0).tolist() == [0] * 5
        assert kv_cache.get_block_slots(0).format == "i"
        kv_cache.suspend()
        kv_cache.set_residency_window(0, None)
        assert kv_cache.get_residency_window(0) is None
        assert kv_cache.resume() and valid(kv_cache) == [0, 1, 2, 3, 4]
        kv_cache.set_residency_window(0, 5, 0)  # also while it runs
        assert valid(kv_cache) == [3, 4]
        manager.check_invariants()


def test_a_sequence_is_longer_than_level_0_and_every_byte_comes_back() -> None:
    """64 blocks in 8 slots. Each block's page gets its ordinal; then each is required, alone and in turn."""
    with manager_of() as manager, manager.create_kv_cache() as kv_cache:
        view = manager.pool_view(LayerId(0), "key", by_slot=True)
        pages = np.from_dlpack(view)
        kv_cache.set_residency_window(0, T + 1, T)
        assert kv_cache.resume()
        for begin in range(0, 64 * T, T):
            assert kv_cache.resize(begin + T, begin), manager.last_refusal
            pages[kv_cache.get_base_page_indices(0)[begin // T]] = begin // T
            kv_cache.commit(range(begin, begin + T))
        # 8 slots hold 8 of the 64; the other 56 are in host memory.
        assert sorted(kv_cache.get_block_levels(0)) == [0] * 8 + [1] * 56
        for ordinal in range(64):
            assert kv_cache.require_blocks(0, [ordinal])
            assert (pages[kv_cache.get_base_page_indices(0)[ordinal]] == ordinal).all()
            assert kv_cache.resize(64 * T, 64 * T)
        manager.check_invariants()
        kv_cache.suspend()
        kv_cache.set_residency_window(0, None)
        assert not kv_cache.resume() and "56 slots asked for" in str(manager.last_refusal)
        del pages
        view.release()


@pytest.mark.parametrize("codec", [None, Float8Codec("float32", 2)])
def test_pages_below_can_be_read_where_they_are(codec: Float8Codec | None) -> None:
    """By level, slot and the level's pools, as kernels compute addresses; with a codec a row is the packed page."""
    num_below = 64 * SLOT_BYTES
    tiers: list[Any] = [GpuCacheTierConfig(8 * SLOT_BYTES), HostCacheTierConfig(num_below), DiskCacheTierConfig(num_below, "/tmp")]
    config = KVCacheManagerConfig(T, tiers, attention_layers((None,), T))
    with KVCacheManager(config, device=HostDevice(), cold_page_codec=codec) as manager, manager.create_kv_cache() as kv_cache:
        kv_cache.set_residency_window(0, 2 * T, T)
        assert kv_cache.resume()
        written = {}
        for ordinal in range(24):
            assert kv_cache.resize((ordinal + 1) * T, ordinal * T)
            view = manager.pool_view(LayerId(0), "key", by_slot=True, dtype="float32")
            written[ordinal] = np.random.default_rng(ordinal).standard_normal(8).astype(np.float32)
            np.asarray(view)[kv_cache.get_base_page_indices(0)[ordinal]] = written[ordinal]
            kv_cache.commit(range(ordinal * T, (ordinal + 1) * T))
        assert manager.get_pool_group_descs(0) == manager.pool_group_descs
        with pytest.raises(ValueError, match="level is 2, which is on a disk: its slots have no addresses"):
            manager.get_pool_group_descs(2)
        (pool,) = manager.get_pool_group_descs(1)[0].pools
        assert pool.slot_bytes == manager.get_storage_statistics(1)[0].slot_sizes[0]
        num_read = 0
        for ordinal, (level, slot) in enumerate(zip(kv_cache.get_block_levels(0), kv_cache.get_block_slots(0), strict=True)):
            if level == 1:
                row = np.frombuffer(ctypes.string_at(int(pool.base_address) + slot * pool.slot_bytes, pool.slot_bytes), np.uint8)
                expected = written[ordinal].view(np.uint8) if codec is None else codec.pack(written[ordinal].view(np.uint8)[None])[0]
                assert (row[: len(expected)] == expected).all()
                num_read += 1
        assert num_read >= 24 - 8


def test_required_blocks_stay_until_the_next_resize_that_passes() -> None:
    """Of 8 slots one is the sinks', one the window's; with 6 required nothing is left for a seventh, or for the next block."""
    with manager_of() as manager, manager.create_kv_cache() as kv_cache:
        kv_cache.set_residency_window(0, 1, T)
        assert kv_cache.resume()
        grow(kv_cache, 40)
        assert kv_cache.resize(40 + T, 40) and valid(kv_cache) == [0, 10]
        assert kv_cache.require_blocks(0, [3, 3, 5, 10, 0]) and valid(kv_cache) == [0, 3, 5, 10]
        assert not kv_cache.require_blocks(0, [1, 2, 4, 6, 7]) and valid(kv_cache) == [0, 3, 5, 10]
        assert kv_cache.require_blocks(0, [1, 2, 4, 6])
        kv_cache.commit(range(40, 40 + T))  # block 10 is full, and out of the window; it was required
        assert valid(kv_cache) == [0, 1, 2, 3, 4, 5, 6, 10]
        assert not kv_cache.resize(40 + 9 * T, 44) and valid(kv_cache) == [0, 1, 2, 3, 4, 5, 6, 10]
        assert kv_cache.resize(48, 44) and valid(kv_cache) == [0, 11]
        manager.check_invariants()


def test_room_behind_the_window_is_for_others() -> None:
    """Two sequences of 16 blocks in 8 slots; without windows the second could not begin."""
    with manager_of(max_util_for_resume=1.0) as manager, manager.create_kv_cache() as first, manager.create_kv_cache() as second:
        for kv_cache in (first, second):
            kv_cache.set_residency_window(0, T)
            assert kv_cache.resume()
        for end in range(T, 16 * T + 1, T):
            grow(first, end)
            for begin in range(second.num_committed_tokens, end, T):
                assert second.resize(begin + T, begin)
                second.commit(range(begin + 500, begin + 500 + T))
        assert len(valid(first)) + len(valid(second)) <= 8
        manager.check_invariants()


def test_equal_blocks_are_stored_once_behind_the_window_too() -> None:
    """The second sequence commits what the first has published, when its pages are out of the window or even in host memory."""
    with manager_of(num_slots=6) as manager, manager.create_kv_cache() as first, manager.create_kv_cache() as second:
        for kv_cache in (first, second):
            kv_cache.set_residency_window(0, 1)
            assert kv_cache.resume()
            for begin in range(0, 8 * T, T):
                assert kv_cache.resize(begin + T, begin)
        assert first.resize(8 * T, 8 * T) and second.resize(8 * T, 8 * T)
        assert second.require_blocks(0, [2])
        first.commit(range(8 * T))
        second.commit(range(8 * T))
        manager.check_invariants()
        assert valid(second) == [2]
        used = sum([groups[0].total - groups[0].free for groups in (manager.get_storage_statistics(level) for level in (0, 1))])
        assert used == 8


REFUSED: dict[str, Callable[[KVCacheManager, Any], object]] = {
    "fork": lambda manager, kv_cache: kv_cache.fork(),
    "beam_width": lambda manager, kv_cache: setattr(kv_cache, "beam_width", 2),
    "reserve_transfer": lambda manager, kv_cache: kv_cache.reserve_transfer(),
    "publish_planned": lambda manager, kv_cache: kv_cache.publish_planned([1]),
    "find_refusal": lambda manager, kv_cache: kv_cache.find_refusal(9),
    "manager.find_refusal": lambda manager, kv_cache: manager.find_refusal([kv_cache], [9]),
    "can_finish": lambda manager, kv_cache: manager.can_finish([kv_cache], [4]),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_all_pages_is_refused_with_the_way_out(name: str) -> None:
    with manager_of() as manager, manager.create_kv_cache() as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(8, 0)
        kv_cache.set_residency_window(0, 4)
        before = manager.state_digest()
        with pytest.raises(LogicError, match=r"with a residency window.*set_residency_window\(layer_group_id, None\)"):
            REFUSED[name](manager, kv_cache)
        assert manager.state_digest() == before
        kv_cache.suspend()
        kv_cache.set_residency_window(0, None)
        assert kv_cache.resume()
        REFUSED[name](manager, kv_cache)
        for lease in manager.open_leases:
            lease.settle()


def test_can_finish_of_others_takes_nothing_behind_a_window_for_locked() -> None:
    """Of 12 blocks that both have only the sinks' is locked by the first; of 6 slots it locks 5, and the other sequence needs three."""
    with manager_of(num_slots=6, max_util_for_resume=1.0) as manager, manager.create_kv_cache() as first:
        first.set_residency_window(0, 16, 4)
        assert first.resume()
        grow(first, 40)
        with manager.create_kv_cache(input_tokens=range(12)) as second:
            assert second.num_committed_tokens == 12
            assert not manager.can_finish([second], [0]) and not second.resume()
            first.close()
            assert manager.can_finish([second], [0]) and second.resume()


def test_sharing_that_is_over_and_retention_refuse_no_window() -> None:
    with manager_of() as manager, manager.create_kv_cache(retention=RetentionConfig(generated_priority=80)) as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(8, 0)
        kv_cache.fork().close()
        with pytest.raises(LogicError, match="has shared, uncommitted blocks"):
            kv_cache.set_residency_window(0, 1)
        kv_cache.commit(range(8))
        kv_cache.set_residency_window(0, 1)
        assert kv_cache.resize(12, 8) and valid(kv_cache) == [2]
        manager.check_invariants()


def test_a_window_that_cannot_be_is_refused() -> None:
    scratch = SwaScratchReuseConfig(0)
    for manager, group, words in (
        (manager_of(num_below=0), 0, "one cache level"),
        (manager_of(windows=(8,)), 0, "do not read all tokens"),
        (manager_of(allow_seq_rebasing=False), 0, "allow_seq_rebasing"),
        (manager_of(windows=(None, 8), swa_scratch_reuse=scratch), 0, "enable_swa_scratch_reuse"),
    ):
        with manager, manager.create_kv_cache() as kv_cache, pytest.raises(LogicError, match=words):
            kv_cache.set_residency_window(group, 4)
    with manager_of() as manager, manager.create_kv_cache() as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(8)
        with kv_cache.fork(), pytest.raises(LogicError, match="has shared, uncommitted"):
            kv_cache.set_residency_window(0, 4)
        with pytest.raises(ValueError, match="window_size"):
            kv_cache.set_residency_window(0, 0)
        with pytest.raises(ValueError, match="num_sink_tokens"):
            kv_cache.set_residency_window(0, 4, -1)
        with pytest.raises(ValueError, match="ordinals is 2; there are 2 blocks"):
            kv_cache.require_blocks(0, [0, 2])
    with manager_of(windows=(8,)) as manager, manager.create_kv_cache() as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(16, 0) and kv_cache.resize(20, 16)
        with pytest.raises(LogicError, match="block 0 has no page"):
            kv_cache.require_blocks(0, [0])
