"""Writer of padded page table rows: keeps them equal to the sequences' base page indices by writing what changed.

One row per sequence, ``width`` entries, anywhere in a flat int32 array. Blocks without a page that the rule can
address, and the entries behind the last block, are the *filler*. Few changes are written one by one, many at once.
"""

from typing import Any, Final, final

import numpy as np
import numpy.typing as npt
from mypy_extensions import i64

from ..sequence.changed_blocks import ChangedBlocks
from ..sequence.page_table import PageTable
from ..sequence.scratch import Scratch
from .batch_rows import GroupRows
from .output_array import flat_view
from .page_family import PageRule

_FEW: Final = 12
"""Up to so many entries, writing one by one is faster, in either build."""


def convert_pages(rule: PageRule, table: PageTable, begin: i64, end: i64, filler: i64) -> npt.NDArray[np.int32]:
    """Page indices of the blocks ``[begin, end)``, a new array; scratch blocks are not filled in."""
    base = np.asarray(table.view())[begin:end]
    pages: npt.NDArray[np.int32] = base * np.int32(rule.scale)
    pages += np.int32(rule.offset)
    is_bad = base < 0
    expansion = int(rule.expansion)
    if expansion > 1:
        steps = np.arange(expansion, dtype=np.int32)
        pages = (pages[:, np.newaxis] * np.int32(expansion) + steps).reshape(-1)
        is_bad = np.repeat(is_bad, expansion)
    pages[is_bad] = filler
    return pages


def fill_scratch_pages(rule: PageRule, pages: npt.NDArray[np.int32], begin: i64, scratch: Scratch) -> None:
    """Fill in the scratch blocks of a range that begins with block ``begin``."""
    group = rule.layer_group
    first = scratch.begins[group]
    expansion = rule.expansion
    num_blocks: i64 = len(pages) // expansion
    end = scratch.ends[group]
    if end > begin + num_blocks:
        end = begin + num_blocks
    slots = scratch.slots[group]
    for ordinal in range(first if first > begin else begin, end):
        page = rule.first_scratch_page(ordinal - first, slots)
        for sub in range(expansion):
            pages[(ordinal - begin) * expansion + sub] = page + sub


@final
class RowWriter:
    __slots__ = ("rule", "filler", "_array", "_flat", "_first", "_stride", "_group")

    def __init__(self, rule: PageRule, filler: i64, array: npt.NDArray[Any], first: i64, stride: i64, group: GroupRows) -> None:
        """Row ``r`` begins at item ``first + r * stride`` of the array, which the caller has set to the filler."""
        self.rule: Final = rule
        self.filler: Final = filler
        self._array: Final[npt.NDArray[Any]] = array.reshape(-1)
        self._flat: Final[memoryview] = flat_view(array)
        self._first: Final = first
        self._stride: Final = stride
        self._group: Final = group

    def update(self, row: i64, table: PageTable, changed: ChangedBlocks, scratch: Scratch) -> None:
        """Write the row's changes; if the last update had scratch blocks, the whole row."""
        length = self._group.seen_blocks[row]
        num_blocks = table.num_blocks
        if num_blocks < length:
            self._fill(row, num_blocks, length)
        self._write(row, table, changed.erased_begin, changed.erased_end)
        # New blocks are at the end of the filled range, so most steps write one range only.
        begin = changed.filled_begin if changed.filled_begin < length else length
        self._write(row, table, begin, num_blocks if num_blocks > length else changed.filled_end)
        if self.rule.addresses_scratch:
            self._write_scratch(row, scratch)

    def _write_scratch(self, row: i64, scratch: Scratch) -> None:
        group = self.rule.layer_group
        begin = scratch.begins[group]
        end = scratch.ends[group]
        if begin < end:
            pages = np.empty((end - begin) * self.rule.expansion, np.int32)
            fill_scratch_pages(self.rule, pages, begin, scratch)
            self._put(row, begin, pages)

    def _write(self, row: i64, table: PageTable, begin: i64, end: i64) -> None:
        if end > table.num_blocks:
            end = table.num_blocks
        if begin >= end:
            return
        rule = self.rule
        expansion = rule.expansion
        if (end - begin) * expansion > _FEW:
            self._put(row, begin, convert_pages(rule, table, begin, end, self.filler))
            return
        flat = self._flat
        position = self._first + row * self._stride + begin * expansion
        for ordinal in range(begin, end):
            slot = i64(table.entries[ordinal])
            page = rule.first_page(slot)
            for sub in range(expansion):
                flat[position] = page + sub if slot >= 0 else self.filler
                position += 1

    def _put(self, row: i64, begin: i64, pages: npt.NDArray[np.int32]) -> None:
        position = self._first + row * self._stride + begin * self.rule.expansion
        self._array[position : position + len(pages)] = pages

    def _fill(self, row: i64, begin: i64, end: i64) -> None:
        first = self._first + row * self._stride
        self._array[first + begin * self.rule.expansion : first + end * self.rule.expansion] = self.filler

    def clear_row(self, row: i64) -> None:
        """Set the row to filler: it is vacant."""
        self._fill(row, 0, self._group.seen_blocks[row])
