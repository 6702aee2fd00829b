"""Pages on their way to a sequence that was resumed without waiting: its stream goes on, and `ready` says when they are there.

    resume(wait=False)   notes the points after which they land (`Arrivals`), and lets the stream wait for none of them.
                         What must be filled from such a page, or takes over a slot that others still leave, is prepared *apart*, on a
                         stream of the manager's own, and arrives like a page
    ready                polls; once all have landed the stream waits for them, which costs nothing any more
    a call that gives    makes the stream wait, and the host for what a disk reads
    the sequence work

Arrivals of further beams are those of beam 0: all have one stream.
"""

from librt.vecs import vec
from mypy_extensions import i64

from ..base.errors import StorageIOError
from ..base.ids import GPU_LEVEL
from ..device.stream_order import NO_POINT
from ..storage.page_storage import PageStorage
from .disk_arrivals import are_reads_here, expect_reads, wait_for_reads
from .sequence_state import Arrivals, SequenceState


def lock_page(state: SequenceState, page: i64, pool_group: i64, waits: bool) -> i64:
    """Lock the page; returns the slot id. Not ``waits``: the stream does not wait for what may take as long as a lower tier."""
    storage = state.shared.storage
    if not waits:
        point = storage.allocators[pool_group].ready[storage.rows.slot(page)]
        if state.shared.order.is_slow(point):
            state.record_arrival(point)
            return storage.lock_without_wait(page, pool_group)
    return storage.lock(page, pool_group, state.timeline)


def lock_each_page(state: SequenceState, life_cycle: i64, waits: bool) -> None:
    pool_group = state.shared.storage.pool_group_of[life_cycle]
    table = state.tables[life_cycle]
    for ordinal in range(state.num_blocks):
        if state.holds_page(life_cycle, ordinal):
            page = state.blocks[ordinal].first_page + life_cycle
            table.set(ordinal, lock_page(state, page, pool_group, waits))


# -- apart ----------------------------------------------------------------------------------------------------------------


def begin_apart(state: SequenceState, needed: vec[i64]) -> tuple[int, int] | None:
    """From here to `end_apart` the sequence takes ``needed`` slots, and enqueues, on the manager's stream. Its own stream and timeline;
    None: that is not necessary."""
    shared = state.shared
    if len(state.arrivals.points) == 0 and not _takes_slow_slot(shared.storage, needed):
        return None
    own = (state.stream, int(state.timeline))
    apart = shared.traffic.mover.timeline(GPU_LEVEL, GPU_LEVEL)
    state.timeline = apart
    state.stream = shared.order.stream_of(apart)
    if state.tail.copies_on_resume:
        # It may be on its way itself.
        state.wait_for_block(state.num_published)
    return own


def end_apart(state: SequenceState, own: tuple[int, int]) -> None:
    """Work that was enqueued apart arrives later; whether or not the device took all of it."""
    shared = state.shared
    storage = shared.storage
    apart = state.timeline
    mark = shared.order.mark(apart)
    state.stream, state.timeline = own
    if state.num_published < state.num_blocks:
        # The sequence's own copy of the shared last block; or still that block, which copies may be under way from.
        first_page = state.blocks[state.num_published].first_page
        for life_cycle in range(shared.num_life_cycles):
            if state.holds_page(life_cycle, state.num_published):
                storage.advance_ready(first_page + life_cycle, storage.pool_group_of[life_cycle], apart, mark)
    for block in state.recurrent.state_blocks:
        storage.advance_ready(block.first_page + shared.state_life_cycle, storage.pool_group_of[shared.state_life_cycle], apart, mark)
    if storage.slots.filler is not None:
        # Scratch slots too: nothing else is enqueued for them before the step.
        state.scratch.advance_ready(apart, mark)
    state.record_arrival(mark)


def _takes_slow_slot(storage: PageStorage, needed: vec[i64]) -> bool:
    """Whether one of the next slots of level 0 is one that a page is still leaving for a lower tier."""
    for pool_group in range(storage.num_pool_groups):
        for position in range(needed[pool_group]):
            if storage.order.is_slow(storage.allocators[pool_group].peek_ready(position)):
                return True
    return False


# -- arriving -------------------------------------------------------------------------------------------------------------


def take_over_arrivals(state: SequenceState, beam: SequenceState) -> None:
    """Pages that a further beam waits for are waited for by the first one."""
    for point in beam.arrivals.points:
        state.record_arrival(point)
    if beam.arrivals.awaits_reads:
        expect_reads(state)
    beam.arrivals = Arrivals()


def are_pages_here(state: SequenceState) -> bool:
    """Whether all that `try_resume` did not wait for has landed; the disk's error if it has not and never will."""
    order = state.shared.order
    for point in state.arrivals.points:
        try:
            if not order.is_done(point):
                return False
        except StorageIOError:
            # Perhaps of another sequence's page: whose it was is known below.
            pass
    if not are_reads_here(state):
        return False
    settle_arrivals(state)
    # Here, as the end of a look settles nothing.
    order.settle()
    return True


def await_arrivals(state: SequenceState) -> None:
    """Before a step: `settle_arrivals`, and the host waits for what a disk reads; `StorageIOError` if it could not."""
    wait_for_reads(state)
    settle_arrivals(state)


def settle_arrivals(state: SequenceState) -> None:
    """From here on the stream is in order behind the pages that were on their way, if any were."""
    if len(state.arrivals.points) == 0:
        return
    order = state.shared.order
    for point in state.arrivals.points:
        order.wait(state.timeline, point)
    state.arrivals.points = vec[i64]()
    if state.arrivals.awaits_reads:
        state.record_arrival(NO_POINT)
