"""Only the first beam leaves its recurrent state behind: what another one has computed belongs to no committed text."""

import pytest
from hybrid_models import hybrid_config
from small_models import run_prompt

from kv_cache_manager_v2 import HostDevice, KVCacheManager, SnapshotPolicy


@pytest.mark.parametrize("width", [2, 3])
def test_beams_that_end_leave_no_snapshot(width: int) -> None:
    """Eight tokens of the prompt and four of all beams, so the state of each is that of twelve tokens."""
    policy = SnapshotPolicy(at_prompt_end=False, at_branches=False, at_commits=False, at_close=True)
    with KVCacheManager(hybrid_config(snapshot_policy=policy), device=HostDevice()) as manager:
        kv_cache = run_prompt(manager, list(range(8)))
        kv_cache.beam_width = width
        assert kv_cache.resize(12, 8)
        kv_cache.commit([50, 51, 52, 53])
        state = kv_cache._state_for_batch()
        end = state.path_end
        page = end.first_page + manager._shared.state_life_cycle
        rows = manager._shared.storage.rows
        kv_cache.beam_width = 1
        assert not rows.has_page(page)
        kv_cache.close()
        assert rows.has_page(page)
        manager.check_invariants()
