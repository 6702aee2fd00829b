"""The entry into the tree: what a sequence has computed is published here, for all owners of its blocks.

Where the tree has no such block, ours joins it. Below a block without children that is so for all that follow, which go in one run.
Where it has an equal one, that one counts from now on (*rebase*), and for each page of ours:

    the published block                          ours is    indices  our page
    has no page                                             any      MOVE: it goes on under the published row
    has it below level 0                         locked     any      REPLACE: ours takes its place, which saves bringing it up
    has it on level 0, and no sequence locks it  locked     stay     REPLACE; not if a further beam publishes: its bytes may be others'
    has it on level 0, packed with loss; ours was not       any      REPLACE, as in the row above
    has it, else                                            stay     KEEP: its *twin* (`twins`), if it is active, without beams
    has it, else                                            any      TAKE_OVER: each owner holds the published page, and ours is free

Indices stay where `allow_seq_rebasing` is False.
"""

from typing import Final

from mypy_extensions import i32, i64

from ..base.ids import BAD_PAGE_INDEX, GPU_LEVEL
from ..base.package_log import PackageLog
from ..reuse.block import Block
from ..reuse.radix_tree import RadixTree
from ..storage.decision_digest import REBASE
from ..storage.page_bytes import copy_page
from ..storage.page_handover import move_page, replace_page
from ..storage.page_runs import set_ready_run
from .disk_arrivals import expect_reads
from .forked_blocks import list_owners, record_published
from .planned_steps import confirm, take_offered
from .sequence_state import NO_TIMELINE, SequenceState
from .twins import has_twin_of, keep_twin

_logger: Final = PackageLog("kv_cache_manager_v2")

MOVE: Final = 0
REPLACE: Final = 1
KEEP: Final = 2
TAKE_OVER: Final = 3


def publish(state: SequenceState, text: bytes, mark: i64) -> i64:
    """The next blocks of the path are full: publish the whole blocks of ``text``. How many bytes these have."""
    tree = state.shared.tree
    block_bytes = tree.block_bytes
    end = len(text) // block_bytes * block_bytes
    position: i64 = 0
    while position < end:
        above = state.path_end
        # Of pages behind a residency window some may be below level 0.
        is_plain = state.request.windows is state.shared.windows and not tree.has_digests and state.forked_end == 0
        is_fresh = is_plain and above.only_child is None and above.children is None
        if is_fresh and position + block_bytes < end:
            _publish_run(state, text, position, end, mark)
            position = end
        else:
            _publish_next(state, text[position : position + block_bytes], mark)
            position += block_bytes
    return end


def _publish_run(state: SequenceState, text: bytes, position: i64, end: i64, mark: i64) -> None:
    shared = state.shared
    tree = shared.tree
    first_block = state.num_published
    num_published = first_block + (end - position) // tree.block_bytes
    packed = text if end == len(text) else text[:end]
    first_pages = tree.attach_run(state.path_end, state.blocks, first_block, num_published, packed, position)
    last = state.blocks[num_published - 1]
    tree.move_pin(state.path_end, last)
    state.path_end = last
    state.num_published = num_published
    for life_cycle in range(shared.num_life_cycles):
        set_ready_run(shared.storage, first_pages, life_cycle, mark)


def _publish_next(state: SequenceState, key: bytes, mark: i64) -> None:
    tree = state.shared.tree
    above = state.path_end
    private = state.blocks[state.num_published]
    is_ours = private.parent is None
    block = enter(state, key, mark)
    is_ours = is_ours and block is private
    if not is_ours and tree.has_digests:
        # These were counted for our block; the tree has counted its own.
        tree.digests.release(key)
    tree.drop_superseded(above, block)
    tree.move_pin(above, block)
    if block is private and above.children is not None and above.first_page >= 0:
        state.sharing.branch_end = state.num_published
    state.path_end = block
    state.num_published += 1
    if state.forked_end > 0:
        record_published(state)


def enter(state: SequenceState, key: bytes, mark: i64) -> Block:
    """The tree's block with that key below the path's end, for all owners of ours; all but the sequence itself pin it.

    The pages that they need are theirs as before. ``mark``: comes after the sequence's writes, if it is active.
    """
    tree = state.shared.tree
    ordinal = state.num_published
    block = state.blocks[ordinal]
    if block.parent is not None:
        # Another owner was here first.
        assert tree.key_of(block) == key, "a fork published a block with other tokens"
        block.num_pins -= 1
        return block
    planned = None if state.sharing.planned is None else take_offered(state)
    is_shared = planned is not None or (state.sharing.planned is None and ordinal < state.forked_end)
    owners = [state]
    if planned is not None:
        owners.extend(planned.readers)
    elif is_shared:
        owners = list_owners(state, ordinal)
    above = state.path_end
    num_co_owners = block.num_co_owners
    published = find_or_attach(tree, above, block, key)
    _record_ready(state, block, mark)
    if published is block:
        block.num_pins += num_co_owners
    else:
        state.shared.storage.digest.record(REBASE, ordinal)
        _rebase(state, owners, block, published, mark, is_shared)
    if planned is not None:
        confirm(planned, above, published)
    elif is_shared:
        for owner in owners:
            if owner is not state and owner.num_published == ordinal:
                owner.tail.is_published = True
                owner.next_slow_capacity = 0
    return published


def find_or_attach(tree: RadixTree, above: Block, block: Block, key: bytes) -> Block:
    """The published block with that key: the one that the tree has, or else ``block``, which is private until now."""
    published = tree.find_child(above, key)
    if published is None:
        block.num_co_owners = 0
        tree.attach(above, block, key)
        published = block
    return published


def _record_ready(state: SequenceState, block: Block, mark: i64) -> None:
    """The committer's writes come before ``mark``; what other owners do with the pages stays in their points."""
    if state.timeline == NO_TIMELINE:
        return
    storage = state.shared.storage
    for life_cycle in range(state.shared.num_life_cycles):
        page = block.first_page + life_cycle
        # A page that only a suspended owner needs may have been offloaded.
        if storage.rows.has_page(page) and storage.rows.level(page) == GPU_LEVEL:
            storage.advance_ready(page, storage.pool_group_of[life_cycle], state.timeline, mark)


def _rebase(state: SequenceState, owners: list[SequenceState], block: Block, published: Block, mark: i64, is_shared: bool) -> None:
    """All owners of ``block`` go on with the equal published one; ``state`` commits."""
    shared = state.shared
    storage = shared.storage
    ordinal = state.num_published
    for life_cycle in range(shared.num_life_cycles):
        ours = block.first_page + life_cycle
        theirs = published.first_page + life_cycle
        if storage.rows.has_page(ours):
            pool_group = storage.pool_group_of[life_cycle]
            decision = _decide(state, ours, theirs)
            if decision != MOVE and shared.uses_priorities and state.request.is_admitted:
                storage.raise_priority(theirs, pool_group, storage.rows.priority(ours))
            if decision == MOVE:
                move_page(storage, ours, theirs)
            elif decision == REPLACE:
                replace_page(storage, ours, theirs, pool_group, state.request.is_admitted)
            if decision <= REPLACE:
                shared.claims.leases.record_moved(ours, theirs, life_cycle)
            else:
                for owner in owners:
                    if owner.has_page(life_cycle, ordinal):
                        if decision == KEEP and owner.timeline != NO_TIMELINE and not owner.has_beams:
                            keep_twin(owner, life_cycle, ordinal, ours, theirs)
                        else:
                            is_other = owner is not state and owner.timeline != NO_TIMELINE
                            own_mark = shared.order.mark(owner.timeline) if is_other else mark
                            _take_over(owner, life_cycle, ordinal, ours, theirs, own_mark, decision == KEEP or is_shared)
    num_left = i64(block.num_co_owners) + 1 - len(owners)
    for owner in owners:
        owner.blocks[ordinal] = published
        if has_twin_of(owner, ordinal):
            num_left += 1
    published.num_pins += len(owners) - 1
    block.num_co_owners = i32(num_left - 1 if num_left > 0 else 0)
    if num_left == 0:
        shared.tree.pool.release(block)


def _decide(state: SequenceState, ours: i64, theirs: i64) -> i64:
    """As the table says; KEEP: each owner that can, the others TAKE_OVER."""
    storage = state.shared.storage
    rows = storage.rows
    stays = state.shared.claims.twin_pages is not None
    if not rows.has_page(theirs):
        return MOVE
    if rows.num_locks(ours) > 0:
        if rows.level(theirs) > GPU_LEVEL:
            return REPLACE
        is_better = stays or (storage.has_loss(theirs) and not storage.has_loss(ours))
        if is_better and rows.num_locks(theirs) == 0 and not state.is_further_beam:
            return REPLACE
    return KEEP if stays else TAKE_OVER


def _take_over(owner: SequenceState, life_cycle: i64, ordinal: i64, ours: i64, theirs: i64, mark: i64, was_shared: bool) -> None:
    """One of the owners of a private page goes on with the equal published one. ``was_shared``: others may have written into ours."""
    shared = owner.shared
    storage = shared.storage
    pool_group = storage.pool_group_of[life_cycle]
    storage.hold(theirs, pool_group, owner.request.is_admitted)
    if owner.timeline != NO_TIMELINE and owner.tables[life_cycle].entries[ordinal] != BAD_PAGE_INDEX:
        owner.tables[life_cycle].set(ordinal, int(storage.lock(theirs, pool_group, owner.timeline)))
        if storage.closed.has_disks and not was_shared:
            # A copy further down is no better than a read that may still fail. Whether it does is not looked at: which copies there are
            # may not depend on how quick a disk is.
            storage.copies.forget(theirs)
        if not storage.reads.is_idle:
            if was_shared or not _repair_page(owner, ours, theirs, pool_group):
                expect_reads(owner)
            mark = shared.order.mark(owner.timeline)
        storage.unlock(ours, pool_group, owner.timeline, mark)
    storage.drop_hold(ours, pool_group)


def _repair_page(state: SequenceState, ours: i64, theirs: i64, pool_group: i64) -> bool:
    """The published page's disk read may fail: overwrite it with our identical bytes. Whether nothing is to be expected of the read."""
    shared = state.shared
    storage = shared.storage
    reads = storage.reads
    if not reads.knows(int(theirs)):
        return True
    is_partial = not shared.tree.is_full(shared.tree.pool.block_of_page(theirs))
    if state.is_further_beam or reads.knows(int(ours)) or (is_partial and storage.rows.num_holds(theirs) > 1):
        # Ours may be another text's or come from a disk too; behind a part of a block that is published another holder may have its own
        # tokens.
        return False
    try:
        # An early copy of it may be under way, which is forgotten now.
        shared.order.wait(state.timeline, storage.allocators[pool_group].ready[storage.rows.slot(theirs)])
        copy_page(storage, ours, theirs, pool_group, state.stream)
    except Exception as error:
        _logger.warning("a page was not repaired (%s); sequence %s waits for the disk instead", str(error), state.id)
        return False
    storage.counters.record_copied(GPU_LEVEL, GPU_LEVEL, pool_group, 1)
    mark = shared.order.mark(state.timeline)
    reads.record_repair(theirs, state.timeline, mark)
    storage.set_ready(theirs, pool_group, mark)
    return True
