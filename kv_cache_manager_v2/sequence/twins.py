"""Where indices stay: the pages that a sequence keeps although the tree has equal ones (`publishing`).

Each is a *twin* (`twin_pages`), in a private block (`Sharing.twins`), while another active sequence has the published page locked.
Beams, and owners that are suspended, take the published page over as where indices may move.
"""

from mypy_extensions import i64

from ..reuse.block import Block
from .block_owners import release_owner
from .disk_arrivals import expect_reads
from .sequence_state import SequenceState


def keep_twin(owner: SequenceState, life_cycle: i64, ordinal: i64, ours: i64, theirs: i64) -> None:
    """The active owner keeps its page of the block beside the equal published one."""
    twin_pages = owner.shared.claims.twin_pages
    assert twin_pages is not None, "a twin was kept where indices may move"
    twin_pages.add(theirs, ours)
    if owner.sharing.twins is None:
        owner.sharing.twins = {}
    owner.sharing.twins[owner.twin_key(life_cycle, ordinal)] = int(ours)


def has_twin_of(state: SequenceState, ordinal: i64) -> bool:
    """Whether the sequence keeps a block of its own for twins of that block's pages, or kept it for some that have gone on since."""
    twins = state.sharing.twins
    if twins is None:
        return False
    key = state.twin_key(0, ordinal)
    return any([number in twins for number in range(key, key + int(state.shared.num_life_cycles))])


def end_twins(state: SequenceState, mark: i64) -> None:
    """The sequence, which is about to unlock all pages, has the published ones instead of its twins; its tables are not looked at."""
    if state.sharing.twins is not None:
        end_twins_between(state, 0, state.shared.num_life_cycles, 0, state.num_blocks, mark)
        state.sharing.twins = None


def end_twins_between(state: SequenceState, life_cycle: i64, end_life_cycle: i64, begin: i64, end: i64, mark: i64) -> None:
    """End twins of some life cycles of blocks ``[begin, end)``, which are about to be released."""
    twins = state.sharing.twins
    if twins is not None:
        for key in list(twins):
            ordinal, of_life_cycle = divmod(key, int(state.shared.num_life_cycles))
            if begin <= ordinal < end and life_cycle <= of_life_cycle < end_life_cycle:
                end_twin(state, of_life_cycle, ordinal, mark)


def end_twin(state: SequenceState, life_cycle: i64, ordinal: i64, mark: i64) -> None:
    """End one page's being a twin, if it is one."""
    twins = state.sharing.twins
    twin: i64 = -1 if twins is None else twins.pop(state.twin_key(life_cycle, ordinal), -1)
    if twin < 0:
        return
    shared = state.shared
    storage = shared.storage
    if storage.rows.has_page(twin):
        pool_group = storage.pool_group_of[life_cycle]
        storage.share_locked_page(state.blocks[ordinal].first_page + life_cycle)
        assert shared.claims.twin_pages is not None
        shared.claims.twin_pages.remove(twin)
        storage.unlock(twin, pool_group, state.timeline, mark)
        storage.drop_hold(twin, pool_group)
    if not has_twin_of(state, ordinal):
        release_owner(shared.tree, shared.tree.pool.block_of_page(twin))


def take_published_pages(state: SequenceState, begin: i64) -> None:
    """From block ``begin`` on an active sequence has the published pages instead of its twins, and its indices move."""
    twins = state.sharing.twins
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
    twins = state.sharing.twins
    if twins is None:
        return
    shared = state.shared
    child.sharing.twins = dict(twins)
    for key, twin in twins.items():
        ordinal, life_cycle = divmod(key, int(shared.num_life_cycles))
        if shared.storage.rows.has_page(twin):
            assert shared.claims.twin_pages is not None
            shared.claims.twin_pages.add(state.blocks[ordinal].first_page + life_cycle, twin)
    for block in list_twin_blocks(state, 0, state.num_blocks):
        block.num_co_owners += 1


def list_twin_blocks(state: SequenceState, begin: i64, end: i64) -> list[Block]:
    """The blocks that the sequence keeps for twins of blocks ``[begin, end)``."""
    blocks: list[Block] = []
    twins = state.sharing.twins
    if twins is not None:
        for key, twin in twins.items():
            ordinal = key // int(state.shared.num_life_cycles)
            block = state.shared.tree.pool.block_of_page(twin)
            # The twins of one block were added, and are listed, one after another.
            if begin <= ordinal < end and (len(blocks) == 0 or blocks[len(blocks) - 1] is not block):
                blocks.append(block)
    return blocks
