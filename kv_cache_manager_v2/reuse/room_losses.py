"""What prompts missed for want of room in each pool group, and how much more room would have kept it.

In a queue with room for ``n`` more pages, each page is dropped ``n`` drops later. So content that was dropped less than ``n`` drops ago
would still be there. Drops are counted in eighths of a pool group's slots, looked at once for each match. What was dropped within the
last 1, 2, 4, ... eighths, up to 16 times the slots, is in the first, second, third, ... *part*. A miss is the loss of the pool group
whose content it lacked, in the part of the oldest content that it lacked:

- blocks that are gone: of the pool group of the layers without a window, known by their entry in the history
- a snapshot of recurrent state on the path: of the states' pool group; known by its prefix (`SnapshotGhosts`). One that went with
  its block is the loss of the block's pool group
- blocks that are here, and at whose end a window is broken: of the pool group of the windowed pages, whose rows say when they went

What would have been there only with more room in two pool groups counts for none. Recycled rows may say when a page of their last block
went: all of this is an estimate, from which only shares of memory follow.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..events.removal_cause import CAPACITY, UNREACHABLE
from ..layout.life_cycle import LifeCycle
from ..layout.registry import LifeCycleRegistry
from ..stats.drop_reason import NUM_DROP_REASONS
from ..storage.page_rows import WordColumn
from ..storage.page_storage import PageStorage
from ..storage.room_watch import RoomWatch
from .block import Block
from .block_history import BlockHistory, key_of
from .prefix_hash import hash_block
from .radix_tree import RadixTree
from .snapshot_ghosts import NOT_GONE, SnapshotGhosts
from .token_packing import TOKEN_BYTES

NUM_PARTS: Final = 8
EIGHTH: Final = 8
_NUM_EIGHTHS: Final = 1 << (NUM_PARTS - 1)
"""How far back is known."""
NO_PART: Final = -1


@final
@mypyc_attr(native_class=True)
class RoomLosses(RoomWatch):
    """``tokens[pool_group * NUM_PARTS + part]``: missed; with ``1 << part`` more eighths of its slots they would have been hits.
    ``num_tokens``: of all prompts. Both since the start, halved by each `fade`."""

    __slots__ = (
        "tokens", "num_tokens", "full_group", "_storage", "_tree", "_history", "_cycles", "_tokens_per_block", "_state_life_cycle",
        "_windowed", "_gone_at", "_ghosts", "_times", "_counted", "_marks", "_begin", "_gone_part", "_last_here", "_here_end",
        "_best_states", "_best_blocks",
    )  # fmt: skip

    tokens: Final[vec[i64]]
    num_tokens: i64
    full_group: Final[i64]
    """The pool group of the layers without a window."""
    _storage: Final[PageStorage]
    _tree: Final[RadixTree]
    _history: Final[BlockHistory]
    _cycles: Final[list[LifeCycle]]
    _tokens_per_block: Final[i64]
    _state_life_cycle: Final[i64]
    """-1 where there is none."""
    _windowed: Final[vec[i64]]
    _gone_at: Final[WordColumn]
    """By page of a windowed layer: the time of its pool group at which it went, plus 1."""
    _ghosts: Final[SnapshotGhosts]
    _times: Final[vec[i64]]
    """By pool group: parts so far."""
    _counted: Final[vec[i64]]
    """By pool group: drops in all parts that are over."""
    _marks: Final[vec[i64]]
    """By the last NUM_PARTS parts of the full group: the time of the history at which each began."""
    _begin: i64
    """Where the present prompt's match ended."""
    _gone_part: i64
    """Of the oldest block of the present prompt that is gone; NO_PART before the first one, NUM_PARTS after one that no room would keep."""
    _last_here: Block | None
    _here_end: i64
    _best_states: Final[vec[i64]]
    """By part: the longest prefix for which snapshots of no later part would do."""
    _best_blocks: Final[vec[i64]]

    def __init__(self, tree: RadixTree, history: BlockHistory, life_cycles: LifeCycleRegistry, tokens_per_block: i64) -> None:
        storage = tree.storage
        self._storage = storage
        self._tree = tree
        self._history = history
        self._tokens_per_block = tokens_per_block
        self._cycles = list(life_cycles)
        num_pool_groups = int(storage.num_pool_groups)
        self.tokens = vec[i64]([0] * (num_pool_groups * NUM_PARTS))
        self.num_tokens = 0
        state = life_cycles.state_life_cycle_id
        self._state_life_cycle = -1 if state is None else state
        self.full_group = find_full_group(storage, life_cycles)
        self._windowed = vec[i64](
            [number for number, cycle in enumerate(life_cycles) if cycle.has_page_per_block and cycle.window_size is not None]
        )
        self._gone_at = storage.rows.add_words(0)
        num_states: i64 = 0
        if state is not None:
            num_states = self._count_slots(storage.pool_group_of[state])
        self._ghosts = SnapshotGhosts(num_states)
        self._times = vec[i64]([0] * num_pool_groups)
        self._counted = vec[i64]([0] * num_pool_groups)
        self._marks = vec[i64]([0] * _NUM_EIGHTHS)
        self._begin = 0
        self._gone_part = NO_PART
        self._last_here = None
        self._here_end = 0
        self._best_states = vec[i64]([0] * NUM_PARTS)
        self._best_blocks = vec[i64]([0] * NUM_PARTS)

    def fade(self) -> None:
        for at in range(len(self.tokens)):
            self.tokens[at] >>= 1
        self.num_tokens >>= 1

    def _count_slots(self, pool_group: i64) -> i64:
        storage = self._storage
        count: i64 = 0
        for index in range(pool_group, len(storage.allocators), storage.num_pool_groups):
            count += storage.allocators[index].num_slots
        return count

    # -- what goes ----------------------------------------------------------------------------------------------------

    def on_page_gone(self, page: i64, cause: i64) -> None:
        rows = self._storage.rows
        life_cycle = (page - rows.first_page_of_blocks) % rows.num_life_cycles
        pool_group = self._storage.pool_group_of[life_cycle]
        time = self._times[pool_group]
        if life_cycle != self._state_life_cycle:
            self._gone_at.words[page] = time + 1
            return
        block = self._tree.pool.block_of_page(page)
        parent = block.parent
        if parent is None:
            return
        history = self._history
        scope = history.scope_of_path(block.first_page)
        key = key_of(history.prefix_of(block.first_page), scope)
        num_bytes: i64 = 0 if self._tree.is_full(block) else len(self._tree.key_of(block))
        parent_key = key_of(history.prefix_of(parent.first_page), scope)
        self._ghosts.record(key, time, cause == UNREACHABLE, parent_key, num_bytes)

    def _look_at_drops(self) -> None:
        """Eighths are over when so many pages were dropped."""
        storage = self._storage
        dropped = storage.counters.dropped_pages
        for pool_group in range(storage.num_pool_groups):
            count: i64 = 0
            for index in range(pool_group, len(storage.allocators), storage.num_pool_groups):
                count += dropped[index * NUM_DROP_REASONS + CAPACITY] + dropped[index * NUM_DROP_REASONS + UNREACHABLE]
            eighth = self._count_slots(pool_group) // EIGHTH
            if eighth == 0:
                eighth = 1
            while count - self._counted[pool_group] >= eighth:
                self._counted[pool_group] += eighth
                self._times[pool_group] += 1
                if pool_group == self.full_group:
                    self._marks[self._times[pool_group] % _NUM_EIGHTHS] = self._history.time

    # -- what a prompt misses -----------------------------------------------------------------------------------------

    def begin(self, num_tokens: i64, begin: i64) -> None:
        """A prompt of so many tokens matches up to ``begin``."""
        self._look_at_drops()
        self.num_tokens += num_tokens
        self._begin = begin
        self._here_end = begin
        self._gone_part = NO_PART
        self._last_here = None
        for part in range(NUM_PARTS):
            self._best_states[part] = 0
            self._best_blocks[part] = 0

    def pass_inside(self, prefix: i64, scope: i64, key: bytes, begin: i64) -> None:
        """The prompt goes on at ``begin``, behind that prefix, with ``key``, in which a snapshot may have been left."""
        if self._state_life_cycle < 0:
            return
        num_bytes = self._ghosts.find_length(key_of(prefix, scope))
        if 0 < num_bytes <= len(key):
            self._note_snapshot(key_of(hash_block(prefix, key[:num_bytes]), scope), begin + num_bytes // TOKEN_BYTES)

    def pass_here(self, block: Block, prefix: i64, scope: i64, end: i64) -> None:
        """The next block is here, and does not match."""
        self._last_here = block
        if end > self._here_end:
            self._here_end = end
        if self._state_life_cycle >= 0:
            self._note_snapshot(key_of(prefix, scope), end)

    def pass_gone(self, prefix: i64, scope: i64, end: i64) -> None:
        """The next block is the one that the history was asked for last, and is gone."""
        if self._gone_part == NUM_PARTS:
            return
        part = self._part_of_time(self._history.found_time)
        if part > self._gone_part:
            self._gone_part = part
        if part == NUM_PARTS:
            return
        if self._state_life_cycle >= 0:
            self._note_snapshot(key_of(prefix, scope), end)
        else:
            self._best_blocks[self._gone_part] = end

    def _part_of_time(self, time: i64) -> i64:
        now = self._times[self.full_group]
        for part in range(NUM_PARTS):
            oldest = (i64(1) << part) - 1
            if oldest > now or time >= self._marks[(now - oldest) % _NUM_EIGHTHS]:
                return part
        return NUM_PARTS

    def _note_snapshot(self, key: i64, end: i64) -> None:
        if end <= self._begin:
            return
        ghost = self._ghosts.find(key)
        if ghost == NOT_GONE:
            return
        went_with_block = ghost & 1 != 0
        if self._gone_part == NO_PART:
            part = _part_of_eighths(self._times[self._storage.pool_group_of[self._state_life_cycle]] - (ghost >> 1))
            if not went_with_block and part < NUM_PARTS:
                self._best_states[part] = end
        elif self._gone_part < NUM_PARTS and went_with_block:
            self._best_blocks[self._gone_part] = end

    def end(self) -> None:
        """All of the prompt is passed."""
        storage = self._storage
        if self._state_life_cycle >= 0:
            self._add(self._best_states, storage.pool_group_of[self._state_life_cycle], self._begin)
            self._add(self._best_blocks, self.full_group, self._begin)
            return
        self._add(self._best_blocks, self.full_group, self._here_end)
        if self._last_here is not None and self._here_end > self._begin:
            self._add_window(self._last_here, self._here_end)

    def _add(self, best: vec[i64], pool_group: i64, begin: i64) -> None:
        at = pool_group * NUM_PARTS
        for part in range(NUM_PARTS):
            if best[part] > begin:
                self.tokens[at + part] += best[part] - begin
                begin = best[part]

    def _add_window(self, last: Block, num_tokens: i64) -> None:
        """The windows behind so many tokens, the last of them in ``last``, lack pages."""
        rows = self._storage.rows
        size = self._tokens_per_block
        worst: i64 = NO_PART
        lacking: i64 = -1
        for life_cycle in self._windowed:
            cycle = self._cycles[life_cycle]
            stale_end = cycle.compute_stale_end(num_tokens, size)
            pool_group = self._storage.pool_group_of[life_cycle]
            ordinal = (num_tokens - 1) // size
            block = last
            while ordinal >= stale_end and block.first_page >= 0:
                page = block.first_page + life_cycle
                if not rows.has_page(page):
                    gone_at = self._gone_at.words[page]
                    part = _part_of_eighths(self._times[pool_group] + 1 - gone_at)
                    if gone_at == 0 or part >= NUM_PARTS or (lacking >= 0 and lacking != pool_group):
                        return
                    lacking = pool_group
                    if part > worst:
                        worst = part
                ordinal -= 1
                parent = block.parent
                if parent is None:
                    return
                block = parent
        if lacking >= 0:
            self.tokens[lacking * NUM_PARTS + worst] += num_tokens - self._begin


def _part_of_eighths(eighths: i64) -> i64:
    """Of what went so many eighths before the present one; NUM_PARTS if that is longer ago than is known."""
    part: i64 = 0
    while eighths > 0 and part < NUM_PARTS:
        eighths >>= 1
        part += 1
    return part


def find_full_group(storage: PageStorage, life_cycles: LifeCycleRegistry) -> i64:
    """The only pool group with layers that have no window; -1 where there is none, or several."""
    found: i64 = -1
    for life_cycle, cycle in enumerate(life_cycles):
        if cycle.has_page_per_block and cycle.window_size is None:
            pool_group = storage.pool_group_of[life_cycle]
            if found >= 0 and found != pool_group:
                return -1
            found = pool_group
    return found
