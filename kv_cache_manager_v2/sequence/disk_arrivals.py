"""Disk reads of a sequence: it does not go on with a page whose read has failed or may yet fail."""

from ..device.stream_order import NO_POINT
from ..stats.page_counters import PageCounters
from ..stats.usage_counters import find_page_counters
from ..storage.page_removal import count_failed_reads, settle_reads
from .sequence_state import SequenceState
from .whole_prefix import make_load_failed


def settle_before_resume(state: SequenceState, waits: bool, account: PageCounters | None) -> None:
    """`LoadFailed`, and nothing changed, if a page that the sequence holds is lost. ``waits``: as the call itself."""
    storage = state.shared.storage
    settle_reads(storage, account)
    pages = _list_pages(state)
    if waits:
        storage.reads.wait_for(pages)
        count_failed_reads(storage, account)
    _require_whole(state, pages)


def record_doubtful_pages(state: SequenceState) -> None:
    """The sequence was resumed without waiting: from now on `ready` and the next step ask for its reads, if there are any."""
    reads = state.shared.storage.reads
    if any([reads.is_doubtful(page) for page in _list_pages(state)]):
        expect_reads(state)


def expect_reads(state: SequenceState) -> None:
    state.arrivals.awaits_reads = True
    if len(state.arrivals.points) == 0:
        state.record_arrival(NO_POINT)


def are_reads_here(state: SequenceState) -> bool:
    """`LoadFailed` if one has failed."""
    if state.arrivals.awaits_reads:
        storage = state.shared.storage
        settle_reads(storage)
        pages = _list_pages(state)
        _require_whole(state, pages)
        if any([storage.reads.is_doubtful(page) for page in pages]):
            return False
        _end_awaiting(state)
    return True


def list_arrival_points(state: SequenceState) -> list[int]:
    """After which the sequence is ready, if nothing fails."""
    points = [int(point) for point in state.arrivals.points if point != NO_POINT]
    if state.arrivals.awaits_reads:
        points.extend(state.shared.storage.reads.points_of(_list_pages(state)))
    return points


def wait_for_reads(state: SequenceState) -> None:
    """Block the host, which has not asked `ready` until it was; `LoadFailed` if a read has failed."""
    if state.arrivals.awaits_reads:
        pages = _list_pages(state)
        storage = state.shared.storage
        storage.reads.wait_for(pages)
        count_failed_reads(storage, find_page_counters(state.request.counters))
        _require_whole(state, pages)
        _end_awaiting(state)


def _end_awaiting(state: SequenceState) -> None:
    """Its pages are whole; some of them, perhaps, because others have put their bytes there since."""
    for point in state.shared.storage.reads.repairs.values():
        state.record_arrival(point)
    state.arrivals.awaits_reads = False
    if state.request.counters is not None:
        state.request.counters.num_lost = 0


def has_lost_page(state: SequenceState) -> bool:
    lost = state.shared.storage.reads.lost
    return len(lost) > 0 and any([page in lost for page in _list_pages(state)])


def _list_pages(state: SequenceState) -> list[int]:
    """All that the sequence holds, with its beams."""
    pages: list[int] = []
    for beam in state.sharing.beams:
        pages.extend(_list_pages(beam))
    for life_cycle in range(state.shared.num_life_cycles):
        for ordinal in range(state.num_blocks):
            if state.has_page(life_cycle, ordinal):
                pages.append(int(state.page_of(life_cycle, ordinal)))
    snapshot = state.recurrent.matched_snapshot
    blocks = state.recurrent.state_blocks if snapshot is None else [*state.recurrent.state_blocks, snapshot]
    for block in blocks:
        pages.append(int(block.first_page + state.shared.state_life_cycle))
    return pages


def _require_whole(state: SequenceState, pages: list[int]) -> None:
    lost = state.shared.storage.reads.lost
    if len(lost) == 0:
        return
    # Beams have pages in common.
    bad = [page for page in dict.fromkeys(pages) if page in lost]
    if len(bad) > 0:
        raise make_load_failed(state, bad, f"{len(bad)} of its pages are lost, as they could not be read from {lost[bad[0]]}")
