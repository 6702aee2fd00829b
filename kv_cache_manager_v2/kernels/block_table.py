"""The padded block table of FlashAttention, vLLM and FlashInfer's trtllm-gen entry."""

from typing import Final, final

import numpy as np
import numpy.typing as npt
from mypy_extensions import i64

from ..sequence.changed_blocks import ChangedBlocks
from ..sequence.sequence_state import SequenceState
from .batch_rows import BatchRows
from .output_array import INT32, to_output_array
from .page_family import PageRule
from .row_writer import RowWriter
from .table_output import TableOutput


@final
class BlockTable(TableOutput):
    """`array`: ``[max_num_sequences, max_num_blocks * expansion]`` int32; row ``r`` has the pages of the sequence in row ``r``.

    - FlashAttention: ``block_table`` of ``flash_attn_with_kvcache`` and ``flash_attn_varlen_func`` (``page_table`` in
      version 3): int32 ``[batch_size, max_num_blocks_per_seq]`` (``flash_attn_interface.py``); lengths are
      `BatchPageTable.seq_lens`.
    - vLLM: ``block_table_tensor``, int32 ``[num_reqs, max_blocks]`` (``vllm/v1/worker/block_table.py``), a table for
      each key/value cache group, the null block is 0.
    - FlashInfer: ``block_tables`` of ``trtllm_batch_decode_with_kv_cache``, int32 ``[batch_size, max_pages]``.

    Out-of-window blocks, and the entries behind a sequence's last block, are the filler.
    """

    __slots__ = ("array", "filler", "_writer", "_rows")

    def __init__(self, rule: PageRule, filler: int, rows: BatchRows, out: object) -> None:
        width = rows.max_num_blocks * int(rule.expansion)
        self.array: npt.NDArray[np.int32] = to_output_array(out, "out", (rows.max_num_rows, width), INT32)
        """All rows, for kernels and graphs whose batch is padded to its maximum; vacant rows are filler."""
        self._own = [self.array]
        self.array.fill(filler)
        self.filler: Final[int] = filler
        self._writer: Final = RowWriter(rule, filler, self.array, 0, width, rows.use_layer_group(rule.layer_group))
        self._rows: Final = rows

    @property
    def rows(self) -> npt.NDArray[np.int32]:
        """``[num_seqs, ...]``: a view of the rows that are taken."""
        return self.array[: len(self._rows)]

    def rules(self) -> list[PageRule]:
        return [self._writer.rule]

    def update_row(self, row: i64, state: SequenceState, layer_group: i64, changed: ChangedBlocks) -> None:
        if layer_group == self._writer.rule.layer_group:
            self._writer.update(row, state.tables[layer_group], changed, state.scratch)

    def clear_row(self, row: i64) -> None:
        self._writer.clear_row(row)

    def _show(self, written: TableOutput) -> None:
        self.array = written._own[0]
