"""`BatchPageTable`: the page tables of a batch, kept up to date in place, in the shapes that kernels take.

    table = BatchPageTable(manager, max_num_sequences=256, max_num_blocks=2048)
    blocks = table.add_block_table(StridedPages(group))          # once per layer group and shape
    slots = table.add_slot_mapping(StridedPages(group), 8192)

    table.add(kv_cache); table.remove(kv_cache)                  # sequences join and leave rows
    table.update([1, 1, 512])                                    # every step, after the resizes
    kernel(..., blocks.rows, table.seq_lens, table.query_start_loc, slots.tokens)

Rows are dense: the last sequence moves into the row of one that leaves. `update` writes what changed since the last
update: page table entries that a `resize` or `commit` changed, rows of sequences that joined, and the few numbers per
row that are new in every step. It validates first; if it raises, nothing has changed.

All arrays are made once, or are the caller's own (pinned, say), and stay where they are. For an engine that copies them
asynchronously, ``buffers=2`` keeps two of each: an update writes the one that the last update has not written, and the
names above (`seq_lens`, ``blocks.rows`` and so on) are its arrays from then on. What an update wrote stays as it is, whatever
joins or leaves, until the ``buffers``-th update after it. An array of the caller's own then has ``buffers`` as its first axis.
"""

from collections.abc import Sequence
from typing import Any, Final, SupportsIndex, TypeVar, final

import numpy as np
import numpy.typing as npt
from librt.vecs import vec
from mypy_extensions import i32, i64

from ..base.checks import to_count, to_instance, to_int, to_int_within, to_list, to_role
from ..base.errors import LogicError
from ..base.given import Given
from ..base.handle import Handle
from ..base.ids import BAD_PAGE_INDEX, DEFAULT_BEAM_INDEX, DataRole
from ..base.ids import INT32_MAX
from ..manager.kv_cache import KVCache
from ..manager.kv_cache_manager import KVCacheManager
from ..sequence.call_guard import CallGuard
from ..sequence.sequence_state import ACTIVE, CLOSED
from .batch_rows import BatchRows
from .block_table import BlockTable
from .csr_table import CsrTable
from .index_limits import IndexLimits
from .offset_table import OffsetTable
from .output_array import INT32, flat_view, to_filler, to_output_array
from .page_family import PageFamily, PageRule, resolve_family, validate_scratch
from .slot_mapping import SlotMapping
from .table_output import TableOutput

Output = TypeVar("Output", bound=TableOutput)

_MOST_SEQUENCES: Final = 2**20
"""More than any batch has; a number that was meant for something else would fill the memory."""
_MOST_BUFFERS: Final = 16


@final
class BatchPageTable(Handle):
    """The page tables of a batch; see the module. ``max_num_blocks``: of the longest sequence, in the manager's blocks.

    Lengths of the step, all int32; rows without a sequence have the values of an empty one:
    - `seq_lens` ``[max_num_sequences]``: history and inputs; FlashAttention's ``cache_seqlens`` / ``seqused_k``, vLLM's
      ``seq_lens``;
    - `query_start_loc` ``[max_num_sequences + 1]``: where each row's inputs begin; ``cu_seqlens_q``, ``qo_indptr``;
    - `kv_start_loc` ``[max_num_sequences + 1]``: the same of `seq_lens`; ``cu_seqlens_k``.

    ``buffers``: how many arrays of each kind take turns; each takes the memory of a table.
    """

    __slots__ = (
        "seq_lens",
        "query_start_loc",
        "kv_start_loc",
        "_manager",
        "_door",
        "_rows",
        "_outputs",
        "_rules",
        "_limits",
        "_may_overflow",
        "_has_scratch",
        "_lengths",
        "_queries",
        "_keys",
        "_sources",
        "_targets",
        "_others",
        "_turn",
        "_num_written",
    )

    def __init__(
        self,
        manager: Given[KVCacheManager],
        max_num_sequences: SupportsIndex,
        max_num_blocks: SupportsIndex,
        *,
        seq_lens: object = None,
        query_start_loc: object = None,
        kv_start_loc: object = None,
        buffers: SupportsIndex = 1,
    ) -> None:
        manager = to_instance(manager, KVCacheManager, "manager")
        manager._require_open()
        num_rows = int(to_int_within(max_num_sequences, "max_num_sequences", 1, _MOST_SEQUENCES, ": each row takes memory"))
        most_blocks = INT32_MAX // manager.tokens_per_block
        reason = f": tokens, {manager.tokens_per_block} a block, are counted in int32"
        num_blocks = int(to_int_within(max_num_blocks, "max_num_blocks", 1, most_blocks, reason))
        num_buffers = int(to_int_within(buffers, "buffers", 1, _MOST_BUFFERS, ": each takes the memory of a table"))
        lens = _split(seq_lens, "seq_lens", num_buffers)
        queries = _split(query_start_loc, "query_start_loc", num_buffers)
        keys = _split(kv_start_loc, "kv_start_loc", num_buffers)
        self.seq_lens: npt.NDArray[np.int32] = to_output_array(lens[0], "seq_lens", (num_rows,), INT32)
        self.query_start_loc: npt.NDArray[np.int32] = to_output_array(queries[0], "query_start_loc", (num_rows + 1,), INT32)
        self.kv_start_loc: npt.NDArray[np.int32] = to_output_array(keys[0], "kv_start_loc", (num_rows + 1,), INT32)
        for array in (self.seq_lens, self.query_start_loc, self.kv_start_loc):
            array.fill(0)
        self._manager: Final[KVCacheManager] = manager
        self._door: Final[CallGuard] = manager._shared_for_batch().guard
        self._rows: Final = BatchRows(num_rows, num_blocks)
        self._outputs: Final[list[TableOutput]] = []
        self._rules: Final[list[PageRule]] = []
        self._limits: Final = IndexLimits(manager)
        self._may_overflow: Final[bool] = num_rows * num_blocks * manager.tokens_per_block > INT32_MAX
        """Whether rows that fit may have more tokens together than `kv_start_loc` counts."""
        self._has_scratch: Final[bool] = manager.init_config.enable_swa_scratch_reuse
        """Whether sequences may have scratch blocks, of which their page tables do not tell."""
        self._lengths: Final = vec[i32]([0] * num_rows)
        """The next contents of `seq_lens`; then those of the other two arrays, and views of all three and of what they go to."""
        self._queries: Final = vec[i32]([0] * (num_rows + 1))
        self._keys: Final = vec[i32]([0] * (num_rows + 1))
        self._sources: Final[list[memoryview]] = [memoryview(self._lengths), memoryview(self._queries), memoryview(self._keys)]
        self._targets: Final[list[memoryview]] = [flat_view(array) for array in (self.seq_lens, self.query_start_loc, self.kv_start_loc)]
        self._turn = 0
        """Which buffer was written last; 0 is this table's own."""
        self._num_written = 0
        """Rows at the last update, where vacant rows are cleared by the next one."""
        self._others: Final[list["BatchPageTable"]] = [
            BatchPageTable(manager, num_rows, num_blocks, seq_lens=lens[k], query_start_loc=queries[k], kv_start_loc=keys[k])
            for k in range(1, num_buffers)
        ]
        """The tables that have the other buffers: the same rows and outputs."""

    # -- outputs ------------------------------------------------------------------------------------------------------

    def add_block_table(self, pages: Given[PageFamily], *, filler: SupportsIndex | None = None, out: object = None) -> BlockTable:
        """A padded block table. ``filler``: the entry of blocks without a page; None: the null slot's page if the manager
        reserves one (`reserve_null_slot`), which kernels may read, else -1, which they must not read. `ValueError` if it is
        not int32."""
        self._require_idle("add_block_table")
        rule = self._resolve(pages)
        if filler is not None:
            number = to_filler(filler)
        else:
            number = int(rule.first_page(0)) if self._manager.init_config.reserve_null_slot else BAD_PAGE_INDEX
        return self._add_outputs([BlockTable(rule, number, table._rows, array) for table, array in self._spread(out, "out")])

    def add_csr(
        self,
        pages: Given[PageFamily],
        max_num_pages: SupportsIndex | None = None,
        *,
        indptr: object = None,
        indices: object = None,
        last_page_len: object = None,
    ) -> CsrTable:
        """Page lists without padding. ``max_num_pages``: of all rows together; None: the most that are possible."""
        self._require_idle("add_csr")
        rule = self._resolve(pages)
        most = self._rows.max_num_rows * self._rows.max_num_blocks * int(rule.expansion)
        num_pages = most if max_num_pages is None else int(to_count(max_num_pages, "max_num_pages"))
        entries = _split(indices, "indices", 1 + len(self._others))
        lens = _split(last_page_len, "last_page_len", 1 + len(self._others))
        starts = self._spread(indptr, "indptr")
        return self._add_outputs(
            [CsrTable(rule, table._rows, num_pages, start, entries[k], lens[k]) for k, (table, start) in enumerate(starts)]
        )

    def add_slot_mapping(self, pages: Given[PageFamily], max_num_input_tokens: SupportsIndex, *, out: object = None) -> SlotMapping:
        """The positions to which the step's input tokens are written. ``max_num_input_tokens``: of all rows in one step."""
        self._require_idle("add_slot_mapping")
        num_tokens = int(to_count(max_num_input_tokens, "max_num_input_tokens"))
        rule = self._resolve(pages)
        return self._add_outputs([SlotMapping(rule, num_tokens, array) for _table, array in self._spread(out, "out")])

    def add_offset_table(
        self,
        key_role: Given[DataRole] = "key",
        value_role: Given[DataRole | None] = "value",
        *,
        scale_role: Given[DataRole | None] = None,
        out: object = None,
    ) -> OffsetTable:
        """Key and value offsets of all layers that have the role ``key_role``. ``value_role`` None: without
        values (MLA)."""
        self._require_idle("add_offset_table")
        key = self._to_role(key_role, "key_role")
        value = None if value_role is None else self._to_role(value_role, "value_role")
        scale = None if scale_role is None else self._to_role(scale_role, "scale_role")
        return self._add_outputs(
            [
                OffsetTable(self._manager, table._rows, self._limits, key, value, scale, array)
                for table, array in self._spread(out, "out")
            ]
        )

    def _to_role(self, role: object, name: str) -> DataRole:
        known = sorted({buffer_id.role for buffer_id in self._manager.all_buffer_ids})
        found = to_role(role, name)
        if found not in known:
            raise ValueError(f"{name} is {found!r}; the layers have the roles {known}")
        return found

    def _resolve(self, pages: Given[PageFamily]) -> PageRule:
        rule = resolve_family(self._manager, pages)
        self._limits.require(rule)
        return rule

    def _spread(self, given: object, name: str) -> list[tuple["BatchPageTable", object]]:
        """The table of each buffer, with its part of the caller's array."""
        return list(zip([self, *self._others], _split(given, name, 1 + len(self._others))))

    def _add_outputs(self, outputs: list[Output]) -> Output:
        """One for each buffer; returns this table's own."""
        for table, output in zip([self, *self._others], outputs):
            table._outputs.append(output)
            for rule in output.rules():
                table._rules.append(rule)
                table._limits.add(rule)
                table._rows.use_layer_group(rule.layer_group)
        return outputs[0]

    # -- rows ---------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Sequences in the batch; they are in rows 0, 1, ..."""
        return len(self._rows)

    def add(self, kv_cache: Given[KVCache], beam_id: SupportsIndex = DEFAULT_BEAM_INDEX) -> int:
        """Add the sequence, or one of its beams; returns its row. `ValueError` if all rows are taken, if it is in the
        table already, belongs to another manager, or has no such beam."""
        joining = to_instance(kv_cache, KVCache, "kv_cache")
        self._require_idle("add")
        state = joining._state_for_batch()
        beam = to_int(beam_id, "beam_id")
        if joining.manager is not self._manager:
            raise ValueError(f"kv_cache is {joining!r}, which belongs to another manager")
        if state.status == CLOSED:
            raise LogicError(f"sequence {state.id}: it cannot join a batch after close(); make a new sequence with create_kv_cache()")
        if not 0 <= beam <= len(state.sharing.beams):
            raise ValueError(f"beam_id is {beam}; the beam width of sequence {state.id} is {len(state.sharing.beams) + 1}")
        if self._rows.find(state, beam) >= 0:
            raise ValueError(f"sequence {state.id}, beam {beam}, is in the table already")
        row = len(self._rows)
        if row >= self._rows.max_num_rows:
            raise ValueError(f"all {row} rows are taken; remove a sequence, or make the table with a larger max_num_sequences")
        self._rows.add(state, beam)
        for other in self._others:
            other._rows.add(state, beam)
        return row

    def remove(self, kv_cache: Given[KVCache], beam_id: SupportsIndex = DEFAULT_BEAM_INDEX) -> int:
        """Remove the sequence or beam, open or closed; returns its row, into which the last row's sequence has moved."""
        row = self.row_of(kv_cache, beam_id)
        self._require_idle("remove")
        self._remove_row(row)
        return row

    def _remove_row(self, row: int) -> None:
        self._rows.remove(row)
        for other in self._others:
            other._rows.remove(row)
        if len(self._others) == 0:
            self._clear_row(len(self._rows))

    def _clear_row(self, row: i64) -> None:
        for output in self._outputs:
            output.clear_row(row)
        self._rows.forget(row)

    def clear(self) -> None:
        """Remove all sequences."""
        self._require_idle("clear")
        while len(self._rows) > 0:
            self._remove_row(len(self._rows) - 1)

    def row_of(self, kv_cache: Given[KVCache], beam_id: SupportsIndex = DEFAULT_BEAM_INDEX) -> int:
        """The sequence's row; it changes when another one leaves. `ValueError` if it is not in the table."""
        beam = to_count(beam_id, "beam_id")
        row = self._rows.find(to_instance(kv_cache, KVCache, "kv_cache")._state_for_batch(), beam)
        if row < 0:
            raise ValueError(f"kv_cache is {kv_cache!r}, which is not in the table with beam_id {beam}")
        return row

    def swap_rows(self, first: SupportsIndex, second: SupportsIndex) -> None:
        """Exchange two rows, for kernels that want prefills and decodes apart."""
        self._require_idle("swap_rows")
        one, two = self._to_row(first, "first"), self._to_row(second, "second")
        for table in (self, *self._others):
            table._rows.swap(one, two)

    def _to_row(self, number: SupportsIndex, name: str) -> int:
        row = to_int(number, name)
        if not 0 <= row < len(self._rows):
            raise ValueError(f"{name} is {row}; {len(self._rows)} rows are taken")
        return row

    # -- steps --------------------------------------------------------------------------------------------------------

    def update(self, num_input_tokens: Sequence[int] | None = None) -> None:
        """Update all arrays to the sequences' present state.

        ``num_input_tokens``: per row, how many tokens after its history the step computes; None: up to its capacity.
        `LogicError` if a sequence is not active (a suspended or closed one has no pages: `remove` it); `ValueError` if
        the step does not fit, if int32 does not hold the page indices of a level 0 that has grown or all rows' tokens together, or if a
        sequence has scratch blocks that an output cannot address.
        """
        self._require_idle("update")
        self._manager._require_open()
        turn = (self._turn + 1) % (1 + len(self._others))
        written = self if turn == 0 else self._others[turn - 1]
        written._take_lengths(num_input_tokens)
        written._validate_outputs()
        if len(self._others) > 0:
            # Only now: until here an engine may have been reading these arrays.
            for row in range(len(self._rows), written._num_written):
                written._clear_row(row)
            written._num_written = len(self._rows)
        written._write_step()
        if len(self._others) > 0:
            self._turn = turn
            self.seq_lens, self.query_start_loc, self.kv_start_loc = [np.asarray(target) for target in written._targets]
            for own, output in zip(self._outputs, written._outputs):
                own._show(output)

    def _require_idle(self, call: str) -> None:
        self._rows.require_idle(call)
        self._door.require_idle()

    def _rows_for_step(self) -> BatchRows:
        return self._rows

    def _validate_outputs(self) -> None:
        self._limits.require_all()
        if self._may_overflow:
            self._validate_total()
        for output in self._outputs:
            output.validate(self._rows)

    def _validate_total(self) -> None:
        total: i64 = 0
        row: i64
        for row in range(len(self._rows.states)):
            total += self._rows.histories[row] + self._rows.num_inputs[row]
        if total > INT32_MAX:
            raise ValueError(
                f"the rows have {total} tokens together, and kv_start_loc counts up to {INT32_MAX}; take sequences out of the batch"
            )

    def _write_step(self) -> None:
        """Lengths and inputs of all rows are those of the step, and validated."""
        rows = self._rows
        marks = rows.marks
        row: i64
        for row in range(len(rows.states)):
            if marks[row] or self._has_scratch:
                marks[row] = False
                self._write_row(row)
        for output in self._outputs:
            output.finish(rows)
        self._publish_lengths(len(rows.states))

    def _write_row(self, row: i64) -> None:
        rows = self._rows
        state = rows.states[row]
        scratch = state.scratch
        for group, changed in zip(rows.groups, rows.members[row].readers):
            layer_group = group.layer_group
            has_scratch = scratch.begins[layer_group] < scratch.ends[layer_group]
            if has_scratch or not changed.is_empty:
                for output in self._outputs:
                    output.update_row(row, state, layer_group, changed)
                group.seen_blocks[row] = state.num_blocks
                changed.clear()
                if has_scratch:
                    # The page table never had these blocks, so it cannot tell when they are gone.
                    changed.record_all()

    def _take_lengths(self, num_input_tokens: Sequence[int] | None) -> None:
        """Validate the rows, and store the step's lengths."""
        rows = self._rows
        count: i64 = len(rows.states)
        lengths = None if num_input_tokens is None else to_list(num_input_tokens, "num_input_tokens")
        if lengths is not None and len(lengths) != count:
            raise ValueError(f"num_input_tokens has {len(lengths)} items for {count} rows: {lengths}")
        for row in range(count):
            state = rows.states[row]
            if state.status != ACTIVE:
                if state.status == CLOSED:
                    raise LogicError(f"sequence {state.id} in row {row} is closed; remove() it from the table")
                raise LogicError(f"sequence {state.id} in row {row} is suspended; resume() it, or remove() it from the table")
            if state.num_blocks > self._rows.max_num_blocks:
                raise ValueError(f"sequence {state.id} has {state.num_blocks} blocks; the table has room for {self._rows.max_num_blocks}")
            room = state.capacity - state.history
            num_inputs = room
            if lengths is not None:
                num_inputs = to_count(lengths[row], "one of num_input_tokens")
                if num_inputs > room:
                    raise ValueError(
                        f"sequence {state.id}: {num_inputs} of num_input_tokens after a history of {state.history} exceed the "
                        f"capacity of {state.capacity}; resize() first"
                    )
            rows.histories[row] = state.history
            rows.num_inputs[row] = num_inputs
            if state.scratch.num_blocks > 0:
                validate_scratch(self._rules, state)

    def _publish_lengths(self, count: i64) -> None:
        histories = self._rows.histories
        inputs = self._rows.num_inputs
        lengths = self._lengths
        queries = self._queries
        keys = self._keys
        num_queries: i64 = 0
        num_keys: i64 = 0
        row: i64 = 0
        while row < count:
            num_inputs = inputs[row]
            length = histories[row] + num_inputs
            num_queries += num_inputs
            num_keys += length
            lengths[row] = i32(length)
            row += 1
            queries[row] = i32(num_queries)
            keys[row] = i32(num_keys)
        no_length: i32 = 0
        last_query = i32(num_queries)
        last_key = i32(num_keys)
        while row < self._rows.max_num_rows:
            lengths[row] = no_length
            row += 1
            queries[row] = last_query
            keys[row] = last_key
        # Not by numpy, much of whose code an update of few rows would fetch from memory.
        for target, source in zip(self._targets, self._sources):
            target[:] = source


def _split(given: object, name: str, num_buffers: int) -> list[object]:
    """The caller's array for each buffer; with one buffer the array itself."""
    if given is None or num_buffers == 1:
        return [given] * num_buffers
    if isinstance(given, (list, tuple)):
        raise TypeError(f"{name} must be an array or a buffer, not {type(given).__name__}")
    array: npt.NDArray[Any] = np.asarray(given)
    if array.ndim == 0 or array.shape[0] != num_buffers:
        raise ValueError(f"{name} has the shape {array.shape}; with buffers={num_buffers} its first axis must be {num_buffers}")
    return [array[k] for k in range(num_buffers)]
