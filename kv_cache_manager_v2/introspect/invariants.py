"""Invariants: the rules that always hold, evaluated from scratch.

`check_invariants` recomputes from the open sequences and the tree what the manager's state should be, and compares: the owner of
each slot, the holds and locks of each page, queues, pins, counters. It raises `CorruptedError` with the first difference. Tests call
it after every operation; production code never does.
"""

from collections.abc import Sequence
from typing import Final, final

from mypy_extensions import i64

from ..base.errors import CorruptedError
from ..base.ids import BAD_PAGE_INDEX
from ..reuse.block import Block
from ..sequence.planned_blocks import NOT_VOID
from ..sequence.sequence_state import ACTIVE, CLOSED, SequenceState
from ..sequence.shared_state import SharedState
from ..sequence.transfer_leases import TransferLeaseState
from ..stats.usage_counters import PROMPT_TOKENS, UsageCounters
from ..storage.page_removal import is_published
from ..storage.victim_queue import VictimQueue


_SCRATCH: Final = -1
"""The owner of a scratch slot, in the place of a page id."""


@final
class _Tally:
    """The counts that follow from the sequences and the tree, by page id."""

    __slots__ = ("holds", "locks", "pins", "published", "private_owners", "num_digests", "twin_users")

    def __init__(self) -> None:
        self.holds: Final[dict[int, int]] = {}
        self.locks: Final[dict[int, int]] = {}
        self.pins: Final[dict[int, int]] = {}
        """By the first page id of the block."""
        self.published: Final[dict[int, Block]] = {}
        self.private_owners: Final[dict[int, int]] = {}
        """How many sequences list the private block with that first page id."""
        self.num_digests = 0
        self.twin_users: Final[dict[int, int]] = {}
        """By twin page, the sequences that use it."""

    def hold(self, page: int, is_locked: bool) -> None:
        """One more owner has the page, and keeps it where it is if ``is_locked``."""
        self.holds[page] = self.holds.get(page, 0) + 1
        if is_locked:
            self.locks[page] = self.locks.get(page, 0) + 1

    def pin(self, block: Block) -> None:
        first_page = int(block.first_page)
        self.pins[first_page] = self.pins.get(first_page, 0) + 1

    def own(self, block: Block) -> int:
        """How many sequences list the private block by now."""
        first_page = int(block.first_page)
        self.private_owners[first_page] = self.private_owners.get(first_page, 0) + 1
        return self.private_owners[first_page]


def check_invariants(shared: SharedState, states: Sequence[SequenceState]) -> None:
    """Raise `CorruptedError` with the first rule that is violated."""
    tally = _Tally()
    states = _with_beams(states)
    try:
        _check_tree(shared, tally)
        for state in states:
            _check_sequence(state, tally)
        _check_planned(shared, states, tally)
        for lease in shared.claims.leases.open_leases():
            _check_lease(shared, lease, tally)
        for plan in shared.claims.drop_plans.open_plans():
            last = plan.blocks[-1]
            _require(int(last.first_page) in tally.published, f"the plan to drop {plan.num_tokens} tokens ends outside the tree")
            tally.pin(last)
        twins = shared.claims.twin_pages
        _require(twins is None or twins.users() == tally.twin_users, "a twin page is listed that no sequence uses")
        _check_blocks(shared, tally)
        _check_pages(shared, states, tally)
        _check_slots(shared, states)
        _check_copies(shared)
        _check_announcements(shared)
        _check_usage(shared, states, len([block for block in tally.published.values() if not shared.tree.is_retired(block)]))
        _require(shared.tree.digests.total_count() == tally.num_digests, f"other digests are counted than the {tally.num_digests} in use")
    except AssertionError as error:
        raise CorruptedError(str(error)) from error


def _with_beams(states: Sequence[SequenceState]) -> list[SequenceState]:
    """The sequences and their beams. A beam is tallied like a sequence; what all beams of one share is checked here."""
    found: list[SequenceState] = []
    for state in states:
        found.append(state)
        _require(state.has_beams == (len(state.sharing.beams) > 0), f"sequence {state.id} has {len(state.sharing.beams)} further beams")
        for beam in state.sharing.beams:
            found.append(beam)
            ours = (state.status, state.stream, state.capacity, state.history, state.num_committed, state.num_published)
            theirs = (beam.status, beam.stream, beam.capacity, beam.history, beam.num_committed, beam.num_published)
            _require(beam.has_beams and len(beam.sharing.beams) == 0, f"a beam of sequence {state.id} has beams of its own")
            _require(ours == theirs, f"the beams of sequence {state.id} differ: {ours} and {theirs}")
            _require(beam.tail.packed() == state.tail.packed(), f"the beams of sequence {state.id} have other tokens")
    return found


def _check_lease(shared: SharedState, lease: TransferLeaseState, tally: _Tally) -> None:
    """Its pages are in the slots that it lists, held and locked; private blocks count it as an owner, published ones as a pin."""
    rows = shared.storage.rows
    for life_cycle in range(shared.num_life_cycles):
        pages = lease.pages[life_cycle]
        slots = lease.slots[life_cycle]
        num_kept = len(pages) - len(slots)
        for position, page in enumerate(pages):
            _require(rows.has_page(page), f"page {page} of lease {lease.number} does not exist")
            if position >= num_kept:
                slot = slots[position - num_kept]
                _require(rows.slot(page) == slot, f"page {page} of lease {lease.number} is in slot {rows.slot(page)}, not {slot}")
            tally.hold(page, True)
    for block in lease.private_blocks:
        if block.parent is None:
            tally.own(block)
        else:
            tally.pin(block)


def _require(condition: bool, text: str) -> None:
    if not condition:
        raise CorruptedError(text)


def _name(block: Block) -> str:
    return f"block at page {block.first_page}"


def _count_digests(packed: bytes) -> int:
    return len([token for token in memoryview(packed).cast("i") if token < 0])


def _check_tree(shared: SharedState, tally: _Tally) -> None:
    tree = shared.tree
    for root, scope, epoch in tree.roots():
        is_found = tree.find_root(scope) is root
        _require(is_found == (epoch is None), f"the root of {scope} is {'' if is_found else 'not '}found, its epoch ended: {epoch}")
        pending = [root]
        while len(pending) > 0:
            block = pending.pop()
            children = tree.children_of(block)
            _require(tree.is_retired(block) == (epoch is not None), f"{_name(block)} is retired, or not, unlike its root")
            if block is not root:
                tally.published[int(block.first_page)] = block
                key = tree.key_of(block)
                tally.num_digests += _count_digests(key)
                _require(0 < len(key) <= tree.block_bytes, f"{_name(block)} has a key of {len(key)} bytes")
                is_full = len(key) == tree.block_bytes
                _check_tokens(block, tree.block_bytes)
                _require(is_full or len(children) == 0, f"{_name(block)} is partial and has children")
            needed = tree.pool.has_any_page(block) if block is not root else False
            _require(needed or len(children) > 0 or block.num_pins > 0, f"{_name(block)} is in the tree without pages, children or pins")
            keys = [tree.key_of(child) for child in children]
            _require(len(set(keys)) == len(keys), f"{_name(block)} has two children with the same tokens")
            if block.children is not None:
                num_partial = len([key for key in keys if len(key) < tree.block_bytes])
                _require(block.children.num_partial == num_partial, f"{_name(block)} miscounts its partial children")
            for child in children:
                _require(child.parent is block, f"{_name(child)} has another parent than the one it hangs on")
                _require(tree.find_child(block, tree.key_of(child)) is child, f"{_name(child)} is not found by its tokens")
                pending.append(child)


def _check_tokens(block: Block, block_bytes: i64) -> None:
    """Blocks that share one buffer of tokens are on one path: a block in the middle of the buffer is below the block in front of it."""
    begin = int(block.tokens_begin)
    _require(begin == 0 or begin + block_bytes <= len(block.tokens), f"{_name(block)} begins at byte {begin} of tokens that end before")
    above = block.parent
    distance = int(block_bytes)
    # Between the two there may be blocks with buffers of their own.
    while above is not None and above.tokens is not block.tokens and distance <= begin:
        above = above.parent
        distance += int(block_bytes)
    if above is not None and distance <= begin:
        _require(above.tokens_begin + distance == begin, f"{_name(block)} shares tokens with a block that it is not below")


def _check_sequence(state: SequenceState, tally: _Tally) -> None:
    shared = state.shared
    rows = shared.storage.rows
    name = f"sequence {state.id}"
    _require(state.status != CLOSED, f"{name} is closed and still listed as open")
    _require(
        state.num_committed <= state.history <= state.capacity,
        f"{name}: committed {state.num_committed}, history {state.history}, capacity {state.capacity}",
    )
    num_blocks = -(-state.capacity // shared.tokens_per_block)
    _require(state.num_blocks == num_blocks == len(state.blocks), f"{name} has {state.num_blocks} blocks, not {num_blocks}")
    _require(
        state.next_slow_capacity in (0, state.compute_next_slow_capacity()),
        f"{name}: a resize below {state.next_slow_capacity} was taken for one that changes the numbers only",
    )
    num_read = 0 if state.sharing.planned is None else len(state.sharing.planned.read)
    tail_tokens = state.num_committed - (state.num_published + num_read) * shared.tokens_per_block
    _require(state.tail.count == tail_tokens, f"{name} has {state.tail.count} tail tokens, not {tail_tokens}")
    tally.num_digests += _count_digests(state.tail.packed())
    _check_path(state, tally)
    _check_twins(state, tally)
    is_active = state.status == ACTIVE
    _check_state_blocks(state, tally)
    for life_cycle in range(shared.num_life_cycles):
        begin = state.request.windows.compute_begin(life_cycle, state.history)
        is_void = state.sharing.planned is not None and state.sharing.planned.valid_tokens != NOT_VOID
        _require(is_void or state.window_begins[life_cycle] == begin, f"{name}: the window of life cycle {life_cycle} begins wrong")
        entries = state.tables[life_cycle].view().tolist()
        required = [int(ordinal) for ordinal in state.tables[life_cycle].required]
        _require(len(entries) == num_blocks, f"{name}: page table {life_cycle} has {len(entries)} entries")
        for ordinal in range(num_blocks):
            page = int(state.page_of(life_cycle, ordinal))
            is_kept = state.keeps_page(life_cycle, ordinal)
            if not is_kept and not state.holds_page(life_cycle, ordinal):
                _require(entries[ordinal] == BAD_PAGE_INDEX, f"{name}: stale block {ordinal} has page index {entries[ordinal]}")
                continue
            is_locked = is_active and (not is_kept or ordinal in required)
            _require(rows.has_page(page), f"{name}: block {ordinal} of life cycle {life_cycle} has no page")
            tally.hold(page, is_locked)
            expected = rows.slot(page) if is_locked else BAD_PAGE_INDEX
            _require(entries[ordinal] == expected, f"{name}: block {ordinal} has page index {entries[ordinal]}, not {expected}")


def _check_planned(shared: SharedState, states: Sequence[SequenceState], tally: _Tally) -> None:
    """Each planned block is known to its writer and its readers, and found by its tokens; anchors are pinned."""
    every = shared.claims.planned.list_all()
    _require(len(every) == shared.claims.planned.num_blocks, f"not as many planned blocks are counted as the {len(every)} there are")
    listed = set([int(planned.block.first_page) for planned in every])
    _require(len(listed) == len(every), "a block is planned twice")
    for anchor in shared.claims.planned.anchors():
        is_root = anchor.first_page < 0
        _require(is_root or int(anchor.first_page) in tally.published, f"{_name(anchor)} has planned blocks below it, and is in no tree")
        tally.pin(anchor)
    for planned in every:
        name = f"planned {_name(planned.block)}"
        tally.num_digests += _count_digests(planned.key)
        found = shared.claims.planned.find(planned.anchor, planned.above, planned.key)
        is_hidden = planned.anchor is None and planned.above is None
        _require(is_hidden or found is planned, f"{name} is not found by its tokens")
        _require(planned.writer.status == ACTIVE, f"{name}: its writer, sequence {planned.writer.id}, is not active")
        _require(planned.writer.blocks[planned.ordinal] is planned.block, f"{name} is not the writer's block {planned.ordinal}")
        _require(planned.block.parent is None, f"{name} is published")
    for state in states:
        links = state.sharing.planned
        if links is None:
            continue
        name = f"sequence {state.id}"
        _require(not links.is_idle, f"{name} has nothing to do with planned blocks, and keeps a list of them")
        for planned in links.offered:
            _require(planned.writer is state and int(planned.block.first_page) in listed, f"{name} offers a block that is not planned")
            _require(planned.ordinal < state.forked_end, f"{name}: planned block {planned.ordinal} is not known to be shared")
        ordinal = int(state.num_published)
        for planned in links.read:
            _require(int(planned.block.first_page) in listed, f"{name} reads a block that is not planned")
            _require(planned.ordinal == ordinal and state in planned.readers, f"{name}: planned block {planned.ordinal} does not know it")
            _require(state.blocks[ordinal] is planned.block, f"{name}: block {ordinal} is not the planned one")
            if state.status == ACTIVE:
                _require(planned.writer.stream == state.stream, f"{name} reads a block that is planned on another stream")
            ordinal += 1
    for planned in every:
        for reader in planned.readers:
            is_known = reader.sharing.planned is not None and planned in reader.sharing.planned.read
            _require(is_known, f"planned {_name(planned.block)}: sequence {reader.id} does not read it")


def _check_twins(state: SequenceState, tally: _Tally) -> None:
    """An active sequence keeps pages of its own of published blocks only where indices stay: then others have the published page locked."""
    if state.sharing.twins is None:
        return
    shared = state.shared
    rows = shared.storage.rows
    name = f"sequence {state.id}"
    _require(state.status == ACTIVE, f"{name} is not active and keeps pages of its own")
    _require(shared.claims.twin_pages is not None, f"{name} keeps pages of its own, where indices may move")
    assert shared.claims.twin_pages is not None
    pages = shared.claims.twin_pages.pages()
    private: dict[int, Block] = {}
    for key, twin in state.sharing.twins.items():
        ordinal, life_cycle = divmod(key, int(shared.num_life_cycles))
        block = shared.tree.pool.block_of_page(twin)
        _require(twin == block.first_page + life_cycle, f"{name}: the twin of block {ordinal} is of another life cycle")
        is_published = state.is_published(ordinal) or state.tail.is_retired
        _require(ordinal < state.num_blocks and is_published, f"{name} keeps a page of block {ordinal}, which is its own")
        _require(state.holds_page(life_cycle, ordinal), f"{name} keeps a page of block {ordinal} that it does not need")
        private[int(block.first_page)] = block
        if rows.has_page(twin):
            page = int(state.blocks[ordinal].first_page + life_cycle)
            _require(pages.get(twin) == page, f"{name}: page {twin} is the twin of page {pages.get(twin)}, not {page}")
            _require(rows.has_page(page) and rows.num_locks(page) > 0, f"{name}: page {page} has a twin, and no active sequence needs it")
            tally.twin_users[twin] = tally.twin_users.get(twin, 0) + 1
    for block in private.values():
        tally.own(block)


def _check_state_blocks(state: SequenceState, tally: _Tally) -> None:
    """The private blocks of the recurrent state, one page each; they exist from the first resume on."""
    shared = state.shared
    name = f"sequence {state.id}"
    num_blocks = len(state.recurrent.state_blocks)
    _require(num_blocks in (0, shared.recurrent.num_state_slots), f"{name} has {num_blocks} slots of recurrent state")
    is_active = state.status == ACTIVE
    snapshot = state.recurrent.matched_snapshot
    if snapshot is not None:
        page = int(snapshot.first_page + shared.state_life_cycle)
        _require(num_blocks == 0, f"{name} has its recurrent state and still holds the snapshot that it started from")
        _require(shared.storage.rows.has_page(page), f"{name} holds a snapshot that is not there")
        tally.hold(page, False)
    _require(num_blocks == shared.recurrent.num_state_slots or not is_active, f"{name} is active and has no recurrent state")
    for block in state.recurrent.state_blocks:
        _require(block.parent is None, f"{name}: its recurrent state is in the tree")
        _require(tally.own(block) == 1, f"{name}: its recurrent state has two owners")
        for life_cycle in range(shared.num_life_cycles):
            page = int(block.first_page + life_cycle)
            is_state = life_cycle == shared.state_life_cycle
            _require(shared.storage.rows.has_page(page) == is_state, f"{name}: page {page} of its recurrent state")
            if is_state:
                tally.hold(page, is_active)


def _check_path(state: SequenceState, tally: _Tally) -> None:
    """The published blocks are the path that the sequence pins; the others are private to it and its forks."""
    name = f"sequence {state.id}"
    block = state.path_end
    tally.pin(block)
    for ordinal in range(state.num_published - 1, -1, -1):
        _require(state.blocks[ordinal] is block, f"{name}: block {ordinal} is not on its path")
        parent = block.parent
        _require(parent is not None, f"{name}: block {ordinal} is not in the tree")
        if parent is not None:
            block = parent
    is_root = block.first_page < 0 and state.shared.tree.is_retired(block) == state.tail.is_retired
    _require(is_root, f"{name}: its path does not begin at a root of its epoch")
    for ordinal in range(state.num_published, state.num_blocks):
        block = state.blocks[ordinal]
        is_tail = ordinal == state.num_published and state.tail.is_published
        if block.parent is not None:
            above = state.path_end if ordinal == state.num_published else state.blocks[ordinal - 1]
            _require(is_tail or ordinal < state.forked_end, f"{name}: block {ordinal} is in the tree and not known to be shared")
            _require(block.parent is above, f"{name}: block {ordinal}, which it shares, is in another place of the tree")
            if ordinal == state.num_published:
                _require(is_tail, f"{name}: its last block is published, and it is not recorded as shared")
                key = state.shared.tree.key_of(block)
                _require(key.startswith(state.tail.packed()[: len(key)]), f"{name}: its shared tail has other tokens")
            tally.pin(block)
        else:
            _require(not is_tail, f"{name}: its shared tail is not in the tree")
            _require(tally.own(block) == 1 or ordinal < state.forked_end, f"{name}: private block {ordinal} has another owner")


def _check_blocks(shared: SharedState, tally: _Tally) -> None:
    pool = shared.tree.pool
    free = set([int(block.first_page) for block in pool.free_blocks()])
    _require(len(free) == len(pool.free_blocks()), "a block is free twice")
    for block in pool.all_blocks():
        first_page = int(block.first_page)
        places = int(first_page in free) + int(first_page in tally.published) + int(first_page in tally.private_owners)
        _require(places == 1, f"{_name(block)} is in {places} places")
        pins = tally.pins.get(first_page, 0)
        num_co_owners = max(tally.private_owners.get(first_page, 0) - 1, 0)
        _require(block.num_co_owners == num_co_owners, f"{_name(block)} counts {block.num_co_owners} owners, not {num_co_owners}")
        _require(block.num_pins == pins, f"{_name(block)} has {block.num_pins} pins, should have {pins}")
        _require(first_page in tally.published or len(block.tokens) == 0, f"{_name(block)} is not in the tree and has tokens")
        if first_page in free:
            _require(not pool.has_any_page(block), f"{_name(block)} is free and has a page")
    for root, scope, _epoch in shared.tree.roots():
        pins = tally.pins.get(int(root.first_page), 0)
        _require(root.num_pins == pins, f"the root of {scope} has {root.num_pins} pins, should have {pins}")


def _collect_queues(queues: Sequence[VictimQueue], name: str, place_of: dict[int, int]) -> None:
    """Add to ``place_of``, by page, the index of its queue."""
    for index, queue in enumerate(queues):
        pages = queue.collect()
        _require(len(pages) == queue.num_pages, f"{name} {index} miscounts")
        queue.check()
        for page in pages:
            _require(page not in place_of, f"page {page} is queued twice")
            place_of[page] = index


def _check_pages(shared: SharedState, states: Sequence[SequenceState], tally: _Tally) -> None:
    storage = shared.storage
    rows = storage.rows
    num_life_cycles = shared.num_life_cycles
    queued: dict[int, int] = {}
    _collect_queues(storage.queues, "eviction queue", queued)
    held: dict[int, int] = {}
    _collect_queues(storage.held_queues, "queue of held pages", held)
    num_locked = [0] * int(storage.num_pool_groups)
    for state in states:
        for life_cycle in range(num_life_cycles):
            num_locked[int(storage.pool_group_of[life_cycle])] += len(state.scratch.slots[life_cycle])
    for block in shared.tree.pool.all_blocks():
        is_published = int(block.first_page) in tally.published
        for life_cycle in range(num_life_cycles):
            page = int(block.first_page + life_cycle)
            pool_group = int(storage.pool_group_of[life_cycle])
            holds = tally.holds.get(page, 0)
            locks = tally.locks.get(page, 0)
            if not rows.has_page(page):
                is_queued = page in queued or page in held
                _require(holds == 0 and not is_queued, f"page {page} does not exist and is held or queued")
                is_left = rows.is_queued(page) or rows.num_locks(page) > 0
                _require(not is_left, f"page {page} does not exist, and its row says that it is queued or locked")
                _require(not storage.reads.knows(page), f"page {page} does not exist and is awaited from a disk")
                continue
            _require(rows.num_holds(page) == holds, f"page {page} has {rows.num_holds(page)} holds, should have {holds}")
            _require(rows.num_locks(page) == locks, f"page {page} has {rows.num_locks(page)} locks, should have {locks}")
            is_kept = is_published and not shared.tree.is_retired(block)
            _require(is_kept or holds > 0, f"page {page} is private, or below a retired root, and has no owner")
            level = int(rows.level(page))
            index = level * int(storage.num_pool_groups) + pool_group
            _require(locks == 0 or level == 0, f"page {page} is locked on level {level}")
            # A locked page is in no queue, and neither is a held one on the last level.
            waits = holds > 0 and locks == 0 and level < storage.last_level
            _require(held.get(page) == (index if waits else None), f"held page {page} is in queue {held.get(page)}")
            _require(
                queued.get(page) == (index if holds == 0 else None),
                f"page {page} with {holds} holds is in eviction queue {queued.get(page)}",
            )
            _require(rows.is_queued(page) == (waits or holds == 0), f"page {page} with {holds} holds: queued is wrong")
            if locks > 0:
                num_locked[pool_group] += 1
    for pool_group in range(storage.num_pool_groups):
        counted = storage.num_locked[pool_group]
        _require(counted == num_locked[pool_group], f"pool group {pool_group} counts {counted} locked pages")


def _check_slots(shared: SharedState, states: Sequence[SequenceState]) -> None:
    """Every slot is free, owned by exactly one page, or a scratch slot of one sequence."""
    storage = shared.storage
    owners: list[dict[int, int]] = [{} for _ in storage.allocators]
    for block in shared.tree.pool.all_blocks():
        for life_cycle in range(shared.num_life_cycles):
            page = int(block.first_page + life_cycle)
            if storage.rows.has_page(page):
                level = int(storage.rows.level(page))
                slots = owners[level * int(storage.num_pool_groups) + int(storage.pool_group_of[life_cycle])]
                slot = int(storage.rows.slot(page))
                _require(slot not in slots, f"slot {slot} is owned by pages {slots.get(slot)} and {page}")
                slots[slot] = page
    for state in states:
        _check_scratch(state, owners)
    for index, allocator in enumerate(storage.allocators):
        allocator.check()
        slots = owners[index]
        name = f"pool group {index % int(storage.num_pool_groups)} of level {index // int(storage.num_pool_groups)}"
        for slot in allocator.collect_free_slots():
            _require(slot not in slots, f"slot {slot} of {name} is free and owned by page {slots.get(slot)}")
        _require(len(slots) == allocator.num_used, f"{name}: {len(slots)} slots are owned, {allocator.num_used} are in use")


def _check_scratch(state: SequenceState, owners: list[dict[int, int]]) -> None:
    shared = state.shared
    scratch = state.scratch
    num_blocks = 0
    for life_cycle in range(shared.num_life_cycles):
        length = int(scratch.ends[life_cycle] - scratch.begins[life_cycle])
        num_blocks += length
        wanted = int(scratch.count_slots(life_cycle, length)) if state.status == ACTIVE else 0
        slots = scratch.slots[life_cycle]
        _require(len(slots) == wanted, f"sequence {state.id} has {len(slots)} scratch slots, {length} blocks need {wanted}")
        owned = owners[int(shared.storage.pool_group_of[life_cycle])]
        for slot in slots:
            _require(slot not in owned, f"scratch slot {slot} of sequence {state.id} is page {owned.get(slot)}'s")
            owned[slot] = _SCRATCH
    _require(num_blocks == scratch.num_blocks, f"sequence {state.id} counts {scratch.num_blocks} scratch blocks")


def _check_copies(shared: SharedState) -> None:
    storage = shared.storage
    rows = storage.rows
    num_pool_groups = int(storage.num_pool_groups)
    copies = storage.copies.collect()
    _require(len(copies) == storage.copies.num_copies, f"{len(copies)} clean copies are listed, {storage.copies.num_copies} counted")
    slots: list[set[int]] = [set() for _ in storage.allocators]
    for page, (index, slot) in copies.items():
        level, pool_group = divmod(index, num_pool_groups)
        name = f"the clean copy of page {page} in slot {slot} of level {level}"
        _require(storage.copies.has_copy_at(page, index), f"{name} is not known to the page")
        _require(rows.has_page(page) and is_published(storage, page), f"{name} is not of a published page")
        _require(rows.level(page) < level, f"{name} is no colder than the page, which is on level {rows.level(page)}")
        _require(storage.pool_group_of_page(page) == pool_group, f"{name} is in another pool group than the page")
        slots[index].add(slot)
    for index, allocator in enumerate(storage.allocators):
        num_copies = len(slots[index])
        _require(allocator.num_aside == num_copies, f"{allocator.num_aside} slots are set aside at index {index} for {num_copies} copies")
        for slot in allocator.collect_free_slots():
            is_free = slot not in slots[index]
            _require(is_free, f"slot {slot} at index {index} holds a clean copy and is in the list of slots without one")


def _check_announcements(shared: SharedState) -> None:
    """Raise `CorruptedError` with the first page that is announced and should not be, or should be and is not."""
    storage = shared.storage
    sink = storage.sink
    if sink is None:
        return
    for block in shared.tree.pool.all_blocks():
        is_in_tree = block.parent is not None and not shared.tree.is_retired(block)
        is_told_of = is_in_tree and (sink.wants_partial_blocks or shared.tree.is_full(block))
        for life_cycle in range(shared.num_life_cycles):
            page = block.first_page + life_cycle
            expected = is_told_of and storage.rows.has_page(page)
            kind = "published" if is_told_of else "private or partial"
            found = "not announced" if expected else "announced"
            _require(sink.is_announced(page) == expected, f"page {page} of a {kind} block is {found} to the event sink")


def _check_usage(shared: SharedState, states: Sequence[SequenceState], num_published: int) -> None:
    """Raise `CorruptedError` if hits and misses are not the prompt, or the history miscounts the tree's blocks."""
    history = shared.tree.history
    if history is not None:
        _require(history.num_blocks == num_published, f"{num_published} blocks are published, the history counts {history.num_blocks}")
    for state in states:
        counters = state.request.counters
        if counters is not None:
            _check_prompt(counters.usage, f"sequence {state.id}")
            if counters.total is not None:
                _check_prompt(counters.total, "the total")


def _check_prompt(usage: UsageCounters, name: str) -> None:
    explained = sum([int(usage.counts[at]) for at in range(usage.hits_at, usage.calls_at)])
    tokens = int(usage.counts[usage.calls_at + PROMPT_TOKENS])
    _require(explained == tokens, f"{name}: hits and misses are {explained} tokens of a prompt of {tokens}")
