"""Prefetching: pages of a suspended sequence, or of cached blocks, are onboarded before they are needed."""

from librt.vecs import append, vec
from typing import Final

from mypy_extensions import i64

from ..base.package_log import PackageLog
from ..reuse.block import Block
from ..storage.page_removal import settle_reads
from ..storage.onboarding import OnboardList
from .beams import list_beams
from .disk_arrivals import has_lost_page
from .residency import list_pages
from .sequence_state import SequenceState
from .shared_state import SharedState

_logger: Final = PackageLog("kv_cache_manager_v2")


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
    return _bring_up(shared, list_pages(list_beams(state), level), level)


def _bring_up(shared: SharedState, wanted: OnboardList, level: i64) -> bool:
    nothing = vec[i64]([0] * int(shared.storage.num_pool_groups))
    if not wanted.needs_work(nothing):
        return True
    if not _has_room(shared, wanted, level):
        return False
    shared.traffic.onboarding.bring_up(wanted, nothing, False, None)
    with shared.storage.changes:
        shared.traffic.onboarding.put_back(wanted)
    return True


def try_prefetch_blocks(shared: SharedState, blocks: list[Block], level: i64) -> bool:
    """Onboard the pages of published blocks, whichever sequence has them; answers like `try_prefetch`.

    All of them are held meanwhile, also those that are there already: a prefix whose beginning was evicted for its end would be of no use.
    """
    storage = shared.storage
    rows = storage.rows
    if level == storage.last_level:
        return True
    if not storage.reads.is_idle:
        settle_reads(storage)
    if not _has_page_below(shared, blocks, level):
        return True
    with storage.changes:
        held = vec[i64]()
        for block in blocks:
            for life_cycle in range(shared.num_life_cycles):
                page = block.first_page + life_cycle
                if rows.has_page(page) and rows.level(page) >= level:
                    storage.hold(page, storage.pool_group_of[life_cycle])
                    held = append(held, page)
        if storage.closed.has_disks:
            storage.closed.look()
        wanted = OnboardList(storage, level)
        for page in held:
            wanted.add(page, rows.level(page), storage.pool_group_of_page(page), rows.is_queued(page))
        is_done = False
    num_begun = storage.changes.num_begun
    try:
        is_done = _bring_up(shared, wanted, level)
    except AssertionError:
        raise
    except Exception as error:
        if storage.changes.num_begun > num_begun:
            raise  # in the middle of a change: the manager is broken, and this is why
        _logger.warning("a prefetch is left out: %s", str(error))
    except BaseException:
        _release(shared, held)
        raise
    _release(shared, held)
    return is_done


def _release(shared: SharedState, held: vec[i64]) -> None:
    with shared.storage.changes:
        for page in held:
            shared.storage.release(page, shared.storage.pool_group_of_page(page))


def _has_page_below(shared: SharedState, blocks: list[Block], level: i64) -> bool:
    rows = shared.storage.rows
    for block in blocks:
        for page in range(block.first_page, block.first_page + shared.num_life_cycles):
            if rows.has_page(page) and rows.level(page) > level:
                return True
    return False


def _has_room(shared: SharedState, wanted: OnboardList, level: i64) -> bool:
    for pool_group in range(shared.storage.num_pool_groups):
        if not shared.traffic.room_count.has_room_at(level, pool_group, wanted.num_below[pool_group], wanted.num_here[pool_group]):
            return False
        if level > 0 and wanted.num_below[pool_group] > 0 and not _can_begin(shared, wanted, level, pool_group):
            return False
    return True


def _can_begin(shared: SharedState, wanted: OnboardList, level: i64, pool_group: i64) -> bool:
    """Whether a first page can be onboarded: victims are offloaded level by level, and on their way may be nothing but what is wanted.

    It leaves a slot that the next victim can go to, so the others follow. Level 0 has no such case: there pages are swapped.
    """
    storage = shared.storage
    for at in range(level, min(storage.last_level + 1, storage.closed.first)):
        index = at * storage.num_pool_groups + pool_group
        if storage.allocators[index].num_free > 0 or storage.queues[index].num_pages > 0:
            return True
        if storage.held_queues[index].num_pages <= len(wanted.pages[index]) + (wanted.num_here[pool_group] if at == level else 0):
            return False
    return False
