"""Tokens that a sequence commits: of one prefix, of several beams, or the accepted nodes of a tree of drafts.

Each function here packs and validates what the caller gave, moves bytes where needed, commits, and records the call. The door is
open, and the sequence is ACTIVE and still committing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Final, SupportsIndex

from librt.vecs import vec
from mypy_extensions import i64

from ..base.checks import is_bytes, to_count, to_counts, to_list
from ..base.errors import LogicError
from ..journal.journal_format import COMMIT_BEAMS, COMMIT_LAST, COMMIT_TREE, PUBLISH_PLANNED
from ..reuse.token_packing import TOKEN_BYTES, pack_tokens, view_of
from ..sequence import commit as commit_steps
from ..sequence import page_arrivals
from ..sequence.beams import gather_tokens, validate_sources
from ..sequence.forked_blocks import validate_same_tokens
from ..sequence.planned_rules import validate_offered_tokens
from ..sequence.planned_steps import offer
from ..sequence.sequence_state import SequenceState
from ..sequence.step_validation import require_written
from ..sequence.tree_commit import compact_tree, validate_tree
from ..storage.token_copy import TokenCopies

if TYPE_CHECKING:
    from ..reuse.token_forms import Tokens


ALL_LEFT: Final = -1
NO_INPUT: Final = -1
ONE_HEAD: Final[SupportsIndex] = 1
"""The default of ``num_heads``, which needs no second look."""


def to_heads(num_heads: SupportsIndex) -> i64:
    heads = to_count(num_heads, "num_heads")
    if heads == 0:
        raise ValueError("num_heads is 0; 1 says that a token's bytes lie together")
    return heads


def commit_any(state: SequenceState, tokens: Tokens) -> None:
    packed = _take_given(state, tokens)
    if packed is None:
        packed = _pack(state, tokens)
    begin = state.num_committed
    commit_steps.commit_packed(state, packed)
    state.shared.guard.journal.commit(state.request.serial, begin, packed)


def _take_given(state: SequenceState, tokens: object) -> bytes | None:
    """`_pack` of the tokens if they are those of the sequence's input that come next, as nearly all that a prefill commits; else None.

    The input is kept as long as a block of it is left. It goes before other tokens are packed: these take the same memory, and find it
    in the caches.
    """
    given = state.request.given
    if given is None:
        return None
    state.request.given_end = NO_INPUT
    packed = given.find_equal(state.num_committed, tokens)
    if packed is None:
        state.request.given = None
        return None
    end = state.num_committed + len(packed) // TOKEN_BYTES
    if end > state.capacity or end > state.request.written_end:
        return None
    if given.num_tokens - end < state.shared.tokens_per_block:
        state.request.given = None
    _validate_content(state, packed)
    return packed


def commit_last(state: SequenceState, tokens: Tokens) -> None:
    """Nothing will be committed after them; the caller calls `commit.stop_committing`, which belongs to the same record."""
    packed = _pack(state, tokens)
    commit_steps.commit_packed(state, packed, True)
    state.shared.guard.journal.record(COMMIT_LAST, state.request.serial, packed)


def commit_given(state: SequenceState, num_tokens: i64) -> None:
    """The next so many of the tokens that the sequence was made with; ALL_LEFT: all that are left."""
    begin = state.num_committed
    packed = _pack_given(state, num_tokens, state.capacity)
    commit_steps.commit_packed(state, packed)
    state.request.given_end = state.num_committed
    given = state.request.given
    if given is not None and given.num_tokens == state.num_committed:
        state.request.given = None
    state.shared.guard.journal.commit(state.request.serial, begin, packed)


def validate_given(state: SequenceState, num_tokens: i64, capacity: i64) -> None:
    """The caller's mistakes in `commit_given`, had the sequence that capacity. Changes nothing."""
    packed = _pack_given(state, num_tokens, capacity)
    if state.shared.tree.has_digests:
        state.shared.tree.digests.release(packed)


def _pack_given(state: SequenceState, num_tokens: i64, capacity: i64) -> bytes:
    if state.num_committed != state.request.given_end:
        raise LogicError(
            f"sequence {state.id}: commit_input() after {state.num_committed} committed tokens: create_kv_cache had no input_tokens, or "
            f"commit() was called since; use commit()"
        )
    given = state.request.given
    begin = state.num_committed
    left: i64 = 0
    if given is not None:
        left = given.num_tokens - begin
    count = left if num_tokens == ALL_LEFT else num_tokens
    if count > left:
        raise ValueError(f"sequence {state.id}: num_tokens is {count}; {left} input tokens are left after {begin} committed ones")
    if begin + count > capacity:
        raise ValueError(
            f"sequence {state.id}: {count} input tokens after {begin} committed ones exceed the capacity of {capacity}; "
            f"resize() first, or give num_tokens"
        )
    packed = b"" if given is None else given.pack(begin, begin + count, state.shared.tree.digests)
    _validate_content(state, packed)
    return packed


def commit_of_beams(
    state: SequenceState, tokens: Tokens, beam_search_indices: Sequence[SupportsIndex] | None, num_heads: SupportsIndex
) -> None:
    """``beam_search_indices``: for each token the beam whose pages have it; None: beam 0."""
    shared = state.shared
    page_arrivals.await_arrivals(state)
    heads = to_heads(num_heads)
    num_tokens = _count_tokens(tokens, "accepted_input_tokens")
    if beam_search_indices is None:
        sources = vec[i64]([0] * num_tokens)
    else:
        sources = to_counts(to_list(beam_search_indices, "beam_search_indices"), "one of beam_search_indices")
    validate_sources(state, sources, num_tokens)
    copies = TokenCopies(shared.storage, shared.tokens_per_block, heads)
    packed = _pack(state, tokens)
    try:
        gather_tokens(state, sources, copies)
    except BaseException:
        shared.tree.digests.release(packed)
        raise
    with shared.storage.changes:
        commit_steps.commit_packed(state, packed)
        for further in state.sharing.beams:
            if shared.tree.has_digests:
                shared.tree.digests.acquire_again(packed)
            commit_steps.commit_packed(further, packed)
    shared.guard.journal.record(COMMIT_BEAMS, state.request.serial, heads, [int(source) for source in sources], packed)


def commit_nodes(state: SequenceState, tokens: Tokens, accepted_positions: Sequence[SupportsIndex], num_heads: SupportsIndex) -> None:
    """The accepted nodes of a flattened tree: each was computed at its position."""
    shared = state.shared
    positions = to_counts(to_list(accepted_positions, "accepted_positions"), "one of accepted_positions")
    heads = to_heads(num_heads)
    validate_tree(state, positions, _count_tokens(tokens, "tokens"))
    page_arrivals.await_arrivals(state)
    copies = TokenCopies(shared.storage, shared.tokens_per_block, heads)
    packed = _pack(state, tokens, "tokens")
    try:
        compact_tree(state, positions, copies)
    except BaseException:
        shared.tree.digests.release(packed)
        raise
    with shared.storage.changes:
        commit_steps.commit_packed(state, packed)
    shared.guard.journal.record(COMMIT_TREE, state.request.serial, heads, [int(position) for position in positions], packed)


def offer_tokens(state: SequenceState, tokens: Tokens) -> int:
    """How many of the tokens, which follow the committed ones, are offered before they are committed."""
    tree = state.shared.tree
    packed = _pack_within(state, tokens, "tokens", "planned tokens")
    try:
        validate_offered_tokens(state, packed)
        num_offered: i64 = 0
        if not state.shared.has_state:
            if len(tree.digests) > 0:
                tree.has_digests = True
            with state.shared.storage.changes:
                num_offered = offer(state, packed)
        state.shared.guard.journal.record(PUBLISH_PLANNED, state.request.serial, packed, num_offered)
        return int(num_offered)
    finally:
        tree.digests.release(packed)


def _count_tokens(tokens: object, name: str) -> int:
    if isinstance(tokens, (list, tuple)):
        return len(tokens)  # what follows asks an abstract class, which takes longer than all else of a small commit
    view = None if is_bytes(tokens) else view_of(tokens)
    if view is not None and view.ndim == 1:
        return len(view)
    is_unordered = isinstance(tokens, (str, Mapping, set, frozenset)) or is_bytes(tokens)
    if is_unordered or not isinstance(tokens, Sized) or getattr(tokens, "ndim", 1) == 0:
        raise TypeError(f"{name} must be a sequence of int / bytes or an integer buffer, not {type(tokens).__name__}")
    return len(tokens)


def _pack(state: SequenceState, tokens: Tokens, name: str = "accepted_input_tokens") -> bytes:
    """The tokens of a commit, validated; their digests are counted for this sequence."""
    packed = _pack_within(state, tokens, name, "tokens")
    _validate_content(state, packed)
    return packed


def _pack_within(state: SequenceState, tokens: object, name: str, noun: str) -> bytes:
    """As many tokens as the capacity has room for; their digests are counted."""
    digests = state.shared.tree.digests
    num_tokens = _count_tokens(tokens, name)
    if state.num_committed + num_tokens > state.capacity:
        raise ValueError(
            f"sequence {state.id}: {num_tokens} {noun} after {state.num_committed} committed ones exceed the capacity of "
            f"{state.capacity}; resize() first"
        )
    packed = pack_tokens(tokens, digests, True, name)
    if len(packed) // TOKEN_BYTES != num_tokens:
        digests.release(packed)
        raise ValueError(f"sequence {state.id}: there are {len(packed) // TOKEN_BYTES} tokens, their len() is {num_tokens}")
    return packed


def _validate_content(state: SequenceState, packed: bytes) -> None:
    """The step that writes them has begun, and forks that share a block have committed no other tokens for it; else the digests count no
    more."""
    tree = state.shared.tree
    try:
        require_written(state, state.num_committed + len(packed) // TOKEN_BYTES)
        if state.forked_end > state.num_published:
            validate_same_tokens(state, packed)
    except (ValueError, LogicError):
        tree.digests.release(packed)
        raise
    if len(tree.digests) > 0:
        tree.has_digests = True
