"""A KeyboardInterrupt wherever Python serves signals in the facade and its guard: the manager works, or says that it is broken.

An interrupted call is never taken for one that is still running. Interpreted only: compiled code serves no signals there.
"""

import threading

import pytest
from served_interrupts import Place, Tracer
from small_models import new_manager

from kv_cache_manager_v2 import CorruptedError, KVCache, KVCacheManager, is_compiled

pytestmark = pytest.mark.skipif(is_compiled(), reason="compiled code serves no signals there")

MODULES = ("call_guard", "kv_cache", "kv_cache_manager")


def use(manager: KVCacheManager, kv_cache: KVCache) -> None:
    kv_cache.resume()
    kv_cache.resize(9)
    kv_cache.commit([1, 2, 3])
    kv_cache.get_base_page_indices(0)
    manager.probe_reuse(None, [1, 2, 3])
    kv_cache.suspend()


def interrupt(place: Place | None) -> Tracer:
    """Of a thread of its own; then everything is used again, unless a change was interrupted and the manager says so."""
    tracer = Tracer(MODULES, place)
    manager = new_manager([None, 8])
    kv_cache = manager.create_kv_cache()

    def work() -> None:
        try:
            with tracer.at_work():
                use(manager, kv_cache)
        except KeyboardInterrupt:
            pass

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    try:
        manager.check_invariants()
        kv_cache.close()
        with manager.create_kv_cache() as another:
            use(manager, another)
        manager.shutdown()
    except CorruptedError as error:
        assert "interrupted in the middle of a change" in str(error)
    return tracer


def test_wherever_signals_are_served() -> None:
    places = interrupt(None).places
    assert len(places) > 20
    for place in places:
        assert interrupt(place).has_raised, place
