"""No history makes tokens of one scope match under another, and within a scope a match is the longest common prefix."""

from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import manager_of, run_prompt

from kv_cache_manager_v2 import ReuseScope

SCOPES = [ReuseScope(), ReuseScope(0), ReuseScope(salt=0), ReuseScope(salt="0"), ReuseScope(7, 11), ReuseScope(7, 12)]
TEXTS = st.lists(st.integers(0, 2), max_size=14)
HISTORIES = st.lists(st.tuples(st.sampled_from(SCOPES), TEXTS), max_size=8)


def common_prefix(a: list[int], b: list[int]) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length


@settings(max_examples=150, deadline=None)
@given(HISTORIES, st.lists(st.tuples(st.sampled_from(SCOPES), TEXTS), min_size=1, max_size=6))
def test_scopes_are_strangers(
    history: list[tuple[ReuseScope, list[int]]], probes: list[tuple[ReuseScope, list[int]]]
) -> None:
    with manager_of(num_slots=64) as manager:
        for scope, text in history:
            run_prompt(manager, text, reuse_scope=scope).close()
        for scope, text in probes:
            expected = max([common_prefix(text, other) for owner, other in history if owner == scope], default=0)
            assert manager.probe_reuse(scope, text) == expected
        manager.check_invariants()
