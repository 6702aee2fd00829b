"""Every threshold of the library that depends on how much there is, and where it is crossed: by a large world, or by a test of its own.

`CROSSED` are those that the large worlds among CI's seeds cross; `probe` says how far each got. `ELSEWHERE` are those that 200 actions
cannot reach, or that are no matter of slots, blocks or pages, each with what holds it. `test_size_thresholds.py` looks for constants
that are in neither.
"""

from collections.abc import Callable
from typing import Any

from kv_cache_manager_v2.storage.eviction.learned import LearnedQueue
from kv_cache_manager_v2.testing.simulation.simulated_run import SimulatedRun


def queues_of(run: Any, kind: type) -> list[Any]:
    return [queue for queue in run.manager._shared.storage.queues if isinstance(queue, kind)]


def most(values: list[int]) -> int:
    return max(values, default=0)


def most_children(run: Any) -> int:
    tree = run.manager._shared.tree
    roots = [tree.find_root(scope) for scope in tree.scopes()]
    return most([root.children.count for root in roots if root is not None and root.children is not None])


CROSSED: dict[str, tuple[Callable[[Any], int], int]] = {
    "reuse/block_pool.py _FEW_BLOCKS": (lambda run: run.manager._shared.tree.pool._num_made, 16),
    "reuse/block_pool.py _PART_BITS": (lambda run: run.manager._shared.tree.pool._num_made, 512),
    "reuse/block_pool.py _IN_PART": (lambda run: run.manager._shared.tree.pool._num_made, 512),
    "storage/eviction/request_runs.py _MOST_UNKNOWN": (
        lambda run: most([queue.num_pages for queue in queues_of(run, LearnedQueue)]), 8,
    ),
    "reuse/window_runs.py _MAX_BRANCHES": (most_children, 8),
    "reuse/match.py NEIGHBOURS_TRIED": (most_children, 8),
    "reuse/block_history.py _PART_WORDS": (
            lambda run: 0 if run.manager._shared.tree.history is None else run.manager._shared.tree.history.num_blocks, 1024,
        ),
    "reuse/block_tokens.py MAX_SHARED_BYTES": (
        lambda run: most([4 * handle.num_committed_tokens for handle in run.manager.open_kv_caches]), 999,
    ),
    "sequence/page_table.py _LEAST_SPARE": (lambda run: most([handle.num_blocks for handle in run.manager.open_kv_caches]), 64),
    "sequence/window_move.py LEAST_SLACK_TOKENS": (
        lambda run: most([handle.num_committed_tokens for handle in run.manager.open_kv_caches]), 512,
    ),
}  # fmt: skip
"""By file and name: how far a run is now, and what it has to exceed."""

ELSEWHERE: dict[str, str] = {
    "reuse/block_history.py _MOST_TOLD": "blocks before a second scope: tests/promises/test_no_call_grows_with_the_cache.py",
    "reuse/block.py MOST_TOGETHER": "children of one block: tests/unit/reuse/test_children.py",
    "reuse/block.py _NUM_PARTS": "the same",
    "reuse/durable_nodes.py NOT_KEPT": "no limit",
    "reuse/dropped_ends.py _MOST_NOTES": "notes of one manager: tests/unit/reuse/test_dropped_ends.py",
    "sequence/index_changes.py _LEAST_RUNS": "runs of entries that were set: tests/unit/sequence/test_index_changes.py",
    "pools/slot_allocator.py MOST_RESERVED": "more slots than a test has memory for; beyond it arrays grow by appending",
    "storage/page_rows.py MOST_RESERVED": "more rows than a test has memory for; beyond it arrays grow by appending",
    "storage/page_rows.py MOST_HOLDS": "users of one page: tests/promises/test_many_users_share_a_page.py",
    "storage/page_rows.py ROW_WORDS": "no limit",
    "storage/victim_queue.py NUM_PRIORITIES": "no limit",
    "storage/decision_digest.py NUM_SLOTS": "no limit",
    "storage/transfer_times.py MAX_PENDING": "timers under way: tests/unit/storage/test_transfer_times_against_lists.py",
    "storage/slot_reclaimer.py _MOST_LISTED": "victims of equal value: tests/unit/replay/test_level_cache.py",
    "storage/drop_order.py MOST_STEPS": "a bound of work: a path that changes its level more often than one of a test does",
    "storage/early_copies.py MOST_PUT_OFF": "pages that wait to be written: tests/promises/test_caches_outlive_their_process.py",
    "storage/move_batch.py _PAGES_PER_WEIGHTS": "pages written to a disk: tests/promises/test_caches_outlive_their_process.py",
    "sequence/shared_state.py MOST_BLOCKS": "a bound of wrong numbers: tests/promises/test_misuse_is_a_clear_error.py",
    "reuse/overlap_depths.py NUM_DEPTHS": "depths of one scope: tests/unit/reuse/test_depths_against_lists.py",
    "reuse/overlap_depths.py MAX_CHOSEN": "snapshots of one prompt: tests/unit/reuse/test_depths_against_lists.py",
    "sequence/learned_placement.py LEAST_REQUESTS": "prompts of one scope: tests/promises/test_snapshots_are_placed_where_they_pay.py",
    "sequence/learned_placement.py NUM_SCOPES": "scopes: tests/promises/test_snapshots_are_placed_where_they_pay.py",
    "sequence/learned_placement.py NUM_MARKS": "places of one manager: tests/promises/test_snapshots_are_placed_where_they_pay.py",
    "sequence/learned_placement.py _SHARE_OF_POOL": "a factor",
    "storage/eviction/hazard_model.py _KEPT": "a factor",
    "storage/eviction/hazard_model.py _LEAST_CERTAINTY": "a factor",
    "storage/eviction/hazard_model.py _LEAST_LEARNED": "examples: tests/unit/storage/test_hazard_against_formulas.py",
    "storage/eviction/hazard_model.py _MOST_RETURNS": "a factor",
    "sequence/retention_records.py _SPARE_ENTRIES": "calls of retain: tests/unit/sequence/test_retention_records.py",
    "storage/eviction/hazard_model.py _NUM_ALWAYS": "no limit",
    "storage/eviction/segment_traits.py NUM_HINTS": "no limit",
    "storage/eviction/segment_traits.py _NUM_KINDS": "kinds: tests/unit/storage/test_hazard_model.py",
    "storage/eviction/hazard_model.py _STEPS_PER_OCTAVE": "a factor",
    "storage/eviction/hazard_model.py _NUM_WAITING": "no limit",
    "storage/eviction/hazard_model.py NUM_BUCKETS": "no limit",
    "storage/eviction/hazard_model.py _SHARED_RATE": "a factor",
    "storage/eviction/hazard_model.py _SHARED": "no limit",
    "storage/eviction/hazard_model.py _NUM_LEVELS": "no limit",
    "storage/eviction/hazard_model.py _NUM_WEIGHTS": "no limit",
    "storage/eviction/page_notes.py BRANCH_BIT": "no limit",
    "storage/eviction/page_notes.py MOST_SEGMENTS": "more segments than a test has memory for",
    "storage/eviction/segment_records.py GHOSTS_PER_SLOT": "ghosts of one cache: tests/unit/storage/test_segments.py",
    "storage/eviction/segment_records.py SPARE_SEGMENTS": "segments of one cache: tests/unit/storage/test_segments.py",
    "storage/eviction/segment_records.py MOST_CROSSED": "edges crossed at once: tests/unit/storage/test_policies_against_naive.py",
    "storage/eviction/segment_records.py _NUM_REFRESHED": "no limit",
    "storage/eviction/segment_records.py _MOST_TWINS": "levels and priorities of one segment: tests/unit/storage/test_segments.py",
    "storage/eviction/recency_shadow.py NUM_PARTS": "parts of the clock: tests/unit/storage/test_shadow_against_dicts.py",
    "storage/eviction/recency_shadow.py _MOST_CREDIT": "a bound: tests/unit/storage/test_shadow_against_dicts.py",
    "storage/eviction/recency_shadow.py _MOST_DEBT": "a bound: tests/unit/storage/test_shadow_against_dicts.py",
    "storage/eviction/recency_shadow.py _MOST_RISK": "a bound: tests/unit/storage/test_shadow_against_dicts.py",
    "storage/eviction/segment_records.py _PARTS_PER_CACHE": "no limit",
    "storage/eviction/segment_table.py _MOST_COMPARED": "segments beyond recency: tests/unit/storage/test_policies_against_naive.py",
    "storage/eviction/segment_table.py _MOST_LOOKS": "segments without pages in a row: tests/unit/storage/test_policies_against_naive.py",
    "storage/eviction/segment_table.py _MOST_PASSED": "segments without pages in a row: tests/unit/storage/test_policies_against_naive.py",
    "storage/eviction/segment_table.py MOST_PARTS": "segments of one run: more than a test has",
    "storage/eviction/segment_table.py SEGMENT_WORDS": "no limit",
    "storage/eviction/segment_traits.py BRANCHED_PATH": "no limit",
    "storage/eviction/segment_traits.py NUM_FEATURES": "no limit",
    "storage/eviction/segment_traits.py _MOST_LEVEL": "a level: tests/unit/storage/test_hazard_model.py",
    "storage/eviction/segment_traits.py MOST_USES": "uses of one page: tests/unit/storage/test_hazard_model.py",
    "storage/eviction/hazard_model.py _MOST_LOGIT": "an argument: tests/unit/storage/test_hazard_model.py",
    "storage/eviction/hazard_model.py _STEPS_PER_UNIT": "no limit",
    "storage/eviction/learned.py NUM_SENTINELS": "no limit",
    "storage/page_packer.py _NUM_STAGING_SLOTS": "pages of one move: tests/promises/test_cold_pages_may_be_packed.py",
    "reuse/victim_path.py _MOST_PAGES": "one eviction of so many pages: tests/unit/reuse/test_victims_in_one_go.py",
    "reuse/victim_path.py _MOST_LISTED": "pages in line behind each other: tests/unit/reuse/test_victim_path.py",
    "reuse/window_runs.py _MOST_LISTED": "pages in line behind each other: tests/unit/reuse/test_victim_path.py",
    "reuse/sorted_keys.py RUN_KEYS": "children of one block: tests/unit/reuse/test_sorted_keys.py",
    "reuse/prefix_hash.py RUN_WORDS": "no limit",
    "reuse/removal_history.py _WAYS": "entries of a bucket: tests/unit/reuse/test_removals_against_lists.py",
    "reuse/removal_history.py _ENTRY_WORDS": "no limit",
    "reuse/removal_history.py _ENTRIES_A_BUCKET": "how far it has grown: tests/unit/reuse/test_removals_against_lists.py",
    "reuse/removal_history.py _BUCKET_WORDS": "no limit",
    "reuse/removal_history.py _LINE_WORDS": "texts that wait: tests/unit/reuse/test_removals_against_lists.py",
    "reuse/token_packing.py MAX_TOKEN_ID": "no size",
    "reuse/token_packing.py _NUMPY_FROM": "tokens of one call: tests/promises/test_tokens_in_any_form.py",
    "sequence/stream_handle.py _MAX_HANDLE": "an argument",
    "sequence/usage_recorder.py HISTORY_PER_SLOT": "a factor",
    "sequence/usage_recorder.py MAX_HISTORY_ENTRIES": "a bound of memory: more slots than a test has",
    "stats/miss_cause.py NUM_MISS_CAUSES": "no limit",
    "stats/usage_counters.py NUM_BLOCK_COUNTS": "no limit",
    "stats/usage_counters.py NUM_CALL_COUNTS": "no limit",
}


def cross(run: SimulatedRun, reached: dict[str, int]) -> None:
    """Note how far the run is with each threshold."""
    state: Any = run
    for name, (probe, _limit) in CROSSED.items():
        reached[name] = max(reached.get(name, 0), int(probe(state)))
