"""A page that a disk has lost is noticed whichever beam has it, and recurrent states and matched snapshots are pages too."""

import pytest
from hybrid_models import hybrid_config
from small_models import config_of, run_prompt

from kv_cache_manager_v2 import HostDevice, KVCacheManager, KVCacheManagerConfig, StorageIOError
from kv_cache_manager_v2.sequence.disk_arrivals import has_lost_page, settle_before_resume
from kv_cache_manager_v2.sequence.sequence_state import SequenceState


def list_pages(state: SequenceState) -> set[int]:
    """Of all beams, each life cycle and block."""
    pages: set[int] = set()
    for beam in [state, *state.sharing.beams]:
        for number, life_cycle in enumerate(state.shared.life_cycles):
            if life_cycle.has_page_per_block:
                held = [block for ordinal, block in enumerate(beam.blocks) if beam.holds_page(number, ordinal)]
            else:
                snapshot = beam.recurrent.matched_snapshot
                held = list(beam.recurrent.state_blocks) + ([snapshot] if snapshot is not None else [])
            pages.update([int(block.first_page) + number for block in held])
    return pages


def compare(state: SequenceState) -> None:
    lost = state.shared.storage.reads.lost
    pages = list_pages(state)
    assert len(pages) > 2 and not has_lost_page(state)
    settle_before_resume(state, False, None)
    for page in range(max(pages) + 20):
        lost[page] = "a disk"
        assert has_lost_page(state) is (page in pages)
        if page in pages:
            with pytest.raises(StorageIOError, match="1 of its pages are lost, as they could not be read from a disk"):
                settle_before_resume(state, False, None)
        del lost[page]


@pytest.mark.parametrize("config", [config_of(), config_of([6, None]), hybrid_config(), hybrid_config([None, 6])])
def test_pages_of_all_beams_and_states(config: KVCacheManagerConfig) -> None:
    with KVCacheManager(config, device=HostDevice()) as manager:
        kv_cache = run_prompt(manager, list(range(14)))
        compare(kv_cache._state_for_batch())
        kv_cache.beam_width = 2
        assert kv_cache.resize(18, 14)
        compare(kv_cache._state_for_batch())
        kv_cache.suspend()
        compare(kv_cache._state_for_batch())
        kv_cache.close()
        kv_cache = manager.create_kv_cache(input_tokens=list(range(20)))
        assert kv_cache.num_committed_tokens > 0
        compare(kv_cache._state_for_batch())
        kv_cache.close()
