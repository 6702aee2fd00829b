"""With `debug_fill` every page holds a known pattern when an engine gets it, and again when it is freed; it decides nothing."""

import numpy as np
import pytest
from small_models import config_of, run_prompt
from tiered_models import tiered_config

from kv_cache_manager_v2 import CorruptedError, DebugFill, HostDevice, KVCacheManager, PageMoveError, SwaScratchReuseConfig
from kv_cache_manager_v2.testing import SimulatedDevice


def bytes_of(manager, layer=0, role="key"):
    return np.asarray(manager.pool_view(layer, role, by_slot=True))


@pytest.mark.parametrize("pattern", list(DebugFill))
def test_fresh_and_freed_pages(pattern):
    with KVCacheManager(config_of([None, 8]), device=HostDevice(), debug_fill=pattern) as manager:
        pages = bytes_of(manager)
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(40)
            slots = np.asarray(kv_cache.get_base_page_indices(0)).copy()
            assert (pages[slots] == pattern).all()
            pages[slots] = 1
            assert kv_cache.resize(20)
            assert (pages[slots[:5]] == 1).all() and (pages[slots[5:]] == pattern).all()
        assert (pages[slots] == pattern).all()
        assert kv_cache.num_committed_tokens == 0


def test_kept_pages_are_left_alone():
    with KVCacheManager(config_of(num_slots=8), device=HostDevice(), debug_fill=DebugFill.NAN) as manager:
        pages = bytes_of(manager)
        kv_cache = run_prompt(manager, list(range(16)))
        slots = np.asarray(kv_cache.get_base_page_indices(0)).copy()
        pages[slots] = 3
        kv_cache.close()
        assert (pages[slots] == 3).all(), "kept for reuse"
        with run_prompt(manager, list(range(14))) as again:
            copied = again.get_base_page_indices(0)[3]
            assert copied not in slots and (pages[copied] == 3).all(), "a private copy of the last block"
        with run_prompt(manager, list(range(100, 132))):
            assert (pages == DebugFill.NAN).all(), "all others were evicted"


def test_scratch_slots_are_filled_too():
    config = config_of([8], num_slots=40, swa_scratch_reuse=SwaScratchReuseConfig())
    with KVCacheManager(config, device=HostDevice(), debug_fill=DebugFill.FINITE) as manager:
        pages = bytes_of(manager)
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(64, 0)
            desc = kv_cache.get_scratch_desc(0)
            assert desc is not None and (pages[list(desc.slot_ids)] == DebugFill.FINITE).all()


def test_patterns_are_what_they_say():
    for pattern, is_fine in ((DebugFill.NAN, np.isnan), (DebugFill.FINITE, np.isfinite)):
        raw = np.full(8, pattern, np.uint8)
        for name in (np.float16, np.float32, np.float64):
            assert is_fine(raw.view(name)).all()
        bf16 = np.zeros(4, np.uint32)
        bf16[:] = raw.view(np.uint16)
        assert is_fine((bf16 << 16).view(np.float32)).all()


def test_8_bit_floats():
    torch = pytest.importorskip("torch", reason="torch is not installed; it is a dependency of these tests only")
    for pattern, is_fine in ((DebugFill.NAN, torch.isnan), (DebugFill.FINITE, torch.isfinite)):
        raw = torch.full((8,), int(pattern), dtype=torch.uint8)
        for name in (torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16):
            assert bool(is_fine(raw.view(name).float()).all())


@pytest.mark.parametrize("seed", range(3))
def test_fills_are_ordered_with_the_sequences_on_many_streams(seed):
    """The simulated device reports every access that nothing orders."""
    device = SimulatedDevice(seed)
    with KVCacheManager(config_of([None, 8], num_slots=24), device=device, debug_fill=DebugFill.NAN) as manager:
        streams = [device.create_stream() for _ in range(3)]
        for turn in range(6):
            sequences = []
            for number, stream in enumerate(streams):
                kv_cache = manager.create_kv_cache(input_tokens=list(range(number, 9)))
                assert kv_cache.resume(stream)
                length = 9 + 3 * turn
                if kv_cache.resize(length):
                    kv_cache.commit([number * turn] * (length - kv_cache.num_committed_tokens))
                sequences.append(kv_cache)
            for kv_cache in sequences[:: 1 if turn % 2 else -1]:
                kv_cache.close()
            manager.check_invariants()
        for stream in streams:
            device.synchronize_stream(stream)
    device.close()


def test_wrong_pattern():
    with pytest.raises(TypeError):
        KVCacheManager(config_of(), device=HostDevice(), debug_fill="nan")  # type: ignore[arg-type]


def test_filling_decides_nothing():
    """A block is copied while the step frees others: its copy stays whole, in the slots it has without."""
    digests = []
    for pattern in (None, *DebugFill):
        with KVCacheManager(config_of([None, 8], num_slots=10), device=HostDevice(), debug_fill=pattern) as manager:
            pages = [bytes_of(manager, layer) for layer in (0, 1)]
            kv_cache = manager.create_kv_cache()
            assert kv_cache.resume() and kv_cache.resize(6)
            for group in (0, 1):
                pages[group][kv_cache.get_base_page_indices(group)[1]] = 5 + group
            kv_cache.commit([1, 2, 3, 4, 5, 6])
            # Blocks 0 to 3 of both groups leave two slots; then the step at token 6 writes block 1, which is lent, and gives 2 and 3 up.
            assert kv_cache.resize(16)
            with kv_cache.reserve_transfer(1, 2) as lease:
                assert kv_cache.resize(8)
                for group in (0, 1):
                    copied = kv_cache.get_base_page_indices(group)[1]
                    assert copied not in lease.get_page_indices(group) and (pages[group][copied] == 5 + group).all()
                manager.check_invariants()
            kv_cache.close()
            digests.append(manager.state_digest())
            manager.clear_reusable_blocks()
            if pattern is not None:
                assert (pages[0] == pattern).all() and (pages[1] == pattern).all()
    assert digests == [digests[0]] * 3


@pytest.mark.parametrize("call", ["resize", "prefetch"])
def test_a_fill_that_nothing_can_be_put_in_order_for(call):
    """Pages are offloaded to the host; filling their slots takes waits and events, which the device refuses, like the host's wait."""
    outcomes = []
    for kind in ("wait", "record"):
        for nth in range(1, 12):
            device = SimulatedDevice(1)
            manager = KVCacheManager(tiered_config(4, [("host", 8)]), device=device, debug_fill=DebugFill.NAN)
            run_prompt(manager, list(range(16))).close()
            if call == "prefetch":
                run_prompt(manager, list(range(100, 116))).close()
            kv_cache = manager.create_kv_cache()
            assert kv_cache.resume(device.create_stream())
            device.faults.fail(kind, nth, RuntimeError("not today"))
            device.faults.fail("synchronize", 1, RuntimeError("not today"))
            try:
                is_done = kv_cache.resize(8) if call == "resize" else manager.prefetch(list(range(16))).num_accepted == 16
                outcomes.append("passed" if is_done else "refused")
            except (RuntimeError, PageMoveError):
                outcomes.append("refused")
            device.faults.clear()
            try:
                manager.probe_reuse()
                manager.check_invariants()
                kv_cache.close()
            except CorruptedError as error:
                assert "not today" in str(error)
                outcomes[-1] = "broken"
            manager.shutdown()
    assert {*outcomes} == {"passed", "refused", "broken"}


@pytest.mark.parametrize("seed", range(4))
def test_scratch_slots_that_were_filled_apart(seed):
    """Their pages are still being offloaded when a sequence takes the slots, without waiting, and frees them unused."""
    device = SimulatedDevice(seed)
    config = tiered_config(6, [("host", 8)], windows=[4], swa_scratch_reuse=SwaScratchReuseConfig())
    manager = KVCacheManager(config, device=device, debug_fill=DebugFill.NAN)
    streams = [device.create_stream() for _ in range(2)]
    kv_cache = manager.create_kv_cache()
    assert kv_cache.resume(streams[0]) and kv_cache.resize(24, 0)
    desc = kv_cache.get_scratch_desc(0)
    assert desc is not None and len(desc.slot_ids) > 0
    kv_cache.suspend()
    other = manager.create_kv_cache()
    other.enable_swa_scratch_reuse = False
    assert other.resume(streams[1]) and other.resize(24, 0)
    other.suspend()
    for _turn in range(3):
        assert kv_cache.resume(streams[0], wait=False)
        kv_cache.suspend()
        assert other.resume(streams[1], wait=False)
        other.suspend()
    device.drain()
    assert device.races == ()
    for one in (kv_cache, other):
        one.close()
    manager.shutdown()
