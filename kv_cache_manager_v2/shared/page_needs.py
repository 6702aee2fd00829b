"""Which pages a prefix of a given length needs, by layer group, and which lengths the pages at hand can restore.

Recurrent layers need the state at the prefix' end: it goes by the name of the block that ends there, which follows from the parent's name,
the tokens and their number. Where no block ends there is none.
"""

from typing import Final

from ..layout.life_cycle import LifeCycle


class PageNeeds:
    """Arithmetic on ordinals of blocks. ``begin``: blocks before it are the sequence's own already."""

    def __init__(self, life_cycles: list[LifeCycle], block_tokens: int) -> None:
        self._windows: Final = [cycle.window_size for cycle in life_cycles]
        self._has_states: Final = [not cycle.has_page_per_block for cycle in life_cycles]
        self._sinks: Final = [int(cycle.num_sink_blocks) for cycle in life_cycles]
        self._block_tokens: Final = block_tokens

    @property
    def num_life_cycles(self) -> int:
        return len(self._windows)

    def is_unbounded(self, life_cycle: int) -> bool:
        """Whether its layers read all blocks."""
        return self._windows[life_cycle] is None and not self._has_states[life_cycle]

    def has_states(self, life_cycle: int) -> bool:
        """Whether its layers are recurrent: a prefix needs one page, the state at its end, which is the last block's."""
        return self._has_states[life_cycle]

    @property
    def has_any_states(self) -> bool:
        """Whether the model has recurrent layers."""
        return any(self._has_states)

    def window_begin(self, life_cycle: int, num_blocks: int) -> int:
        """The first block behind the sinks that is read after a prefix of so many whole blocks."""
        if self._has_states[life_cycle]:
            return max(0, num_blocks - 1)
        window = self._windows[life_cycle]
        sinks = self._sinks[life_cycle]
        tokens = num_blocks * self._block_tokens
        if window is None or tokens + 1 <= window:
            return 0 if window is None else sinks
        return max(sinks, (tokens + 1 - window) // self._block_tokens)

    def list_blocks(self, life_cycle: int, begin: int, num_blocks: int) -> list[int]:
        """The blocks from ``begin`` on that a prefix of ``num_blocks`` needs."""
        first = self.window_begin(life_cycle, num_blocks)
        sinks = min(self._sinks[life_cycle], num_blocks)
        return [*range(begin, sinks), *range(max(begin, sinks, first), num_blocks)]

    def count_pages(self, begin: int, num_blocks: int) -> int:
        """Over all layer groups."""
        return sum([len(self.list_blocks(life_cycle, begin, num_blocks)) for life_cycle in range(self.num_life_cycles)])

    def list_lengths(self, present: list[set[int]], begin: int, end: int) -> list[int]:
        """The lengths over ``begin`` and up to ``end`` that can be restored from the present blocks, by layer group."""
        possible = range(begin + 1, end + 1)
        lengths = set(possible)
        for life_cycle, blocks in enumerate(present):
            is_unbounded = self.is_unbounded(life_cycle)
            run = 0  # present blocks that end here, one behind the other
            sinks = min(self._sinks[life_cycle], end)
            has_sinks = True
            for block in range(begin, end):
                run = run + 1 if block in blocks else 0
                if block < sinks and block not in blocks:
                    has_sinks = False
                first = begin if is_unbounded else max(begin, self.window_begin(life_cycle, block + 1))
                if run < block + 1 - first or not has_sinks:
                    lengths.discard(block + 1)
        return [length for length in possible if length in lengths]
