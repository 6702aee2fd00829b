"""Layers divided into groups of equal slots: the fewest parts within the padding, against every slot size; refusals say what there was."""

import itertools
from dataclasses import replace
from typing import Any

import pytest

from kv_cache_manager_v2 import AttentionLayerConfig, BufferConfig, GpuCacheTierConfig, KVCacheManagerConfig, LayerConfig, SsmLayerConfig
from kv_cache_manager_v2.config.equal_slots import divide_layers
from kv_cache_manager_v2.layout.registry import LifeCycleRegistry
from kv_cache_manager_v2.layout.slot_layout import compute_slot_layout


def make_layers(*kinds: tuple[int, int | None, int]) -> list[LayerConfig]:
    """``kinds``: a number of layers, their window, and the bytes of a block of keys, and as many of values."""
    sizes = [(window, size) for count, window, size in kinds for _ in range(count)]
    return [
        AttentionLayerConfig(index, [BufferConfig("key", size), BufferConfig("value", size)], window)
        for index, (window, size) in enumerate(sizes)
    ]  # fmt: skip


def make_config(layers: list[LayerConfig], **options: Any) -> KVCacheManagerConfig:
    return KVCacheManagerConfig(32, [GpuCacheTierConfig(1 << 30)], layers, **options)


@pytest.mark.parametrize(
    ("kinds", "num_groups", "padding"),
    [
        ([(8, None, 64), (40, 1024, 64)], 6, 0.0),  # Gemma-3-12B: slots of 8 layers
        ([(10, None, 64), (52, 1024, 64)], 6, 1 / 11),  # 27B: slots of 11; 55 places for 52, 11 for 10
        ([(5, None, 64), (29, 1024, 64)], 7, 1 / 30),  # 4B: slots of 5; 30 places for 29
        ([(12, None, 64), (12, 128, 64)], 2, 0.0),  # gpt-oss-20b: as many of both
        ([(10, None, 64), (50, 1024, 128)], 11, 0.0),  # Gemma-4-31B: windowed layers twice as large, 5 or 10 to a slot
        ([(7, None, 64)], 1, 0.0),
    ],
)  # fmt: skip
def test_published_models_are_divided_as_by_hand(kinds: list[tuple[int, int | None, int]], num_groups: int, padding: float) -> None:
    config = make_config(make_layers(*kinds), max_slot_padding=0.1)
    registry = LifeCycleRegistry(config)
    layout = compute_slot_layout(config, registry)
    assert len(registry) == num_groups
    assert layout.num_pool_groups == 1
    division = config.divide_into_equal_slots()
    assert division is not None and division.padding == pytest.approx(padding)
    assert len(LifeCycleRegistry(replace(config, max_slot_padding=None))) == len(kinds)


@pytest.mark.parametrize("sizes", [(1, 1), (2, 1), (1, 2), (3, 2), (2, 3)])
def test_no_slot_size_needs_fewer_parts(sizes: tuple[int, int]) -> None:
    """Every slot up to all bytes together, tried one by one."""
    for full, windowed, bound in itertools.product(range(1, 8), range(1, 12), (0.0, 0.1, 0.3, 0.5)):
        best: tuple[int, float] | None = None
        for slot in range(1, 100):
            if all(slot % size == 0 for size in sizes):
                parts = [-(-count // (slot // size)) for count, size in zip((full, windowed), sizes, strict=True)]
                unused = max(1 - n * size / (m * slot) for n, size, m in zip((full, windowed), sizes, parts, strict=True))
                if unused <= bound:
                    best = min(best or (sum(parts), unused), (sum(parts), unused))
        layers = make_layers((full, None, sizes[0]), (windowed, 8, sizes[1]))
        if best is None:
            with pytest.raises(ValueError, match=f"max_slot_padding is {bound:g}"):
                divide_layers(layers, 32, bound)
        else:
            division = divide_layers(layers, 32, bound)
            parts_of_full = {division.part_of[index] for index in range(full)}
            parts_of_windowed = {division.part_of[index] for index in range(full, full + windowed)}
            assert (len(parts_of_full) + len(parts_of_windowed), division.padding) == best


def test_layers_of_other_bytes_get_parts_of_their_own() -> None:
    """Two shapes that read the same blocks: one coalesced slot without the option, three equal slots with it."""
    layers = make_layers((2, None, 64), (2, None, 128))
    config = make_config(layers, max_slot_padding=0.0)
    assert LifeCycleRegistry(config).layer_grouping == ((0, 1), (2,), (3,))
    assert compute_slot_layout(config, LifeCycleRegistry(config)).slot_bytes(0) == (256,)
    assert len(LifeCycleRegistry(make_config(layers))) == 1


def test_recurrent_layers_keep_their_pool_group() -> None:
    layers = [*make_layers((1, None, 64), (3, 16, 64)), SsmLayerConfig(9, [BufferConfig("state", 48)])]
    config = make_config(layers, max_slot_padding=0.0)
    layout = compute_slot_layout(config, LifeCycleRegistry(config))
    assert layout.pool_group_indices == (0, 0, 0, 0, 1)


@pytest.mark.parametrize(
    ("layers", "padding", "text"),
    [
        (make_layers((1, None, 64), (4, 8, 96)), 0.1, r"1 of \[128\] bytes a block, 4 of \[192\] bytes a block"),
        (make_layers((2, None, 64), (4, 8, 64)), 0.6, "max_slot_padding is 0.6; it must be from 0 to 0.5"),
        (make_layers((2, None, 64), (4, 8, 64)), -0.1, "max_slot_padding is -0.1"),
        ([AttentionLayerConfig(0, [BufferConfig("key", 8)], part=2)], 0.1, "part of layer 0 is 2; leave one of them out"),
        (
            [
                AttentionLayerConfig(0, [BufferConfig("key", 8)]),
                AttentionLayerConfig(1, [BufferConfig("key", 4), BufferConfig("scale", 1)], 8),
            ],
            0.5,
            r"1 of \[8\] bytes a block, 1 of \[4, 1\] bytes a block",  # quantised layers have a pool more
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_divided_is_refused_with_its_numbers(layers: list[LayerConfig], padding: float, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make_config(layers, max_slot_padding=padding)
