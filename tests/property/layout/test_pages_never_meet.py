"""Any layout, any step: no byte that a layer reads or writes for one (block, buffer) belongs to another one of it."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kv_cache_manager_v2.base.ids import BAD_PAGE_INDEX, PageIndexMode
from kv_cache_manager_v2.base.ranges import HalfOpenRange
from kv_cache_manager_v2.config.manager_config import KVCacheManagerConfig
from kv_cache_manager_v2.layout.page_index import compute_page_index_converter
from kv_cache_manager_v2.layout.scratch_desc import ScratchDesc

from .random_models import configs, layout_of


@settings(max_examples=120, deadline=None, derandomize=True)
@given(configs("a"), st.data())
def test_scratch_and_normal_pages(config: KVCacheManagerConfig, data: st.DataObject) -> None:
    layout = layout_of(config)
    life_cycle_id = data.draw(st.integers(0, layout.num_life_cycles - 1))
    num_blocks = data.draw(st.integers(1, 20))
    beg = data.draw(st.integers(0, num_blocks))
    scratch_range = HalfOpenRange(beg, data.draw(st.integers(beg, num_blocks)))
    num_scratch_slots = layout.compute_num_scratch_slots(life_cycle_id, len(scratch_range))
    slot_ids = data.draw(st.permutations(range(num_blocks + num_scratch_slots)))
    scratch = ScratchDesc(scratch_range, slot_ids[:num_scratch_slots])
    base = [BAD_PAGE_INDEX if block in scratch_range else slot for block, slot in enumerate(slot_ids[num_scratch_slots:])]
    slot_bytes = layout.slot_bytes(layout.pool_group_indices[life_cycle_id])

    normal: set[tuple[int, int]] = set()  # (pool, byte) of all layers: normal pages last, so none may ever meet
    scratch_bytes: set[tuple[int, int]] = set()
    for layer_id in layout.life_cycles.layer_grouping[life_cycle_id]:
        of_layer: set[tuple[int, int]] = set()
        for buffer_id in layout.buffer_ids:
            if buffer_id.layer_id != layer_id:
                continue
            placement = layout.buffer_placement(buffer_id)
            converter = compute_page_index_converter(placement)
            pages = converter(base, PageIndexMode.PER_LAYER, scratch)
            assert len(pages) == num_blocks * placement.expansion
            for ordinal, page in enumerate(pages.tolist()):
                first = page * placement.page_bytes
                place = {(placement.pool_index, offset) for offset in range(first, first + placement.page_bytes)}
                assert not place & of_layer
                of_layer |= place
                block = ordinal // placement.expansion
                if block in scratch_range:
                    scratch_bytes |= place
                    slot = first // slot_bytes[placement.pool_index]
                    assert slot in scratch.slot_ids
                    assert first + placement.page_bytes <= (slot + 1) * slot_bytes[placement.pool_index]
                else:
                    # A slot holds exactly the page of its block: bytes of the buffer's own place in it.
                    kernel_block = ordinal % placement.expansion
                    assert first == (
                        base[block] * slot_bytes[placement.pool_index] + placement.offset_bytes + kernel_block * placement.page_bytes
                    )
                    assert not place & normal
                    normal |= place
    assert not normal & scratch_bytes


@settings(max_examples=80, deadline=None, derandomize=True)
@given(configs("a"), st.data())
def test_no_fewer_scratch_slots_would_do(config: KVCacheManagerConfig, data: st.DataObject) -> None:
    """By counting: some layer has more sub-pages of scratch blocks in a pool than fit into one slot less."""
    layout = layout_of(config)
    life_cycle_id = data.draw(st.integers(0, layout.num_life_cycles - 1))
    num_blocks = data.draw(st.integers(1, 40))
    fewer = layout.compute_num_scratch_slots(life_cycle_id, num_blocks) - 1
    placements = [layout.buffer_placement(buffer_id) for buffer_id in layout.buffer_ids]
    of_group = [placement for placement in placements if placement.life_cycle_id == life_cycle_id]
    # A layer's sub-pages of one block stay in one slot, so a slot holds whole blocks of it.
    assert any(num_blocks > fewer * (placement.scale // placement.scratch_pages_per_block) for placement in of_group)
    per_slot = min(placement.scratch_blocks_per_slot for placement in of_group)
    assert fewer == (num_blocks - 1) // per_slot


@settings(max_examples=80, deadline=None, derandomize=True)
@given(configs(), st.lists(st.integers(-1, 50), max_size=12))
def test_both_modes_find_the_same_bytes(config: KVCacheManagerConfig, base: list[int]) -> None:
    layout = layout_of(config)
    for buffer_id in layout.buffer_ids:
        placement = layout.buffer_placement(buffer_id)
        converter = compute_page_index_converter(placement)
        shared = converter(base).astype(np.int64)
        per_layer = converter(base, PageIndexMode.PER_LAYER).astype(np.int64)
        is_bad = np.repeat(np.array(base, np.int64) == BAD_PAGE_INDEX, placement.expansion)
        assert (shared[is_bad] == BAD_PAGE_INDEX).all() and (per_layer[is_bad] == BAD_PAGE_INDEX).all()
        addresses = shared[~is_bad] * placement.page_bytes + placement.offset_bytes
        assert (addresses == per_layer[~is_bad] * placement.page_bytes).all()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(configs("a"), st.data())
def test_a_batch_is_its_sequences(config: KVCacheManagerConfig, data: st.DataObject) -> None:
    layout = layout_of(config)
    converter = compute_page_index_converter(layout.buffer_placement(data.draw(st.sampled_from(layout.buffer_ids))))
    num_rows, num_blocks = data.draw(st.integers(0, 4)), data.draw(st.integers(0, 6))
    rows: list[list[int]] = []
    descs: list[ScratchDesc | None] = []
    for _ in range(num_rows):
        row = data.draw(st.lists(st.integers(-1, 9), min_size=num_blocks, max_size=num_blocks))
        beg = data.draw(st.integers(0, num_blocks))
        scratch_range = HalfOpenRange(beg, data.draw(st.integers(beg, num_blocks)))
        for block in scratch_range:
            row[block] = BAD_PAGE_INDEX
        rows.append(row)
        descs.append(data.draw(st.sampled_from([ScratchDesc(scratch_range, range(20, 40)), None])))
    base = np.array(rows, np.int32).reshape(num_rows, num_blocks)
    out = np.full((num_rows, num_blocks * converter.expansion + 1), 77, np.int32)
    written = converter.convert_batch_into(base, out, PageIndexMode.PER_LAYER, descs)
    assert written == num_blocks * converter.expansion
    for row, desc, result in zip(rows, descs, out.tolist(), strict=True):
        assert result == [*converter(row, PageIndexMode.PER_LAYER, desc).tolist(), 77]
