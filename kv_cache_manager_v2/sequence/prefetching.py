"""Bringing the pages of a suspended sequence nearer, before it is resumed."""

from librt.vecs import vec
from mypy_extensions import i64

from ..base.errors import PageMoveError
from ..storage.lost_pages import settle_reads
from .disk_arrivals import has_lost_page
from .residency import list_pages
from .sequence_state import SequenceState


def try_prefetch(state: SequenceState, level: i64) -> bool:
    """False, and nothing changed, if there is no room on that level for all that lies below it."""
    shared = state.shared
    storage = shared.storage
    if level == storage.last_level:
        return True
    if not storage.reads.is_idle:
        settle_reads(storage)
        if has_lost_page(state):
            return False
    wanted = list_pages(state, level)
    nothing = vec[i64]([0] * int(storage.num_pool_groups))
    if not wanted.needs_work(nothing):
        return True
    pool_group: i64 = 0
    while pool_group < storage.num_pool_groups:
        if not shared.room.has_room_at(level, pool_group, wanted.num_below[pool_group], wanted.num_here[pool_group]):
            return False
        pool_group += 1
    shared.guard.begin_change()
    try:
        shared.onboarding.bring_up(wanted, nothing, False)
    except PageMoveError:
        shared.guard.end_change()
        raise
    shared.onboarding.put_back(wanted)
    shared.guard.end_change()
    return True
