"""Everything is released: by close, for a forgotten handle, by shutdown; and the clean-up hides no error."""

import gc
import warnings

import pytest
from small_models import config_of, free_slots, manager_of, new_manager, run_prompt

from kv_cache_manager_v2 import KVCacheManager, LogicError
from kv_cache_manager_v2.device.host_device import HostDevice


def test_after_close_and_clear_every_slot_is_free() -> None:
    with manager_of([None, 8], num_slots=64) as manager:
        for start in range(5):
            run_prompt(manager, list(range(start * 50, start * 50 + 30))).close()
        manager.clear_reusable_blocks()
        assert free_slots(manager) == 64
        manager.check_invariants()


def test_forgotten_sequence_warns_and_is_closed_by_the_next_call() -> None:
    with manager_of() as manager:
        kv_cache = run_prompt(manager, [1, 2, 3, 4, 5])
        assert manager.open_kv_caches == [kv_cache]
        with pytest.warns(ResourceWarning):
            del kv_cache
            gc.collect()
        assert manager.open_kv_caches == []
        assert manager.probe_reuse(None, [1, 2, 3, 4, 5]) == 5
        manager.check_invariants()
        manager.clear_reusable_blocks()
        assert free_slots(manager) == 64


def test_shutdown_names_the_number_of_open_sequences() -> None:
    manager = new_manager()
    sequences = [manager.create_kv_cache() for _ in range(3)]
    with pytest.raises(LogicError, match="3"):
        manager.shutdown()
    for kv_cache in sequences:
        kv_cache.close()
    manager.shutdown()


def test_shutdown_unmaps_every_address_range() -> None:
    """A device refuses to close while a range is reserved."""
    device = HostDevice()
    manager = KVCacheManager(config_of([None, 8]), device=device)
    run_prompt(manager, [1, 2, 3, 4, 5]).close()
    with pytest.raises(LogicError):
        device.close()
    manager.shutdown()
    device.close()


def test_with_shows_the_users_error() -> None:
    with pytest.raises(KeyError), manager_of() as manager:
        with run_prompt(manager, [1, 2, 3]):
            raise KeyError("the user's")


def test_with_closes_what_an_error_left_open() -> None:
    device = HostDevice()
    with pytest.raises(KeyError):
        with KVCacheManager(config_of(), device=device) as manager:
            kept = run_prompt(manager, [1, 2, 3])
            raise KeyError("the user's")
    assert kept.status is kept.Status.CLOSED
    device.close()


def test_dropped_manager_warns_and_gives_its_memory_back() -> None:
    device = HostDevice()
    manager = KVCacheManager(config_of(), device=device)
    with pytest.warns(ResourceWarning):
        del manager
        gc.collect()
    device.close()


def test_closing_in_order_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with manager_of() as manager:
            run_prompt(manager, [1, 2, 3]).close()
        gc.collect()
