"""Making a lease of some blocks of an active sequence."""

from mypy_extensions import i64

from .sequence_state import SequenceState
from .transfer_leases import TransferLeaseState


def lease_blocks(state: SequenceState, begin: i64, end: i64) -> TransferLeaseState:
    """Of blocks ``begin .. end - 1`` the pages that the sequence has."""
    shared = state.shared
    leases = shared.leases
    lease = leases.open(state.id)
    life_cycle: i64 = 0
    while life_cycle < shared.num_life_cycles:
        ordinal = begin
        while ordinal < end:
            if state.holds_page(life_cycle, ordinal):
                leases.add_page(lease, life_cycle, state.blocks[ordinal].first_page + life_cycle)
            ordinal += 1
        life_cycle += 1
    size = shared.tokens_per_block
    ordinal = begin if begin > state.num_published else state.num_published
    while ordinal < end:
        block = state.blocks[ordinal]
        if block.parent is None:
            room = state.capacity - ordinal * size
            leases.add_private_block(lease, block, room if room < size else size)
            if state.forked_end <= ordinal:
                state.forked_end = ordinal + 1
        ordinal += 1
    return lease
