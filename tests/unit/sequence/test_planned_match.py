"""A match that goes on in planned blocks, cut somewhere: its published blocks stay in front, whatever is cut off."""

import pytest
from small_models import manager_of

from kv_cache_manager_v2.sequence.planned_blocks import PlannedBlock
from kv_cache_manager_v2.sequence.planned_match import cut_path


@pytest.mark.parametrize("num_planned", range(4))
@pytest.mark.parametrize("num_published", range(4))
def test_cut_anywhere(num_published: int, num_planned: int) -> None:
    with manager_of() as manager, manager.create_kv_cache() as kv_cache:
        state = kv_cache._state_for_batch()
        pool = manager._shared.tree.pool
        blocks = [pool.take() for _ in range(num_published + num_planned)]
        planned = [PlannedBlock(block, state, ordinal, b"", None, None) for ordinal, block in enumerate(blocks) if ordinal >= num_published]
        for length in range(len(blocks) + 2):
            kept, kept_planned = list(blocks), list(planned)
            cut_path(kept, kept_planned, length)
            assert kept == blocks[:length]
            assert kept_planned == planned[: max(length - num_published, 0)]
        for block in blocks:
            pool.release(block)
