"""Which published pages of a sequence are offloaded early, and when: at the commit that publishes them, and at its end; to a durable level
several at once."""

from librt.vecs import append, vec
from mypy_extensions import i64

from ..storage.early_copies import EarlyCopies
from ..storage.page_rows import NO_PAGE
from .sequence_state import SequenceState
from .shared_state import SharedState


def offload_published(state: SequenceState, first_block: i64) -> None:
    """The pages of its published blocks from ``first_block`` on, its last partial block and the snapshot there included."""
    shared = state.shared
    early = shared.traffic.early_copies
    if early is None or state.tail.is_retired:
        return
    end = state.num_published + 1 if state.tail.is_published else state.num_published
    snapshot_page: i64 = NO_PAGE
    if shared.has_state and state.tail.count > 0 and not state.tail.is_published:
        snapshot = shared.tree.find_child(state.path_end, state.tail.packed())
        if snapshot is not None:
            snapshot_page = snapshot.first_page + shared.state_life_cycle
    if first_block >= end and snapshot_page == NO_PAGE:
        return
    if shared.storage.durable is None:
        early.offload_copies(_list_pages(state, first_block, end, snapshot_page))
    else:
        _put_off(state, early, first_block, end, snapshot_page)


def offload_if_idle(shared: SharedState) -> None:
    """What was put off, where no sequence is active."""
    if shared.traffic.early_copies is not None:
        shared.traffic.early_copies.offload_if_idle()


def _list_pages(state: SequenceState, first_block: i64, end: i64, snapshot_page: i64) -> vec[i64]:
    pages = vec[i64]()
    for ordinal in range(first_block, end):
        first_page = state.blocks[ordinal].first_page
        for life_cycle in range(state.shared.num_life_cycles):
            pages = append(pages, first_page + life_cycle)
    return pages if snapshot_page == NO_PAGE else append(pages, snapshot_page)


def _put_off(state: SequenceState, early: EarlyCopies, first_block: i64, end: i64, snapshot_page: i64) -> None:
    """Have the pages copied later, and renew the copies that there are from the end on: the leaf's are released first."""
    num_life_cycles = state.shared.num_life_cycles
    copies = state.shared.storage.copies
    blocks = state.blocks
    for ordinal in range(first_block, end):
        early.put_off_block(blocks[ordinal].first_page, num_life_cycles)
    if snapshot_page != NO_PAGE:
        early.put_off_block(snapshot_page, 1)
    early.offload_if_many()
    with state.shared.storage.changes:
        if snapshot_page != NO_PAGE:
            copies.touch_block(snapshot_page, 1)
        while end > first_block:
            end -= 1
            copies.touch_block(blocks[end].first_page, num_life_cycles)
