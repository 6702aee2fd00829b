"""Any model: buffers tile their slots, and layer groups that share a pool group have equal slots."""

from collections import defaultdict

from hypothesis import given, settings
from hypothesis import strategies as st

from kv_cache_manager_v2.config.manager_config import KVCacheManagerConfig
from kv_cache_manager_v2.layout.buffer_id import BufferId
from kv_cache_manager_v2.layout.page_run import compute_page_runs

from .random_models import configs, layout_of


@settings(max_examples=80, deadline=None, derandomize=True)
@given(configs())
def test_buffers_tile_the_slots_of_their_group(config: KVCacheManagerConfig) -> None:
    layout = layout_of(config)
    ends: dict[tuple[int, int], int] = defaultdict(int)  # by life cycle and pool
    placements = [layout.buffer_placement(buffer_id) for buffer_id in layout.buffer_ids]
    for placement in sorted(placements, key=lambda placement: placement.offset_bytes):
        place = (placement.life_cycle_id, placement.pool_index)
        assert placement.offset_bytes == ends[place]
        ends[place] += placement.num_bytes
        assert placement.pool_group_index == layout.pool_group_indices[placement.life_cycle_id]
    for life_cycle_id in range(layout.num_life_cycles):
        slot_bytes = layout.slot_bytes(layout.pool_group_indices[life_cycle_id])
        filled = [ends[life_cycle_id, pool_index] for pool_index in range(len(slot_bytes))]
        if config.max_slot_padding is None or not layout.life_cycles[life_cycle_id].has_page_per_block:
            assert filled == list(slot_bytes)
        else:
            assert all(0 < size <= slot for size, slot in zip(filled, slot_bytes, strict=True))


@settings(max_examples=80, deadline=None, derandomize=True)
@given(configs())
def test_equal_slots_are_one_pool_group_and_mostly_used(config: KVCacheManagerConfig) -> None:
    """Layers that read the same blocks leave no more unused, all parts together, than was asked for."""
    layout = layout_of(config)
    attention = [index for index, life_cycle in enumerate(layout.life_cycles) if life_cycle.has_page_per_block]
    if config.max_slot_padding is None or not attention:
        return
    (pool_group,) = {layout.pool_group_indices[index] for index in attention}
    used: dict[tuple[object, ...], int] = defaultdict(int)
    taken: dict[tuple[object, ...], int] = defaultdict(int)
    for index in attention:
        life_cycle = layout.life_cycles[index]
        rule = (life_cycle.window_size, life_cycle.num_sink_blocks)
        taken[rule] += layout.slot_bytes_total(pool_group)
        for placement in map(layout.buffer_placement, layout.buffer_ids):
            used[rule] += placement.num_bytes if placement.life_cycle_id == index else 0
    assert all(used[rule] >= (1 - config.max_slot_padding) * taken[rule] for rule in taken)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(configs())
def test_sizes_and_groups_follow_from_the_configuration(config: KVCacheManagerConfig) -> None:
    layout = layout_of(config)
    for layer in config.layers:
        of_size: dict[int, list[int]] = defaultdict(list)
        for buffer in layer.buffers:
            placement = layout.buffer_placement(BufferId(layer.layer_id, buffer.role))
            kernel_tokens = buffer.tokens_per_block_override or config.tokens_per_block
            assert placement.num_bytes * kernel_tokens == buffer.size * config.tokens_per_block
            assert placement.page_bytes == buffer.size
            assert placement.page_bytes * placement.expansion == placement.num_bytes
            of_size[placement.num_bytes].append(placement.layer_offset)
        for offsets in of_size.values():
            assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))  # side by side
    # Pool groups differ in their slots, and the lists of sizes are sorted.
    all_sizes = [layout.slot_bytes(index) for index in range(layout.num_pool_groups)]
    assert len(set(all_sizes)) == len(all_sizes)
    assert all(list(sizes) == sorted(sizes, reverse=True) for sizes in all_sizes)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(configs(), st.data())
def test_runs_cover_the_buffers_and_touch_nowhere(config: KVCacheManagerConfig, data: st.DataObject) -> None:
    layout = layout_of(config)
    asked = data.draw(st.lists(st.sampled_from(layout.buffer_ids)))
    expected: set[tuple[int, int, int]] = set()
    for buffer_id in asked:
        placement = layout.buffer_placement(buffer_id)
        first = placement.offset_bytes
        place = (placement.life_cycle_id, placement.pool_index)
        expected |= {(*place, offset) for offset in range(first, first + placement.num_bytes)}
    covered: set[tuple[int, int, int]] = set()
    ends: set[tuple[int, int, int]] = set()
    for run in compute_page_runs(layout, asked):
        place = (run.layer_group_id, run.pool_index)
        covered |= {(*place, offset) for offset in range(run.offset_bytes, run.offset_bytes + run.num_bytes)}
        ends.add((*place, run.offset_bytes + run.num_bytes))
        assert run.slot_bytes == layout.slot_bytes(run.pool_group_index)[run.pool_index]
        assert len(run.buffers) == len({buffer.id for buffer in run.buffers} & set(asked))
    assert covered == expected
    assert not ends & covered  # else two runs would be one
