"""Beams that are reordered take the published pages in place of their twins: all of them may go on from one."""

import pytest
from small_models import manager_of

TEXT = list(range(100, 108))


@pytest.mark.parametrize("parents", [[0, 0], [1, 0], [1, 1]])
@pytest.mark.parametrize("windows", [[None], [None, 6]])
def test_a_fork_of_twins_is_reordered(windows: list[int | None], parents: list[int]) -> None:
    """Three sequences have pages for two blocks, two of them the same ones, as one is a fork. The third commits first, then the parent:
    parent and fork keep their own pages, until the fork has beams that are reordered."""
    with manager_of(windows, allow_seq_rebasing=False) as manager:
        first, parent = manager.create_kv_cache(), manager.create_kv_cache()
        for kv_cache in (first, parent):
            assert kv_cache.resume() and kv_cache.resize(len(TEXT))
        fork = parent.fork()
        own = [fork.get_base_page_indices(group).tolist() for group in range(len(windows))]
        first.commit(TEXT)
        parent.commit(TEXT)
        assert [fork.get_base_page_indices(group).tolist() for group in range(len(windows))] == own
        state = fork._state_for_batch()
        assert state.sharing.twins, "the fork has twins"
        fork.beam_width = 2
        fork.reorder_beams(parents)
        manager.check_invariants()
        rows = manager._shared.storage.rows
        for beam in [state, *state.sharing.beams]:
            for group in range(len(windows)):
                slots = [int(rows.slot(block.first_page + group)) for block in beam.blocks]
                assert list(beam.tables[group].entries)[: len(slots)] == slots
                pages = [int(block.first_page) + group for block in beam.blocks]
                assert [int(beam.page_of(group, ordinal)) for ordinal in range(2)] == pages
        published = [block.first_page for block in first._state_for_batch().blocks]
        assert [block.first_page for block in state.blocks] == published
