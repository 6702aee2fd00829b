"""Ids of digests depend on what is in use, not on what was asked for meanwhile."""

from array import array

from hypothesis import given
from hypothesis import strategies as st
from kv_cache_manager_v2.reuse.digest_table import DigestTable

_steps = st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=40)


@given(_steps, st.permutations(range(3)), st.permutations(range(3)))
def test_what_was_counted_and_taken_back_leaves_no_trace(steps: list[tuple[bool, int]], first: list[int], last: list[int]) -> None:
    plain, disturbed = DigestTable(), DigestTable()
    held: list[int] = []
    for takes, number in steps:
        # A refused call counts digests that nobody has, and takes them back in another order.
        counted = {new: disturbed.acquire(b"refused %d" % new) for new in first}
        disturbed.release(array("i", [counted[new] for new in last]).tobytes())
        if takes:
            token = plain.acquire(b"%d" % number)
            assert disturbed.acquire(b"%d" % number) == token
            held.append(token)
        elif held:
            token = held.pop(number % len(held))
            packed = array("i", [token]).tobytes()
            plain.release(packed)
            disturbed.release(packed)
    assert plain.total_count() == disturbed.total_count() == len(held)
