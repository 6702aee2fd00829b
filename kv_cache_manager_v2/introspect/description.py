"""State dumps: a manager's state as JSON-able dicts and lists: tiers, pool groups, sequences, the tree.

State alone: no counters, no addresses, no last refusal. Two managers that were given the same calls have equal dumps, so a test
compares the dumps before and after a call that must change nothing.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from ..reuse.block import Block
from ..reuse.reuse_scope import ReuseScope
from ..reuse.token_packing import unpack_tokens
from ..sequence.disk_arrivals import has_lost_page
from ..sequence.planned_blocks import NOT_VOID
from ..sequence.sequence_state import ACTIVE, SequenceState
from ..sequence.shared_state import SharedState

StateDump: TypeAlias = dict[str, Any]


def describe(shared: SharedState, states: Sequence[SequenceState]) -> StateDump:
    return {
        "tokens_per_block": int(shared.tokens_per_block),
        "life_cycles": [repr(cycle) for cycle in shared.life_cycles],
        "pool_group_of": [int(pool_group) for pool_group in shared.storage.pool_group_of],
        "levels": [_describe_level(shared, level) for level in range(shared.storage.num_levels)],
        "sequences": [_describe_sequence(state) for state in states],
        "leases": [
            {
                "number": lease.number,
                "sequence": lease.sequence_id,
                "slots": [list(slots) for slots in lease.slots],
                "page_slots": [[int(shared.storage.rows.slot(page)) for page in pages] for pages in lease.pages],
            }
            for lease in shared.claims.leases.open_leases()
        ],
        "tree": [_describe_root(shared, root, scope, epoch) for root, scope, epoch in shared.tree.roots()],
    }


def _describe_level(shared: SharedState, level: int) -> StateDump:
    storage = shared.storage
    groups: list[StateDump] = []
    for pool_group in range(storage.num_pool_groups):
        index = level * int(storage.num_pool_groups) + pool_group
        allocator = storage.allocators[index]
        group = storage.pool_groups[index]
        groups.append(
            {
                "slot_bytes": [int(num_bytes) for num_bytes in group.slot_bytes],
                "slots": int(allocator.num_slots),
                "free": int(allocator.num_free),
                "clean_copies": int(allocator.num_aside),
                "locked": int(storage.num_locked[pool_group]) if level == 0 else 0,
                "eviction_queue": [int(page) for page in storage.queues[index].collect()],
                "held_queue": [int(page) for page in storage.held_queues[index].collect()],
            }
        )
    return {
        "tier": storage.pool_groups[level * int(storage.num_pool_groups)].tier.name,
        "failure": storage.closed.reason(level),
        "pool_groups": groups,
    }


def _describe_sequence(state: SequenceState) -> StateDump:
    rows = state.shared.storage.rows
    pages = [_list_pages(state, life_cycle) for life_cycle in range(state.shared.num_life_cycles)]
    scratch = state.scratch
    dump: StateDump = {
        "id": state.id,
        "status": "active" if state.status == ACTIVE else "suspended",
        "scope": [state.request.scope.lora_id, state.request.scope.salt],
        "capacity": int(state.capacity),
        "history": int(state.history),
        "committed": int(state.num_committed),
        "published_blocks": int(state.num_published),
        "shares_last_block": state.tail.is_published,
        "forked_blocks": [_describe_forked(state, ordinal) for ordinal in range(state.num_published, state.forked_end)],
        "is_committing": state.is_committing,
        "is_retired": state.tail.is_retired,
        "stream": state.stream,
        "page_slots": [[None if page is None else int(rows.slot(page)) for page in listed] for listed in pages],
        "page_levels": [[None if page is None else int(rows.level(page)) for page in listed] for listed in pages],
        "scratch": [
            {"blocks": [int(scratch.begins[group]), int(scratch.ends[group])], "slots": list(scratch.slots[group])}
            for group in range(state.shared.num_life_cycles)
        ],
    }
    links = state.sharing.planned
    if links is not None:
        dump["planned"] = {
            "offered_blocks": [int(planned.ordinal) for planned in links.offered],
            "read_blocks": [int(planned.ordinal) for planned in links.read],
            "writers": [planned.writer.id for planned in links.read],
            "valid_tokens": None if links.valid_tokens == NOT_VOID else int(links.valid_tokens),
        }
    if state.sharing.twins is not None:
        dump["twins"] = [_list_twins(state, life_cycle) for life_cycle in range(state.shared.num_life_cycles)]
    if has_lost_page(state):
        dump["has_lost_pages"] = True
    if len(state.sharing.beams) > 0:
        dump["beams"] = [_describe_sequence(beam) for beam in state.sharing.beams]
    if state.shared.has_state:
        life_cycle = state.shared.state_life_cycle
        dump["state_life_cycle"] = int(life_cycle)
        dump["state_slots"] = [int(rows.slot(block.first_page + life_cycle)) for block in state.recurrent.state_blocks]
        dump["state_levels"] = [int(rows.level(block.first_page + life_cycle)) for block in state.recurrent.state_blocks]
    return dump


def _list_pages(state: SequenceState, life_cycle: int) -> list[int | None]:
    """By block the page that the sequence has, or None."""
    pages = [int(state.page_of(life_cycle, ordinal)) for ordinal in range(state.num_blocks)]
    rows = state.shared.storage.rows
    return [page if state.has_page(life_cycle, ordinal) and rows.has_page(page) else None for ordinal, page in enumerate(pages)]


def _list_twins(state: SequenceState, life_cycle: int) -> list[int]:
    """Ordinals of the published blocks of which the sequence keeps a page of its own."""
    return [
        ordinal
        for ordinal in range(int(state.num_blocks))
        if state.holds_page(life_cycle, ordinal) and state.page_of(life_cycle, ordinal) != state.blocks[ordinal].first_page + life_cycle
    ]


def _describe_forked(state: SequenceState, ordinal: int) -> str | int:
    """How many sequences share a block outside the published path, or that another sequence has published it."""
    block = state.blocks[ordinal]
    return "published" if block.parent is not None else int(block.num_co_owners) + 1


def _describe_root(shared: SharedState, root: Block, scope: ReuseScope, epoch: int | None) -> StateDump:
    """``epoch``: that which ended with a retired root."""
    blocks: list[StateDump] = []
    # Preorder with explicit depth: a path may be longer than any recursion limit.
    pending = [(child, 0) for child in reversed(shared.tree.children_of(root))]
    while len(pending) > 0:
        block, depth = pending.pop()
        blocks.append(_describe_block(shared, block, depth))
        for child in reversed(shared.tree.children_of(block)):
            pending.append((child, depth + 1))
    dump: StateDump = {"lora_id": scope.lora_id, "salt": scope.salt, "blocks": blocks}
    if epoch is not None:
        dump["ended_epoch"] = epoch
    return dump


def _describe_block(shared: SharedState, block: Block, depth: int) -> StateDump:
    rows = shared.storage.rows
    pages: list[StateDump | None] = []
    for life_cycle in range(shared.num_life_cycles):
        page = block.first_page + life_cycle
        if not rows.has_page(page):
            pages.append(None)
            continue
        found: StateDump = {
            "level": int(rows.level(page)),
            "slot": int(rows.slot(page)),
            "status": _status_of(int(rows.num_holds(page)), int(rows.num_locks(page))),
            "priority": int(rows.priority(page)),
        }
        if page in shared.storage.reads.lost:
            found["is_lost"] = True
        if shared.storage.has_loss(page):
            found["is_lossy"] = True
        pages.append(found)
    tokens = [token if isinstance(token, int) else token.hex() for token in unpack_tokens(shared.tree.key_of(block), shared.tree.digests)]
    return {"depth": depth, "tokens": tokens, "pages": pages}


def _status_of(num_holds: int, num_locks: int) -> str:
    if num_locks > 0:
        return "locked"
    return "held" if num_holds > 0 else "droppable"
