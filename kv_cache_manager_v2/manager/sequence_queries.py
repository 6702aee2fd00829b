"""What a sequence tells: page indices for kernels and transfers, scratch slots, plain facts. Base of `KVCache`."""

from __future__ import annotations

from enum import Enum
from typing import Final, SupportsIndex

from mypy_extensions import i64, mypyc_attr

from ..base.checks import to_bool, to_count, to_index_mode, to_int
from ..base.errors import LogicError
from ..base.given import Given
from ..base.handle import Handle
from ..base.ids import DEFAULT_BEAM_INDEX, PageIndexMode
from ..layout.scratch_desc import ScratchDesc
from ..reuse.reuse_scope import ReuseScope
from ..sequence.index_buffer import to_index_buffer
from ..sequence.matched_tokens import MatchedTokens
from ..sequence.page_table import PageTable
from ..sequence.recurrent_state import live_block
from ..sequence.sequence_state import ACTIVE, CLOSED, SUSPENDED, SequenceState
from ..sequence.step_validation import would_have_scratch
from ..stats.usage_snapshot import compute_usage
from ..stats.usage_statistics import UsageStatistics


class SequenceStatus(Enum):
    """SUSPENDED: holds its pages, wherever they are. ACTIVE: they are on level 0 and stay there. CLOSED: holds nothing."""

    SUSPENDED = "suspended"
    ACTIVE = "active"
    CLOSED = "closed"


@mypyc_attr(native_class=True)
class SequenceQueries(Handle):
    __slots__ = ("_state",)

    _state: Final[SequenceState]

    def __init__(self, state: SequenceState) -> None:
        self._state = state

    # -- states -------------------------------------------------------------------------------------------------------

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

    # -- what kernels need --------------------------------------------------------------------------------------------

    def get_base_page_indices(self, layer_group_id: SupportsIndex, beam_id: SupportsIndex = DEFAULT_BEAM_INDEX) -> memoryview:
        """Read-only int32 view, one entry per block: the slot of its page, or `BAD_PAGE_INDEX`.

        Valid until the next call that changes the sequence. All bad while SUSPENDED. `LogicError` once closed.
        """
        return self._table(layer_group_id, beam_id).view()

    def set_base_page_index_buf(
        self, beam_id: SupportsIndex, layer_group_id: SupportsIndex, buf: object
    ) -> None:
        """From now on the library writes the base page indices into the caller's writable int32 buffer as well.

        The rest of the buffer is filled with -1. None takes it back. A `resize` that needs more blocks than the buffer has
        entries is a `ValueError` before anything changes.
        """
        guard = self._state.shared.guard
        guard.enter()
        try:
            table = self._table(layer_group_id, beam_id)
            table.set_buffer(None if buf is None else to_index_buffer(buf, int(self._state.num_blocks)))
        finally:
            guard.leave()

    def get_aggregated_page_indices(
        self, layer_group_id: SupportsIndex, beam_id: SupportsIndex = DEFAULT_BEAM_INDEX, valid_only: Given[bool] = False
    ) -> list[int]:
        """Slot ids of the blocks in order, for transfers; without the bad ones if ``valid_only``. `LogicError` unless ACTIVE."""
        table = self._table(layer_group_id, beam_id)
        only_valid = to_bool(valid_only, "valid_only")
        self._require(ACTIVE, "get_aggregated_page_indices")
        slots: list[int] = table.view().tolist()
        return [slot for slot in slots if slot >= 0] if only_valid else slots

    def get_ssm_block_base_index(
        self,
        layer_group_id: SupportsIndex,
        beam_id: SupportsIndex = DEFAULT_BEAM_INDEX,
        length: SupportsIndex | None = None,
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
                f"layer group {group} has pages per block and no recurrent state; use get_base_page_indices"
                + (f", or layer group {shared.state_life_cycle}" if shared.has_state else "")
            )
        at = state.history if length is None else to_count(length, "length")
        self._require(ACTIVE, "get_ssm_block_base_index")
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
        """The group's scratch blocks and the slots they share, valid until the next resize; false when empty.

        None if the sequence does not reuse scratch memory. `LogicError` unless ACTIVE.
        """
        group = self._group(layer_group_id)
        self._require(ACTIVE, "get_scratch_desc")
        scratch = self._state.scratch
        if not scratch.is_enabled:
            return None
        return ScratchDesc(scratch.range_of(group), scratch.slots[group])

    @property
    def enable_swa_scratch_reuse(self) -> bool:
        """Whether steps of this sequence use scratch slots. May be switched while it makes no difference.

        Setting it is a `ValueError` if the manager is not configured for scratch reuse, or if the present step has scratch
        blocks, or would have them if it were on; `LogicError` once closed.
        """
        return self._state.scratch.is_enabled

    @enable_swa_scratch_reuse.setter
    def enable_swa_scratch_reuse(self, enable: Given[bool]) -> None:
        state = self._state
        guard = state.shared.guard
        guard.enter()
        try:
            self._set_scratch_reuse(enable)
        finally:
            guard.leave()

    def _set_scratch_reuse(self, given: object) -> None:
        state = self._state
        self._require_open("enable_swa_scratch_reuse")
        enable = to_bool(given, "enable_swa_scratch_reuse")
        if enable == state.scratch.is_enabled:
            return
        if enable and not state.shared.scratch_is_configured:
            raise ValueError("the manager was made without swa_scratch_reuse; set it in KVCacheManagerConfig")
        if state.has_beams:
            raise LogicError(f"sequence {state.id}: beams do not use scratch slots; set beam_width to 1 first")
        if would_have_scratch(state):
            raise ValueError(
                f"sequence {state.id}: with a history of {state.history} and a capacity of {state.capacity} scratch reuse makes "
                f"a difference; switch it before the resize that begins a long step, or after its history has moved up"
            )
        state.scratch.is_enabled = enable
        if state.shared.journal is not None:
            state.shared.journal.enable_scratch(state.serial, enable)

    # -- recurrent state ----------------------------------------------------------------------------------------------

    @property
    def match_info(self) -> MatchedTokens:
        """What was there of the text when the sequence was made: attention up to one length, recurrent state up to another."""
        return MatchedTokens(int(self._state.attention_tokens), int(self._state.state_tokens))

    @property
    def next_snapshot_position(self) -> int | None:
        """The next length at which `commit` leaves a snapshot of the recurrent state, if it ends exactly there.

        A prefill that stops its chunk there makes later sequences find that prefix. None if there is none, if the model has
        no recurrent layers, or after `stop_committing`.
        """
        state = self._state
        plan = state.snapshot_plan
        if plan is None or not state.is_committing:
            return None
        return plan.find_next(state.num_committed)

    # -- facts --------------------------------------------------------------------------------------------------------

    @property
    def num_blocks(self) -> int:
        """Blocks of the capacity, the partial last one included; 0 once closed."""
        return self._state.num_blocks

    @property
    def tokens_per_block(self) -> int:
        """The manager's."""
        return self._state.shared.tokens_per_block

    @property
    def id(self) -> int:
        """As given to `create_kv_cache` or `fork`, or a running number. Need not be unique."""
        return self._state.id

    @property
    def reuse_scope(self) -> ReuseScope:
        """Whose blocks it matches and publishes."""
        return self._state.scope

    @property
    def statistics(self) -> UsageStatistics:
        """What this sequence used so far, also once closed. `LogicError` with ``enable_stats=False``."""
        counters = self._state.counters
        if counters is None:
            raise LogicError("the manager keeps no statistics; make it with enable_stats=True")
        usage = counters.usage
        return compute_usage(usage, None, self._state.shared.storage.pool_group_of, usage.peak_pages, ())

    # -- inside -------------------------------------------------------------------------------------------------------

    def _table(self, layer_group_id: SupportsIndex, beam_id: SupportsIndex) -> PageTable:
        group = self._group(layer_group_id)
        return self._beam(beam_id).tables[group]

    def _beam(self, beam_id: SupportsIndex) -> SequenceState:
        beam = to_int(beam_id, "beam_id")
        state = self._state
        if beam == DEFAULT_BEAM_INDEX:
            return state
        if not 0 < beam <= len(state.beams):
            raise ValueError(f"beam_id is {beam}; the beam width is {len(state.beams) + 1}")
        return state.beams[beam - 1]

    def _group(self, layer_group_id: SupportsIndex) -> int:
        self._require_open("looking at a layer group")
        group = to_int(layer_group_id, "layer_group_id")
        num_groups = len(self._state.tables)
        if not 0 <= group < num_groups:
            raise ValueError(f"layer_group_id is {group}; there are {num_groups} layer groups")
        return group

    def _require(self, status: i64, call: str) -> None:
        if self._state.status != status:
            if self._state.status == CLOSED:
                self._require_open(call)
            wanted = "ACTIVE" if status == ACTIVE else "SUSPENDED"
            raise LogicError(f"sequence {self._state.id}: {call} needs a sequence that is {wanted}, this one is {self.status.name}")

    def _require_open(self, call: str) -> None:
        self._state.shared.guard.require_sound()
        if self._state.status == CLOSED:
            raise LogicError(f"sequence {self._state.id}: {call}() after close(); make a new sequence with create_kv_cache()")
