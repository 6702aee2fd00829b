"""The slots that some sequences use and that no other sequence needs: of sequences that are not counted."""

from librt.vecs import vec
from mypy_extensions import i64

from .beams import list_beams
from .sequence_state import SequenceState
from .shared_state import SharedState


def count_slots_of(shared: SharedState, states: list[SequenceState]) -> vec[i64]:
    """Per pool group, on all levels: scratch slots, and pages that only these sequences hold."""
    storage = shared.storage
    counts = vec[i64]([0] * storage.num_pool_groups)
    holds: dict[int, int] = {}
    for owner in states:
        for state in list_beams(owner):
            for life_cycle in range(shared.num_life_cycles):
                counts[storage.pool_group_of[life_cycle]] += len(state.scratch.slots[life_cycle])
                for ordinal in range(state.num_blocks):
                    if state.holds_page(life_cycle, ordinal):
                        page = int(state.blocks[ordinal].first_page + life_cycle)
                        holds[page] = holds.get(page, 0) + 1
            blocks = list(state.state_blocks)
            if state.matched_snapshot is not None:
                blocks.append(state.matched_snapshot)
            for block in blocks:
                page = int(block.first_page + shared.state_life_cycle)
                holds[page] = holds.get(page, 0) + 1
    for page, num_holds in holds.items():
        if storage.rows.num_holds(page) == num_holds:
            counts[storage.pool_group_of_page(page)] += 1
    return counts
