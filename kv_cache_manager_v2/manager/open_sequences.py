"""The open sequences of one manager. Owns their states; only observes the users' handles.

Conservation: a state is here from `add` until `close`. A handle that dies first queues its state at the call guard, and the state
stays here until the next call closes it. A destructor that could not even do that (interrupted before its first line, no memory)
leaves a state without a handle, which `close_forgotten` finds.

Rewinding to the beginning closes a sequence and opens it again as one that was made with those tokens: it holds what a new sequence
would match, every window whole and with a recurrent state. Where its scope's epoch has ended, it is one of the new epoch then.
"""

from typing import Final, final

import rawref
from mypy_extensions import i64

from ..base.errors import LogicError
from ..introspect.invariants import check_invariants
from ..sequence import commit as commit_steps
from ..sequence import page_arrivals, residency
from ..sequence.beams import list_beams
from ..sequence.call_guard import Abandoned, StateChecker
from ..sequence.early_copying import offload_if_idle
from ..sequence.planned_steps import take_back
from ..sequence.sequence_state import CLOSED, SequenceState
from ..sequence.shared_state import SharedState
from ..sequence.usage_recorder import UsageRecorder, record_use
from ..reuse.reuse_scope import ReuseScope
from ..storage.page_removal import settle_reads
from ..sequence.recurrent_state import begin_with
from ..sequence.whole_prefix import count_exact, cut_to_slots, find_whole


def reopen(state: SequenceState, packed: bytes, buffers: list[memoryview | None], old_num_blocks: int, usage: UsageRecorder | None) -> None:
    """The closed sequence holds the longest prefix of ``packed`` that is there. ``buffers``: the caller's, by layer group."""
    shared = state.shared
    plan = state.recurrent.snapshot_plan
    has_given = state.request.given is not None and state.request.given_end == state.num_committed
    state.reopen()
    if not shared.storage.reads.is_idle:
        # Lost pages that the sequence held are dropped.
        settle_reads(shared.storage)
    root = shared.tree.find_root(state.request.scope)
    is_exact = state.request.is_exact
    found = cut_to_slots(shared, root, packed, find_whole(shared, root, packed, is_exact), is_exact)
    lossy_tokens = found.match.num_tokens - count_exact(shared, found)
    residency.hold_match(state, found.match, [])
    state.request.lossy_tokens = lossy_tokens
    state.request.given_end = state.num_committed if has_given else -1
    if shared.has_state:
        positions = [] if plan is None else plan.list_positions()
        begin_with(state, found, packed, int(state.request.prompt_length), positions, False)
    for life_cycle, buffer in enumerate(buffers):
        if buffer is not None:
            state.tables[life_cycle].set_buffer(buffer)
    if usage is not None:
        usage.record_rewind(state, old_num_blocks)


MOST_USERS: Final = 500_000
"""Beams of open sequences, and open leases: all may share one page, whose row counts 524,287."""


@final
class OpenSequences:
    __slots__ = ("next_serial", "_states", "_handles", "_not_counted")

    def __init__(self) -> None:
        self._states: Final[dict[int, SequenceState]] = {}
        self._handles: Final[dict[int, rawref.ref[object]]] = {}
        self.next_serial = 0
        """Serial of the next sequence: how many there were before it."""
        self._not_counted: Final[list[SequenceState]] = []
        """Open sequences that do not steer `adjust`."""

    def __len__(self) -> int:
        return len(self._states)

    def require_room(self, shared: SharedState, num_more: i64, call: str) -> None:
        """`LogicError` where so many more beams and leases would be more than there may be."""
        num_users = len(self._states) + shared.num_further_beams + len(shared.claims.leases)
        if num_users + num_more > MOST_USERS:
            raise LogicError(
                f"{call} with {num_users} beams of open sequences and leases: {num_more} more would be over {MOST_USERS}, the most that a "
                f"manager has at once; close some first"
            )

    def add(self, state: SequenceState, handle: object) -> None:
        self.next_serial = state.request.serial + 1
        self._states[state.request.serial] = state
        if not state.request.is_counted:
            self._not_counted.append(state)
        self._handles[state.request.serial] = rawref.ref(handle)

    def close(self, state: SequenceState) -> None:
        """Publish what is committed, and release all that the sequence holds."""
        self._release(state)
        serial = state.request.serial
        # Either may lack one whose making was interrupted.
        if serial in self._states:
            del self._states[serial]
        if serial in self._handles:
            del self._handles[serial]
        if not state.request.is_counted and state in self._not_counted:
            self._not_counted.remove(state)
        state.shared.guard.journal.close(serial, state.request.continues)
        # Last: Ctrl-C may come while a disk is written.
        offload_if_idle(state.shared)

    def rewind(self, state: SequenceState, packed: bytes, usage: UsageRecorder | None) -> None:
        """The sequence holds what is there of the tokens ``packed``, and nothing else."""
        with state.shared.storage.changes:
            buffers = [table.buffer for table in state.tables]
            old_num_blocks = int(state.num_blocks)
            self._release(state)
            offload_if_idle(state.shared)
            reopen(state, packed, buffers, old_num_blocks, usage)

    def _release(self, state: SequenceState) -> None:
        page_arrivals.settle_arrivals(state)
        if state.has_beams:
            # First: a last block that beams share is then beam 0's alone, and can be published.
            with state.shared.storage.changes:
                residency.close_beams(state, 1)
                commit_steps.stop_committing(state, True)
        else:
            commit_steps.stop_committing(state, True)
        record_use(state)
        residency.close(state)
        state.shared.order.postpone()

    def close_forgotten(self) -> None:
        """Close the sequences whose handle is gone, in the order of creation."""
        for serial, state in list(self._states.items()):
            reference = self._handles.get(serial)
            if reference is None or not reference.is_valid:
                self.close(state)

    def not_counted(self) -> list[SequenceState]:
        """Those that do not steer `adjust`."""
        return self._not_counted

    def states(self) -> list[SequenceState]:
        """In the order of creation."""
        return list(self._states.values())

    def handles(self) -> list[object]:
        """The handles that are still alive, in the order of creation."""
        handles: list[object] = []
        # A copy: other threads may ask.
        for reference in list(self._handles.values()):
            handle = reference()
            if handle is not None:
                handles.append(handle)
        return handles


@final
class AbandonedSequence(Abandoned):
    """The state of a sequence whose handle was dropped without `close`."""

    __slots__ = ("_state", "_open_sequences")

    def __init__(self, state: SequenceState, open_sequences: OpenSequences) -> None:
        self._state: Final = state
        self._open_sequences: Final = open_sequences

    def close_abandoned(self) -> None:
        if self._state.status != CLOSED:
            self._open_sequences.close(self._state)


@final
class InvariantChecker(StateChecker):
    """All invariants of one manager."""

    __slots__ = ("_shared", "_open_sequences")

    def __init__(self, shared: SharedState, open_sequences: OpenSequences) -> None:
        self._shared: Final = shared
        self._open_sequences: Final = open_sequences

    def check(self) -> None:
        check_invariants(self._shared, self._open_sequences.states())


def end_epoch(shared: SharedState, open_sequences: OpenSequences, scope: ReuseScope | None, cause: i64) -> None:
    """Nothing that is kept or open now in that scope, or in any, is matched again. Sequences whose handle is gone are closed first.

    Open sequences go on with their pages; what they commit from now on stays private.
    """
    open_sequences.close_forgotten()
    tree = shared.tree
    scopes = tree.scopes() if scope is None else [scope]
    ended = set(scopes)
    with shared.storage.changes:
        for state in open_sequences.states():
            if state.request.scope in ended:
                take_back(state, 0)
                for beam in list_beams(state):
                    beam.tail.is_retired = True
        for root, of_scope, _epoch in tree.roots():
            if of_scope in ended:
                shared.claims.drop_plans.void_of(root)
        tree.retire(scopes, cause)


def require_closed(shared: SharedState, open_sequences: OpenSequences, call: str) -> None:
    """`LogicError` while sequences or leases are open. Sequences whose handle is gone are closed first."""
    open_sequences.close_forgotten()
    _require_none(call, len(open_sequences), "sequence", "close() them first")
    _require_none(call, len(shared.claims.leases), "transfer lease", "settle() them once the other side is done, open_leases has them")


def _require_none(call: str, count: int, noun: str, way_out: str) -> None:
    if count > 0:
        raise LogicError(f"{call}: {count} {noun}{'s are' if count > 1 else ' is'} still open; {way_out}")
