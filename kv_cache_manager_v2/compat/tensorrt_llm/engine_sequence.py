"""`_KVCache`: one sequence as TensorRT-LLM's engine calls it, around the library's own handle."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Final, SupportsIndex, final

from librt.vecs import vec
from mypy_extensions import i64

from ...base.checks import to_bool, to_index, to_int
from ...base.given import Given
from ...base.handle import Handle
from ...base.ids import DEFAULT_BEAM_INDEX, PageIndexMode, TokenIdExt
from ...layout.scratch_desc import ScratchDesc
from ...manager import kv_cache
from ...manager.kv_cache import SequenceStatus
from ...reuse.token_packing import has_digest, unpack_tokens
from ...sequence.usage_recorder import count_hits_by_level
from ...sequence.whole_prefix import pack_committed
from .multimodal_items import ItemNames, has_items
from .planned_drop import PlannedDropHandle
from .scope_tuple import ReuseScope, to_scope_tuple
from .statistics_deltas import KVCacheStatsDelta
from .statistics_ledger import RequestCounts, StatisticsLedger

if TYPE_CHECKING:
    from .engine_manager import KVCacheManager


def count_tokens_by_level(core: kv_cache.KVCache) -> list[int]:
    """Of a sequence that was just made: its matched tokens by the level that they were found on."""
    state = core._state_for_batch()
    counts = vec[i64]([0] * state.shared.storage.num_levels)
    count_hits_by_level(state, counts, 0)
    return [int(count) for count in counts]


@final
class KVCache(Handle):
    """Made by `KVCacheManager.create_kv_cache`. ``id`` is the engine's name for the sequence, and may be set."""

    __slots__ = (
        "id", "_core", "_manager", "_ledger", "_counts", "_names", "_cached_tokens", "_last_level", "_content_tokens", "_text_only",
        "_packed", "_tokens",
    )  # fmt: skip

    Status: ClassVar[type[SequenceStatus]] = SequenceStatus

    def __init__(
        self,
        core: kv_cache.KVCache,
        manager: KVCacheManager,
        sequence_id: Any,
        ledger: StatisticsLedger,
        counts: RequestCounts,
        names: ItemNames,
        content_tokens: int,
        text_only: bool,
    ) -> None:
        """Not for users."""
        self.id: Any = sequence_id
        self._core: Final = core
        self._manager: Final = manager
        self._ledger: Final = ledger
        self._counts: Final = counts
        self._names: Final = names
        self._cached_tokens: Final[list[int]] = count_tokens_by_level(core)
        self._last_level: Final[int | None] = _find_last_level(core)
        self._content_tokens: Final = content_tokens
        self._text_only = text_only
        self._packed = b""
        """Once closed, the committed tokens, if they are all ids."""
        self._tokens: list[TokenIdExt] | None = None
        """Once closed, the committed tokens, if digests are among them."""

    def __enter__(self) -> KVCache:
        return self

    def __exit__(self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._keep_tokens()
        self._core.__exit__(error_type, error, traceback)
        self._ledger.close(self._counts)

    def __repr__(self) -> str:
        return f"<_KVCache {self.id!r} of {self._core!r}>"

    @property
    def core(self) -> kv_cache.KVCache:
        """The library's own handle, for what TensorRT-LLM's API does not have: forks, batch page tables, leases."""
        return self._core

    # -- states -------------------------------------------------------------------------------------------------------

    @property
    def status(self) -> SequenceStatus:
        """SUSPENDED, ACTIVE or CLOSED."""
        return self._core.status

    @property
    def is_active(self) -> bool:
        """Whether its pages are on level 0 and locked."""
        return self._core.is_active

    def resume(self, cuda_stream: object = None) -> bool:
        """Bring all pages to level 0 and lock them, in order with the stream; False, and nothing has changed, without room."""
        is_resumed = self._core.resume(cuda_stream)
        self._ledger.record_peaks()
        return is_resumed

    def suspend(self) -> None:
        """Unlock all pages. A buffer of `set_base_page_index_buf` is filled with bad indices, and again with valid ones at `resume`."""
        self._core.suspend()

    def prefetch(self, target: SupportsIndex) -> bool:
        """Bring the pages of a SUSPENDED sequence up to the level ``target``; False, and nothing has changed, without room."""
        level = to_index(target, "target", int(self._core._state_for_batch().shared.storage.num_levels), "cache levels")
        before = self._ledger.count_from_disks()
        is_done = self._core.prefetch(level)
        self._ledger.record_prefetch(self._ledger.count_from_disks() - before)
        self._ledger.record_peaks()
        return is_done

    def close(self, continues: Given[bool | None] = None) -> None:
        """Release everything; committed blocks stay for reuse. Twice is fine. `committed_tokens` can still be read. ``continues``: a
        hint of this library, whether a later prompt is expected to go on from here.
        """
        if continues is not None:
            to_bool(continues, "continues")
        self._keep_tokens()
        self._core.close(continues)
        self._ledger.close(self._counts)

    def _keep_tokens(self) -> None:
        core = self._core
        if core.status is SequenceStatus.CLOSED or core._state_for_batch().shared.guard.is_foreign:
            return
        packed = pack_committed(core._state_for_batch(), core._state_for_batch().num_committed)
        if has_digest(packed):
            self._tokens = unpack_tokens(packed, core._state_for_batch().shared.tree.digests)
        else:
            self._packed = packed

    # -- room ---------------------------------------------------------------------------------------------------------

    def resize(self, capacity: SupportsIndex | None = None, history_length: SupportsIndex | None = None) -> bool:
        """Room for ``capacity`` tokens, of which ``history_length`` are history; False, and nothing has changed, without room."""
        is_done = self._core.resize(capacity, history_length)
        self._ledger.record_peaks()
        return is_done

    @property
    def capacity(self) -> int:
        """Tokens there is room for. Setting it is `resize` with `OutOfPagesError` for False."""
        return self._core.capacity

    @capacity.setter
    def capacity(self, capacity: Given[int]) -> None:
        core: Any = self._core
        core.capacity = capacity
        self._ledger.record_peaks()

    @property
    def history_length(self) -> int:
        """Tokens before the next step's inputs."""
        return self._core.history_length

    @history_length.setter
    def history_length(self, history_length: Given[int]) -> None:
        core: Any = self._core
        core.history_length = history_length

    @property
    def beam_width(self) -> int:
        """How many beams there are. Setting it makes copies of the sequence, or ends the last ones."""
        return self._core.beam_width

    @beam_width.setter
    def beam_width(self, beam_width: Given[int]) -> None:
        core: Any = self._core
        core.beam_width = beam_width

    # -- tokens -------------------------------------------------------------------------------------------------------

    def commit(
        self, accepted_input_tokens: Any, beam_search_indices: Sequence[SupportsIndex] | None = None, is_end: Given[bool] = False
    ) -> None:
        """The tokens are final. ``is_end``: nothing will be committed after them, and the partial last block is published; of
        recurrent layers the state is kept for reuse.
        """
        ends = to_bool(is_end, "is_end")
        tokens = self._names.to_plain_tokens(accepted_input_tokens) if has_items(accepted_input_tokens) else accepted_input_tokens
        self._core.commit(tokens, beam_search_indices, is_end=ends)

    def stop_committing(self, continues: Given[bool | None] = None) -> None:
        """What follows is never reused; the partial last block is published now. Twice is fine. ``continues``: as for `close`."""
        self._core.stop_committing(continues)

    @property
    def num_committed_tokens(self) -> int:
        """Final tokens: those of the match, and those committed since."""
        return self._core.num_committed_tokens

    @property
    def num_committed_blocks(self) -> int:
        """Full blocks of them."""
        return self._core.num_committed_tokens // self._core.tokens_per_block

    @property
    def committed_tokens(self) -> list[TokenIdExt]:
        """All final tokens, also once closed; a new list."""
        if self._core.status is not SequenceStatus.CLOSED:
            return self._core.committed_tokens
        if self._tokens is not None:
            return list(self._tokens)
        tokens: list[TokenIdExt] = []
        tokens.extend(memoryview(self._packed).cast("i").tolist())
        return tokens

    def plan_committed_block_drop(self) -> PlannedDropHandle | None:
        """A plan to drop the published end later; None if nothing is published."""
        plan = self._core.plan_committed_block_drop()
        return None if plan is None else PlannedDropHandle(plan)

    # -- what was found -----------------------------------------------------------------------------------------------

    @property
    def cached_tokens_by_level(self) -> list[int]:
        """Matched tokens by the cache level that they were found on."""
        return list(self._cached_tokens)

    def _get_last_cached_token_level(self) -> int | None:
        """The coldest level that the last matched block was on; None without a match."""
        return self._last_level

    def _get_num_reusable_tokens_before_hybrid_pruning(self) -> int:
        """As many could be matched without recurrent layers."""
        return self._core.match_info.attention_tokens

    def _get_num_reusable_tokens_before_pruning(self) -> int:
        """As many lay on a path of the tree, whatever pages and snapshots are left of it: where the prompt leaves what is known."""
        return self._content_tokens

    # -- statistics ---------------------------------------------------------------------------------------------------

    def commit_pending_stats(self) -> KVCacheStatsDelta:
        """Count what the sequence did since the last time; its own counts, or zeros without ``enable_request_stats``."""
        return self._ledger.commit(self._counts)

    def discard_pending_stats(self) -> None:
        """Never count what the sequence did since the last time."""
        self._ledger.discard(self._counts)

    # -- what kernels need --------------------------------------------------------------------------------------------

    def get_base_page_indices(
        self, layer_group_id: SupportsIndex, beam_idx: SupportsIndex = DEFAULT_BEAM_INDEX, *, beam_id: SupportsIndex | None = None
    ) -> memoryview:
        """Read-only int32 view, a slot or `BAD_PAGE_INDEX` for each block; valid until the next call that changes the sequence."""
        return self._core.get_base_page_indices(layer_group_id, self._to_beam(beam_idx, beam_id))

    def set_base_page_index_buf(self, beam_idx: SupportsIndex, layer_group_id: SupportsIndex, buf: object) -> None:
        """Write the base page indices into the caller's int32 buffer too, from now on; None ends that."""
        self._core.set_base_page_index_buf(self._to_beam(beam_idx, None), layer_group_id, buf)

    def get_aggregated_page_indices(
        self,
        layer_group_id: SupportsIndex,
        beam_idx: SupportsIndex = DEFAULT_BEAM_INDEX,
        valid_only: Given[bool] = False,
        *,
        beam_id: SupportsIndex | None = None,
    ) -> list[int]:
        """Slots of the blocks in order, for transfers; without the bad ones if ``valid_only``."""
        return self._core.get_aggregated_page_indices(layer_group_id, self._to_beam(beam_idx, beam_id), valid_only)

    def _to_beam(self, beam_idx: object, beam_id: object) -> int:
        """``beam_id``, where it is given, is another name of ``beam_idx``."""
        name = "beam_idx" if beam_id is None else "beam_id"
        beam = to_int(beam_idx if beam_id is None else beam_id, name)
        width = self._core.beam_width
        if not 0 <= beam < width:
            raise ValueError(f"{name} is {beam}; the beam width is {width}")
        return beam

    def get_ssm_block_base_index(
        self, layer_group_id: SupportsIndex, beam_id: SupportsIndex = DEFAULT_BEAM_INDEX, length: SupportsIndex | None = None
    ) -> int:
        """The slot of the recurrent state, for kernels to read and write in place."""
        return self._core.get_ssm_block_base_index(layer_group_id, beam_id, length)

    def get_scratch_desc(self, layer_group_id: SupportsIndex) -> ScratchDesc | None:
        """The group's scratch blocks and the slots that they share; None where it has none."""
        desc = self._core.get_scratch_desc(layer_group_id)
        return desc if desc is not None and bool(desc) else None

    @property
    def has_scratch_slots(self) -> bool:
        """Whether some input blocks of the present step have scratch slots."""
        return self._core.has_scratch_slots

    @property
    def enable_swa_scratch_reuse(self) -> bool:
        """Whether steps of this sequence use scratch slots; may be set where it makes no difference to the present step."""
        return self._core.enable_swa_scratch_reuse

    @enable_swa_scratch_reuse.setter
    def enable_swa_scratch_reuse(self, enable: Given[bool]) -> None:
        core: Any = self._core
        core.enable_swa_scratch_reuse = enable

    def supports_index_mode(self, mode: Given[PageIndexMode]) -> bool:
        """PER_LAYER always; SHARED unless the sequence has scratch blocks."""
        return self._core.supports_index_mode(mode)

    # -- residency windows --------------------------------------------------------------------------------------------

    def _set_residency_window(
        self, layer_group_id: SupportsIndex, window_size: SupportsIndex | None, num_sink_tokens: SupportsIndex = 0
    ) -> None:
        """`kv_cache_manager_v2.KVCache.set_residency_window`: while ACTIVE only the sinks and the latest tokens' pages are on level 0."""
        self._core.set_residency_window(layer_group_id, window_size, num_sink_tokens)

    @property
    def _residency_group(self) -> int | None:
        """The first layer group with a residency window; None if none has one."""
        for group in range(len(self._core.manager.layer_grouping)):
            if self._core.get_residency_window(group) is not None:
                return group
        return None

    # -- facts --------------------------------------------------------------------------------------------------------

    @property
    def text_only(self) -> bool:
        """What the engine said of the prompt; of no effect."""
        return self._text_only

    @text_only.setter
    def text_only(self, text_only: Given[bool]) -> None:
        self._text_only = to_bool(text_only, "text_only")

    @property
    def manager(self) -> KVCacheManager:
        """The manager that made it."""
        return self._manager

    @property
    def cuda_stream(self) -> int:
        """The stream that the sequence is in order with. Setting it while ACTIVE makes the new stream wait for the old."""
        return self._core.cuda_stream

    @cuda_stream.setter
    def cuda_stream(self, cuda_stream: Given[int]) -> None:
        core: Any = self._core
        core.cuda_stream = cuda_stream

    @property
    def num_blocks(self) -> int:
        """Blocks of the capacity, the partial last one included."""
        return self._core.num_blocks

    @property
    def tokens_per_block(self) -> int:
        """The manager's."""
        return self._core.tokens_per_block

    @property
    def reuse_scope(self) -> ReuseScope:
        """Whose blocks it matches and publishes."""
        return to_scope_tuple(self._core.reuse_scope)


def _find_last_level(core: kv_cache.KVCache) -> int | None:
    state = core._state_for_batch()
    if state.num_blocks == 0:
        return None
    rows = state.shared.storage.rows
    ordinal = state.num_blocks - 1
    found = 0
    for group in range(state.shared.num_life_cycles):
        if state.holds_page(group, ordinal):
            found = max(found, int(rows.level(state.blocks[ordinal].first_page + group)))
    return found
