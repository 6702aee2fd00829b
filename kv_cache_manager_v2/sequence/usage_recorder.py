"""The usage recorder enters a sequence's calls into the statistics: once they have succeeded, never while they are planned.

With ``enable_stats=False`` nothing is counted, and `Request.counters` is None; a test for that is all that the calls then
cost. A decode step that crosses no block boundary enters nothing.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..config.manager_config import KVCacheManagerConfig
from ..layout.registry import LifeCycleRegistry
from ..reuse.block_history import BlockHistory
from ..reuse.match import Match
from ..reuse.miss_explainer import MissExplainer
from ..reuse.radix_tree import RadixTree
from ..reuse.token_packing import TOKEN_BYTES
from ..stats.usage_counters import (
    ALLOCATED,
    GENERATED,
    MISSED,
    NUM_BLOCK_COUNTS,
    PLANNED_TOKENS,
    PROMPT_TOKENS,
    REQUESTS,
    REUSED_FULL,
    REUSED_PARTIAL,
    REUSED_PLANNED,
    SequenceCounters,
    UsageCounters,
)
from ..storage.page_storage import PageStorage
from .sequence_state import SequenceState

HISTORY_PER_SLOT: Final = 4
MAX_HISTORY_ENTRIES: Final = 1 << 19
"""8.1 MiB, all told."""


@final
class UsageRecorder:
    """The totals of one manager, and who explains its misses."""

    __slots__ = ("total", "explainer")

    def __init__(self, storage: PageStorage, explainer: MissExplainer) -> None:
        self.total: Final = UsageCounters(storage.rows.num_life_cycles, storage.counters)
        self.explainer: Final = explainer

    def open_account(self, state: SequenceState, prompt_length: i64, is_counted: bool) -> None:
        """Count what the sequence does from here on; in the total too if ``is_counted``."""
        storage = state.shared.storage
        total = self.total if is_counted else None
        state.request.counters = SequenceCounters(storage.rows.num_life_cycles, storage.counters, total, prompt_length)

    def record_match(self, state: SequenceState, packed: bytes, match: Match, num_untrimmed: i64) -> None:
        """Record what the match found, and why it found no more. The state holds the match already."""
        counters = state.request.counters
        if counters is None:
            return
        usage = counters.usage
        counts = usage.counts
        num_tokens: i64 = len(packed) // TOKEN_BYTES
        at = usage.calls_at
        counts[at + REQUESTS] += 1
        counts[at + PROMPT_TOKENS] += num_tokens
        if num_tokens > match.num_tokens:
            # The path of an open sequence begins at its scope's root.
            root = state.shared.tree.find_root(state.request.scope)
            assert root is not None, "an open sequence has no root"
            self.explainer.explain(root, packed, match, num_untrimmed, counts, usage.misses_at)
        if match.num_tokens == 0:
            return
        if usage.num_levels == 1:
            counts[usage.hits_at] += match.num_tokens
        else:
            count_hits_by_level(state, counts, usage.hits_at)
        counts[usage.calls_at + PLANNED_TOKENS] += state.request.planned_tokens
        _record_reused(state, usage)

    def record_rewind(self, state: SequenceState, old_num_blocks: i64) -> None:
        """The sequence, of so many blocks, went back to the match that it holds now: it is the request that it was.

        Its prompt stays what it found at first. Only what a disk could not read is missed instead, if the total does not have it yet.
        """
        counters = state.request.counters
        if counters is None:
            return
        usage = counters.usage
        if counters.take_lost_hits():
            for life_cycle in range(state.shared.num_life_cycles):
                for kind in (REUSED_FULL, REUSED_PARTIAL, REUSED_PLANNED):
                    usage.counts[life_cycle * NUM_BLOCK_COUNTS + kind] = 0
            _record_reused(state, usage)
        elif counters.num_counted_blocks < old_num_blocks:
            counters.num_counted_blocks = old_num_blocks
        record_use(state)


def _record_reused(state: SequenceState, usage: UsageCounters) -> None:
    """The pages that the sequence holds are those that it has found."""
    num_planned_blocks = state.request.planned_tokens // state.shared.tokens_per_block
    for life_cycle in range(state.shared.num_life_cycles):
        num_full = count_held_pages(state, life_cycle, 0, state.num_published)
        num_planned = count_held_pages(state, life_cycle, state.num_published, state.num_published + num_planned_blocks)
        num_partial = count_held_pages(state, life_cycle, state.num_published + num_planned_blocks, state.num_blocks)
        usage.add_blocks(life_cycle, REUSED_FULL, num_full)
        usage.add_blocks(life_cycle, REUSED_PARTIAL, num_partial)
        usage.add_blocks(life_cycle, REUSED_PLANNED, num_planned)
        usage.record_peak(life_cycle, num_full + num_partial + num_planned)


def make_usage_recorder(tree: RadixTree, life_cycles: LifeCycleRegistry, config: KVCacheManagerConfig) -> UsageRecorder:
    """Also makes the tree remember the outcome of its blocks: of ten times as many as there are slots."""
    storage = tree.storage
    num_slots = sum([int(allocator.num_slots) for allocator in storage.allocators])
    num_entries = min(num_slots * HISTORY_PER_SLOT, MAX_HISTORY_ENTRIES)
    history = BlockHistory(storage.rows, num_entries, config.block_times_sampling)
    tree.history = history
    has_state = life_cycles.state_life_cycle_id is not None
    # Where nothing but the tokens decides, a match takes all that a block begins with.
    checks_parts = has_state or not config.enable_partial_reuse or any([cycle.window_size is not None for cycle in life_cycles])
    explainer = MissExplainer(tree, history, config.tokens_per_block, has_state, checks_parts, config.enable_partial_reuse)
    return UsageRecorder(storage, explainer)


def count_hits_by_level(state: SequenceState, counts: vec[i64], hits_at: i64) -> None:
    """Add the matched tokens to ``counts[hits_at + level]``: a block's count for the coldest of the pages that it needs; for level 0
    if it needs none."""
    shared = state.shared
    rows = shared.storage.rows
    left = state.num_committed
    for ordinal in range(state.num_blocks):
        level: i64 = 0
        for life_cycle in range(shared.num_life_cycles):
            if state.holds_page(life_cycle, ordinal):
                page_level = rows.level(state.blocks[ordinal].first_page + life_cycle)
                if page_level > level:
                    level = page_level
        num_tokens = min(left, shared.tokens_per_block)
        counts[hits_at + level] += num_tokens
        left -= num_tokens


def count_held_pages(state: SequenceState, life_cycle: i64, begin: i64, end: i64) -> i64:
    """How many of the blocks ``[begin, end)`` the sequence holds a page of."""
    first = state.window_begins[life_cycle]
    count = state.request.windows.count_new_pages(life_cycle, begin, end, first)
    if state.scratch.num_blocks > 0:
        count -= max(min(state.scratch.ends[life_cycle], end) - max(state.scratch.begins[life_cycle], first, begin), 0)
    return count


def record_request(state: SequenceState, counters: SequenceCounters) -> None:
    """The sequence was given room for its first tokens: it is a request, and its path is what it asked for and found."""
    counters.enter_total()
    history = state.shared.tree.history
    if history is not None and counters.total is not None:
        history.record_lookup(state.path_end.first_page)
    record_use(state)


def record_use(state: SequenceState) -> None:
    """Its path is in use: of a fork once it is open, which has asked for nothing, and up to the end, before it is released."""
    history = state.shared.tree.history
    if history is not None and state.request.counters is not None and state.request.is_admitted:
        history.record_use(state.path_end.first_page)


def record_growth(state: SequenceState, counters: SequenceCounters, old_num_blocks: i64) -> None:
    """A resize has added blocks: their pages were missed if they begin in the prompt, else generated.

    Blocks that were there before, and were taken back, have been counted.
    """
    if counters.num_counted_blocks > old_num_blocks:
        old_num_blocks = counters.num_counted_blocks
    if state.num_blocks <= old_num_blocks:
        return
    counters.num_counted_blocks = state.num_blocks
    shared = state.shared
    prompt_blocks = (counters.prompt_length + shared.tokens_per_block - 1) // shared.tokens_per_block
    middle = prompt_blocks if prompt_blocks > old_num_blocks else old_num_blocks
    if middle > state.num_blocks:
        middle = state.num_blocks
    for life_cycle in range(shared.num_life_cycles):
        num_missed = count_held_pages(state, life_cycle, old_num_blocks, middle)
        num_generated = count_held_pages(state, life_cycle, middle, state.num_blocks)
        if num_missed + num_generated > 0:
            counters.add_blocks(life_cycle, ALLOCATED, num_missed + num_generated)
            counters.add_blocks(life_cycle, MISSED, num_missed)
            counters.add_blocks(life_cycle, GENERATED, num_generated)
            counters.record_peak(life_cycle, count_held_pages(state, life_cycle, 0, state.num_blocks))
