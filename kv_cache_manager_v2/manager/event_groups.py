"""A manager's layer groups, as events tell of them."""

from ..events.layer_group_facts import FULL_ATTENTION, MAMBA, SLIDING_WINDOW, LayerGroupFacts
from ..layout.life_cycle import LifeCycle
from ..sequence.shared_state import SharedState
from ..storage.slots_per_level import list_slots_per_level


def list_layer_groups(shared: SharedState) -> list[LayerGroupFacts]:
    slots = list_slots_per_level(shared.storage)
    return [
        LayerGroupFacts(_kind_of(cycle), cycle.window_size, slots[life_cycle_id])
        for life_cycle_id, cycle in enumerate(shared.life_cycles)
    ]


def _kind_of(cycle: LifeCycle) -> str:
    if not cycle.has_page_per_block:
        return MAMBA
    return FULL_ATTENTION if cycle.window_size is None else SLIDING_WINDOW
