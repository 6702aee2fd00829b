"""Steps with planned blocks: a writer offers, confirms and takes back, a reader joins, follows and leaves.

    event                                          the blocks that are not confirmed, and their readers
    publish_planned, of the writer                 offered, up to one that another sequence has planned; not what the tree has
    a new sequence matches them                    one more reader: a hold on each page, and co-ownership of the block
    resume of a reader                             refused on another stream than the writers': no event could order the two
    the writer's commit fills the first            it joins the tree for the writer and all its readers
    suspend, close, rewind, stop_committing,       taken back with all planned blocks below them; their readers are void: they release
    a smaller capacity, a scratch block            what they have from there on, and only close, suspend and answer questions
    close of a reader                              one reader less

The pages are the writer's, in private blocks, so that nothing else in the manager finds them: no partial match, copy, lease or event.
"""

from mypy_extensions import i64

from ..device.stream_order import NO_POINT
from ..reuse.block import Block
from ..storage.decision_digest import PLANNED
from .block_owners import add_co_owner
from .page_users import cut_blocks
from .planned_blocks import PlannedBlock, PlannedLinks
from .sequence_state import NO_TIMELINE, SequenceState


# -- the writer ----------------------------------------------------------------------------------------------------------


def offer(state: SequenceState, packed: bytes) -> i64:
    """Offer the full blocks of the tokens that follow the committed ones; how many tokens that are. The caller has validated."""
    shared = state.shared
    tree = shared.tree
    block_bytes = tree.block_bytes
    if state.tail.is_retired:
        return 0
    links = state.sharing.planned
    if links is None:
        links = PlannedLinks()
    text = state.tail.packed() + packed
    node: Block | None = state.path_end
    above: PlannedBlock | None = None
    ordinal = state.num_published
    if len(links.read) > 0:
        node = None
        above = links.read[len(links.read) - 1]
        ordinal = above.ordinal + 1
    end = _count_matchable(state, node, above, ordinal, text) * block_bytes
    num_offered: i64 = 0
    next_own: i64 = 0
    is_shown = False
    for position in range(0, end, block_bytes):
        key = text[position : position + block_bytes]
        child = None if node is None else tree.find_child(node, key)
        planned = shared.claims.planned.find(node, above, key)
        if planned is not None and planned.writer is not state:
            # What is behind it is of use only once that sequence has committed.
            break
        while next_own < len(links.offered) and links.offered[next_own].ordinal < ordinal:
            next_own += 1
        if next_own < len(links.offered) and links.offered[next_own].ordinal == ordinal:
            own = links.offered[next_own]
            if planned is not own:
                if child is not None:
                    # It is hidden, and stays so.
                    break
                # What had its place was taken back.
                shared.claims.planned.show(own, node, above)
                planned = own
                is_shown = True
            if is_shown:
                num_offered += 1
        elif child is None and planned is None:
            planned = PlannedBlock(state.blocks[ordinal], state, ordinal, key, node, None if node is not None else above)
            shared.claims.planned.add(planned)
            links.offered.append(planned)
            num_offered += 1
            _expect_writes(state, planned)
        node = child
        above = planned
        ordinal += 1
    shared.storage.digest.record(PLANNED, num_offered)
    if not links.is_idle:
        state.sharing.planned = links
        _record_end(state)
    return num_offered * shared.tokens_per_block


def _count_matchable(state: SequenceState, node: Block | None, above: PlannedBlock | None, ordinal: i64, text: bytes) -> i64:
    """How many of the text's whole blocks a prompt may match: up to the last one behind which every window has pages, as blocks that the
    step computes in scratch slots have none."""
    shared = state.shared
    block_bytes = shared.tree.block_bytes
    num_blocks = len(text) // block_bytes
    if not shared.matcher.is_windowed:
        return num_blocks
    blocks = state.blocks[: ordinal + num_blocks]
    at: i64 = 0
    while at < num_blocks and node is not None:
        # What is published is matched by the published block.
        child = shared.tree.find_child(node, text[at * block_bytes : (at + 1) * block_bytes])
        if child is not None:
            blocks[ordinal + at] = child
        node = child
        at += 1
    matchable = shared.matcher.count_with_windows(blocks, ordinal + num_blocks) - ordinal
    return matchable if matchable > 0 else 0


def _expect_writes(state: SequenceState, planned: PlannedBlock) -> None:
    """Tell the device which bytes are about to be written: one that checks for races then reports reads that come before."""
    shared = state.shared
    if planned.ordinal * shared.tokens_per_block < state.history:
        # Some of its tokens are there already.
        return
    rows = shared.storage.rows
    for life_cycle in range(shared.num_life_cycles):
        page = planned.block.first_page + life_cycle
        if rows.has_page(page):
            group = shared.storage.pool_groups[shared.storage.pool_group_of[life_cycle]]
            for pool in range(len(group.slot_bytes)):
                num_bytes = group.slot_bytes[pool]
                shared.device.expect_write(int(group.base_addresses[pool] + rows.slot(page) * num_bytes), int(num_bytes))


def _record_end(state: SequenceState) -> None:
    """Up to where the blocks of the sequence have, or may have, other owners."""
    end: i64 = 0
    links = state.sharing.planned
    if links is not None:
        blocks = links.offered if len(links.offered) > 0 else links.read
        if len(blocks) > 0:
            end = blocks[len(blocks) - 1].ordinal + 1
        if links.is_idle:
            state.sharing.planned = None
    state.forked_end = end if end > state.num_published else 0
    state.next_slow_capacity = 0


def take_offered(state: SequenceState) -> PlannedBlock | None:
    """The block behind the published path is full. It is offered no more, if it was: `confirm` follows."""
    links = state.sharing.planned
    if links is None or len(links.offered) == 0 or links.offered[0].ordinal != state.num_published:
        return None
    return links.offered.pop(0)


def confirm(planned: PlannedBlock, above: Block, published: Block) -> None:
    """It is published below ``above``; each reader, which pins that already, has it on its path."""
    for reader in planned.readers:
        assert reader.path_end is above, "a reader of a planned block is on another path than its writer"
        # `above` keeps the pin of the writer.
        above.num_pins -= 1
        reader.path_end = published
        reader.num_published += 1
        read = reader.sharing.planned
        assert read is not None and read.read[0] is planned, "a planned block was confirmed before the one above it"
        read.read.pop(0)
        _record_end(reader)
    planned.readers.clear()
    writer = planned.writer
    writer.shared.claims.planned.remove(planned, published)
    links = writer.sharing.planned
    if links is not None and links.is_idle:
        writer.sharing.planned = None


def take_back(state: SequenceState, begin: i64) -> None:
    """From block ``begin`` on, if that is one, nothing of the writer is planned any more, and nothing below; readers of that are void."""
    links = state.sharing.planned
    if links is None or begin < 0:
        return
    shared = state.shared
    gone: list[PlannedBlock] = []
    seen: set[int] = set()
    for planned in links.offered:
        if planned.ordinal >= begin and int(planned.block.first_page) not in seen:
            for below in shared.claims.planned.list_below(planned):
                if int(below.block.first_page) not in seen:
                    seen.add(int(below.block.first_page))
                    gone.append(below)
    if len(gone) == 0:
        return
    with shared.storage.changes:
        shared.storage.digest.record(PLANNED, -len(gone))
        gone.reverse()
        lost: dict[SequenceState, int] = {}
        """By reader, the first block that it loses."""
        for planned in gone:
            # Each comes before those above it.
            for reader in planned.readers:
                lost[reader] = min(lost.get(reader, int(planned.ordinal)), int(planned.ordinal))
            shared.claims.planned.remove(planned, None)
            offered = planned.writer.sharing.planned
            assert offered is not None, "the writer of a planned block does not know of it"
            if offered.offered[len(offered.offered) - 1] is planned:
                offered.offered.pop()
            else:
                offered.offered.remove(planned)
        for reader, ordinal in lost.items():
            _make_void(reader, ordinal)
        for planned in gone:
            if planned.writer.sharing.planned is not None:
                _record_end(planned.writer)


# -- readers -------------------------------------------------------------------------------------------------------------


def read_planned(state: SequenceState, planned: list[PlannedBlock]) -> None:
    """The new sequence lists these blocks, whose pages it holds, behind its published path."""
    links = PlannedLinks()
    size = state.shared.tokens_per_block
    for one in planned:
        add_co_owner(one.block, size)
        one.readers.append(state)
        links.read.append(one)
    state.sharing.planned = links
    _record_end(state)


def leave_writers(state: SequenceState) -> None:
    """The reader is about to close; its pages and blocks are released as all others."""
    links = state.sharing.planned
    if links is not None:
        for planned in links.read:
            planned.readers.remove(state)
        links.read.clear()


def _make_void(state: SequenceState, ordinal: i64) -> None:
    """From block ``ordinal`` on the reader has nothing any more; its windows stay where they are."""
    shared = state.shared
    links = state.sharing.planned
    assert links is not None, "a reader does not know what it reads"
    mark = shared.order.mark(state.timeline) if state.timeline != NO_TIMELINE else NO_POINT
    cut_blocks(state, ordinal, mark)
    state.scratch.release_all(mark)
    state.scratch.clear()
    for planned in links.read:
        if planned.ordinal >= ordinal and state in planned.readers:
            planned.readers.remove(state)
    del links.read[int(ordinal - state.num_published) :]
    num_tokens = ordinal * shared.tokens_per_block
    links.valid_tokens = num_tokens
    state.num_committed = num_tokens
    state.history = num_tokens
    state.capacity = num_tokens
    state.request.given = None
    state.request.given_end = -1
    _record_end(state)
