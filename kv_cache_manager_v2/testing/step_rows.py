"""A batch of steps as rows, one per beam of each sequence: begin and end of its tokens, and their values.

A row's tokens are ``[0, end)``; those from ``history`` on are the step's input. Rows know their sequences by id
only: work that is still queued on a device must keep no sequence alive.
"""

from typing import Final, final

import numpy as np

from .page_spans import Ints
from .token_values import Values


@final
class StepRows:
    """The columns. At least one row."""

    __slots__ = ("sequence_ids", "beams", "history", "end", "values", "value_offset")

    def __init__(self, sequence_ids: list[object], beams: list[int], num_history_tokens: list[int], values: list[Values]) -> None:
        end = np.array([len(values_of_row) for values_of_row in values], dtype=np.int64)
        self.sequence_ids: Final = sequence_ids
        self.beams: Final = beams
        self.history: Final[Ints] = np.array(num_history_tokens, dtype=np.int64)
        self.end: Final[Ints] = end
        self.values: Final[Values] = np.concatenate(values)
        """The values of all rows, one row after another."""
        self.value_offset: Final[Ints] = np.cumsum(end) - end
        """By row: the index of its first value in ``values``."""

    def __len__(self) -> int:
        return len(self.beams)

    def place_of(self, value: int) -> tuple[int, int] | None:
        """The first row and token with this value."""
        places = np.nonzero(self.values == np.uint64(value))[0]
        if len(places) == 0:
            return None
        # Rows without tokens begin at the same index as the next row; the last row that begins there has some.
        row = int(np.searchsorted(self.value_offset, places[0], side="right")) - 1
        return row, int(places[0] - self.value_offset[row])
