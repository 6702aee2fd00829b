"""Where indices stay: what a sequence does with its own page when the tree has an equal one.

    the published block has no page           ours goes on under its row
    no active sequence has that page locked   ours takes its place, and its slot is free
    another active sequence has it locked     ours is a *twin* (`twin_pages`), in a private block (`SequenceState.twins`)

In all three cases the sequence's slot stays. Beams, and owners that are suspended, take the published page over as where indices may move.
"""

from mypy_extensions import i64

from ..reuse.block import Block
from ..storage.page_handover import move_page, replace_page
from .disk_arrivals import expect_reads
from .sequence_state import NO_TIMELINE, SequenceState


def keep_own_pages(owners: list[SequenceState], ordinal: i64, block: Block, published: Block, mark: i64) -> i64:
    """All owners of ``block`` go on with the equal published one. The first is active, and commits: its writes are behind ``mark``.

    How many of them keep ``block`` for their twins.
    """
    state = owners[0]
    shared = state.shared
    storage = shared.storage
    rows = storage.rows
    for life_cycle in range(shared.num_life_cycles):
        ours = block.first_page + life_cycle
        theirs = published.first_page + life_cycle
        if rows.has_page(ours):
            pool_group = storage.pool_group_of[life_cycle]
            if rows.num_locks(ours) > 0:
                storage.advance_ready(ours, pool_group, state.timeline, mark)
            if not rows.has_page(theirs):
                move_page(storage, ours, theirs)
                shared.leases.record_moved(ours, theirs, life_cycle)
            else:
                if shared.uses_priorities:
                    storage.raise_priority(theirs, pool_group, rows.priority(ours))
                if rows.num_locks(theirs) == 0 and rows.num_locks(ours) > 0 and not state.is_further_beam:
                    replace_page(storage, ours, theirs, pool_group)
                    shared.leases.record_moved(ours, theirs, life_cycle)
                else:
                    _share_out(owners, ordinal, life_cycle, ours, theirs)
    num_keepers: i64 = 0
    for owner in owners:
        owner.blocks[ordinal] = published
        if has_twin_of(owner, ordinal):
            num_keepers += 1
    return num_keepers


def _share_out(owners: list[SequenceState], ordinal: i64, life_cycle: i64, ours: i64, theirs: i64) -> None:
    """Each owner keeps its page if it can, and takes the published one if not."""
    twin_pages = owners[0].shared.twin_pages
    for owner in owners:
        if owner.holds_page(life_cycle, ordinal):
            if owner.timeline == NO_TIMELINE or owner.has_beams or twin_pages is None:
                swap_page(owner, ordinal, life_cycle, ours, theirs)
            else:
                twin_pages.add(theirs, ours)
                if owner.twins is None:
                    owner.twins = {}
                owner.twins[owner.twin_key(life_cycle, ordinal)] = int(ours)


def swap_page(owner: SequenceState, ordinal: i64, life_cycle: i64, ours: i64, theirs: i64) -> None:
    """One of the owners of a private page takes an equal published one over."""
    storage = owner.shared.storage
    pool_group = storage.pool_group_of[life_cycle]
    storage.hold(theirs, pool_group)
    if owner.timeline != NO_TIMELINE:
        owner.tables[life_cycle].set(ordinal, int(storage.lock(theirs, pool_group, owner.timeline)))
        if not storage.reads.is_idle:
            expect_reads(owner)
        storage.unlock(ours, pool_group, owner.timeline, owner.shared.order.mark(owner.timeline))
    storage.drop_hold(ours, pool_group)


def has_twin_of(state: SequenceState, ordinal: i64) -> bool:
    """Whether the sequence keeps a block of its own for twins of that block's pages, or kept it for some that have gone on since."""
    if state.twins is None:
        return False
    key = state.twin_key(0, ordinal)
    for number in range(key, key + int(state.shared.num_life_cycles)):
        if number in state.twins:
            return True
    return False


def end_twins(state: SequenceState, mark: i64) -> None:
    """The sequence, which is about to unlock all pages, has the published ones instead of its twins; its tables are not looked at."""
    if state.twins is not None:
        end_twins_between(state, 0, state.shared.num_life_cycles, 0, state.num_blocks, mark)
        state.twins = None


def end_twins_between(state: SequenceState, life_cycle: i64, end_life_cycle: i64, begin: i64, end: i64, mark: i64) -> None:
    """The same for some life cycles of blocks ``[begin, end)``, which are about to be released."""
    twins = state.twins
    if twins is not None:
        for key in list(twins):
            ordinal, of_life_cycle = divmod(key, int(state.shared.num_life_cycles))
            if begin <= ordinal < end and life_cycle <= of_life_cycle < end_life_cycle:
                end_twin(state, of_life_cycle, ordinal, mark)


def end_twin(state: SequenceState, life_cycle: i64, ordinal: i64, mark: i64) -> None:
    """The same for one page, if it is a twin."""
    twins = state.twins
    twin: i64 = -1 if twins is None else twins.pop(state.twin_key(life_cycle, ordinal), -1)
    if twin < 0:
        return
    shared = state.shared
    storage = shared.storage
    if storage.rows.has_page(twin):
        pool_group = storage.pool_group_of[life_cycle]
        storage.share_locked_page(state.blocks[ordinal].first_page + life_cycle)
        assert shared.twin_pages is not None
        shared.twin_pages.remove(twin)
        storage.unlock(twin, pool_group, state.timeline, mark)
        storage.drop_hold(twin, pool_group)
    if not has_twin_of(state, ordinal):
        block = shared.tree.pool.block_of_page(twin)
        if block.num_co_owners > 0:
            block.num_co_owners -= 1
        else:
            shared.tree.pool.release(block)


def take_published_pages(state: SequenceState, begin: i64) -> None:
    """From block ``begin`` on an active sequence has the published pages instead of its twins, and its indices move."""
    twins = state.twins
    if twins is None:
        return
    shared = state.shared
    storage = shared.storage
    mark = shared.order.mark(state.timeline)
    for key in list(twins):
        ordinal, life_cycle = divmod(key, int(shared.num_life_cycles))
        if ordinal >= begin:
            end_twin(state, life_cycle, ordinal, mark)
            slot = storage.rows.slot(state.blocks[ordinal].first_page + life_cycle)
            shared.order.wait(state.timeline, storage.allocators[storage.pool_group_of[life_cycle]].ready[slot])
            if not storage.reads.is_idle:
                expect_reads(state)
            state.tables[life_cycle].set(ordinal, int(slot))


def share_twins(state: SequenceState, child: SequenceState) -> None:
    """A fork of an active sequence has its twins too; of their holds and locks nothing is said here."""
    twins = state.twins
    if twins is None:
        return
    shared = state.shared
    child.twins = dict(twins)
    last: i64 = -1
    for key, twin in twins.items():
        ordinal, life_cycle = divmod(key, int(shared.num_life_cycles))
        if shared.storage.rows.has_page(twin):
            assert shared.twin_pages is not None
            shared.twin_pages.add(state.blocks[ordinal].first_page + life_cycle, twin)
        block = shared.tree.pool.block_of_page(twin)
        if block.first_page != last:
            # The twins of one block were added, and are listed, one after another.
            block.num_co_owners += 1
            last = block.first_page


def list_twin_blocks(state: SequenceState, begin: i64, end: i64) -> list[Block]:
    """The blocks that the sequence keeps for twins of blocks ``[begin, end)``."""
    blocks: list[Block] = []
    twins = state.twins
    if twins is not None:
        for key, twin in twins.items():
            ordinal = key // int(state.shared.num_life_cycles)
            block = state.shared.tree.pool.block_of_page(twin)
            if begin <= ordinal < end and block not in blocks:
                blocks.append(block)
    return blocks
