"""Beams: several continuations of one committed prefix, in one sequence.

Beam 0 is the sequence itself; each further beam is a state of its own without a handle (`Sharing.beams`), made as a fork of beam
0. So blocks before the point where the beams part are shared by all, and each beam has its own page tables. All beams have the same
status, stream, capacity, history and committed tokens at every instant; only beam 0 publishes partial blocks, asks for priorities and
is counted in statistics. Scratch reuse is off while there are beams.

A step of all beams is one `resize`, all or nothing: it is planned for each beam after the ones before it, so that of a block that
only beams share the last one writes in place. A page that several beams share, and that all of them release in the step, does not
count as room for it: such a step may be refused for want of a slot that it would have left free. All copies are made before anything
changes, so that a device that refuses one changes nothing.
"""

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.errors import LogicError, PartlyCopiedError
from ..base.ids import GPU_LEVEL
from ..reuse.block import Block
from ..stats.usage_counters import find_page_counters
from ..storage.page_bytes import copy_slots_at_once
from ..storage.token_copy import TokenCopies
from .block_owners import release_owner
from .fork import try_fork
from .forked_blocks import add_owner
from .page_users import release_page
from .sequence_state import SequenceState
from .twins import take_published_pages


def list_beams(state: SequenceState) -> list[SequenceState]:
    """Beam 0 first."""
    return [state] + state.sharing.beams


def add_beam(state: SequenceState) -> bool:
    """One more beam, a fork of beam 0. False, and nothing has changed, if there is no slot for its recurrent state."""
    request = state.request
    beam = SequenceState(state.shared, request.fork(request.serial, request.id, None), state.stream)
    beam.has_beams = True
    if not try_fork(state, beam):
        return False
    beam.request.counters = None
    beam.recurrent.snapshot_plan = None
    beam.request.retention = None
    state.sharing.beams.append(beam)
    state.shared.num_further_beams += 1
    state.has_beams = True
    state.next_slow_capacity = 0
    return True


# -- committing -----------------------------------------------------------------------------------------------------------


def validate_sources(state: SequenceState, sources: vec[i64], num_tokens: i64) -> None:
    """The caller's mistakes in ``beam_search_indices``; changes nothing."""
    if len(sources) != num_tokens:
        raise ValueError(f"sequence {state.id}: {num_tokens} accepted_input_tokens, {len(sources)} beam_search_indices; give one for each")
    width = len(state.sharing.beams) + 1
    for index in range(num_tokens):
        source = sources[index]
        if source != 0 and source < width and state.shared.has_state:
            raise LogicError(
                f"sequence {state.id}: tokens of beam {source} in a model with recurrent layers, whose state cannot be put together "
                f"from beams; reorder_beams() so that beam 0 goes on from it, then commit without beam_search_indices"
            )
        if source >= width:
            raise ValueError(f"sequence {state.id}: beam_search_indices[{index}] is {source}; the beam width is {width}")


def gather_tokens(state: SequenceState, sources: vec[i64], copies: TokenCopies) -> None:
    """Put the committed tokens' bytes into the pages of all beams that will keep a page for them, in stream order.

    A block that becomes full is beam 0's for all beams; of a partial one each beam keeps its own, with tokens of its own behind.
    No copy reads what another one writes: a position comes from one beam, and that beam's page is not written there. Beams differ
    only in blocks that a step of theirs has written, which no fork or lease shares: both are refused while there are beams.
    """
    beams = list_beams(state)
    size = state.shared.tokens_per_block
    # What is not published each beam keeps for itself.
    num_full = 0 if state.tail.is_retired else (state.num_committed + len(sources)) // size
    for index in range(len(sources)):
        position = state.num_committed + index
        source = beams[sources[index]]
        ordinal = position // size
        written: list[Block] = [source.blocks[ordinal]]
        for beam in beams:
            block = beam.blocks[ordinal]
            if (ordinal >= num_full or beam is state) and block not in written:
                assert block.parent is None, "a beam's token goes into a published block"
                written.append(block)
                _copy_token(source, beam, position, copies)
    copies.enqueue(state.stream)


def _copy_token(source: SequenceState, target: SequenceState, position: i64, copies: TokenCopies) -> None:
    shared = source.shared
    size = shared.tokens_per_block
    ordinal = position // size
    for life_cycle in range(shared.num_life_cycles):
        if shared.life_cycles[life_cycle].has_page_per_block and target.holds_page(life_cycle, ordinal):
            source_slot = i64(source.tables[life_cycle].entries[ordinal])
            target_slot = i64(target.tables[life_cycle].entries[ordinal])
            copies.add(life_cycle, source_slot, position % size, target_slot, position % size)


# -- reordering -----------------------------------------------------------------------------------------------------------


def reorder(state: SequenceState, parents: vec[i64]) -> None:
    """Beam ``i`` goes on from what beam ``parents[i]`` has, shared until one of them writes. The sequence is active.

    The device's error if it refuses to copy recurrent states; nothing has changed then.
    """
    beams = list_beams(state)
    shared = state.shared
    states: list[list[Block]] = []
    if shared.has_state:
        states = _assign_states(beams, parents)
        _copy_states(beams, parents, states)
    with shared.storage.changes:
        _reorder_blocks(beams, parents)
        for beam, state_blocks in zip(beams, states):
            beam.recurrent.state_blocks = state_blocks


def _reorder_blocks(beams: list[SequenceState], parents: vec[i64]) -> None:
    state = beams[0]
    begin = state.num_published
    for beam in beams:
        take_published_pages(beam, begin)
    texts = [beam.blocks[begin:] for beam in beams]
    # First every new owner, then the old ones go: so no block is freed in between.
    for position, beam in enumerate(beams):
        parent = parents[position]
        ordinal = begin
        for block in texts[parent]:
            if block is not beam.blocks[ordinal]:
                _share_block(beams[parent], block, ordinal)
            ordinal += 1
    mark = state.shared.order.mark(state.timeline)
    for beam in beams:
        beam.forked_end = beam.num_blocks if beam.num_blocks > begin else 0
    for position, beam in enumerate(beams):
        _adopt_blocks(beam, texts[parents[position]], mark)


def _share_block(parent: SequenceState, block: Block, ordinal: i64) -> None:
    shared = parent.shared
    add_owner(parent, block, ordinal)
    for life_cycle in range(shared.num_life_cycles):
        if parent.holds_page(life_cycle, ordinal):
            shared.storage.share_locked_page(block.first_page + life_cycle)


def _adopt_blocks(beam: SequenceState, blocks: list[Block], mark: i64) -> None:
    """The new owner is counted already; what the beam had is released."""
    shared = beam.shared
    rows = shared.storage.rows
    ordinal = beam.num_published
    for block in blocks:
        if block is not beam.blocks[ordinal]:
            for life_cycle in range(shared.num_life_cycles):
                if beam.holds_page(life_cycle, ordinal):
                    release_page(beam, life_cycle, ordinal, mark)
                    beam.tables[life_cycle].set(ordinal, int(rows.slot(block.first_page + life_cycle)))
            release_owner(shared.tree, beam.blocks[ordinal])
            beam.blocks[ordinal] = block
        ordinal += 1
    beam.tail.is_published = len(blocks) > 0 and blocks[0].parent is not None


def _assign_states(beams: list[SequenceState], parents: vec[i64]) -> list[list[Block]]:
    """For each beam the slots that its recurrent state will be in: a state goes over to a child of its beam; further children get those
    of beams that have none."""
    states = [beam.recurrent.state_blocks for beam in beams]
    taken = [parents[position] == position for position in range(len(beams))]
    unused = [state_blocks for position, state_blocks in enumerate(states) if position not in parents]
    assigned: list[list[Block]] = []
    for position in range(len(beams)):
        parent = parents[position]
        if parent == position:
            assigned.append(states[position])
        elif not taken[parent]:
            taken[parent] = True
            assigned.append(states[parent])
        else:
            assigned.append(unused.pop())
    return assigned


def _copy_states(beams: list[SequenceState], parents: vec[i64], assigned: list[list[Block]]) -> None:
    """Where a beam's slots are not those of its parent, they get the same bytes: all at once, so that it can be refused as a whole."""
    storage = beams[0].shared.storage
    life_cycle = beams[0].shared.state_life_cycle
    pool_group = storage.pool_group_of[life_cycle]
    pages = vec[i64]()
    pool_groups = vec[i64]()
    sources = vec[i64]()
    targets = vec[i64]()
    for position in range(len(beams)):
        for block, own in zip(beams[parents[position]].recurrent.state_blocks, assigned[position]):
            source = block.first_page + life_cycle
            target = own.first_page + life_cycle
            if source != target:
                pages = append(append(pages, source), target)
                pool_groups = append(pool_groups, pool_group)
                sources = append(sources, storage.rows.slot(source))
                targets = append(targets, storage.rows.slot(target))
    if len(sources) == 0:
        return
    try:
        copy_slots_at_once(storage, pool_groups, sources, targets, beams[0].stream)
    except PartlyCopiedError:
        # States that beams still have may be overwritten: this cannot be undone.
        beams[0].shared.guard.begin_change()
        raise
    at: i64
    for at in range(0, len(pages), 2):
        storage.record_copy(pages[at], pages[at + 1])
    storage.counters.record_copied(GPU_LEVEL, GPU_LEVEL, pool_group, len(sources), find_page_counters(beams[0].request.counters))
