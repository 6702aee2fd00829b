"""The slot mapping of vLLM: the position at which each input token of the step is written."""

from typing import Final, final

import numpy as np
import numpy.typing as npt
from librt.vecs import vec
from mypy_extensions import i64

from ..base.integer_math import ceil_div
from ..sequence.sequence_state import SequenceState
from .batch_rows import BatchRows
from .output_array import INT64, flat_view, to_output_array
from .page_family import PageRule
from .row_writer import convert_pages, fill_scratch_pages
from .table_output import TableOutput

_FEW: Final = 8
"""Up to so many tokens are written one by one."""


@final
class SlotMapping(TableOutput):
    """`array`: ``[max_num_input_tokens]`` int64, ``page index * tokens per page + token in page`` for the step's input
    tokens, row after row as in `BatchPageTable.query_start_loc`; -1 behind the last token.

    vLLM: ``slot_mapping`` of ``reshape_and_cache_flash`` (``csrc/cache_kernels.cu``; filled in
    ``vllm/v1/worker/block_table.py``), where -1 means "do not write". SGLang's ``out_cache_loc`` is the same with int64
    token slots.
    """

    __slots__ = ("array", "_rule", "_max_num_tokens", "_num_tokens", "_num_shown", "_collected", "_view", "_flat")

    _num_tokens: i64
    """In the array that this output writes; then in the one that is shown."""
    _num_shown: i64

    def __init__(self, rule: PageRule, max_num_tokens: int, out: object) -> None:
        self.array: npt.NDArray[np.int64] = to_output_array(out, "out", (max_num_tokens,), INT64)
        self._own = [self.array]
        self.array.fill(-1)
        self._rule: Final = rule
        self._max_num_tokens: Final[i64] = max_num_tokens
        self._num_tokens = self._num_shown = 0
        self._collected: Final = vec[i64]([0] * max_num_tokens)
        """Tokens of rows with few inputs, until they are written, all at once."""
        self._view: Final = memoryview(self._collected)
        """A view of ``_collected``; then one of ``array``."""
        self._flat: Final[memoryview] = flat_view(self.array)

    @property
    def tokens(self) -> npt.NDArray[np.int64]:
        """``[num_input_tokens]``: a view of the present step's part."""
        return self.array[: self._num_shown]

    def rules(self) -> list[PageRule]:
        return [self._rule]

    def validate(self, rows: BatchRows) -> None:
        total: i64 = 0
        row: i64
        for row in range(len(rows.states)):
            total += rows.num_inputs[row]
        if total > self._max_num_tokens:
            raise ValueError(f"the step has {total} input tokens; the slot mapping has room for {self._max_num_tokens}")

    def _show(self, written: TableOutput) -> None:
        assert isinstance(written, SlotMapping)
        self.array = written._own[0]
        self._num_shown = written._num_tokens

    def finish(self, rows: BatchRows) -> None:
        rule = self._rule
        page_tokens = rule.page_tokens
        block_tokens = page_tokens * rule.expansion
        array = self._own[0]
        count: i64 = len(rows.states)
        first: i64 = 0
        collected = self._collected
        num_collected: i64 = 0
        for row in range(count):
            num_inputs = rows.num_inputs[row]
            state = rows.states[row]
            if num_inputs > _FEW:
                self._write_collected(first, num_collected)
                first += num_collected
                num_collected = 0
                array[first : first + num_inputs] = self._long_row(state, rows.histories[row], num_inputs)
                first += num_inputs
            else:
                table = state.tables[rule.layer_group]
                token = rows.histories[row]
                end = token + num_inputs
                while token < end:
                    block = token // block_tokens
                    slot = i64(table.entries[block])
                    if slot >= 0:
                        collected[num_collected] = rule.first_page(slot) * page_tokens + token % block_tokens
                    else:
                        collected[num_collected] = self._scratch_token(state, block, token % block_tokens)
                    num_collected += 1
                    token += 1
        self._write_collected(first, num_collected)
        first += num_collected
        if first < self._num_tokens:
            array[first : self._num_tokens] = -1
        self._num_tokens = self._num_shown = first

    def _write_collected(self, first: i64, count: i64) -> None:
        flat = self._flat
        if count > _FEW:
            flat[first : first + count] = self._view[:count]
            return
        for position in range(count):
            flat[first + position] = self._collected[position]

    def _scratch_token(self, state: SequenceState, block: i64, token_in_block: i64) -> i64:
        """The position of a token whose block has no page: in a scratch slot, if the rule can address it."""
        group = self._rule.layer_group
        if not self._rule.addresses_scratch or not state.scratch.contains(group, block):
            return -1
        position = block - state.scratch.begins[group]
        page = self._rule.first_scratch_page(position, state.scratch.slots[group])
        return page * self._rule.page_tokens + token_in_block

    def _long_row(self, state: SequenceState, history: i64, num_inputs: i64) -> npt.NDArray[np.int64]:
        rule = self._rule
        block_tokens = rule.page_tokens * rule.expansion
        first_block = history // block_tokens
        end_block = ceil_div(history + num_inputs, block_tokens)
        pages = convert_pages(rule, state.tables[rule.layer_group], first_block, end_block, -1)
        if rule.addresses_scratch:
            fill_scratch_pages(rule, pages, first_block, state.scratch)
        steps = np.arange(rule.page_tokens, dtype=np.int64)
        slots = (pages.astype(np.int64)[:, np.newaxis] * rule.page_tokens + steps).reshape(-1)
        slots[np.repeat(pages < 0, rule.page_tokens)] = -1
        offset = history - first_block * block_tokens
        tokens: npt.NDArray[np.int64] = slots[offset : offset + num_inputs]
        return tokens
