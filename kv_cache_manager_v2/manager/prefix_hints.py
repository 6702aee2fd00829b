"""Hints about prefixes that are cached: retain, release, demote, prefetch. They never make a call fail."""

from typing import SupportsIndex

from ..base.checks import to_int
from ..base.ids import PRIORITY_MAX, PRIORITY_MIN
from ..journal.journal_format import RETAIN, WARM
from ..reuse.block import Block
from ..reuse.reuse_scope import ReuseScope
from ..reuse.token_packing import TOKEN_BYTES
from ..sequence.prefetching import try_prefetch_blocks
from ..sequence.retention_plan import EXPECTED, FOR_EVER
from ..sequence.retention_records import NO_CLOCK, SECONDS
from ..sequence.shared_state import SharedState
from ..stats.hint_result import HintResult
from ..storage.eviction.segment_records import NEVER


def apply_hint(shared: SharedState, kind: int, scope: ReuseScope, packed: bytes, value: int, duration: int) -> HintResult:
    """Apply it to the blocks that are there. ``kind``: as in the journal; ``value``: the priority or level."""
    blocks = shared.tree.find_path(shared.tree.find_root(scope), packed, 0)
    num_found = _count_tokens(shared, blocks)
    if kind == WARM:
        num_accepted = num_found if try_prefetch_blocks(shared, blocks, value) else 0
    else:
        with shared.storage.changes:
            num_accepted = _count_tokens(shared, _set_priority(shared, kind, blocks, value, duration))
    return HintResult(num_accepted, num_found - num_accepted, len(packed) // TOKEN_BYTES - num_found)


def _set_priority(shared: SharedState, kind: int, blocks: list[Block], priority: int, duration: int) -> list[Block]:
    """The blocks that have it now: up to the first that may not be pinned."""
    clock, end = _find_end(shared, blocks, duration) if kind == RETAIN else (NO_CLOCK, 0)
    for position, block in enumerate(blocks):
        if kind != RETAIN:
            shared.claims.retention.release(block, priority)
        elif not shared.claims.retention.pin(block, priority, clock, end):
            return blocks[:position]
    return blocks


def _find_end(shared: SharedState, blocks: list[Block], duration: int) -> tuple[int, int]:
    """The clock and the time of it at which a prefix is not retained any more. A duration that the policy expects is that of the block
    that is farthest from the root: it comes back only where all of the prefix does."""
    if duration == FOR_EVER or len(blocks) == 0:
        return NO_CLOCK, 0
    if duration != EXPECTED:
        return SECONDS, int(shared.claims.retention.now_us) + duration
    storage = shared.storage
    for life_cycle in range(storage.rows.num_life_cycles):
        page = blocks[-1].first_page + life_cycle
        if storage.rows.has_page(page):
            pool_group = int(storage.pool_group_of[life_cycle])
            end = storage.expect_return(page, pool_group)
            if end != NEVER:
                return SECONDS + 1 + pool_group, int(end)
    return NO_CLOCK, 0


def _count_tokens(shared: SharedState, blocks: list[Block]) -> int:
    return sum([len(shared.tree.key_of(block)) // TOKEN_BYTES for block in blocks])


def to_priority(value: SupportsIndex) -> int:
    priority = to_int(value, "priority")
    if not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise ValueError(f"priority is {priority}; priorities are {PRIORITY_MIN} to {PRIORITY_MAX}")
    return priority
