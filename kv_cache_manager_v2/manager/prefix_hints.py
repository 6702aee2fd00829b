"""Hints about prefixes that are cached: retain, release, demote, prefetch. They never make a call fail."""

from typing import SupportsIndex

from ..base.checks import to_int
from ..base.ids import PRIORITY_MAX, PRIORITY_MIN
from ..journal.journal_format import RETAIN, WARM
from ..reuse.block import Block
from ..reuse.reuse_scope import ReuseScope
from ..reuse.token_packing import TOKEN_BYTES
from ..sequence.prefetching import try_prefetch_blocks
from ..sequence.shared_state import SharedState
from ..stats.hint_result import HintResult


def apply_hint(shared: SharedState, kind: int, scope: ReuseScope, packed: bytes, value: int, duration: int) -> HintResult:
    """Apply it to the blocks that are there. ``kind``: as in the journal; ``value``: the priority or level."""
    blocks = shared.tree.find_path(scope, packed)
    num_found = _count_tokens(shared, blocks)
    shared.guard.begin_change()
    if kind == WARM:
        num_accepted = num_found if try_prefetch_blocks(shared, blocks, value) else 0
    else:
        num_accepted = _count_tokens(shared, _set_priority(shared, kind, blocks, value, duration))
    shared.guard.end_change()
    return HintResult(num_accepted, num_found - num_accepted, len(packed) // TOKEN_BYTES - num_found)


def _set_priority(shared: SharedState, kind: int, blocks: list[Block], priority: int, duration: int) -> list[Block]:
    """The blocks that have it now: up to the first that may not be pinned."""
    for position, block in enumerate(blocks):
        if kind != RETAIN:
            shared.retention.release(block, priority)
        elif not shared.retention.pin(block, priority, duration):
            return blocks[:position]
    return blocks


def _count_tokens(shared: SharedState, blocks: list[Block]) -> int:
    return sum([len(shared.tree.key_of(block)) // TOKEN_BYTES for block in blocks])


def to_priority(value: SupportsIndex) -> int:
    priority = to_int(value, "priority")
    if not PRIORITY_MIN <= priority <= PRIORITY_MAX:
        raise ValueError(f"priority is {priority}; priorities are {PRIORITY_MIN} to {PRIORITY_MAX}")
    return priority
