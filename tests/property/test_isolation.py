"""No history makes tokens of one scope match under another, and within a scope a match is the longest common prefix."""

from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import config_of, manager_of, run_prompt

import kv_cache_manager_v2
from kv_cache_manager_v2 import HostDevice, KVCacheEventManager, KVCacheManager, ReuseScope
from kv_cache_manager_v2.events.block_node import BlockNode

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
def test_scopes_are_strangers(history: list[tuple[ReuseScope, list[int]]], probes: list[tuple[ReuseScope, list[int]]]) -> None:
    with manager_of(num_slots=64) as manager:
        for scope, text in history:
            run_prompt(manager, text, reuse_scope=scope).close()
        for scope, text in probes:
            expected = max([common_prefix(text, other) for owner, other in history if owner == scope], default=0)
            assert manager.probe_reuse(scope, text) == expected
        manager.check_invariants()


@settings(max_examples=60, deadline=None)
@given(HISTORIES, st.lists(st.tuples(st.sampled_from(SCOPES), TEXTS), min_size=1, max_size=6))
def test_forged_hashes_are_no_way_in(history: list[tuple[ReuseScope, list[int]]], probes: list[tuple[ReuseScope, list[int]]]) -> None:
    """An attacker who found texts with equal hashes: every block is called by one and the same name, and nothing else changes."""
    events = KVCacheEventManager(1000, hash_algo="sha256_64")
    with KVCacheManager(config_of(num_slots=64), device=HostDevice(), event_manager=events) as manager:
        for scope, text in history:
            run_prompt(manager, text, reuse_scope=scope).close()
            events.flush_iteration_events()
            events.get_latest_events()
            backlog: Any = events._backlog
            for node in backlog._assembler._nodes:
                if isinstance(node, BlockNode):
                    node._digest = bytes(32)
        for scope, text in probes:
            expected = max([common_prefix(text, other) for owner, other in history if owner == scope], default=0)
            assert manager.probe_reuse(scope, text) == expected
        names = {block.block_hash for event in events.snapshot().events for block in getattr(event.data, "blocks", [])}
        assert names <= {0}
        manager.check_invariants()


def test_nothing_that_decides_knows_the_hashes() -> None:
    package = Path(kv_cache_manager_v2.__file__).parent
    deciding = [path for folder in ("storage", "sequence", "reuse") for path in (package / folder).glob("*.py")]
    knowing = [path.name for path in deciding if "block_digest" in path.read_text() or "block_node" in path.read_text()]
    assert len(deciding) > 30 and knowing == ["block_hashes.py"]
