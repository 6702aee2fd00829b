"""What a sequence says of its tokens: which are final, of one text, a tree of drafts or several beams. Base of `KVCache`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Final, SupportsIndex

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from ..base.checks import to_count, to_list
from ..base.errors import LogicError
from ..base.ids import TokenIdExt
from ..reuse.token_packing import TOKEN_BYTES, has_digest, pack_tokens, single_token, unpack_tokens
from ..sequence import commit as commit_steps
from ..sequence import page_arrivals
from ..sequence.beams import gather_tokens, validate_sources
from ..sequence.forked_blocks import validate_same_tokens
from ..sequence.sequence_state import ACTIVE
from ..sequence.small_step import try_small_commit
from ..sequence.tree_commit import compact_tree, validate_tree
from ..storage.token_copy import TokenCopies
from .sequence_transfers import SequenceTransfers

if TYPE_CHECKING:
    from ..reuse.token_forms import Tokens


ONE_HEAD: Final[SupportsIndex] = 1
"""The default of ``num_heads``, which needs no second look."""


def _count_tokens(tokens: object) -> int:
    if isinstance(tokens, (list, tuple)):
        return len(tokens)  # what follows asks an abstract class, which takes longer than all else of a small commit
    if isinstance(tokens, (str, bytes, bytearray, Mapping)) or not isinstance(tokens, Sized):
        raise TypeError(f"tokens must be a sequence of int / bytes or an integer buffer, not {type(tokens).__name__}")
    return len(tokens)


def _to_heads(num_heads: SupportsIndex) -> i64:
    heads = to_count(num_heads, "num_heads")
    if heads == 0:
        raise ValueError("num_heads is 0; 1 says that a token's bytes lie together")
    return heads


@mypyc_attr(native_class=True)
class SequenceCommits(SequenceTransfers):
    __slots__ = ()

    def commit(
        self,
        accepted_input_tokens: Tokens,
        beam_search_indices: Sequence[SupportsIndex] | None = None,
        num_heads: SupportsIndex = ONE_HEAD,
    ) -> None:
        """The tokens are final, and all writes of theirs are enqueued on the sequence's stream.

        Blocks that become full are published at once. If another sequence has published the same block already, ours is given
        up in favour of theirs: base page indices may change. History moves up to the committed count by itself.
        `ValueError` if there is no capacity for them, a token is out of range, or a fork has committed other tokens for a block
        that both have; `LogicError` unless ACTIVE, or after `stop_committing`.

        ``beam_search_indices``: for each token the beam whose pages have it (default: beam 0). The text is then common to all
        beams: what is in other beams' pages is put into beam 0's, and into the partial last block of each, in stream order; full
        blocks are beam 0's for all. ``num_heads``: as for `commit_tree`.
        """
        state = self._state
        if num_heads is not ONE_HEAD:
            _to_heads(num_heads)
        if state.has_beams or beam_search_indices is not None:
            self._commit_of_beams(accepted_input_tokens, beam_search_indices, num_heads)
            return
        token = single_token(accepted_input_tokens)
        if token >= 0 and try_small_commit(state, token):
            return
        guard = state.shared.guard
        guard.enter()
        try:
            self._require(ACTIVE, "commit")
            if not state.is_committing:
                raise LogicError(f"sequence {state.id}: commit() after stop_committing()")
            if len(state.arrivals) > 0:
                page_arrivals.settle_arrivals(state)
            if token >= 0 and state.num_committed < state.capacity and state.forked_end <= state.num_published:
                commit_steps.commit_token(state, token)
                if state.shared.journal is not None:
                    state.shared.journal.commit_one(state.serial, token)
                return
            self._commit_any(accepted_input_tokens)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    def _commit_of_beams(
        self, tokens: Tokens, beam_search_indices: Sequence[SupportsIndex] | None, num_heads: SupportsIndex
    ) -> None:
        state = self._state
        shared = state.shared
        guard = shared.guard
        guard.enter()
        try:
            self._require(ACTIVE, "commit")
            if not state.is_committing:
                raise LogicError(f"sequence {state.id}: commit() after stop_committing()")
            if len(state.arrivals) > 0:
                page_arrivals.await_arrivals(state)
            heads = _to_heads(num_heads)
            num_tokens = _count_tokens(tokens)
            if beam_search_indices is None:
                sources = vec[i64]([0] * num_tokens)
            else:
                sources = vec[i64]()
                for beam in to_list(beam_search_indices, "beam_search_indices"):
                    sources = append(sources, to_count(beam, "one of beam_search_indices"))
            if state.num_committed + num_tokens <= state.capacity:
                validate_sources(state, sources, num_tokens)
            copies = TokenCopies(shared.storage, shared.tokens_per_block, heads)
            packed = self._pack(tokens)
            try:
                gather_tokens(state, sources, copies)
            except BaseException:
                shared.tree.digests.release(packed)
                raise
            guard.begin_change()
            commit_steps.commit_packed(state, packed)
            for further in state.beams:
                if shared.tree.has_digests:
                    shared.tree.digests.acquire_again(packed)
                commit_steps.commit_packed(further, packed)
            guard.end_change()
            if shared.journal is not None:
                mixed = unpack_tokens(packed, shared.tree.digests) if has_digest(packed) else None
                listed = [int(source) for source in sources]
                shared.journal.commit_beams(state.serial, listed, heads, mixed, packed)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    def _commit_any(self, tokens: Tokens) -> None:
        state = self._state
        packed = self._pack(tokens)
        begin = state.num_committed
        commit_steps.commit_packed(state, packed)
        journal = state.shared.journal
        if journal is not None and not journal.commit_given(state.serial, begin, packed):
            mixed = unpack_tokens(packed, state.shared.tree.digests) if has_digest(packed) else None
            journal.commit(state.serial, mixed, packed)

    def _pack(self, tokens: Tokens) -> bytes:
        """The tokens of a commit, validated; their digests are counted for this sequence."""
        state = self._state
        tree = state.shared.tree
        num_tokens = _count_tokens(tokens)
        if state.num_committed + num_tokens > state.capacity:
            raise ValueError(
                f"sequence {state.id}: {num_tokens} tokens after {state.num_committed} committed ones exceed the capacity of "
                f"{state.capacity}; resize() first"
            )
        packed = pack_tokens(tokens, tree.digests, True)
        if len(packed) // TOKEN_BYTES != num_tokens:
            tree.digests.release(packed)
            raise ValueError(f"sequence {state.id}: there are {len(packed) // TOKEN_BYTES} tokens, their len() is {num_tokens}")
        if state.forked_end > state.num_published:
            try:
                validate_same_tokens(state, packed)
            except ValueError:
                tree.digests.release(packed)
                raise
        if len(tree.digests) > 0:
            tree.has_digests = True
        return packed

    def commit_tree(self, tokens: Tokens, accepted_positions: Sequence[SupportsIndex], num_heads: SupportsIndex = 1) -> None:
        """Commit the accepted nodes of a flattened tree of drafts: ``tokens[i]`` was computed at ``accepted_positions[i]``.

        Positions count from the sequence's first token, ascend, and lie between the committed tokens and the capacity, which
        counts the whole tree. The nodes' keys and values are moved together on the sequence's stream; then it is a `commit`. The
        capacity stays: the next `resize` says what becomes of the rest. ``num_heads``: 1 if a token's bytes lie together in a
        page (NHD), else the heads of a page that is laid out head by head (HND).

        `ValueError` as for `commit`, for positions that do not fit, or if a buffer's bytes cannot be shared out to its tokens;
        `LogicError` unless ACTIVE, after `stop_committing`, with recurrent layers (a state cannot be put together from nodes),
        with beams, where a fork shares the block, or where a node is in scratch slots.
        """
        state = self._state
        guard = state.shared.guard
        guard.enter()
        try:
            self._require(ACTIVE, "commit_tree")
            if not state.is_committing:
                raise LogicError(f"sequence {state.id}: commit_tree() after stop_committing()")
            if state.has_beams:
                raise LogicError(f"sequence {state.id}: commit_tree() with {len(state.beams) + 1} beams")
            if state.shared.has_state:
                raise LogicError(f"sequence {state.id}: commit_tree() with recurrent layers; their state is of the whole tree")
            positions = vec[i64]()
            for position in to_list(accepted_positions, "accepted_positions"):
                positions = append(positions, to_count(position, "one of accepted_positions"))
            heads = _to_heads(num_heads)
            validate_tree(state, positions, _count_tokens(tokens))
            if len(state.arrivals) > 0:
                page_arrivals.await_arrivals(state)
            copies = TokenCopies(state.shared.storage, state.shared.tokens_per_block, heads)
            packed = self._pack(tokens)
            try:
                compact_tree(state, positions, copies)
            except BaseException:
                state.shared.tree.digests.release(packed)
                raise
            guard.begin_change()
            commit_steps.commit_packed(state, packed)
            guard.end_change()
            if state.shared.journal is not None:
                mixed = unpack_tokens(packed, state.shared.tree.digests) if has_digest(packed) else None
                listed = [int(position) for position in positions]
                state.shared.journal.commit_tree(state.serial, listed, heads, mixed, packed)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()

    @property
    def num_committed_tokens(self) -> int:
        """How many tokens are final: those of the match, and those committed since."""
        return self._state.num_committed

    @property
    def committed_tokens(self) -> list[TokenIdExt]:
        """All committed tokens, from the first one on; a new list. `LogicError` once closed."""
        state = self._state
        self._require_open("committed_tokens")
        keys: list[bytes] = [state.tail.packed()]
        block = state.path_end
        while block.parent is not None:
            keys.append(state.shared.tree.key_of(block))
            block = block.parent
        keys.reverse()
        return unpack_tokens(b"".join(keys), state.shared.tree.digests)

    def stop_committing(self) -> None:
        """What follows is never reused; the partial last block is published now. Twice is fine. `LogicError` once closed."""
        state = self._state
        guard = state.shared.guard
        guard.enter()
        try:
            self._require_open("stop_committing")
            if len(state.arrivals) > 0:
                page_arrivals.settle_arrivals(state)
            commit_steps.stop_committing(state, False)
            if state.shared.journal is not None:
                state.shared.journal.stop_committing(state.serial)
        except AssertionError as error:
            raise guard.fail(error) from error
        finally:
            guard.leave()
