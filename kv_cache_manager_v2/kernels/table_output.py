"""Base of a `BatchPageTable`'s outputs: one kind of array that kernels take.

Per step: `validate` (may raise, changes nothing), then `update_row` for every row whose page table changed or has
scratch blocks, then `finish` once. An output leaves out what it has no use for.
"""

from abc import ABCMeta, abstractmethod
from typing import Any

import numpy.typing as npt
from mypy_extensions import i64

from ..base.handle import Handle
from ..sequence.changed_blocks import ChangedBlocks
from ..sequence.sequence_state import SequenceState
from .batch_rows import BatchRows
from .page_family import PageRule


class TableOutput(Handle, metaclass=ABCMeta):
    __slots__ = ("_own",)

    _own: list[npt.NDArray[Any]]
    """The arrays that it writes; its public ones are those of another buffer after `_show`."""

    @abstractmethod
    def rules(self) -> list[PageRule]:
        """The rules of its entries; they name the layer groups that it reads."""

    def validate(self, rows: BatchRows) -> None:
        """`ValueError` if the step does not fit into the arrays."""

    def update_row(self, row: i64, state: SequenceState, layer_group: i64, changed: ChangedBlocks) -> None:
        """Write the changed entries of one row, or all entries of a new row."""

    def finish(self, rows: BatchRows) -> None:
        """Write the arrays about the step as a whole, after all rows."""

    @abstractmethod
    def _show(self, written: "TableOutput") -> None:
        """The public arrays are from now on those that ``written`` writes: this output, or its like in another buffer."""

    def clear_row(self, row: i64) -> None:
        """The last row became vacant: clear it."""
