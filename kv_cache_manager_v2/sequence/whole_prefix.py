"""The longest reusable prefix whose bytes are all there: pages that a disk has lost stay in the tree while a sequence holds them.

Used by matches, and to say how many of its tokens a sequence keeps when some of its pages cannot be read.
"""

from mypy_extensions import i64

from ..base.errors import LoadFailed
from ..reuse.block import Block
from ..reuse.match import Match
from ..reuse.state_match import NO_STATE_MATCH, StateMatch
from ..reuse.token_packing import TOKEN_BYTES
from .planned_rules import pack_read
from .sequence_state import SequenceState
from .shared_state import SharedState


def find_whole(shared: SharedState, root: Block | None, packed: bytes) -> Match:
    found = shared.matcher.find_longest(root, packed)
    while True:
        end = shared.count_whole_blocks(found.blocks) * shared.tokens_per_block
        if end >= found.num_tokens:
            return found
        found = shared.matcher.find_longest(root, packed[: int(end) * TOKEN_BYTES]) if end > 0 else Match([], 0)


def find_whole_with_state(shared: SharedState, root: Block | None, packed: bytes) -> StateMatch:
    """The same for a model with recurrent layers."""
    matcher = shared.state_matcher
    if matcher is None:
        return NO_STATE_MATCH
    found = matcher.find_longest(root, packed)
    end = shared.count_whole_blocks(found.match.blocks) * shared.tokens_per_block
    while end < found.match.num_tokens:
        found = matcher.find_longest(root, packed[: int(end) * TOKEN_BYTES]) if end > 0 else NO_STATE_MATCH
        end = shared.count_whole_blocks(found.match.blocks) * shared.tokens_per_block
    return found


def pack_committed(state: SequenceState) -> bytes:
    """The committed tokens, as the keys of blocks are."""
    keys: list[bytes] = [state.tail.packed(), pack_read(state)]
    block = state.path_end
    while block.parent is not None:
        keys.append(state.shared.tree.key_of(block))
        block = block.parent
    keys.reverse()
    return b"".join(keys)


def make_load_failed(state: SequenceState, bad: list[int], reason: str) -> LoadFailed:
    """The error of a sequence of whose pages these cannot be read: it keeps what comes before them, as far as that can be matched."""
    shared = state.shared
    kept = _count_before(state, bad)
    packed = pack_committed(state)[: int(kept) * TOKEN_BYTES]
    root = shared.tree.find_root(state.scope)
    if shared.has_state:
        num_tokens = find_whole_with_state(shared, root, packed).match.num_tokens
    else:
        num_tokens = find_whole(shared, root, packed).num_tokens
    if state.counters is not None:
        state.counters.num_lost = state.num_committed - num_tokens
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
    for one in [state, *state.beams]:
        for life_cycle in range(shared.num_life_cycles):
            for ordinal in range(one.num_blocks):
                first = ordinal * shared.tokens_per_block
                if first < kept and one.holds_page(life_cycle, ordinal) and int(one.blocks[ordinal].first_page + life_cycle) in pages:
                    kept = first
    snapshot = state.matched_snapshot
    if snapshot is not None and int(snapshot.first_page + shared.state_life_cycle) in pages and state.state_tokens <= kept:
        # A shorter prefix has another snapshot.
        kept = state.state_tokens - 1
    return kept
