"""Layer groups, pools and places in a slot, on models small enough to lay out by hand."""

from dataclasses import replace

import pytest

from kv_cache_manager_v2.base.ids import LayerId
from kv_cache_manager_v2.layout.buffer_id import BufferId
from kv_cache_manager_v2.layout.life_cycle import AttnLifeCycle, SsmLifeCycle
from kv_cache_manager_v2.layout.page_run import compute_page_runs
from kv_cache_manager_v2.layout.registry import LifeCycleRegistry
from kv_cache_manager_v2.layout.slot_layout import SlotLayout

from .models import attention, config_of, key_value, layout_of, state


def place(layout: SlotLayout, layer_id: int, role: str) -> tuple[int, int, int, int]:
    """(pool group, pool, offset in bytes, size in bytes)"""
    placement = layout.buffer_placement(BufferId(LayerId(layer_id), role))
    return placement.pool_group_index, placement.pool_index, placement.offset_bytes, placement.num_bytes


def test_life_cycles_in_order_of_first_appearance() -> None:
    config = config_of(
        [key_value(5, 8, 64), state(6, {"s": 8}), key_value(7, 8), key_value(8, 8, 64), key_value(9, 8, 64, 1)]
    )
    registry = LifeCycleRegistry(config)
    assert list(registry) == [AttnLifeCycle(64), SsmLifeCycle(), AttnLifeCycle(), AttnLifeCycle(64, 1)]
    assert len(registry) == 4
    assert registry.layer_grouping == ((5, 8), (6,), (7,), (9,))
    assert registry.layer_ids == (5, 6, 7, 8, 9)
    assert [registry.get_layer_group_id(LayerId(layer_id)) for layer_id in (5, 6, 7, 8, 9)] == [0, 1, 2, 0, 3]
    assert registry.life_cycle_of(LayerId(9)) == AttnLifeCycle(64, 1)
    assert registry.state_life_cycle_id == 1


def test_layers_that_need_the_same_blocks_are_one_group_a_part() -> None:
    # Gemma-like: two full layers, four windowed ones in parts of two. Three groups of slots of 2 * 2 * 8 bytes: one pool group.
    windowed = [replace(key_value(layer_id, 8, 64), part=layer_id // 2) for layer_id in range(4)]
    config = config_of([*windowed, key_value(4, 8), key_value(5, 8)])
    registry = LifeCycleRegistry(config)
    assert list(registry) == [AttnLifeCycle(64), AttnLifeCycle(64, part=1), AttnLifeCycle()]
    assert registry.layer_grouping == ((0, 1), (2, 3), (4, 5))
    layout = layout_of(config)
    assert layout.num_pool_groups == 1 and layout.slot_bytes(0) == (32,)
    with pytest.raises(ValueError, match="part of layer 0 is -1"):
        replace(windowed[0], part=-1)


def test_a_layer_with_attention_and_state_is_in_two_groups() -> None:
    config = config_of([state(0, {"s": 8}), key_value(0, 16), key_value(1, 16)])
    registry = LifeCycleRegistry(config)
    assert registry.layer_grouping == ((0,), (0, 1))
    assert registry.layer_ids == (0, 1)
    assert registry.get_layer_group_id(LayerId(0)) == 1
    assert registry.life_cycle_ids_of(LayerId(0)) == (1, 0)
    assert registry.life_cycle_ids_of(LayerId(1)) == (1,)
    layout = layout_of(config)
    assert layout.buffer_placement(BufferId(LayerId(0), "s")).life_cycle_id == 0
    assert layout.buffer_placement(BufferId(LayerId(0), "key")).life_cycle_id == 1


def test_pools_are_sorted_by_total_size_then_by_expanded_size() -> None:
    # One layer with a buffer of 64 and two of 32 bytes: totals tie at 64, the larger buffer first. Three of 16 are 48.
    sizes = {"a": 16, "b": 32, "c": 64, "d": 16, "e": 32, "f": 16}
    layout = layout_of(config_of([attention(0, sizes)]))
    assert layout.slot_bytes(0) == (64, 64, 48)
    assert [place(layout, 0, role)[1:3] for role in "abcdef"] == [
        (2, 0), (1, 0), (0, 0), (2, 16), (1, 32), (2, 32),
    ]  # fmt: skip


def test_an_override_expands_the_buffer() -> None:
    # 16 tokens per kernel block, 32 per block of the manager: 100 bytes become 200, which is another buffer's size.
    layers = [attention(0, {"key": 100}, override=16), attention(1, {"key": 200})]
    layout = layout_of(config_of(layers))
    assert layout.slot_bytes(0) == (400,)
    first = layout.buffer_placement(BufferId(LayerId(0), "key"))
    assert (first.num_bytes, first.page_bytes, first.expansion, first.scale) == (200, 100, 2, 2)


def test_scratch_slots_of_a_uniform_model() -> None:
    # 32 layers, two buffers each: 64 sub-pages, 32 blocks of a layer to a slot; 28 blocks fit into one.
    layout = layout_of(config_of([key_value(layer_id, 64, 128) for layer_id in range(32)]))
    assert [layout.compute_num_scratch_slots(0, count) for count in (0, 1, 28, 32, 33)] == [0, 1, 1, 1, 2]


def test_scratch_slots_of_the_neediest_layer_and_pool() -> None:
    # Pool of 64-byte buffers: layer 0 has one, layers 1 and 2 have two: 5 sub-pages, 5 or 5 // 2 = 2 blocks to a slot.
    # Pool of 8-byte buffers: one each in layers 0 and 1: 2 blocks to a slot.
    layers = [attention(0, {"k": 64, "s": 8}, 16), attention(1, {"k": 64, "v": 64, "s": 8}, 16), key_value(2, 64, 16)]
    layout = layout_of(config_of(layers))
    assert [layout.compute_num_scratch_slots(0, count) for count in (1, 2, 3, 5)] == [1, 1, 2, 3]


def test_neighbours_are_one_run() -> None:
    layout = layout_of(config_of([key_value(layer_id, 10) for layer_id in range(4)]))

    def runs(*names: tuple[int, str]) -> list[tuple[int, int]]:
        ids = [BufferId(LayerId(layer_id), role) for layer_id, role in names]
        return [(run.offset_bytes, run.num_bytes) for run in compute_page_runs(layout, ids)]

    # In the slot: 0.key 0.value 1.key 1.value 2.key 2.value 3.key 3.value, 10 bytes each.
    assert runs((1, "key"), (1, "value")) == [(20, 20)]
    assert runs((1, "value"), (0, "value"), (1, "key")) == [(10, 30)]
    assert runs((3, "key"), (0, "key"), (1, "key")) == [(0, 10), (20, 10), (60, 10)]
    assert runs((0, "key"), (0, "key")) == [(0, 10)]
    assert runs() == []
    assert runs(*[(buffer_id.layer_id, buffer_id.role) for buffer_id in layout.buffer_ids]) == [(0, 80)]


def test_runs_end_at_pools_and_groups() -> None:
    layout = layout_of(config_of([attention(0, {"k": 64, "s": 8}), attention(1, {"k": 64, "s": 8}, 16)]))
    runs = compute_page_runs(layout, layout.buffer_ids)
    assert [(run.layer_group_id, run.pool_index, run.offset_bytes, run.num_bytes) for run in runs] == [
        (0, 0, 0, 64), (0, 1, 0, 8), (1, 0, 0, 64), (1, 1, 0, 8),
    ]  # fmt: skip
    described = runs[1].at_address(1000)
    assert (described.base, described.size, described.stride, described.layer_group_id) == (1000, 8, 8, 0)
    assert [buffer.id for buffer in described.buffers] == [BufferId(LayerId(0), "s")]


def test_unknown_names() -> None:
    layout = layout_of(config_of([key_value(0, 8)]))
    for buffer_id in (BufferId(LayerId(0), "values"), BufferId(LayerId(1), "key")):
        with pytest.raises(ValueError):
            layout.buffer_placement(buffer_id)
        with pytest.raises(ValueError):
            compute_page_runs(layout, [buffer_id])
    with pytest.raises(ValueError):
        layout.life_cycles.get_layer_group_id(LayerId(1))


def test_one_ratio_per_pool_group() -> None:
    layers = [key_value(0, 8), key_value(1, 16, 16)]
    layout_of(config_of(layers, initial_pool_ratio=[1.0, 2.0]))
    for ratios in ([1.0], [1.0, 2.0, 3.0]):
        with pytest.raises(ValueError):
            layout_of(config_of(layers, initial_pool_ratio=ratios))
