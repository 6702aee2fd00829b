"""A batch of pages that are written to the durable level: made by the caller as plain arrays, looked into by the workers alone.

    who                   does
    the caller's thread   makes it, when the batch is planned: one object and four arrays for all pages of a batch
    the workers           under the level's lock: find the page of a slot, count its chunks, and say which pages are whole
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..device.slot_watch import SlotTicket

NO_POSITION: Final = -1


@final
class WriteBatch(SlotTicket):
    """By position: ``nodes`` (0 for pages that are not recorded), ``slots`` and page ids; generations go by position. The arrays are the
    caller's, who changes them no more. ``first_page``: of the first block of all, each of which has ``num_life_cycles`` ids."""

    __slots__ = (
        "nodes", "slots", "first_generation", "_pages", "_first_page", "_num_life_cycles", "_num_chunks", "_positions", "_num_left",
        "_has_failed",
    )  # fmt: skip

    def __init__(
        self,
        nodes: vec[i64],
        slots: vec[i64],
        pages: vec[i64],
        first_page: i64,
        num_life_cycles: i64,
        first_generation: i64,
        num_chunks: i64,
    ) -> None:
        self.nodes: Final = nodes
        self.slots: Final = slots
        self._pages: Final = pages
        self._first_page: Final = first_page
        self._num_life_cycles: Final = num_life_cycles
        self.first_generation: Final = first_generation
        self._num_chunks: Final = num_chunks
        """Chunks of a slot in all pools."""
        self._positions: Final[dict[int, int]] = {}
        """By slot; filled by the first worker that asks."""
        self._num_left = vec[i64]()
        """By position: chunks that are not done."""
        self._has_failed: Final[set[int]] = set()
        """Positions of pages of which a chunk was not written."""

    def life_cycle(self, position: i64) -> i64:
        return (self._pages[position] - self._first_page) % self._num_life_cycles

    def count_chunk(self, slot: i64, has_failed: bool) -> i64:
        """One chunk of that slot is done. The page's position if that was the last one, and all were written; else NO_POSITION."""
        if len(self._num_left) == 0:
            self._num_left = vec[i64]([self._num_chunks] * len(self.nodes))
            for number in range(len(self.slots)):
                if self.nodes[number] != 0:
                    self._positions[int(self.slots[number])] = number
        position = self._positions.get(int(slot), NO_POSITION)
        if position == NO_POSITION:
            return NO_POSITION
        num_left = self._num_left
        num_left[position] -= 1
        if has_failed:
            self._has_failed.add(position)
        return NO_POSITION if num_left[position] != 0 or position in self._has_failed else position
