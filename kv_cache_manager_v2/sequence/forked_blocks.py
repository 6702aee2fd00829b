"""Blocks that several sequences share because one was forked from another, and how each gets blocks of its own again.

A fork lists the blocks of its parent. Published ones are shared as always: by holds and a pin. A private one then has several
owners (`Block.num_co_owners` counts those beyond the first), each with its own holds and locks on the pages. For a sequence all
such blocks lie in ``[num_published, forked_end)``, and since a block is left only together with all that follow it, what forks still
share of their own begins with the first such block. A lease (`transfer_leases`) is an owner that never writes, commits or rebases.

    event, for one owner                      the block
    a resize whose step writes into it        is copied for the writer, or, for the last owner, written in place
    commit fills it                           joins the tree for all its owners; those that are not there yet pin it
    the tree has an equal block already       all its owners take that one over (rebase)
    its end (close, cut, window)              one owner, hold, lock less

Work of other streams on a shared page is in the slot's point (`unlock` puts it there): who goes on alone waits for that first.
"""

from typing import Final

from mypy_extensions import i64

from ..reuse.block import Block
from ..reuse.token_packing import TOKEN_BYTES
from .block_owners import add_co_owner
from .planned_rules import require_committed_before, validate_offered_tokens
from .sequence_state import SequenceState

NO_ORDINALS: Final[list[int]] = []
"""No block at all; never changed."""


# -- the first write ------------------------------------------------------------------------------------------------------


def find_first_written(state: SequenceState, capacity: i64, history: i64) -> i64:
    """The first block that the step after a resize writes; if it writes none, a number behind the last block, old or new.

    Its inputs are ``history .. capacity - 1``; behind the old capacity another machine may fill what is not an input.
    """
    size = state.shared.tokens_per_block
    if history < capacity:
        return (state.capacity if state.capacity < history else history) // size
    if capacity > state.capacity:
        return state.capacity // size
    return (state.capacity + size - 1) // size


def list_copies(state: SequenceState, capacity: i64, history: i64) -> list[int]:
    """The shared blocks that the step after a resize writes, in order: the sequence needs copies of them."""
    copies: list[int] = []
    if state.sharing.planned is not None:
        # A writer computes its planned blocks in place; behind them no block has another owner.
        return copies
    size = state.shared.tokens_per_block
    begin = find_first_written(state, capacity, history)
    if begin < state.num_published:
        begin = state.num_published
    end = (capacity + size - 1) // size
    if end > state.num_blocks:
        end = state.num_blocks
    for ordinal in range(begin, end):
        block = state.blocks[ordinal]
        if block.parent is not None or block.num_co_owners > 0:
            copies.append(int(ordinal))
    return copies


def settle_forked(state: SequenceState, first_written: i64) -> None:
    """From ``first_written`` on the blocks are the sequence's own: it may write once the other streams are done with them."""
    if first_written >= state.forked_end:
        return
    begin = first_written if first_written > state.num_published else state.num_published
    for ordinal in range(begin, state.forked_end):
        state.wait_for_block(ordinal)
    cut_forked(state, first_written)


def cut_forked(state: SequenceState, end: i64) -> None:
    """Nothing from block ``end`` on is shared any more."""
    if state.forked_end > end:
        state.forked_end = end if end > state.num_published else 0


# -- the end --------------------------------------------------------------------------------------------------------------


def leave_family(state: SequenceState) -> None:
    family = state.sharing.forks
    if family is not None:
        del family[state]
        state.sharing.forks = None


def add_owner(state: SequenceState, block: Block, ordinal: i64) -> None:
    """One sequence more has ``block`` of ``state`` as its own; of its pages nothing is said here."""
    if block.parent is not None:
        block.num_pins += 1
        return
    size = state.shared.tokens_per_block
    room = state.capacity - ordinal * size
    add_co_owner(block, room if room < size else size)


# -- publishing -----------------------------------------------------------------------------------------------------------


def list_owners(state: SequenceState, ordinal: i64) -> list[SequenceState]:
    """Those that have the block, in the order in which they were forked."""
    family = state.sharing.forks
    if family is None:
        return [state]
    block = state.blocks[ordinal]
    return [other for other in family if ordinal < other.num_blocks and other.blocks[ordinal] is block]


def validate_same_tokens(state: SequenceState, packed: bytes) -> None:
    """Owners of one block have the same bytes, so they cannot say that these stand for different tokens."""
    if state.sharing.planned is not None:
        require_committed_before(state, "commit")
        validate_offered_tokens(state, packed)
        return
    text = state.tail.packed() + packed
    block_bytes = state.shared.tree.block_bytes
    num_blocks = (len(text) + block_bytes - 1) // block_bytes
    for ordinal in range(state.num_published, min(state.num_published + num_blocks, state.forked_end)):
        position = (ordinal - state.num_published) * block_bytes
        piece = text[position : position + block_bytes]
        known = state.shared.tree.key_of(state.blocks[ordinal])
        if len(known) == 0:
            for other in list_owners(state, ordinal):
                if other is not state and other.num_published == ordinal and other.tail.count * TOKEN_BYTES > len(known):
                    known = other.tail.packed()
        count = len(piece) if len(piece) < len(known) else len(known)
        if piece[:count] != known[:count]:
            raise ValueError(
                f"sequence {state.id}: block {ordinal} is shared with a fork that has committed other tokens for the same "
                f"bytes; a step that computes tokens of its own begins with a resize"
            )


def may_publish_partial(state: SequenceState, key: bytes) -> bool:
    """Whether a partial last block may join the tree for all its owners.

    Not if some owner may have bytes behind ``key`` that it would still commit: a published block is never filled up.
    """
    block = state.blocks[state.num_published]
    if block.num_co_owners == 0:
        return True
    return state.tail.count >= block.num_shared_tokens and state.shared.tree.find_child(state.path_end, key) is None


def record_published(state: SequenceState) -> None:
    """The published path of a sequence with forked blocks has grown by one."""
    state.next_slow_capacity = 0
    if state.forked_end > state.num_published:
        state.tail.is_published = state.blocks[state.num_published].parent is not None
    else:
        state.tail.is_published = False
        state.forked_end = 0
