"""Entries of texts that are gone: the newest one counts, the oldest one is forgotten, and another scope's is told apart."""

from kv_cache_manager_v2.reuse.removal_history import FIRST_DROPPED, IN_OTHER_SCOPE, IS_HERE, NOT_KNOWN, RemovalHistory

WAYS = 8
SCOPE = 3
OTHER_SCOPE = 4


def test_a_bucket_forgets_the_entry_that_was_written_first() -> None:
    table = RemovalHistory(WAYS)  # one bucket
    for text in range(WAYS + 3):
        table.record(text, SCOPE, FIRST_DROPPED + text % 2)
    assert [table.find(text, SCOPE) for text in range(3)] == [NOT_KNOWN] * 3
    assert [table.find(text, SCOPE) for text in range(3, WAYS + 3)] == [FIRST_DROPPED + text % 2 for text in range(3, WAYS + 3)]


def test_of_a_text_that_went_several_times_the_last_time_counts() -> None:
    table = RemovalHistory(WAYS)
    for cause in (1, 2, 5):
        table.record(7, SCOPE, FIRST_DROPPED + cause)
    assert table.find(7, SCOPE) == FIRST_DROPPED + 5
    # Also once the ring has begun again: 5 entries more, then one at the place of the first.
    for text in range(100, 105):
        table.record(text, SCOPE, FIRST_DROPPED)
    table.record(7, SCOPE, FIRST_DROPPED + 3)
    assert table.find(7, SCOPE) == FIRST_DROPPED + 3


def test_a_scope_of_its_own_goes_before_another_one() -> None:
    table = RemovalHistory(WAYS)
    table.keep_one_each()
    table.record(7, OTHER_SCOPE, IS_HERE)
    assert table.find(7, SCOPE) == IN_OTHER_SCOPE
    table.record(7, SCOPE, FIRST_DROPPED)
    assert table.find(7, SCOPE) == FIRST_DROPPED
    assert table.find(7, OTHER_SCOPE) == IS_HERE
    table.record(7, OTHER_SCOPE, FIRST_DROPPED + 1)
    assert table.find(7, OTHER_SCOPE) == FIRST_DROPPED + 1


def test_texts_that_are_here_outlive_those_that_are_gone() -> None:
    table = RemovalHistory(WAYS)
    table.keep_one_each()
    for text in range(WAYS):
        table.record(text, SCOPE, IS_HERE if text < 3 else FIRST_DROPPED)
    for text in range(100, 103):
        table.record(text, SCOPE, FIRST_DROPPED)
    assert [table.find(text, SCOPE) for text in range(3)] == [IS_HERE] * 3
    # 3, 4 and 5 were the oldest of those that are gone.
    assert [table.find(text, SCOPE) for text in range(3, WAYS)] == [NOT_KNOWN] * 3 + [FIRST_DROPPED] * 2


def test_more_than_wait_in_line_are_known_all_the_same() -> None:
    table = RemovalHistory(10_000)
    texts = [text * 0x9E3779B97F4A7C15 % (1 << 62) for text in range(5_000)]
    for text in texts:
        table.record(text, SCOPE, FIRST_DROPPED + text % 3)
    # 2,048 buckets of 8 for 5,000 texts: 2.4 in each on average, and these are spread evenly, so that none has forgotten one.
    assert [table.find(text, SCOPE) for text in texts] == [FIRST_DROPPED + text % 3 for text in texts]
