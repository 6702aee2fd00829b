"""What storage did is counted by level, pool group and reason, and once more for the sequence whose call it was."""

from librt.vecs import vec
from mypy_extensions import i64

from kv_cache_manager_v2.events.removal_cause import CAPACITY, CLEARED
from kv_cache_manager_v2.stats.drop_reason import NUM_DROP_REASONS, DropReason
from kv_cache_manager_v2.stats.page_counters import PageCounters


def make_counters() -> PageCounters:
    return PageCounters(2, vec[i64]([100, 30, 50, 20]))


def test_each_pair_of_levels_and_each_reason_has_its_own_count() -> None:
    counters = make_counters()
    counters.record_copied(0, 1, 1, 3)
    counters.record_copied(1, 0, 0, 2)
    counters.record_dropped(1, 0, CLEARED, 1, None)
    # [source][target][pool group] of 2 levels and 2 groups: (0 * 2 + 1) * 2 + 1 = 3 and (1 * 2 + 0) * 2 + 0 = 4.
    assert list(counters.copied_pages) == [0, 0, 0, 3, 2, 0, 0, 0]
    # [level][pool group][reason]
    expected = [0] * (2 * 2 * NUM_DROP_REASONS)
    expected[2 * NUM_DROP_REASONS + CLEARED] = 1
    assert list(counters.dropped_pages) == expected


def test_the_account_of_a_call_counts_the_same_once_more() -> None:
    counters = make_counters()
    account = make_counters()
    counters.record_dropped(0, 0, CAPACITY, 1, None)
    counters.record_dropped(0, 1, CAPACITY, 1, account)
    counters.record_copied(0, 0, 0, 1, account)
    counters.record_copied(0, 0, 0, 1)
    assert (sum(list(counters.copied_pages)), sum(list(account.copied_pages))) == (2, 1)
    assert (sum(list(counters.dropped_pages)), sum(list(account.dropped_pages))) == (2, 1)


def test_the_numbers_of_the_reasons_are_dense() -> None:
    assert sorted(reason.value for reason in DropReason) == list(range(NUM_DROP_REASONS))
