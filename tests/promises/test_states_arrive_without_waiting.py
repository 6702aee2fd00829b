"""`resume(wait=False)` lets no stream wait for a lower tier: recurrent states, beams and scratch slots arrive too, and `ready` says when.

The manager's own streams are held, so that nothing arrives; whatever a user's stream has to do must be done all the same.
"""

import contextlib
from collections.abc import Callable

import pytest
from hybrid_models import hybrid_config
from tiered_models import TOKENS_PER_BLOCK, Bench, tiered_config

from kv_cache_manager_v2 import (
    DiskCacheTierConfig,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    KVCache,
    KVCacheManagerConfig,
    LoadFailed,
    SnapshotPolicy,
    StorageIOError,
    SwaScratchReuseConfig,
)
from kv_cache_manager_v2.testing import SimulatedDevice, Step

ON_DEFAULT_STREAM = 0


def hold_manager_streams(device: SimulatedDevice) -> Callable[[], None]:
    """All but the default stream, which alone the tests use."""
    held = list(range(1, device.num_open_streams + 1))
    for stream in held:
        device.hold_stream(stream)

    def let_go() -> None:
        for stream in held:
            device.release_stream(stream)

    return let_go


def is_stream_free(device: SimulatedDevice) -> bool:
    """Whether all that is enqueued on the default stream can be done now."""
    event = device.record_event(ON_DEFAULT_STREAM)
    device.drain()
    is_done = device.is_event_done(event)
    device.release_event(event)
    return is_done


def wait_until_ready(kv_cache: KVCache) -> None:
    while not kv_cache.ready:
        pass


def hybrid_tiers(kind: str, gpu_bytes: int = 1024) -> KVCacheManagerConfig:
    lower = HostCacheTierConfig(1 << 14) if kind == "host" else DiskCacheTierConfig(1 << 14, "/tmp")
    return hybrid_config(
        cache_tiers=[GpuCacheTierConfig(gpu_bytes), lower],
        max_util_for_resume=1.0,
        snapshot_policy=SnapshotPolicy(at_close=True),
    )


@pytest.mark.parametrize("kind", ["host", "disk"])
@pytest.mark.parametrize("seed", range(3))
def test_a_state_is_onboarded_in_the_background(kind: str, seed: int) -> None:
    device = SimulatedDevice(seed)
    with Bench(hybrid_tiers(kind), device) as bench:
        first = bench.suspended(1, 2 * TOKENS_PER_BLOCK)
        others = [bench.suspended(number, 2 * TOKENS_PER_BLOCK) for number in range(2, 8)]
        assert bench.num_copied(0, 1) > 0
        device.drain()
        let_go = hold_manager_streams(device)
        assert first.resume(wait=False)
        assert not first.ready
        assert is_stream_free(device)
        let_go()
        wait_until_ready(first)
        bench.check(first)
        first.close()
        for kv_cache in others:
            kv_cache.close()
        assert device.races == () and device.num_host_waits == 0


@pytest.mark.parametrize("kind", ["host", "disk"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("how", ["fork", "beams"])
def test_a_fork_copies_a_state_that_has_arrived(kind: str, seed: int, how: str) -> None:
    """The device reports a read of bytes whose write may still be running."""
    with Bench(hybrid_tiers(kind), SimulatedDevice(seed)) as bench:
        first = bench.suspended(1, 2 * TOKENS_PER_BLOCK)
        others = [bench.suspended(number, 2 * TOKENS_PER_BLOCK) for number in range(2, 8)]
        assert bench.num_copied(0, 1) > 0
        assert first.resume(wait=False)
        if how == "beams":
            first.beam_width = 2
            assert first.ready
        else:
            with first.fork() as child:
                assert child.ready
        bench.manager.check_invariants()
        for kv_cache in [first, *others]:
            kv_cache.close()


@pytest.mark.parametrize("kind", ["host", "disk"])
@pytest.mark.parametrize("seed", range(3))
def test_a_snapshot_is_copied_behind_the_back(kind: str, seed: int) -> None:
    """The first resume fills the state from a snapshot that is still being onboarded."""
    device = SimulatedDevice(seed)
    with Bench(hybrid_tiers(kind), device) as bench:
        author = bench.manager.create_kv_cache(id=1)
        assert author.resume() and bench.write(author, 2 * TOKENS_PER_BLOCK, commit=True)
        author.close()
        others = [bench.suspended(number, 2 * TOKENS_PER_BLOCK) for number in range(2, 8)]
        text = bench.texts[1]
        again = bench.manager.create_kv_cache(input_tokens=list(text), id=1)
        assert again.num_committed_tokens == 2 * TOKENS_PER_BLOCK
        bench.texts[1] = list(text)
        device.drain()
        let_go = hold_manager_streams(device)
        assert again.resume(wait=False)
        assert not again.ready
        assert is_stream_free(device)
        # Suspended before it was there, and resumed again.
        again.suspend()
        assert again.resume(wait=False)
        assert is_stream_free(device)
        let_go()
        wait_until_ready(again)
        bench.check(again)
        again.close()
        for kv_cache in others:
            kv_cache.close()
        assert device.races == () and device.num_host_waits == 0


@pytest.mark.parametrize("seed", range(3))
def test_a_new_sequence_takes_the_slot_of_a_page_that_is_leaving(seed: int) -> None:
    """Its state begins as zeros, in a slot whose page is still being written to the disk."""
    device = SimulatedDevice(seed)
    with Bench(hybrid_tiers("disk"), device) as bench:
        others: list[KVCache] = []
        while bench.num_copied(0, 1) == 0:
            others.append(bench.suspended(len(others), 2 * TOKENS_PER_BLOCK))
        device.drain()
        let_go = hold_manager_streams(device)
        newcomers: list[KVCache] = []
        while all(kv_cache.ready for kv_cache in newcomers):
            kv_cache = bench.manager.create_kv_cache(id=100 + len(newcomers))
            assert kv_cache.resume(wait=False)
            newcomers.append(kv_cache)
            assert is_stream_free(device)
            if len(newcomers) > 1 and newcomers[-1].ready:
                newcomers.pop().close()
        let_go()
        last = newcomers[-1]
        wait_until_ready(last)
        assert bench.write(last, TOKENS_PER_BLOCK)
        for kv_cache in [*newcomers, *others]:
            kv_cache.close()
        assert device.races == ()


@pytest.mark.parametrize("kind", ["host", "disk"])
@pytest.mark.parametrize("seed", range(3))
def test_a_fork_copies_a_state_that_has_not_arrived(kind: str, seed: int) -> None:
    device = SimulatedDevice(seed, eager=False)
    with Bench(hybrid_tiers(kind, 2048), device) as bench:
        first = bench.suspended(1, 2 * TOKENS_PER_BLOCK)
        others = [bench.suspended(number, 2 * TOKENS_PER_BLOCK) for number in range(2, 12)]
        for kv_cache in others:
            kv_cache.close()
        assert first.resume(wait=False) and not first.ready
        child = first.fork(2)
        bench.texts[2] = list(bench.texts[1])
        for kv_cache in (first, child):
            wait_until_ready(kv_cache)
            bench.check(kv_cache)
            kv_cache.close()
        assert device.races == ()


@pytest.mark.parametrize("kind", ["host", "disk"])
@pytest.mark.parametrize("seed", range(3))
def test_beams_come_up_together(kind: str, seed: int) -> None:
    device = SimulatedDevice(seed)
    with Bench(tiered_config(8, [(kind, 24)]), device) as bench:
        wide = bench.manager.create_kv_cache(id=1)
        assert wide.resume() and bench.write(wide, 2 * TOKENS_PER_BLOCK, commit=True)
        wide.beam_width = 2
        assert wide.resize(2 * TOKENS_PER_BLOCK + 2, 2 * TOKENS_PER_BLOCK)
        text = list(bench.texts[1])
        bench.engine.execute([Step(wide, [[7, 8], [9, 8]], text)])
        wide.suspend()
        other = bench.suspended(2, 8 * TOKENS_PER_BLOCK)
        device.drain()
        let_go = hold_manager_streams(device)
        assert wide.resume(wait=False)
        assert not wide.ready
        assert is_stream_free(device)
        # One beam less, which has not arrived either.
        wide.beam_width = 1
        let_go()
        wait_until_ready(wide)
        bench.texts[1] = [*text, 7, 8]
        bench.check(wide)
        wide.close()
        assert other.resume()
        bench.check(other)
        other.close()
        assert device.races == () and device.num_host_waits == (1 if kind == "disk" else 0)


@pytest.mark.parametrize("seed", range(5))
def test_scratch_slots_of_pages_that_are_leaving(seed: int) -> None:
    """Suspended in the middle of a step, the sequence gets its scratch slots again where a page is offloaded to the disk."""
    scratch = SwaScratchReuseConfig()
    config = tiered_config(8, [("disk", 24)], windows=(None, 4), swa_scratch_reuse=scratch)
    device = SimulatedDevice(seed)
    with Bench(config, device) as bench:
        first = bench.manager.create_kv_cache(id=1)
        assert first.resume() and first.resize(4 * TOKENS_PER_BLOCK, 0)
        assert first.has_scratch_slots
        first.suspend()
        other = bench.suspended(2, 2 * TOKENS_PER_BLOCK)
        third = bench.suspended(3, 2 * TOKENS_PER_BLOCK)
        device.drain()
        let_go = hold_manager_streams(device)
        assert first.resume(wait=False)
        assert is_stream_free(device)
        first.suspend()
        let_go()
        assert other.resume()
        bench.check(other)
        for kv_cache in (first, other, third):
            kv_cache.close()
        assert device.races == ()


@pytest.mark.parametrize("backoff", [0, 1])
@pytest.mark.parametrize("seed", range(2))
def test_a_lost_snapshot_is_not_matched(seed: int, backoff: int) -> None:
    """A snapshot within a block hangs on a partial block of its own, beside the full one that serves the attention layers. While a
    sequence holds pages whose reads have failed, no other prompt is given them, and the sequence can go back to where all is there."""
    num_lost = 0
    for nth in range(1, 5):
        device = SimulatedDevice(seed)
        config = hybrid_config(
            cache_tiers=[GpuCacheTierConfig(1024), DiskCacheTierConfig(1 << 14, "/tmp")],
            max_util_for_resume=1.0,
            snapshot_policy=SnapshotPolicy(at_close=True),
            reuse_match_backoff=backoff,
        )
        with Bench(config, device) as bench:
            author = bench.manager.create_kv_cache(id=1)
            assert author.resume() and bench.write(author, 6, commit=True)
            author.close()
            longer = bench.manager.create_kv_cache(id=1, input_tokens=list(bench.texts[1]))
            bench.texts[1] = bench.texts[1][: longer.num_committed_tokens]
            assert longer.resume() and bench.write(longer, 12 - longer.num_committed_tokens, commit=True)
            prompt = [*bench.texts[1][: 6 + backoff], 78]
            longer.close()
            others = [bench.suspended(number, 2 * TOKENS_PER_BLOCK) for number in range(2, 8)]
            first = bench.manager.create_kv_cache(input_tokens=prompt, id=10)
            assert first.num_committed_tokens == 6
            device.drain()
            device.faults.fail("disk_read", nth, RuntimeError("unreadable"))
            assert first.prefetch(0)
            with contextlib.suppress(StorageIOError):
                device.drain()
            again = bench.manager.create_kv_cache(input_tokens=prompt, id=11)
            bench.texts[11] = prompt[: again.num_committed_tokens]
            assert again.resume()
            bench.check(again)
            again.suspend()
            bench.texts[10] = prompt[:6]
            try:
                assert first.resume()
            except LoadFailed as error:
                num_lost += 1
                assert first.rewind(error.first_bad_token) == error.first_bad_token == first.num_committed_tokens
                bench.texts[10] = prompt[: first.num_committed_tokens]
                assert first.resume()
            bench.check(first)
            for kv_cache in (first, again, *others):
                kv_cache.close()
        assert device.races == ()
    assert num_lost > 0
