"""What one sequence needs to be resumed, grown and closed: the pages that it holds, and the most that its steps take.

A step of at most ``max_step`` tokens begins where the last one has ended, so a windowed layer group holds its window and the step. The
counts are the most over all such steps. Of scratch slots and of beams they are an upper bound.

A suspended sequence has the published pages instead of its twins, so the users of a page and those of its twins are counted together.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from .beams import list_beams
from .sequence_state import SequenceState
from .shared_state import UNBOUNDED, SharedState


@final
@mypyc_attr(native_class=True)
class FinishDemand:
    """One listed sequence with its beams. Slots are per pool group."""

    __slots__ = ("state", "beams", "remaining", "pages", "num_kept", "num_shared_uses", "num_twin_uses", "first", "widest")

    state: Final[SequenceState]
    beams: Final[list[SequenceState]]
    remaining: Final[i64]
    pages: Final[list[vec[i64]]]
    """By life cycle, all pages that it holds, each once; first those that it holds to its end, not behind a window or written again."""
    num_kept: vec[i64]
    """By life cycle, how many these are; 0 where there are beams."""
    num_shared_uses: Final[dict[int, int]]
    """By page that other sequences or several of its beams hold, how many of its beams do."""
    num_twin_uses: Final[dict[int, int]]
    """By twin, how many of its beams have it instead of the published page."""
    first: vec[i64]
    """Pages and slots after the first step, or, of beams, those that it adds."""
    widest: vec[i64]
    """The same after the step that needs most."""

    def __init__(self, state: SequenceState, remaining: i64, max_step: i64) -> None:
        shared = state.shared
        self.state = state
        self.beams = list_beams(state)
        self.remaining = remaining
        self.pages = [vec[i64]() for _ in range(shared.num_life_cycles)]
        self.num_kept = vec[i64]([0] * shared.num_life_cycles)
        self.num_shared_uses = {}
        self.num_twin_uses = {}
        self.first = vec[i64]([0] * shared.storage.num_pool_groups)
        self.widest = vec[i64]([0] * shared.storage.num_pool_groups)
        for beam in self.beams:
            self._list_pages(beam)
        if remaining > 0:
            self._measure(max_step)

    @property
    def written_block(self) -> i64:
        """The present block into which its first step writes; the number of blocks if there is none."""
        return self.state.capacity // self.state.shared.tokens_per_block

    def is_written(self, first_page: i64) -> bool:
        """Whether the block with that first page is the one into which the first step writes; not for beams."""
        ordinal = self.written_block
        return ordinal < self.state.num_blocks and self.state.blocks[ordinal].first_page == first_page

    def _list_pages(self, beam: SequenceState) -> None:
        shared = beam.shared
        for life_cycle in range(shared.num_life_cycles):
            kept_end: i64 = 0
            if len(self.beams) == 1:
                kept_end = self.written_block
                if shared.windows.sizes[life_cycle] != UNBOUNDED and shared.windows.num_sink_blocks[life_cycle] < kept_end:
                    kept_end = shared.windows.num_sink_blocks[life_cycle]
            for ordinal in range(beam.num_blocks):
                if beam.holds_page(life_cycle, ordinal):
                    page = beam.blocks[ordinal].first_page + life_cycle
                    self._add_page(page, life_cycle)
                    own = beam.page_of(life_cycle, ordinal)
                    if own != page:
                        self.num_twin_uses[int(own)] = self.num_twin_uses.get(int(own), 0) + 1
                    if ordinal < kept_end:
                        self.num_kept[life_cycle] += 1
        blocks = list(beam.recurrent.state_blocks)
        if beam.recurrent.matched_snapshot is not None:
            blocks.append(beam.recurrent.matched_snapshot)
        for block in blocks:
            self._add_page(block.first_page + shared.state_life_cycle, shared.state_life_cycle)

    def _add_page(self, page: i64, life_cycle: i64) -> None:
        if count_holds(self.state.shared, page) > 1:
            uses = self.num_shared_uses.get(int(page), 0)
            self.num_shared_uses[int(page)] = uses + 1
            if uses > 0:
                return
        self.pages[life_cycle] = append(self.pages[life_cycle], page)

    def _measure(self, max_step: i64) -> None:
        """A step needs most where a block has just begun: of those that begin where the sequence is now the longest, and once all windows
        are full the last."""
        size = self.state.shared.tokens_per_block
        begin = self.state.capacity
        target = begin + self.remaining
        end = begin + max_step if max_step < self.remaining else target
        self.first = self._count_slots(begin, end, max_step)
        self.widest = self.first
        full = self._compute_full_windows()
        last = (target - 1) // size * size + 1
        end = begin // size * size + 1
        longest = (min(begin + max_step, last) - 1) // size * size + 1
        if longest > begin and longest > end:
            end = longest
        while end <= last:
            if end > begin:
                history = end - max_step if end - max_step > begin else begin
                if history > full and end < last:
                    end = last
                    continue
                self.widest = _most(self.widest, self._count_slots(history, end, max_step))
            end += size

    def _compute_full_windows(self) -> i64:
        """A history from which on each windowed layer group holds as many blocks at the same place in a block."""
        shared = self.state.shared
        longest: i64 = 0
        for life_cycle in range(shared.num_life_cycles):
            window = shared.windows.sizes[life_cycle]
            if window != UNBOUNDED:
                full = window + (shared.windows.num_sink_blocks[life_cycle] + 1) * shared.tokens_per_block
                if full > longest:
                    longest = full
        return longest

    def _count_slots(self, history: i64, capacity: i64, max_step: i64) -> vec[i64]:
        """What the sequence has after a step; of one with beams, what its beams have beyond their present blocks."""
        shared = self.state.shared
        has_beams = len(self.beams) > 1
        num_blocks = (capacity + shared.tokens_per_block - 1) // shared.tokens_per_block
        counts = vec[i64]([0] * shared.storage.num_pool_groups)
        for life_cycle in range(shared.num_life_cycles):
            pool_group = shared.storage.pool_group_of[life_cycle]
            window_begin = shared.windows.compute_begin(life_cycle, history)
            if has_beams:
                added = shared.windows.count_new_pages(life_cycle, self.state.num_blocks, num_blocks, window_begin)
                counts[pool_group] += added * len(self.beams)
                continue
            count = shared.windows.count_new_pages(life_cycle, 0, num_blocks, window_begin)
            if self.state.scratch.is_enabled and shared.windows.sizes[life_cycle] != UNBOUNDED:
                bound = self._bound_with_scratch(life_cycle, max_step)
                if bound < count:
                    count = bound
            counts[pool_group] += count
        if shared.has_state and not has_beams:
            counts[shared.storage.pool_group_of[shared.state_life_cycle]] += shared.recurrent.num_state_slots
        return counts

    def _bound_with_scratch(self, life_cycle: i64, max_step: i64) -> i64:
        """Sinks, a window before the step, one at its end, and the slots that the blocks between share."""
        shared = self.state.shared
        size = shared.tokens_per_block
        window = shared.windows.sizes[life_cycle]
        num_inputs = (max_step + size - 1) // size
        num_last = (window + shared.windows.max_rewind_len + size - 1) // size + 1
        if num_last > num_inputs:
            num_last = num_inputs
        num_scratch = self.state.scratch.count_slots(life_cycle, num_inputs - num_last)
        return shared.windows.num_sink_blocks[life_cycle] + (window + size - 1) // size + 1 + num_last + num_scratch


def count_holds(shared: SharedState, page: i64) -> i64:
    """Holds of the page, and sequences that use its twins."""
    rows = shared.storage.rows
    count: i64 = rows.num_holds(page)
    if shared.claims.twin_pages is not None:
        for twin in shared.claims.twin_pages.twins_of(page):
            count += shared.claims.twin_pages.count_users(twin)
    return count


def count_locks(shared: SharedState, page: i64) -> i64:
    """Locks of the page, and sequences that use its twins."""
    rows = shared.storage.rows
    count: i64 = rows.num_locks(page)
    if shared.claims.twin_pages is not None:
        for twin in shared.claims.twin_pages.twins_of(page):
            count += shared.claims.twin_pages.count_users(twin)
    return count


def _most(first: vec[i64], second: vec[i64]) -> vec[i64]:
    """The larger count, per pool group."""
    return vec[i64]([first[index] if first[index] > second[index] else second[index] for index in range(len(first))])
