"""`KVCache`: the handle that an engine holds for one sequence.

    status      guaranteed                                            ways out
    SUSPENDED   holds its pages, wherever they are; every base        resume() -> ACTIVE, close() -> CLOSED
                page index is bad
    ACTIVE      every needed page is on level 0 and stays there       suspend() -> SUSPENDED, close() -> CLOSED
    CLOSED      holds nothing                                         none

The whole public surface is in this file: each call goes through one door (``with guard as journal``), checks its arguments before
anything changes, lets a module of `sequence` work on the `SequenceState`, and records itself. One caller at a time per manager.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final, SupportsIndex, final

from mypy_extensions import i32, i64
from rawref import invalidate

from ..base.checks import MAX_COUNT, to_bool, to_count, to_counts, to_index, to_index_mode, to_int, to_int_within, to_list
from ..base.errors import LogicError, OutOfPagesError
from ..base.finalizers import report_failure, warn_of_leak
from ..base.given import Given
from ..base.handle import Handle
from ..base.ids import DEFAULT_BEAM_INDEX, GPU_LEVEL, PageIndexMode, TokenIdExt
from ..base.package_log import PackageLog
from ..base.ranges import HalfOpenRange
from ..journal.call_records import ASKED
from ..journal.journal_format import (
    BEAM_WIDTH, FORK, PACKED_WITH_LOSS, PREFETCH, REORDER, REQUIRE, RESERVE, RESIDENCY, RESUME, REWIND, SCRATCH, STOP, STREAM, SUSPEND,
)  # fmt: skip
from ..layout.scratch_desc import ScratchDesc
from ..reuse.reuse_scope import ReuseScope
from ..reuse.token_packing import single_token, unpack_tokens
from ..sequence import commit as commit_steps
from ..sequence import page_arrivals, prefetching, residency
from ..sequence.beam_width import change_width
from ..sequence.beams import reorder
from ..sequence.committed_pages import mark_packed
from ..sequence.fork import try_fork
from ..sequence.lease_blocks import lease_blocks
from ..sequence.matched_tokens import MatchedTokens
from ..sequence.page_table import PageTable, to_index_buffer
from ..sequence.recurrent_state import live_block
from ..sequence.residency_window import list_levels, list_slots, require, require_no_window, set_window, validate_window
from ..sequence.resize import try_resize
from ..sequence.planned_rules import refuse_other_stream, require_committed_before, require_unplanned, validate_offer, validate_stream
from ..sequence.room_question import RoomQuestion
from ..sequence.sequence_state import ACTIVE, CLOSED, SUSPENDED, SequenceState
from ..sequence.shared_state import UNBOUNDED
from ..sequence.small_step import try_small_commit, try_small_resize
from ..sequence.step_validation import (
    ANY_OPEN,
    BEAMS_COMMIT,
    require_committing,
    require_one_beam,
    require_status,
    require_usable,
    validate_fork,
    validate_resize,
    validate_scratch_switch,
)
from ..sequence.stream_handle import to_stream
from ..sequence.usage_recorder import record_use
from ..sequence.whole_prefix import pack_committed
from ..storage.eviction.segment_traits import CONTINUES, ENDS, NO_HINT
from ..storage.refusal import Refusal
from ..stats.usage_snapshot import compute_usage
from ..stats.usage_statistics import UsageStatistics
from .committed_block_drop import CommittedBlockDrop, plan_drop
from .open_sequences import AbandonedSequence, OpenSequences
from .token_commits import (
    ALL_LEFT, ONE_HEAD, commit_any, commit_given, commit_last, commit_nodes, commit_of_beams, offer_tokens, to_heads, validate_given,
)  # fmt: skip
from .transfer_lease import TransferLease

if TYPE_CHECKING:
    from ..reuse.token_forms import Tokens
    from .kv_cache_manager import KVCacheManager

_logger: Final = PackageLog("kv_cache_manager_v2")
_MAX_BEAM_WIDTH: Final = 2**16
"""More than any search uses: each beam has tables of its own, so a number that was meant for something else would fill the memory."""


class SequenceStatus(Enum):
    """SUSPENDED: holds its pages, wherever they are. ACTIVE: they are on level 0 and stay there. CLOSED: holds nothing."""

    SUSPENDED = "suspended"
    ACTIVE = "active"
    CLOSED = "closed"


@final
class KVCache(Handle):
    """One sequence. Made by `KVCacheManager.create_kv_cache`, suspended; see the module for its states.

    A context manager; leaving it closes. A handle that is dropped without `close` warns (`ResourceWarning`), and the next
    call on the manager closes the sequence.
    """

    __slots__ = ("__rawref__", "_state", "_manager", "_open_sequences")

    Status: ClassVar[type[SequenceStatus]] = SequenceStatus

    __rawref__: object

    def __init__(self, state: SequenceState, manager: KVCacheManager, open_sequences: OpenSequences) -> None:
        """Not for users: `KVCacheManager.create_kv_cache` makes sequences."""
        self._manager: Final = manager
        self._open_sequences: Final = open_sequences
        # Last, here and in other handles: what `__del__` asks for first. Ctrl-C may come before any line.
        self._state: Final = state
        open_sequences.add(state, self)

    def __del__(self) -> None:
        invalidate(self)
        # Compiled, `__new__` may have been refused before there was a state, and only `getattr` notices.
        state = getattr(self, "_state", None)
        if not isinstance(state, SequenceState) or state.status == CLOSED or state.shared.guard.is_foreign:
            return
        try:
            state.shared.guard.add_abandoned(AbandonedSequence(state, self._open_sequences))
            warn_of_leak(f"sequence {state.id} was dropped without close(); the next call on its manager closes it")
        except BaseException as error:
            report_failure(error, KVCache)

    def __enter__(self) -> KVCache:
        return self

    def __exit__(self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        try:
            self.close()
        except Exception:
            _logger.exception("closing sequence %s after an error failed", self._state.id)

    def __repr__(self) -> str:
        state = self._state
        return (
            f"<KVCache {state.id} {self.status.value}: capacity {state.capacity}, history {state.history}, committed {state.num_committed}>"
        )

    # -- states --------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> SequenceStatus:
        """SUSPENDED, ACTIVE or CLOSED; what each means: the table at the top of the module."""
        status = self._state.status
        if status == ACTIVE:
            return SequenceStatus.ACTIVE
        return SequenceStatus.SUSPENDED if status == SUSPENDED else SequenceStatus.CLOSED

    @property
    def is_active(self) -> bool:
        """Whether the status is ACTIVE: its pages are on level 0 and locked."""
        return self._state.status == ACTIVE

    def resume(self, cuda_stream: object = None, wait: Given[bool] = True) -> bool:
        """Bring every needed page to level 0 and lock it, in order with ``cuda_stream`` from here on.

        ``cuda_stream``: an int handle, or an object with ``__cuda_stream__``; None: the stream of the last time, at first the
        device's default stream. A partially matched last block is copied into a page of the sequence's own. False, and
        nothing has changed, if there is no room or other sequences use more than `max_util_for_resume`
        (`KVCacheManager.last_refusal` says which). `LogicError` unless SUSPENDED.

        ``wait``: the stream waits for pages that are onboarded from lower levels, and this call for what a disk reads. Without it
        neither waits: give the sequence work once `ready` is true (`resize` makes the stream wait for the rest, and itself waits
        for what a disk reads). `PageMoveError` or `LoadFailed` if pages cannot be brought up; the sequence is suspended as before.
        After `LoadFailed`, `rewind` goes back to the tokens that are there; where no page is lost, it may be resumed again instead.
        """
        state = self._state
        with state.shared.guard as journal:
            require_usable(state, SUSPENDED, "resume")
            stream = state.stream if cuda_stream is None else to_stream(cuda_stream, state.shared.device)
            waits = to_bool(wait, "wait")
            result = not refuse_other_stream(state, stream) and residency.try_resume(state, stream, waits)
            journal.record(RESUME, state.request.serial, ASKED, stream, result)
            return result

    @property
    def ready(self) -> bool:
        """Whether the pages of an ACTIVE sequence that `resume(wait=False)` did not wait for have all landed.

        True at once where nothing had to be onboarded. `LoadFailed` if a disk could not read one, or its bytes are not what was
        written: `rewind` to its `first_bad_token`; no other sequence matches that page any more. `LogicError` unless ACTIVE.
        From any thread; `BusyError` while another call runs.
        """
        guard = self._state.shared.guard
        guard.end_interrupted()
        with guard.readers, self._manager._reading:
            require_status(self._state, ACTIVE, "ready")
            return page_arrivals.are_pages_here(self._state)

    def prefetch(self, target_level: SupportsIndex = GPU_LEVEL) -> bool:
        """Bring the pages of a SUSPENDED sequence up to a level, so that `resume` finds them nearer; moves none down from above.

        A hint: False, and nothing has changed, if there is no room for all of them. Waits for nothing. `ValueError` for a level
        that does not exist, `LogicError` unless SUSPENDED, `PageMoveError` if the device refuses.
        """
        state = self._state
        with state.shared.guard as journal:
            require_usable(state, SUSPENDED, "prefetch")
            level = to_index(target_level, "target_level", int(state.shared.storage.num_levels), "cache levels")
            result = prefetching.try_prefetch(state, level)
            journal.record(PREFETCH, state.request.serial, level, result)
            return result

    def suspend(self) -> None:
        """Unlock all pages; they stay held. Moves nothing and never fails for lack of room. `LogicError` unless ACTIVE."""
        state = self._state
        with state.shared.guard as journal:
            require_status(self._state, ACTIVE, "suspend")
            residency.suspend(state)
            state.shared.order.postpone()
            if state.request.counters is not None:
                state.request.counters.record_suspended()
            journal.record(SUSPEND, state.request.serial)

    def close(self, continues: Given[bool | None] = None) -> None:
        """Release everything; committed pages become droppable, and the tail of the sequence is evicted first.

        A partial last block that is committed is published first, as by `stop_committing`. Twice is fine. In a forked process it
        does nothing: all pages are the parent's.

        ``continues``: a hint for EvictionPolicy.LEARNED. True: a later prompt is expected to go on from here (a tool is called, an
        agent has the next turn); False: none is, the conversation ends; None: what `stop_committing` was told, or nothing. What it
        means is learned from what comes back, so a wrong hint costs no hits to speak of.
        """
        state = self._state
        hint = NO_HINT if continues is None else _to_hint(continues)
        if state.status == CLOSED or state.shared.guard.is_foreign:
            return
        with state.shared.guard:
            if hint != NO_HINT:
                state.request.continues = hint
            self._open_sequences.close(state)

    def rewind(self, num_tokens: SupportsIndex) -> int:
        """Go back to the first ``num_tokens`` committed tokens: `LoadFailed.first_bad_token` says how many are there after a disk
        has lost pages. Returns how many the sequence has now.

        It is as after `close` and `create_kv_cache` with these tokens, under this handle: SUSPENDED, committed = history = capacity =
        what is matched of them, which is less where a window, or a snapshot of recurrent state, is not there any more. All else is
        released; beams end, and `stop_committing` is forgotten. In statistics it is the request that it was: the prompt keeps the figures
        of its first `resume`, but that hits which a disk could not read by then are missed. `ValueError` for more tokens than are
        committed, `LogicError` once closed.
        """
        state = self._state
        with state.shared.guard as journal:
            require_usable(state, ANY_OPEN, "rewind")
            count = to_count(num_tokens, "num_tokens")
            if count > state.num_committed:
                raise ValueError(f"sequence {state.id}: num_tokens is {count}; {state.num_committed} tokens are committed")
            packed = pack_committed(state, count)
            self._open_sequences.rewind(state, packed, self._manager._usage.recorder)
            num_kept = int(state.num_committed)
            journal.record(REWIND, state.request.serial, count, num_kept)
            return num_kept

    def fork(self, id: SupportsIndex | None = None) -> KVCache:
        """A new sequence that is what this one is: same scope, tokens, history, capacity, stream, and ACTIVE if this one is.

        Takes no slot, but for recurrent state, which is copied: all blocks are shared, those that are not committed too. The
        first `resize` whose step writes into a shared block is the write: its sequence gets a copy of that block (False if
        there is no room for it), the last owner none. So every step begins with a `resize`, even one that changes no number;
        and with a history that has moved up (by `commit`, or by `resize`) at most one block per layer group is copied, whatever
        the length. Both may be closed in any order. ``id``: as in `KVCacheManager.create_kv_cache`.

        `LogicError` once closed, while some layer group's history is in scratch slots, or SUSPENDED with recurrent state;
        `OutOfPagesError` if there is no slot for a copy of the recurrent state. Then nothing has changed.
        """
        state = self._state
        with state.shared.guard as journal:
            require_status(state, ANY_OPEN, "fork")
            state.shared.traffic.require_copies("fork()", "create_kv_cache() with the committed tokens shares their whole blocks")
            serial = self._open_sequences.next_serial
            sequence_id = serial if id is None else to_int(id, "id")
            require_no_window(state, "fork")
            validate_fork(state, "fork")
            self._open_sequences.require_room(state.shared, 1, "fork()")
            require_one_beam(state, "fork")
            if len(state.recurrent.state_blocks) > 0:
                # The copy of the recurrent state reads it on the sequence's stream.
                page_arrivals.await_arrivals(state)
            request = state.request.fork(serial, sequence_id, state.request.priority_callback)
            child = SequenceState(state.shared, request, state.stream)
            if not try_fork(state, child):
                # A refusal is a decision, and `adjust` goes by it.
                journal.record(FORK, state.request.serial, 0)
                raise OutOfPagesError(self._refusal_text())
            record_use(child)
            kv_cache = KVCache(child, self._manager, self._open_sequences)
            journal.record(FORK, state.request.serial, 1)
            return kv_cache

    # -- room ----------------------------------------------------------------------------------------------------------

    def resize(self, capacity: SupportsIndex | None = None, history_length: SupportsIndex | None = None) -> bool:
        """Reserve pages for ``capacity`` tokens, of which the first ``history_length`` are history; None: as it is.

        One go, all or nothing: out-of-window pages are released and new ones allocated together. False, and
        nothing has changed, if there is no room (`KVCacheManager.last_refusal`). `ValueError` if the history would shrink,
        the capacity would fall under it, or a page index buffer is too small; `LogicError` unless ACTIVE, or if more tokens of
        recurrent state would be taken back than there are `state_checkpoints`; `PageMoveError`, and nothing but what was evicted has
        changed, if the device refuses to move a page away.

        It costs what changes: the blocks that begin and end, also those that a window never reads (as by ``resize(n, n)`` where
        another machine has computed the tokens). They get no pages, but a `commit` puts their tokens into the tree.

        Where scratch reuse is on, a call that changes the capacity needs
        ``old capacity - max_rewind_len <= history_length <= old capacity``, unless ``history_length == capacity`` (no inputs), or the
        last step used no scratch, because scratch reuse has been switched on since.
        """
        state = self._state
        if (
            history_length is None
            and isinstance(capacity, int)
            and 1 < capacity <= MAX_COUNT  # True passes for 1, and `to_count` tells it apart
            and try_small_resize(state, capacity)
        ):
            return True
        with state.shared.guard as journal:
            new_capacity = state.capacity if capacity is None else to_count(capacity, "capacity")
            new_history = state.history if history_length is None else to_count(history_length, "history_length")
            validate_resize(state, new_capacity, new_history)
            if len(state.arrivals.points) > 0:
                page_arrivals.await_arrivals(state)
            old_history = state.history
            result = try_resize(state, new_capacity, new_history)
            journal.resize(state.request.serial, new_capacity, new_history, old_history, result)
            return result

    def find_refusal(self, capacity: SupportsIndex | None = None, history_length: SupportsIndex | None = None) -> Refusal | None:
        """Why `resize` with these numbers would be refused now; None if there is room for it. Changes nothing, and waits for nothing.

        No callback of the user's is called, and nothing is counted, recorded or evicted. What a device may still refuse is not
        foreseen. `ValueError` and `LogicError` as for `resize`; `LogicError` with a residency window.
        """
        state = self._state
        with state.shared.guard:
            new_capacity = state.capacity if capacity is None else to_count(capacity, "capacity")
            new_history = state.history if history_length is None else to_count(history_length, "history_length")
            validate_resize(state, new_capacity, new_history)
            require_no_window(state, "find_refusal")
            return RoomQuestion(state.shared).find(state, new_capacity, new_history)

    @property
    def capacity(self) -> int:
        """Tokens there is room for. Setting it is `resize(capacity=...)` with `OutOfPagesError` for False.

        Where the sequence uses scratch slots, setting it is a `ValueError`: a step must say where its inputs begin.
        """
        return self._state.capacity

    @capacity.setter
    def capacity(self, capacity: Given[int]) -> None:
        if self._state.scratch.is_enabled:
            raise ValueError(
                "capacity: with scratch slots a step must say where its inputs begin: use resize(capacity, history_length), or set "
                "enable_swa_scratch_reuse to False"
            )
        if not self.resize(to_int(capacity, "capacity"), None):
            raise OutOfPagesError(self._refusal_text())

    @property
    def history_length(self) -> int:
        """Tokens before the next step's inputs. Setting it is `resize(history_length=...)`."""
        return self._state.history

    @history_length.setter
    def history_length(self, history_length: Given[int]) -> None:
        if not self.resize(None, to_int(history_length, "history_length")):
            raise OutOfPagesError(self._refusal_text())

    @property
    def num_blocks(self) -> int:
        """Blocks of the capacity, the partial last one included; 0 once closed."""
        return self._state.num_blocks

    @property
    def enable_swa_scratch_reuse(self) -> bool:
        """Whether steps of this sequence use scratch slots. May be switched while it makes no difference.

        Setting it is a `ValueError` if the manager is not configured for scratch reuse, or if the present step has scratch
        blocks, or would have them if it were on; `LogicError` once closed, or with several beams.
        """
        return self._state.scratch.is_enabled

    @enable_swa_scratch_reuse.setter
    def enable_swa_scratch_reuse(self, enable: Given[bool]) -> None:
        state = self._state
        with state.shared.guard as journal:
            require_usable(state, ANY_OPEN, "enable_swa_scratch_reuse")
            is_wanted = to_bool(enable, "enable_swa_scratch_reuse")
            if is_wanted:
                require_no_window(state, "setting enable_swa_scratch_reuse")
            if is_wanted != state.scratch.is_enabled:
                validate_scratch_switch(state, is_wanted)
                state.scratch.is_enabled = is_wanted
                state.scratch.is_new = is_wanted
                state.next_slow_capacity = 0
                journal.record(SCRATCH, state.request.serial, is_wanted)

    # -- tokens --------------------------------------------------------------------------------------------------------

    def commit(
        self,
        accepted_input_tokens: Tokens,
        beam_search_indices: Sequence[SupportsIndex] | None = None,
        num_heads: SupportsIndex = ONE_HEAD,
        is_end: Given[bool] = False,
    ) -> None:
        """The tokens are final, and all writes of theirs are enqueued on the sequence's stream.

        Blocks that become full are published at once. If another sequence has published the same block already, one page of the two
        stays, mostly theirs: base page indices may change, unless the manager is configured with ``allow_seq_rebasing=False``.
        History moves up to the committed count by itself.
        `ValueError` if there is no capacity for them, a token is out of range, or a fork has committed other tokens for a block
        that both have; `LogicError` unless ACTIVE, or after `stop_committing`.

        They need not be those that were given as `input_tokens`: only the match looks at those, and later prompts find what was
        committed.

        ``beam_search_indices``: for each token the beam whose pages have it (default: beam 0). The tokens are then common to all
        beams: what is in other beams' pages is put into beam 0's, and into the partial last block of each, in stream order; full
        blocks are beam 0's for all; a recurrent state stays each beam's own. ``num_heads``: as for `commit_tree`. ``is_end``: then
        `stop_committing`; the recurrent state at the end is kept for reuse if the `SnapshotPolicy` has ``at_commits``, there is one beam
        and a slot, and all room is committed.
        """
        state = self._state
        if num_heads is not ONE_HEAD:
            to_heads(num_heads)
        is_plain = not state.has_beams and beam_search_indices is None
        if is_end is not False and to_bool(is_end, "is_end"):
            self._commit_end(accepted_input_tokens, beam_search_indices, num_heads)
            return
        token: i32 = -1
        if is_plain:
            token = single_token(accepted_input_tokens)
            if token >= 0 and try_small_commit(state, token):
                return
        with state.shared.guard as journal:
            require_committing(state, "commit")
            if not is_plain:
                commit_of_beams(state, accepted_input_tokens, beam_search_indices, num_heads)
                return
            if len(state.arrivals.points) > 0:
                page_arrivals.settle_arrivals(state)
            room = min(state.capacity, state.request.written_end)
            if token >= 0 and state.num_committed < room and state.forked_end <= state.num_published:
                commit_steps.commit_token(state, token)
                journal.commit_one(state.request.serial, i64(token))
            else:
                commit_any(state, accepted_input_tokens)

    def _commit_end(self, tokens: Tokens, beam_search_indices: Sequence[SupportsIndex] | None, num_heads: SupportsIndex) -> None:
        state = self._state
        with state.shared.guard as journal:
            require_committing(state, "commit")
            if state.has_beams or beam_search_indices is not None:
                commit_of_beams(state, tokens, beam_search_indices, num_heads)
                journal.record(STOP, state.request.serial, NO_HINT)
            else:
                page_arrivals.settle_arrivals(state)
                commit_last(state, tokens)
            commit_steps.stop_committing(state, False)

    def commit_input(self, num_tokens: SupportsIndex | None = None) -> None:
        """`commit` of the tokens that `create_kv_cache` was given: they are neither read nor packed again.

        The next ``num_tokens`` of them, from the matched ones on, as a prefill has computed them; None: all that are left. What
        follows from it is what `commit` of the same tokens does.

        `ValueError` if there are not so many left, or no capacity for them; `LogicError` as for `commit`, with beams, without input
        tokens, or once `commit` was called, also in vain. Then nothing has changed.
        """
        state = self._state
        with state.shared.guard:
            require_committing(state, "commit_input")
            require_one_beam(state, "commit_input", BEAMS_COMMIT)
            count = ALL_LEFT if num_tokens is None else to_count(num_tokens, "num_tokens")
            page_arrivals.settle_arrivals(state)
            commit_given(state, count)

    def commit_tree(self, tokens: Tokens, accepted_positions: Sequence[SupportsIndex], num_heads: SupportsIndex = 1) -> None:
        """Commit the accepted nodes of a flattened tree of drafts: ``tokens[i]`` was computed at ``accepted_positions[i]``.

        Positions count from the sequence's first token, ascend, and lie between the committed tokens and the capacity, which
        counts the whole tree. The nodes' keys and values are moved together on the sequence's stream; then it is a `commit`. The
        capacity stays: the next `resize` says how much of the rest stays. ``num_heads``: 1 if a token's bytes lie together in a
        page (NHD), else the heads of a page that is laid out head by head (HND).

        `ValueError` as for `commit`, for positions that do not fit, or if a buffer's bytes cannot be shared out to its tokens;
        `LogicError` unless ACTIVE, after `stop_committing`, with recurrent layers (a state cannot be put together from nodes),
        with beams, where a fork shares the block, or where a node is in scratch slots.
        """
        state = self._state
        with state.shared.guard:
            require_committing(state, "commit_tree")
            state.shared.traffic.require_own_memory("commit_tree()", "draft a chain, and commit() what is accepted of it")
            require_one_beam(state, "commit_tree")
            require_unplanned(state, "commit_tree")
            if state.shared.has_state:
                raise LogicError(f"sequence {state.id}: commit_tree() with recurrent layers; their state is of the whole tree")
            commit_nodes(state, tokens, accepted_positions, num_heads)

    def publish_planned(self, tokens: Tokens) -> int:
        """Offer the tokens that this sequence computes in this step to sequences that are created before it commits them.

        ``tokens`` continue the committed ones and end within the capacity; what is offered are the full blocks among them that are not
        in the tree and that no other sequence has planned, up to the last one behind which every window has pages: those of scratch
        slots have none. Returns how many tokens these are; 0 for a model with recurrent layers. Call it between the `resize` for the
        step and the step's kernels. A sequence that is created now may match planned blocks (`MatchedTokens.planned_tokens`): it may
        read them in the same step, on the same stream, behind this sequence's writes of the same layer; its first `commit` comes
        after the `commit` here that fills them, and is a `LogicError` before.

        Only the planned tokens can be committed then. `suspend`, `close`, `rewind`, `stop_committing`, or a smaller capacity take back
        what is not committed: calls of its readers raise `PlannedTokensLost`. `ValueError` for tokens out of range, without
        capacity, or that differ from those planned before; `LogicError` unless ACTIVE, after `stop_committing`, with beams, or
        with blocks that a fork or a lease has. While blocks are planned neither this sequence nor a reader can be forked or lend them.
        """
        state = self._state
        with state.shared.guard:
            require_committing(state, "publish_planned")
            require_one_beam(state, "publish_planned")
            require_no_window(state, "publish_planned")
            validate_offer(state)
            return offer_tokens(state, tokens)

    def stop_committing(self, continues: Given[bool | None] = None) -> None:
        """Nothing that follows is ever reused; the partial last block is published now, or by `close` where indices stay
        (``allow_seq_rebasing=False``). Twice is fine. `LogicError` once closed. ``continues``: as for `close`, which may say it too."""
        state = self._state
        with state.shared.guard as journal:
            require_status(state, ANY_OPEN, "stop_committing")
            hint = NO_HINT if continues is None else _to_hint(continues)
            require_committed_before(state, "stop_committing")
            page_arrivals.settle_arrivals(state)
            commit_steps.stop_committing(state, False)
            if hint != NO_HINT:
                state.request.continues = hint
            journal.record(STOP, state.request.serial, hint)

    @property
    def num_committed_tokens(self) -> int:
        """How many tokens are final: those of the match, and those committed since."""
        return self._state.num_committed

    @property
    def committed_tokens(self) -> list[TokenIdExt]:
        """All committed tokens, from the first one on; a new list. `LogicError` once closed."""
        self._state.shared.guard.require_sound()
        require_status(self._state, ANY_OPEN, "committed_tokens")
        return unpack_tokens(pack_committed(self._state, self._state.num_committed), self._state.shared.tree.digests)

    @property
    def match_info(self) -> MatchedTokens:
        """The match when the sequence was made: attention up to one length, recurrent state up to another."""
        found, state_tokens = self._state.request, self._state.recurrent.state_tokens
        return MatchedTokens(int(found.attention_tokens), int(state_tokens), int(found.planned_tokens), int(found.lossy_tokens))

    @property
    def next_snapshot_position(self) -> int | None:
        """The next length at which `commit` leaves a snapshot of the recurrent state, if it ends exactly there.

        A prefill that stops its chunk there makes later sequences find that prefix. None if there is none, if the model has
        no recurrent layers, or after `stop_committing`.
        """
        state = self._state
        plan = state.recurrent.snapshot_plan
        if plan is None or not state.is_committing or state.tail.is_retired:
            return None
        return plan.find_next(state.num_committed)

    # -- beams ---------------------------------------------------------------------------------------------------------

    @property
    def beam_width(self) -> int:
        """Number of continuations of the committed tokens, each with page tables of its own (``beam_id`` from 0 on).

        Setting it higher makes each further beam a fork of beam 0: everything is shared until a `resize` whose step writes there.
        Setting it lower frees the last beams. Prefill first, then widen. `ValueError` under 1 or over 65536; `LogicError` once
        closed, or, to widen, before the first resume of a partial match, with scratch reuse on (`enable_swa_scratch_reuse`), or
        where `fork` is one; `OutOfPagesError`, and nothing has changed, if there is no slot for a beam's recurrent state.
        """
        return len(self._state.sharing.beams) + 1

    @beam_width.setter
    def beam_width(self, beam_width: Given[int]) -> None:
        state = self._state
        with state.shared.guard as journal:
            require_usable(state, ANY_OPEN, "beam_width")
            width = to_count(beam_width, "beam_width")
            if width == 0:
                raise ValueError("beam_width is 0; a sequence has at least one beam")
            if width > 1:
                state.shared.traffic.require_own_memory(f"beam_width = {width}", "make each beam a sequence of its own")
            if width > _MAX_BEAM_WIDTH:
                raise ValueError(f"beam_width is {width}; a sequence has at most {_MAX_BEAM_WIDTH} beams")
            if width > 1:
                require_no_window(state, "setting beam_width")
            self._open_sequences.require_room(state.shared, width - len(state.sharing.beams) - 1, f"beam_width = {width}")
            try:
                is_other = change_width(state, width)
            except OutOfPagesError:
                journal.record(BEAM_WIDTH, state.request.serial, width, 0)
                raise
            if is_other:
                journal.record(BEAM_WIDTH, state.request.serial, width, 1)

    def reorder_beams(self, parents: Sequence[SupportsIndex]) -> None:
        """Beam ``i`` goes on from what beam ``parents[i]`` has: a beam may go on in several, and others end.

        Nothing is copied but recurrent state, which goes over or, where a beam goes on in several, is copied in stream order: its
        slots may change. Base page indices may change. Call it before the step's `resize`, which is the write that parts beams that
        share a block. `ValueError` unless there is one parent for each beam; `LogicError` unless
        ACTIVE.
        """
        state = self._state
        with state.shared.guard as journal:
            require_usable(state, ACTIVE, "reorder_beams")
            width = len(state.sharing.beams) + 1
            found = to_counts(to_list(parents, "parents"), "one of parents")
            given = [int(parent) for parent in found]
            if len(given) != width or max(given) >= width:
                raise ValueError(f"sequence {state.id}: parents is {given} for {width} beams; give for each the beam that it goes on from")
            if width == 1:
                return
            page_arrivals.await_arrivals(state)
            reorder(state, found)
            journal.record(REORDER, state.request.serial, given)

    # -- transfers and planned drops -----------------------------------------------------------------------------------

    def reserve_transfer(self, begin_block: SupportsIndex = 0, end_block: SupportsIndex | None = None) -> TransferLease:
        """Lend the pages of blocks ``begin_block .. end_block - 1`` (default: all) to another machine, which reads or writes them.

        Until `TransferLease.settle` their slots are not used again, on level 0, even if this sequence is suspended or closed, or
        releases the blocks; a step of its own that writes into one that is private gets a copy first, so settle before going on
        with what another machine has written. The transfer is in order if it begins after what is on the sequence's stream.
        `ValueError` for blocks that are not there; `LogicError` unless ACTIVE.
        """
        state = self._state
        guard = state.shared.guard
        with guard as journal:
            require_usable(state, ACTIVE, "reserve_transfer")
            require_one_beam(state, "reserve_transfer")
            begin = to_count(begin_block, "begin_block")
            end = state.num_blocks if end_block is None else to_count(end_block, "end_block")
            if not begin <= end <= state.num_blocks:
                raise ValueError(f"sequence {state.id}: begin_block is {begin} and end_block {end}; there are {state.num_blocks} blocks")
            require_no_window(state, "reserve_transfer")
            state.shared.traffic.require_own_memory("reserve_transfer()", "keep the sequence open until the engine's transfer is done")
            if end > state.num_published:
                require_unplanned(state, "reserve_transfer")
            self._open_sequences.require_room(state.shared, 1, "reserve_transfer()")
            # The other side's work is behind this stream, which must be behind the pages.
            page_arrivals.await_arrivals(state)
            with state.shared.storage.changes:
                lease = lease_blocks(state, begin, end)
            journal.record(RESERVE, state.request.serial, begin, end)
            return TransferLease(state.shared, lease)

    def plan_committed_block_drop(self) -> CommittedBlockDrop | None:
        """A plan to drop the published end of this sequence later, by `CommittedBlockDrop.drop`; None if nothing is published.

        The plan holds no page and outlives the sequence. `LogicError` before `stop_committing`, and once closed.
        """
        state = self._state
        with state.shared.guard:
            require_usable(state, ANY_OPEN, "plan_committed_block_drop")
            if state.is_committing:
                raise LogicError(
                    f"sequence {state.id}: plan_committed_block_drop() while its published text may still grow; stop_committing() first"
                )
            return plan_drop(state)

    # -- what kernels need ---------------------------------------------------------------------------------------------

    def get_base_page_indices(self, layer_group_id: SupportsIndex, beam_id: SupportsIndex = DEFAULT_BEAM_INDEX) -> memoryview:
        """Read-only int32 view, one entry per block: the slot of its page, or `BAD_PAGE_INDEX`.

        Valid until the next call that changes the sequence. All bad while SUSPENDED. `LogicError` once closed.
        """
        return self._table(layer_group_id, beam_id).view()

    def take_changed_blocks(self, layer_group_id: SupportsIndex, beam_id: SupportsIndex = DEFAULT_BEAM_INDEX) -> list[HalfOpenRange]:
        """Blocks whose base page index differs from what it was at the last such call, in order; the first time, all blocks.

        Costs what was changed since. Blocks behind those of the last call count as changed, also where their index is bad; those that are
        gone (`num_blocks`) do not. Asking is of no consequence for anything else. `LogicError` once closed.
        """
        table = self._table(layer_group_id, beam_id)
        self._state.shared.guard.require_idle()
        return table.take_changes()

    def set_base_page_index_buf(self, beam_id: SupportsIndex, layer_group_id: SupportsIndex, buf: object) -> None:
        """From now on the library writes the base page indices into the caller's writable int32 buffer as well.

        The rest of the buffer is filled with -1. None takes it back. A `resize` that needs more blocks than the buffer has
        entries is a `ValueError` before anything changes.
        """
        with self._state.shared.guard:
            table = self._table(layer_group_id, beam_id)
            require_usable(self._state, ANY_OPEN, "set_base_page_index_buf")
            table.set_buffer(None if buf is None else to_index_buffer(buf, int(self._state.num_blocks)))

    def get_aggregated_page_indices(
        self, layer_group_id: SupportsIndex, beam_id: SupportsIndex = DEFAULT_BEAM_INDEX, valid_only: Given[bool] = False
    ) -> list[int]:
        """Slot ids of the blocks in order, for transfers; without the bad ones if ``valid_only``. `LogicError` unless ACTIVE."""
        table = self._table(layer_group_id, beam_id)
        only_valid = to_bool(valid_only, "valid_only")
        require_status(self._state, ACTIVE, "get_aggregated_page_indices")
        slots: list[int] = table.view().tolist()
        return [slot for slot in slots if slot >= 0] if only_valid else slots

    def get_ssm_block_base_index(
        self, layer_group_id: SupportsIndex, beam_id: SupportsIndex = DEFAULT_BEAM_INDEX, length: SupportsIndex | None = None
    ) -> int:
        """The slot of the sequence's recurrent state, for kernels to read and write in place; it stays while ACTIVE.

        At first it is the state that a match found, or zeros. With `state_checkpoints` there is a slot for each of the last
        lengths: ``length`` says whose, None that of the history, where the next step begins; the step writes the state after
        its token ``p`` to the slot of length ``p + 1``. `ValueError` if the group's layers have no state; `LogicError` unless
        ACTIVE.
        """
        group = self._group(layer_group_id)
        state = self._beam(beam_id)
        shared = state.shared
        if not shared.has_state or group != shared.state_life_cycle:
            raise ValueError(
                f"layer_group_id is {group}, which has pages per block and no recurrent state; use get_base_page_indices"
                + (f", or layer group {shared.state_life_cycle}" if shared.has_state else "")
            )
        at = state.history if length is None else to_count(length, "length")
        require_status(self._state, ACTIVE, "get_ssm_block_base_index")
        return int(shared.storage.rows.slot(live_block(state, at).first_page + group))

    def supports_index_mode(self, mode: Given[PageIndexMode]) -> bool:
        """PER_LAYER always; SHARED unless the sequence has scratch blocks."""
        to_index_mode(mode, "mode")
        return mode is PageIndexMode.PER_LAYER or not self.has_scratch_slots

    @property
    def has_scratch_slots(self) -> bool:
        """Whether some input blocks of the present step have scratch slots instead of pages."""
        return self._state.scratch.num_blocks > 0

    def get_scratch_desc(self, layer_group_id: SupportsIndex) -> ScratchDesc | None:
        """The group's scratch blocks and the slots they share, valid until the next resize or commit; false when empty.

        It is empty, and the slots are released, once the history has passed all of the blocks.

        None if the sequence does not reuse scratch memory. `LogicError` unless ACTIVE.
        """
        group = self._group(layer_group_id)
        require_status(self._state, ACTIVE, "get_scratch_desc")
        scratch = self._state.scratch
        if not scratch.is_enabled:
            return None
        return ScratchDesc(scratch.range_of(group), scratch.slots[group])

    # -- residency windows ---------------------------------------------------------------------------------------------

    def set_residency_window(
        self, layer_group_id: SupportsIndex, window_size: SupportsIndex | None, num_sink_tokens: SupportsIndex = 0
    ) -> None:
        """While ACTIVE keep only the first and the latest tokens' pages of a layer group without a window on level 0: for sparse attention.

        Locked there are the blocks of the first ``num_sink_tokens`` tokens, those that a sliding window of ``window_size`` tokens reads,
        all that may be written, and what `require_blocks` names. The group's other pages stay held, on level 0 or below it, with bad base
        page indices. Blocks of 4 tokens, history 16, capacity 20, window 5, 4 sink tokens: blocks 0, 3 and 4 are locked. ``window_size``
        None: all pages again. It ends with `rewind`.

        With a window `fork`, further beams, `reserve_transfer`, `publish_planned`, scratch reuse, `find_refusal` and `can_finish` are a
        `LogicError`. So is this call to change or end a window unless SUSPENDED, for a group that does not read all tokens, with one cache
        level, with memory that the engine owns, recurrent layers, ``allow_seq_rebasing=False``, scratch reuse, or uncommitted blocks that
        are or were shared with a fork, a beam, a lease or a plan. A match is no longer than what level 0 has room for all the same, and so
        is what `rewind` keeps. `ValueError` for numbers out of range.
        """
        state = self._state
        with state.shared.guard as journal:
            require_usable(state, ANY_OPEN, "set_residency_window")
            group = self._group(layer_group_id)
            if state.request.windows.keeps[group] != 0 or window_size is None:
                require_usable(state, SUSPENDED, "set_residency_window")
            window = UNBOUNDED if window_size is None else to_int_within(window_size, "window_size", 1, MAX_COUNT)
            num_sinks = to_count(num_sink_tokens, "num_sink_tokens")
            if window != UNBOUNDED:
                validate_window(state, group)
            set_window(state, group, window, num_sinks)
            journal.record(RESIDENCY, state.request.serial, group, window + 1, num_sinks)

    def get_residency_window(self, layer_group_id: SupportsIndex) -> tuple[int, int] | None:
        """Its window and its sinks, in tokens, these as whole blocks; None where all pages of the group are locked."""
        group = self._group(layer_group_id)
        self._state.shared.guard.require_idle()
        windows = self._state.request.windows
        if windows.keeps[group] == 0:
            return None
        return int(windows.sizes[group]), int(windows.num_sink_blocks[group] * self._state.shared.tokens_per_block)

    def require_blocks(self, layer_group_id: SupportsIndex, ordinals: Sequence[SupportsIndex]) -> bool:
        """Bring those blocks' pages to level 0 and lock them until the next `resize` or `suspend`, in order with the sequence's stream.

        All or nothing: False, and nothing has changed, if there is no room (`KVCacheManager.last_refusal`). Their base page indices are
        valid from then on; blocks that are locked anyway may be named. A `resize` that passes, or fails at moving pages, ends it; one that
        is refused, or whose arguments are wrong, does not. The host waits for what a disk reads.
        `ValueError` for a block that is not there; `LogicError` unless ACTIVE, or for one that has no page of the group; `PageMoveError`
        or `LoadFailed` as for `resume`.
        """
        state = self._state
        with state.shared.guard as journal:
            require_usable(state, ACTIVE, "require_blocks")
            group = self._group(layer_group_id)
            named = to_counts(to_list(ordinals, "ordinals"), "one of ordinals")
            for ordinal in named:
                if ordinal >= state.num_blocks:
                    raise ValueError(f"sequence {state.id}: one of ordinals is {ordinal}; there are {state.num_blocks} blocks")
                if not state.has_page(group, ordinal):
                    raise LogicError(
                        f"sequence {state.id}: block {ordinal} has no page of layer group {group}: it is out of the layers' window, a "
                        "scratch block, or the layers have no pages a block"
                    )
            result = require(state, group, named)
            journal.record(REQUIRE, state.request.serial, group, [int(ordinal) for ordinal in named], result)
            return result

    def get_block_levels(self, layer_group_id: SupportsIndex) -> memoryview:
        """Read-only int8, one entry per block: the cache level of its page, -1 where the sequence holds none. A copy of what is so now.

        A page that is not locked may move with any call of the manager. `LogicError` once closed.
        """
        group = self._group(layer_group_id)
        self._state.shared.guard.require_idle()
        return memoryview(list_levels(self._state, group)).cast("b").toreadonly()

    def get_block_slots(self, layer_group_id: SupportsIndex) -> memoryview:
        """Read-only int32, one entry per block: the slot of its page on the level that `get_block_levels` says, -1 where there is none."""
        group = self._group(layer_group_id)
        self._state.shared.guard.require_idle()
        return memoryview(list_slots(self._state, group)).toreadonly()

    @property
    def cuda_stream(self) -> int:
        """The stream that the sequence is in order with. Setting it while ACTIVE makes the new stream wait for the old."""
        return self._state.stream

    @cuda_stream.setter
    def cuda_stream(self, cuda_stream: Given[int]) -> None:
        state = self._state
        with state.shared.guard as journal:
            require_usable(state, ANY_OPEN, "cuda_stream")
            stream = to_stream(to_int(cuda_stream, "cuda_stream"), state.shared.device)
            validate_stream(state, stream)
            residency.change_stream(state, stream)
            journal.record(STREAM, state.request.serial, stream)

    # -- facts ---------------------------------------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """As given to `create_kv_cache` or `fork`, or a running number. Need not be unique."""
        return self._state.id

    @property
    def manager(self) -> KVCacheManager:
        """The manager that made it."""
        return self._manager

    @property
    def tokens_per_block(self) -> int:
        """The manager's."""
        return self._state.shared.tokens_per_block

    @property
    def reuse_scope(self) -> ReuseScope:
        """Whose blocks it matches and publishes."""
        return self._state.request.scope

    @property
    def statistics(self) -> UsageStatistics:
        """Usage of this sequence so far, also once closed. `LogicError` with ``enable_stats=False``."""
        counters = self._state.request.counters
        if counters is None:
            raise LogicError("the manager keeps no statistics; make it with enable_stats=True")
        usage = counters.usage
        return compute_usage(usage, None, self._state.shared.storage.pool_group_of, usage.peak_pages, ())

    # -- inside --------------------------------------------------------------------------------------------------------

    def _table(self, layer_group_id: SupportsIndex, beam_id: SupportsIndex) -> PageTable:
        group = self._group(layer_group_id)
        return self._beam(beam_id).tables[group]

    def _beam(self, beam_id: SupportsIndex) -> SequenceState:
        beam = to_int(beam_id, "beam_id")
        state = self._state
        if beam == DEFAULT_BEAM_INDEX:
            return state
        if not 0 < beam <= len(state.sharing.beams):
            raise ValueError(f"beam_id is {beam}; the beam width is {len(state.sharing.beams) + 1}")
        return state.sharing.beams[beam - 1]

    def _group(self, layer_group_id: SupportsIndex) -> int:
        self._state.shared.guard.require_sound()
        if self._state.status == CLOSED:
            raise LogicError(f"sequence {self._state.id} has no pages after close(); make a new sequence with create_kv_cache()")
        return to_index(layer_group_id, "layer_group_id", len(self._state.tables), "layer groups")

    def _require_input(self, call: str, num_tokens: int, capacity: int) -> None:
        """Refuse what `commit_input` of so many would refuse once there is that capacity. Changes nothing."""
        with self._state.shared.guard:
            require_committing(self._state, call)
            require_one_beam(self._state, call, BEAMS_COMMIT)
            validate_given(self._state, num_tokens, capacity)

    def _mark_packed(self, first_block: int) -> None:
        """Its blocks from there on were filled with pages that had been packed with loss."""
        state = self._state
        with state.shared.guard as journal:
            require_committing(state, "_mark_packed")
            mark_packed(state, first_block)
            journal.record(PACKED_WITH_LOSS, state.request.serial, first_block)

    def _refusal_text(self) -> str:
        refusal = self._state.shared.storage.last_refusal
        return refusal.text if refusal is not None else "no room"

    def _state_for_batch(self) -> SequenceState:
        return self._state


def _to_hint(continues: object) -> i64:
    if to_bool(continues, "continues"):
        return CONTINUES
    return ENDS
