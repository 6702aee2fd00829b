"""Base page indices name the slots of exactly the blocks that a kernel may read; a caller's buffer sees every change."""

import numpy as np
from small_models import manager_of, run_prompt

from kv_cache_manager_v2 import BAD_PAGE_INDEX, PageIndexMode


def test_view_is_read_only_and_follows_the_sequence() -> None:
    with manager_of() as manager:
        with run_prompt(manager, list(range(10))) as kv_cache:
            view = kv_cache.get_base_page_indices(0)
            assert view.readonly and view.format == "i" and len(view) == 3
            assert len(set(view.tolist())) == 3
            kv_cache.suspend()
            assert kv_cache.get_base_page_indices(0).tolist() == [BAD_PAGE_INDEX] * 3
            assert kv_cache.resume()
            assert BAD_PAGE_INDEX not in kv_cache.get_base_page_indices(0).tolist()


def test_callers_buffer_is_written_through() -> None:
    with manager_of([None, 8]) as manager:
        kv_cache = manager.create_kv_cache()
        assert kv_cache.resume()
        buffers = [np.full(40, 77, np.int32) for _ in range(2)]
        for group in range(2):
            kv_cache.set_base_page_index_buf(0, group, buffers[group])
            assert (buffers[group] == BAD_PAGE_INDEX).all(), "the rest of the buffer is filled"
        for position in range(60):
            assert kv_cache.resize(position + 1)
            if position % 7 == 6:
                kv_cache.commit(list(range(position - 6, position + 1)))
            for group in range(2):
                own = kv_cache.get_base_page_indices(group).tolist()
                assert buffers[group].tolist() == own + [BAD_PAGE_INDEX] * (40 - len(own))
        assert kv_cache.resize(57)
        assert buffers[0][15] == BAD_PAGE_INDEX
        kv_cache.set_base_page_index_buf(0, 0, None)
        kept = buffers[0].copy()
        assert kv_cache.resize(80)
        assert (buffers[0] == kept).all()


def test_converter_gives_the_address_of_the_right_buffer() -> None:
    """Layer 0's key, layer 0's value lie side by side in a slot: 2 sub-pages of 32 bytes."""
    with manager_of() as manager:
        with run_prompt(manager, list(range(10))) as kv_cache:
            base = np.asarray(kv_cache.get_base_page_indices(0))
            addresses = {}
            for role in ("key", "value"):
                converter = manager.get_page_index_converter(0, role)
                stride = manager.get_page_stride(0, role)
                shared = manager.get_mem_pool_base_address(0, role, PageIndexMode.SHARED)
                pool = manager.get_mem_pool_base_address(0, role, PageIndexMode.PER_LAYER)
                by_shared = shared + stride * converter(base, PageIndexMode.SHARED).astype(np.int64)
                by_layer = pool + stride * converter(base, PageIndexMode.PER_LAYER).astype(np.int64)
                assert (by_shared == by_layer).all()
                assert converter(base).max() < manager.get_page_index_upper_bound(0, role)
                addresses[role] = by_shared
            assert (abs(addresses["key"] - addresses["value"]) == 32).all()
            assert manager.get_page_index_scale(0, "key") == 2


def test_aggregated_indices_for_transfers() -> None:
    with manager_of([8]) as manager:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(20, 20)
            every = kv_cache.get_aggregated_page_indices(0)
            assert len(every) == 5 and every[:3] == [BAD_PAGE_INDEX] * 3
            assert kv_cache.get_aggregated_page_indices(0, valid_only=True) == every[3:]
