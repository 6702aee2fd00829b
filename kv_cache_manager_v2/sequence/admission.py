"""The admission of a sequence: a resize has given it room for its first tokens, so what it has found is a use.

Until then it has only looked: it holds the pages, and if it closes they are as they were, but for their place among equals. Eviction
policies, priorities, the placement of snapshots, the mix by which quotas are divided and the statistics hear of it here, once.
"""

from librt.vecs import vec
from mypy_extensions import i64

from ..base.ids import PRIORITY_DEFAULT, PRIORITY_MIN
from ..reuse.block import Block
from .block_runs import use_pages
from .retention_records import NotedBlock
from .sequence_state import SequenceState
from .usage_recorder import record_request


def use_found(state: SequenceState) -> None:
    """There is room: before anything is evicted for it, policies hear that what was found is in use."""
    request = state.request
    shared = state.shared
    shared.guard.begin_change()
    if shared.storage.learns:
        use_pages(state)
    if shared.uses_priorities:
        _raise_matched_priorities(state)
    _use_copied(state)
    request.copied.clear()
    request.priorities = None
    shared.guard.end_change()


def admit(state: SequenceState) -> None:
    """The sequence has its room."""
    shared = state.shared
    request = state.request
    request.is_admitted = True
    learned = shared.recurrent.learned_placement
    if learned is not None and request.to_learn is not None:
        learned.observe(request.to_learn)
        request.to_learn = None
    if request.is_counted and shared.traffic.demand is not None:
        shared.traffic.demand.sample()
    if state.request.counters is not None:
        record_request(state, state.request.counters)


def _raise_matched_priorities(state: SequenceState) -> None:
    """A reused page takes the higher priority: the default, or what the user's callback said of it."""
    storage = state.shared.storage
    priorities = state.request.priorities
    if priorities is None and state.request.priority_callback is not None:
        return
    for life_cycle in range(state.shared.num_life_cycles):
        for ordinal in range(state.num_blocks):
            # A planned one keeps its writer's.
            if state.has_page(life_cycle, ordinal) and state.blocks[ordinal].parent is not None:
                page = state.blocks[ordinal].first_page + life_cycle
                priority: i64 = PRIORITY_DEFAULT
                if priorities is not None:
                    priority = priorities.get(int(page), int(PRIORITY_MIN))
                storage.raise_priority(page, storage.pool_group_of[life_cycle], priority)


def note_copied(state: SequenceState, block: Block, life_cycle: i64, priority: i64) -> None:
    """The sequence has copied a page of a published block, and released it."""
    shared = state.shared
    if not (state.request.is_admitted or state.tail.is_retired) and (shared.storage.learns or shared.uses_priorities):
        state.request.copied.append((NotedBlock(block, shared.tree.block_bytes, int(priority)), int(life_cycle)))


def _use_copied(state: SequenceState) -> None:
    """All at once: pages of a block that are released together stay together."""
    storage = state.shared.storage
    there = [(noted.block.first_page + life_cycle, noted.priority) for noted, life_cycle in state.request.copied if noted.is_there()]
    there = [(page, priority) for page, priority in there if storage.rows.has_page(page)]
    for page, _ in there:
        storage.hold(page, storage.pool_group_of_page(page), False)
    for page, _ in there:
        storage.queues[storage.pool_group_of_page(page)].use_held_run(vec[i64]([page]), 1)
    for page, priority in there:
        if state.shared.uses_priorities:
            storage.raise_priority(page, storage.pool_group_of_page(page), priority)
        storage.release(page, storage.pool_group_of_page(page))
