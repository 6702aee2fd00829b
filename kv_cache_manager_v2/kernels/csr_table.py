"""The page lists of FlashInfer's paged wrappers: all rows behind one another, nothing between them."""

from typing import Final, final

import numpy as np
import numpy.typing as npt
from librt.vecs import vec
from mypy_extensions import i32, i64, mypyc_attr

from ..base.integer_math import ceil_div
from ..sequence.changed_blocks import ChangedBlocks
from ..sequence.sequence_state import SequenceState
from .batch_rows import BatchRows
from .output_array import INT32, to_output_array
from .page_family import PageRule
from .row_writer import convert_pages, fill_scratch_pages
from .table_output import TableOutput

Pages = npt.NDArray[np.int32]


@final
@mypyc_attr(native_class=True)
class CsrTable(TableOutput):
    """What ``plan()`` of FlashInfer's ``BatchDecodeWithPagedKVCacheWrapper`` and ``BatchPrefillWithPagedKVCacheWrapper`` takes
    (``flashinfer/decode.py``, ``flashinfer/prefill.py``), all int32:

    - `indptr` ``[max_num_sequences + 1]``: pages of row ``r`` are ``indices[indptr[r] : indptr[r + 1]]``; behind the last taken
      row it stays at the end, so that vacant rows are empty. ``paged_kv_indptr``;
    - `indices` ``[max_num_pages]``: page indices. ``paged_kv_indices``;
    - `last_page_len` ``[max_num_sequences]``: tokens in the row's last page, from 1 to the page's. ``paged_kv_last_page_len``.

    Listed are the pages of the step's tokens, history and inputs, that some layer of the group still reads; pages of spare
    capacity are not. FlashInfer's masks count from the end, so ``window_left = window - 1`` is right without the stale pages.
    """

    __slots__ = (
        "indptr",
        "indices",
        "last_page_len",
        "_rule",
        "_rows",
        "_starts",
        "_num_pages",
        "_seen_blocks",
        "_is_changed",
        "_max_num_pages",
    )

    indptr: Final[Pages]
    indices: Final[Pages]
    last_page_len: Final[Pages]
    _rule: Final[PageRule]
    _rows: Final[BatchRows]
    _starts: vec[i64]
    """As `indptr`."""
    _num_pages: Final[vec[i64]]
    """Per row, pages of its tokens, listed or not; -1: nothing is known."""
    _seen_blocks: Final[vec[i64]]
    """Per row, blocks that the page table had."""
    _is_changed: Final[vec[i64]]
    """Per row: 0 no, 1 some pages came at the end, 2 something else."""
    _max_num_pages: Final[i64]

    def __init__(
        self,
        rule: PageRule,
        rows: BatchRows,
        max_num_rows: int,
        max_num_pages: int,
        indptr: object,
        indices: object,
        last_page_len: object,
    ) -> None:
        self.indptr = to_output_array(indptr, "indptr", (max_num_rows + 1,), INT32)
        self.indices = to_output_array(indices, "indices", (max_num_pages,), INT32)
        self.last_page_len = to_output_array(last_page_len, "last_page_len", (max_num_rows,), INT32)
        self.indptr.fill(0)
        self.last_page_len.fill(1)
        self._rule = rule
        self._rows = rows
        self._starts = vec[i64]([0] * (max_num_rows + 1))
        self._num_pages = vec[i64]([-1] * max_num_rows)
        self._seen_blocks = vec[i64]([0] * max_num_rows)
        self._is_changed = vec[i64]([0] * max_num_rows)
        self._max_num_pages = max_num_pages

    @property
    def num_pages(self) -> int:
        """Entries of `indices` in use: ``indptr[num_seqs]``."""
        return int(self._starts[len(self._rows)])

    def rules(self) -> list[PageRule]:
        return [self._rule]

    def validate(self, rows: BatchRows) -> None:
        total: i64 = 0
        row: i64 = 0
        while row < len(rows.states):
            state = rows.states[row]
            num_pages = ceil_div(rows.histories[row] + rows.num_inputs[row], self._rule.page_tokens)
            total += num_pages - self._count_stale(state, num_pages)
            row += 1
        if total > self._max_num_pages:
            raise ValueError(f"the batch has {total} pages; the CSR table has room for {self._max_num_pages}")

    def _count_stale(self, state: SequenceState, num_pages: i64) -> i64:
        group = self._rule.layer_group
        begin = state.shared.num_sink_blocks[group] * self._rule.expansion
        end = state.window_begins[group] * self._rule.expansion
        if end > num_pages:
            end = num_pages
        return end - begin if end > begin else 0

    def update_row(self, row: i64, state: SequenceState, layer_group: i64, changed: ChangedBlocks) -> None:
        if layer_group != self._rule.layer_group:
            return
        scratch = state.scratch
        has_scratch = scratch.begins[layer_group] < scratch.ends[layer_group]
        if changed.erased_end > 0 or has_scratch or changed.filled_begin < self._seen_blocks[row]:
            self._is_changed[row] = 2
        elif self._is_changed[row] == 0:
            self._is_changed[row] = 1
        self._seen_blocks[row] = state.num_blocks

    def clear_row(self, row: i64) -> None:
        self._num_pages[row] = -1
        self._seen_blocks[row] = 0
        self._is_changed[row] = 0

    def finish(self, rows: BatchRows) -> None:
        changed_rows: list[int] = []
        new_pages: list[Pages] = []
        row: i64 = 0
        count: i64 = len(rows.states)
        page_tokens = self._rule.page_tokens
        last = vec[i32]([1] * count)
        while row < count:
            num_tokens = rows.histories[row] + rows.num_inputs[row]
            num_pages = ceil_div(num_tokens, page_tokens)
            if num_tokens > 0:
                tail: i64 = num_tokens - (num_pages - 1) * page_tokens
                last[row] = i32(tail)
            known = self._num_pages[row]
            if self._is_changed[row] == 2 or num_pages < known or known < 0:
                self._is_changed[row] = 2
                changed_rows.append(int(row))
                new_pages.append(self._list_pages(rows.states[row], num_pages))
            elif num_pages > known:
                self._is_changed[row] = 1
                changed_rows.append(int(row))
                new_pages.append(self._convert(rows.states[row], known, num_pages))
            else:
                self._is_changed[row] = 0
            self._num_pages[row] = num_pages
            row += 1
        self.last_page_len[:count] = np.asarray(memoryview(last))
        self._splice(count, changed_rows, new_pages)
        for changed_row in changed_rows:
            self._is_changed[changed_row] = 0

    def _list_pages(self, state: SequenceState, num_pages: i64) -> Pages:
        """The row from scratch: the sinks, and what lies from the window's beginning on."""
        group = self._rule.layer_group
        expansion = self._rule.expansion
        sinks_end = state.shared.num_sink_blocks[group] * expansion
        window_begin = state.window_begins[group] * expansion
        if sinks_end >= window_begin or num_pages <= sinks_end:
            return self._convert(state, 0, num_pages)
        sinks = self._convert(state, 0, sinks_end)
        if window_begin >= num_pages:
            return sinks
        window = self._convert(state, window_begin, num_pages)
        return window if len(sinks) == 0 else np.concatenate((sinks, window))

    def _convert(self, state: SequenceState, begin: i64, end: i64) -> Pages:
        """Page indices of the pages ``[begin, end)`` that there are."""
        rule = self._rule
        expansion = rule.expansion
        group = rule.layer_group
        first_block = begin // expansion
        pages = convert_pages(rule, state.tables[group], first_block, ceil_div(end, expansion), -1)
        if rule.addresses_scratch:
            fill_scratch_pages(rule, pages, first_block, state.scratch)
        pages = pages[begin - first_block * expansion : end - first_block * expansion]
        kept: Pages = pages[pages >= 0]
        return kept

    def _splice(self, count: i64, changed_rows: list[int], new_pages: list[Pages]) -> None:
        """Put the rows' new pages in and move what lies between them; rows before the first changed one stay as they are."""
        starts = self._starts
        num_kept_rows = count if len(changed_rows) == 0 else changed_rows[0]
        old_total = starts[count]
        target = starts[num_kept_rows]
        if len(changed_rows) > 0:
            indices = self.indices
            source = target
            old = indices[source:old_total].copy()
            shift = source
            new_starts = starts[:]
            for position, changed_row in enumerate(changed_rows):
                row: i64 = changed_row
                # Rows up to here that did not change, and of a row that grew what it had.
                run_end = starts[row + 1] if self._is_changed[row] == 1 else starts[row]
                indices[target : target + run_end - source] = old[source - shift : run_end - shift]
                target += run_end - source
                source = starts[row + 1]
                pages = new_pages[position]
                num_new: i64 = len(pages)
                indices[target : target + num_new] = pages
                target += num_new
                following: i64 = changed_rows[position + 1] if position + 1 < len(changed_rows) else count
                row += 1
                offset = target - source
                while row <= following:
                    new_starts[row] = starts[row] + offset
                    row += 1
            indices[target : target + old_total - source] = old[source - shift :]
            self._starts = new_starts
        self._publish(count)

    def _publish(self, count: i64) -> None:
        starts = self._starts
        total = starts[count]
        row = count + 1
        while row < len(starts):
            starts[row] = total
            row += 1
        self.indptr[:] = np.asarray(memoryview(starts))
