"""Making a lease of some blocks of an active sequence."""

from mypy_extensions import i64

from .block_owners import add_co_owner
from .forked_blocks import add_owner
from .sequence_state import SequenceState
from .shared_state import UNBOUNDED
from .transfer_leases import TransferLeaseState
from .twins import list_twin_blocks


def lease_blocks(state: SequenceState, begin: i64, end: i64) -> TransferLeaseState:
    """Lease the pages that the sequence has of blocks ``begin .. end - 1``.

    Of life cycles without a window those of earlier blocks are kept with them: the holder of a page of a path holds those before it.
    """
    shared = state.shared
    leases = shared.claims.leases
    lease = leases.open(state.id)
    for life_cycle in range(shared.num_life_cycles):
        for ordinal in range(0 if shared.windows.sizes[life_cycle] == UNBOUNDED else begin, end):
            if state.holds_page(life_cycle, ordinal):
                page = state.page_of(life_cycle, ordinal) if ordinal >= begin else state.blocks[ordinal].first_page + life_cycle
                leases.add_page(lease, life_cycle, page, ordinal >= begin)
    for block in list_twin_blocks(state, begin, end):
        add_co_owner(block, shared.tokens_per_block)
        lease.private_blocks.append(block)
    for ordinal in range(state.num_published, end):
        block = state.blocks[ordinal]
        if block.parent is None:
            add_owner(state, block, ordinal)
            lease.private_blocks.append(block)
            if state.forked_end <= ordinal:
                state.forked_end = ordinal + 1
                state.next_slow_capacity = 0
    return lease
