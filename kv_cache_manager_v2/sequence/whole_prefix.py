"""The longest reusable prefix that a sequence can begin with: its bytes are all there, and level 0 has the slots to resume it.

Pages that a disk has lost stay in the tree while a sequence holds them. Used by matches, and to say how many of its tokens a sequence
keeps when some of its pages cannot be read.
"""

from librt.vecs import vec
from mypy_extensions import i64

from ..base.errors import LoadFailed, StorageIOError
from ..reuse.block import Block
from ..reuse.state_match import StateMatch
from ..reuse.token_packing import TOKEN_BYTES
from ..stats.usage_counters import find_page_counters
from ..storage.onboarding import OnboardList
from .planned_rules import pack_read
from .sequence_state import SequenceState
from .shared_state import SharedState


def find_longest(shared: SharedState, root: Block | None, packed: bytes) -> StateMatch:
    """The longest reusable prefix, with recurrent layers or without."""
    if shared.recurrent.matcher is not None:
        return shared.recurrent.matcher.find_longest(root, packed)
    match = shared.matcher.find_longest(root, packed)
    return StateMatch(match, match.num_tokens, match.num_tokens, None)


def find_whole(shared: SharedState, root: Block | None, packed: bytes, is_exact: bool) -> StateMatch:
    """The longest one of whose pages no disk has lost any, nor, if ``is_exact``, a codec packed any with loss."""
    found = find_longest(shared, root, packed)
    end = _count_whole(shared, found, is_exact)
    while end < found.match.num_tokens:
        found = find_longest(shared, root, packed[: int(end) * TOKEN_BYTES])
        end = _count_whole(shared, found, is_exact)
    return found


def _count_whole(shared: SharedState, found: StateMatch, is_exact: bool) -> i64:
    end = shared.count_whole_blocks(found.match.blocks) * shared.tokens_per_block
    if is_exact:
        end = min(end, count_exact(shared, found))
    return end


def count_exact(shared: SharedState, found: StateMatch) -> i64:
    """The tokens of a match before the first page that it needs and that was packed with loss; before the end of its state, if that was."""
    storage = shared.storage
    count = found.match.num_tokens
    if not storage.packs_with_loss:
        return count
    if found.snapshot is not None and storage.has_loss(found.snapshot.first_page + shared.state_life_cycle):
        count = min(count, found.state_tokens - 1)
    for life_cycle in range(shared.num_life_cycles):
        num_sinks = shared.windows.num_sink_blocks[life_cycle]
        begin = shared.windows.compute_begin(life_cycle, found.match.num_tokens)
        for ordinal, block in enumerate(found.match.blocks):
            if (ordinal < num_sinks or ordinal >= begin) and storage.has_loss(block.first_page + life_cycle):
                count = min(count, ordinal * shared.tokens_per_block)
                break
    return count


def cut_to_slots(shared: SharedState, root: Block | None, packed: bytes, found: StateMatch, is_exact: bool) -> StateMatch:
    """The longest one up to ``found`` that level 0 has slots for: a sequence that can never be resumed reuses nothing."""
    end = count_resumable(shared, found.match.num_tokens)
    while end < found.match.num_tokens:
        found = find_whole(shared, root, packed[: int(end) * TOKEN_BYTES], is_exact)
        end = count_resumable(shared, found.match.num_tokens)
    return found


def count_resumable(shared: SharedState, num_tokens: i64) -> i64:
    """All of so many matched tokens, or the most whole blocks of them, that a sequence alone can resume with."""
    while num_tokens > 0 and not _has_slots(shared, num_tokens):
        num_tokens = (num_tokens - 1) // shared.tokens_per_block * shared.tokens_per_block
    return num_tokens


def _has_slots(shared: SharedState, num_tokens: i64) -> bool:
    """Whether level 0 has slots for the pages of so many matched tokens together with what the first resume copies: a partial last
    block, the snapshot of the recurrent state."""
    storage = shared.storage
    needed = vec[i64]([0] * storage.num_pool_groups)
    num_blocks = (num_tokens + shared.tokens_per_block - 1) // shared.tokens_per_block
    num_copied: i64 = 0 if num_tokens % shared.tokens_per_block == 0 else 1
    for life_cycle in range(shared.num_life_cycles):
        if shared.has_state and life_cycle == shared.state_life_cycle:
            count = 1 + shared.recurrent.num_state_slots
        else:
            # Every layer reads the last block, so its copy has a page for each.
            window_begin = shared.windows.compute_begin(life_cycle, num_tokens)
            count = shared.windows.count_new_pages(life_cycle, 0, num_blocks, window_begin) + num_copied
        needed[storage.pool_group_of[life_cycle]] += count
    for pool_group in range(storage.num_pool_groups):
        if needed[pool_group] > storage.allocators[pool_group].num_slots:
            return False
    return True


def pack_committed(state: SequenceState, num_tokens: i64) -> bytes:
    """The first ``num_tokens`` committed tokens, as the keys of blocks are."""
    num_blocks = min(state.num_published, num_tokens // state.shared.tokens_per_block + 1)
    keys = [state.shared.tree.key_of(block) for block in state.blocks[: int(num_blocks)]]
    return b"".join([*keys, pack_read(state), state.tail.packed()])[: int(num_tokens) * TOKEN_BYTES]


def bring_up(state: SequenceState, wanted: OnboardList, peak: vec[i64], waits: bool) -> None:
    """`Onboarding.bring_up` for the sequence and its beams: `LoadFailed` where some of its pages cannot be read."""
    onboarding = state.shared.traffic.onboarding
    try:
        onboarding.bring_up(wanted, peak, waits, find_page_counters(state.request.counters))
    except StorageIOError as error:
        # All is in its queues again.
        if len(onboarding.failed) > 0:
            raise make_load_failed(state, onboarding.failed, str(error)) from error
        raise


def make_load_failed(state: SequenceState, bad: list[int], reason: str) -> LoadFailed:
    """The error of a sequence of whose pages these cannot be read: it keeps what comes before them, as far as that can be matched."""
    shared = state.shared
    kept = _count_before(state, bad)
    packed = pack_committed(state, kept)
    root = shared.tree.find_root(state.request.scope)
    is_exact = state.request.is_exact
    num_tokens = cut_to_slots(shared, root, packed, find_whole(shared, root, packed, is_exact), is_exact).match.num_tokens
    if state.request.counters is not None:
        state.request.counters.num_lost = state.num_committed - num_tokens
    return LoadFailed(
        f"sequence {state.id} cannot go on: {reason}. Its first {num_tokens} tokens are there: rewind({num_tokens}) and compute the "
        f"others again, or close() it",
        int(num_tokens),
    )


def _count_before(state: SequenceState, bad: list[int]) -> i64:
    """The committed tokens before the first of these pages."""
    shared = state.shared
    pages = set(bad)
    kept = state.num_committed
    for one in [state, *state.sharing.beams]:
        for life_cycle in range(shared.num_life_cycles):
            for ordinal in range(one.num_blocks):
                first = ordinal * shared.tokens_per_block
                if first < kept and one.has_page(life_cycle, ordinal) and int(one.blocks[ordinal].first_page + life_cycle) in pages:
                    kept = first
    snapshot = state.recurrent.matched_snapshot
    if snapshot is not None and int(snapshot.first_page + shared.state_life_cycle) in pages and state.recurrent.state_tokens <= kept:
        # A shorter prefix has another snapshot.
        kept = state.recurrent.state_tokens - 1
    return kept
