"""Where a sequence leaves snapshots, and how long its blocks keep their priority: pure arithmetic, against the rules in words."""

import random

import pytest

from kv_cache_manager_v2 import RetentionConfig, TokenRangeRetention
from kv_cache_manager_v2.sequence.retention_plan import FOR_EVER, RetentionPlan
from kv_cache_manager_v2.sequence.snapshot_plan import SnapshotPlan


def test_next_snapshot_is_the_nearest_of_list_and_grid() -> None:
    plan = SnapshotPlan({10, 25}, 8, 30, 0, 0)
    assert [plan.find_next(at) for at in (0, 7, 8, 10, 16, 24, 25, 40)] == [8, 8, 10, 16, 24, 25, 32, 48]
    assert SnapshotPlan({10}, 0, 30, 0, 0).find_next(10) is None


def test_snapshot_is_due_where_the_state_is_certain() -> None:
    """The state is that of a length if no more than the checkpoints' tokens of room lie beyond it."""
    plan = SnapshotPlan({10, 20}, 0, 0, 2, 0)
    plan.record_room(0, 0, 12, 0)
    assert plan.is_due(10), "12 - 10 tokens beyond, two checkpoints"
    assert not plan.is_due(0) and not plan.is_due(11)
    plan.record_room(10, 12, 23, 10)
    assert not plan.is_due(20), "three tokens beyond, two checkpoints, and 20 is no prompt's"


def test_within_the_prompt_a_commit_is_believed_until_the_engine_computes_ahead() -> None:
    plan = SnapshotPlan({10, 20}, 0, 30, 0, 0)
    plan.record_room(0, 0, 30, 0)
    assert plan.is_due(10), "room for the whole prompt at once says nothing"
    plan.record_room(4, 30, 34, 4)
    assert not plan.is_due(10) and not plan.is_due(20), "more room while tokens of the present one were not committed"
    copied = plan.copy()
    assert (copied.peak_capacity, copied.is_due(20), copied.find_next(0)) == (34, False, 10)


def test_state_at_the_end() -> None:
    plan = SnapshotPlan(set(), 0, 0, 1, 5)
    plan.record_room(5, 0, 9, 5)
    assert [plan.is_certain_at_end(count) for count in (5, 7, 8, 9)] == [False, False, True, True]


@pytest.mark.parametrize("seed", range(20))
def test_retention_is_the_highest_range_that_names_a_token(seed: int) -> None:
    """By brute force over tokens: of the ranges that name one of a block's, the highest priority; the first of equal ones."""
    random_source = random.Random(seed)
    size, length = random_source.choice((1, 4, 16)), 64
    ranges = []
    for _ in range(random_source.randint(1, 5)):
        begin = random_source.randrange(length)
        end = random_source.choice((None, random_source.randint(begin + 1, length + 10)))
        duration = random_source.choice((None, 0.5, 3.0))
        ranges.append(TokenRangeRetention(begin, end, random_source.randrange(101), duration))
    config = RetentionConfig(ranges, generated_priority=70, generated_duration_seconds=2.0)
    plan = RetentionPlan(config, length, size, None)
    for ordinal in range(2 * length // size):
        tokens = range(ordinal * size, (ordinal + 1) * size)
        best: tuple[int, float | None] | None = None
        for item in ranges:
            named = range(item.begin, length if item.end is None else item.end)
            if any(token in named for token in tokens) and (best is None or item.priority > best[0]):
                best = (item.priority, item.duration_seconds)
        if tokens[0] >= length and (best is None or best[0] < 70):
            best = (70, 2.0)
        priority, seconds = best if best is not None else (35, None)
        assert plan.find(ordinal) == (priority, FOR_EVER if seconds is None else int(seconds * 1_000_000))
