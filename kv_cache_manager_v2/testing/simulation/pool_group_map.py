"""The pool group of each layer group, computed from the configuration by the rules of the design rather than asked of the
manager."""

from collections.abc import Sequence

from ...config.manager_config import KVCacheManagerConfig
from ..reference_pages import ModelDisagreement
from ..reference_state import group_layers


def find_pool_groups(
    config: KVCacheManagerConfig, layer_grouping: Sequence[Sequence[int]], slot_sizes: Sequence[Sequence[int]]
) -> list[int]:
    """For each layer group the pool group, given the slot sizes of the pool groups: equal lists of sizes share one."""
    pool_group_of: list[int] = []
    known = [tuple(sizes) for sizes in slot_sizes]
    for group, members in zip(layer_grouping, group_layers(config)):
        count_of_size: dict[int, int] = {}
        for layer in members:
            for buffer in layer.buffers:
                kernel_blocks = config.tokens_per_block // (buffer.tokens_per_block_override or config.tokens_per_block)
                size: int = buffer.size * kernel_blocks
                count_of_size[size] = count_of_size.get(size, 0) + 1
        sizes = tuple(sorted([size * count for size, count in count_of_size.items()], reverse=True))
        if known.count(sizes) != 1:
            raise ModelDisagreement(f"layer group {list(group)} needs slots of {sizes}; the pool groups have {known}")
        pool_group_of.append(known.index(sizes))
    return pool_group_of
