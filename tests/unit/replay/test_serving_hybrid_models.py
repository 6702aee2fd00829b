"""A hybrid model is served like any other: chunks end where snapshots are due, and every byte of state is checked."""

import pytest
from unit.replay.serving import replay, request_of

from kv_cache_manager_v2.replay.generators import WORKLOAD_NAMES, make_workload
from kv_cache_manager_v2.replay.presets import LayerShape, ModelPreset, StateShape

HYBRID = ModelPreset("hybrid", "", (StateShape(16, 48), LayerShape(1, 4), StateShape(16, 48), LayerShape(1, 4, 10)))


@pytest.mark.parametrize("memory_bytes", [None, 1 << 14])
def test_prompts_that_branch_share_from_the_third_on(memory_bytes: int | None) -> None:
    """24 tokens in common, one request after the other: the third and the fourth find them, the second only sees the branch."""
    requests = [
        request_of(ticket, [(1, 24), (10 + ticket, 7)], after=ticket - 1 if ticket > 0 else None) for ticket in range(4)
    ]
    report = replay(requests, model=HYBRID, verify=True, memory_bytes=memory_bytes, device="host")
    assert report.mismatches == 0
    if memory_bytes is None:
        assert report.hit_tokens == 2 * 24


@pytest.mark.parametrize("name", WORKLOAD_NAMES)
def test_made_workloads_keep_every_state_right(name: str) -> None:
    report = replay(make_workload(name, 3, 12), model=HYBRID, tokens_per_block=32, verify=True, memory_bytes=1 << 22, device="host")
    assert report.mismatches == 0
    assert report.requests_refused == 0
