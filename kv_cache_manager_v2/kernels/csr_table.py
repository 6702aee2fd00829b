"""The page lists of FlashInfer's paged wrappers: the rows one after another, without padding."""

from typing import Final, TypeAlias, final

import numpy as np
import numpy.typing as npt
from librt.vecs import vec
from mypy_extensions import i32, i64

from ..base.integer_math import ceil_div
from ..sequence.changed_blocks import ChangedBlocks
from ..sequence.sequence_state import SequenceState
from .batch_rows import BatchRows, GroupRows
from .output_array import INT32, to_output_array
from .page_family import PageRule
from .row_writer import convert_pages, fill_scratch_pages
from .table_output import TableOutput

Pages: TypeAlias = npt.NDArray[np.int32]

_UNCHANGED: Final = 0
_GREW: Final = 1
"""Pages were added at the end, or removed at the window's beginning."""
_REPLACED: Final = 2
_UNKNOWN: Final = -1
_FEW: Final = 4


@final
class RowEdit:
    """The change of one row: remove ``num_dropped`` entries from ``first_dropped`` on, append ``pages``."""

    __slots__ = ("row", "first_dropped", "num_dropped", "pages")

    def __init__(self, row: i64, first_dropped: i64, num_dropped: i64, pages: Pages) -> None:
        self.row: Final = row
        self.first_dropped: Final = first_dropped
        self.num_dropped: Final = num_dropped
        self.pages: Final = pages


@final
class CsrTable(TableOutput):
    """Page table for ``plan()`` of FlashInfer's ``BatchDecodeWithPagedKVCacheWrapper`` and
    ``BatchPrefillWithPagedKVCacheWrapper`` (``flashinfer/decode.py``, ``flashinfer/prefill.py``), all int32:

    - `indptr` ``[max_num_sequences + 1]``: pages of row ``r`` are ``indices[indptr[r] : indptr[r + 1]]``; behind the
      last taken row it stays at the end, so that vacant rows are empty. ``paged_kv_indptr``;
    - `indices` ``[max_num_pages]``: page indices. ``paged_kv_indices``;
    - `last_page_len` ``[max_num_sequences]``: tokens in the row's last page, from 1 to the page's; 1 in vacant rows.
      ``paged_kv_last_page_len``.

    Listed are the pages of the step's tokens, history and inputs, that some layer of the group still reads; pages of
    spare capacity are not. FlashInfer's masks count from the end, so ``window_left = window - 1`` is right without the
    stale pages.
    """

    __slots__ = (
        "indptr",
        "indices",
        "last_page_len",
        "_rule",
        "_rows",
        "_starts",
        "_num_pages",
        "_group",
        "_window_begins",
        "_changes",
        "_max_num_pages",
        "_last_lens",
        "_last_view",
        "_num_published",
    )

    def __init__(self, rule: PageRule, rows: BatchRows, max_num_pages: int, indptr: object, indices: object, last_page_len: object) -> None:
        max_num_rows = rows.max_num_rows
        self.indptr: npt.NDArray[np.int32] = to_output_array(indptr, "indptr", (max_num_rows + 1,), INT32)
        self.indices: npt.NDArray[np.int32] = to_output_array(indices, "indices", (max_num_pages,), INT32)
        self.last_page_len: npt.NDArray[np.int32] = to_output_array(last_page_len, "last_page_len", (max_num_rows,), INT32)
        self._own = [self.indptr, self.indices, self.last_page_len]
        self.indptr.fill(0)
        self.last_page_len.fill(1)
        self._rule: Final = rule
        self._rows: Final = rows
        self._starts = vec[i64]([0] * (max_num_rows + 1))
        """Equal to `indptr`."""
        self._num_pages: Final = vec[i64]([_UNKNOWN] * max_num_rows)
        """By row: pages of its tokens, listed or not, or _UNKNOWN."""
        self._group: Final[GroupRows] = rows.use_layer_group(rule.layer_group)
        self._window_begins: Final = vec[i64]([0] * max_num_rows)
        """By row: the first block of its window."""
        self._changes: Final = vec[i64]([_UNCHANGED] * max_num_rows)
        """By row: the kind of change of its page table since the last step."""
        self._max_num_pages: Final[i64] = max_num_pages
        self._last_lens: Final = vec[i32]([1] * max_num_rows)
        """By row: what `last_page_len` gets; and the same as a view of numpy."""
        self._last_view: Final[npt.NDArray[np.int32]] = np.asarray(memoryview(self._last_lens), np.int32)
        self._num_published: i64 = 0
        """Rows at the last update."""

    @property
    def num_pages(self) -> int:
        """Entries of `indices` in use: ``indptr[num_seqs]``."""
        return int(self.indptr[len(self._rows)])

    def rules(self) -> list[PageRule]:
        return [self._rule]

    def validate(self, rows: BatchRows) -> None:
        total: i64 = 0
        row: i64
        for row in range(len(rows.states)):
            state = rows.states[row]
            num_pages = ceil_div(rows.histories[row] + rows.num_inputs[row], self._rule.page_tokens)
            total += num_pages - self._count_stale(state, num_pages)
        if total > self._max_num_pages:
            raise ValueError(f"the batch has {total} pages; the CSR table has room for {self._max_num_pages}")

    def _count_stale(self, state: SequenceState, num_pages: i64) -> i64:
        group = self._rule.layer_group
        begin = state.request.windows.num_sink_blocks[group] * self._rule.expansion
        end = state.window_begins[group] * self._rule.expansion
        if end > num_pages:
            end = num_pages
        return end - begin if end > begin else 0

    def update_row(self, row: i64, state: SequenceState, layer_group: i64, changed: ChangedBlocks) -> None:
        if layer_group != self._rule.layer_group:
            return
        scratch = state.scratch
        has_scratch = scratch.begins[layer_group] < scratch.ends[layer_group]
        # Only pages at the window's front may go, and only new blocks may come.
        only_window_moved = changed.erased_end == 0 or (
            changed.erased_begin >= self._window_begins[row] and changed.erased_end <= state.window_begins[layer_group]
        )
        if has_scratch or not only_window_moved or changed.filled_begin < self._group.seen_blocks[row]:
            self._changes[row] = _REPLACED
        elif self._changes[row] == _UNCHANGED:
            self._changes[row] = _GREW

    def _show(self, written: TableOutput) -> None:
        self.indptr, self.indices, self.last_page_len = written._own

    def clear_row(self, row: i64) -> None:
        self._num_pages[row] = _UNKNOWN
        self._changes[row] = _UNCHANGED
        self._own[2][row] = 1

    def finish(self, rows: BatchRows) -> None:
        edits: list[RowEdit] = []
        count: i64 = len(rows.states)
        page_tokens = self._rule.page_tokens
        last = self._last_lens
        no_tokens: i32 = 1
        for row in range(count):
            num_tokens = rows.histories[row] + rows.num_inputs[row]
            num_pages = ceil_div(num_tokens, page_tokens)
            last[row] = no_tokens
            if num_tokens > 0:
                tail: i64 = num_tokens - (num_pages - 1) * page_tokens
                last[row] = i32(tail)
            state = rows.states[row]
            window_begin = state.window_begins[self._rule.layer_group]
            if num_pages != self._num_pages[row] or self._changes[row] != _UNCHANGED or window_begin != self._window_begins[row]:
                edits.append(self._plan_edit(row, state, num_pages))
                self._changes[row] = _UNCHANGED
                self._num_pages[row] = num_pages
                self._window_begins[row] = window_begin
        self._own[2][:count] = self._last_view[:count]
        if len(edits) > 0:
            self._apply_edits(count, edits)
        if len(edits) > 0 or count != self._num_published:
            self._publish(count)

    def _plan_edit(self, row: i64, state: SequenceState, num_pages: i64) -> RowEdit:
        known = self._num_pages[row]
        group = self._rule.layer_group
        window_begin = state.window_begins[group]
        has_moved = window_begin != self._window_begins[row]
        if known == _UNKNOWN or num_pages < known or self._changes[row] == _REPLACED or (has_moved and self._changes[row] == _UNCHANGED):
            num_listed = self._starts[row + 1] - self._starts[row]
            return RowEdit(row, 0, num_listed, self._list_pages(state, num_pages))
        pages = self._convert(state, known, num_pages)
        if not has_moved:
            return RowEdit(row, 0, 0, pages)
        expansion = self._rule.expansion
        begin = self._window_begins[row] * expansion
        end = window_begin * expansion
        if end > known:
            end = known
        num_sink_pages = state.request.windows.num_sink_blocks[group] * expansion
        return RowEdit(row, num_sink_pages, end - begin if end > begin else 0, pages)

    def _list_pages(self, state: SequenceState, num_pages: i64) -> Pages:
        """The whole row: the sinks, and the pages from the window's beginning on."""
        group = self._rule.layer_group
        expansion = self._rule.expansion
        sinks_end = state.request.windows.num_sink_blocks[group] * expansion
        window_begin = state.window_begins[group] * expansion
        if sinks_end >= window_begin or num_pages <= sinks_end:
            return self._convert(state, 0, num_pages)
        sinks = self._convert(state, 0, sinks_end)
        if window_begin >= num_pages:
            return sinks
        window = self._convert(state, window_begin, num_pages)
        return window if len(sinks) == 0 else np.concatenate((sinks, window))

    def _convert(self, state: SequenceState, begin: i64, end: i64) -> Pages:
        """Page indices of the existing pages in ``[begin, end)``."""
        rule = self._rule
        expansion = rule.expansion
        group = rule.layer_group
        scratch = state.scratch
        if end - begin <= _FEW and scratch.begins[group] == scratch.ends[group]:
            entries = state.tables[group].entries
            few: list[int] = []
            for page in range(begin, end):
                slot = i64(entries[page // expansion])
                if slot >= 0:
                    few.append(int(rule.first_page(slot) + page % expansion))
            return np.array(few, np.int32)
        first_block = begin // expansion
        pages = convert_pages(rule, state.tables[group], first_block, ceil_div(end, expansion), -1)
        if rule.addresses_scratch:
            fill_scratch_pages(rule, pages, first_block, scratch)
        pages = pages[begin - first_block * expansion : end - first_block * expansion]
        kept: Pages = pages[pages >= 0]
        return kept

    def _apply_edits(self, count: i64, edits: list[RowEdit]) -> None:
        """Insert the new pages and move the entries between them; rows before the first edited one stay as they are."""
        starts = self._starts
        new_starts = starts[:]
        indices = self._own[1]
        shift = starts[edits[0].row]
        old_total = starts[count]
        old = indices[shift:old_total].copy()
        source = shift  # the position in the old indices
        target = shift
        for position, edit in enumerate(edits):
            row = edit.row
            dropped = starts[row] + edit.first_dropped
            if edit.num_dropped > 0:
                indices[target : target + dropped - source] = old[source - shift : dropped - shift]
                target += dropped - source
                source = dropped + edit.num_dropped
            row_end = starts[row + 1]
            if row_end > source:
                indices[target : target + row_end - source] = old[source - shift : row_end - shift]
                target += row_end - source
                source = row_end
            num_new: i64 = len(edit.pages)
            if num_new > 0:
                indices[target : target + num_new] = edit.pages
                target += num_new
            following = edits[position + 1].row if position + 1 < len(edits) else count
            offset = target - source
            row += 1
            while row <= following:
                new_starts[row] = starts[row] + offset
                row += 1
        if old_total > source:
            indices[target : target + old_total - source] = old[source - shift :]
        self._starts = new_starts

    def _publish(self, count: i64) -> None:
        starts = self._starts
        total = starts[count]
        self._num_published = count
        for row in range(count + 1, len(starts)):
            starts[row] = total
        self._own[0][:] = np.asarray(memoryview(starts))
