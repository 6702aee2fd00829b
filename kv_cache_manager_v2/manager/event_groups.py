"""A manager's layer groups, as events tell of them."""

from ..events.layer_group_facts import FULL_ATTENTION, MAMBA, SLIDING_WINDOW, LayerGroupFacts
from ..layout.life_cycle import LifeCycle
from ..sequence.shared_state import SharedState


def list_layer_groups(shared: SharedState) -> list[LayerGroupFacts]:
    storage = shared.storage
    num_pool_groups = int(storage.num_pool_groups)
    groups: list[LayerGroupFacts] = []
    for life_cycle_id, cycle in enumerate(shared.life_cycles):
        # The allocators of a level follow those of the level above it.
        allocators = storage.allocators[int(storage.pool_group_of[life_cycle_id]) :: num_pool_groups]
        num_slots = tuple([int(allocator.num_slots) for allocator in allocators])
        groups.append(LayerGroupFacts(_kind_of(cycle), cycle.window_size, num_slots))
    return groups


def _kind_of(cycle: LifeCycle) -> str:
    if not cycle.has_page_per_block:
        return MAMBA
    return FULL_ATTENTION if cycle.window_size is None else SLIDING_WINDOW
