"""A suspended sequence's pages may be offloaded to any level, and are back, byte for byte, when it is resumed."""

from itertools import permutations
from pathlib import Path

import pytest
from tiered_models import TOKENS_PER_BLOCK, Bench, tiered_config

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    Device,
    DiskCacheTierConfig,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCacheManagerConfig,
    LayerId,
    OutOfPagesError,
)
from kv_cache_manager_v2.testing import SimulatedDevice

MIB = 1 << 20


def test_two_long_sequences_take_turns_on_a_gpu_for_one(tmp_path: Path) -> None:
    """36 layers, alternately with a window of 128 and one sink token, and without; 32 KiB a buffer, 32 tokens a block.

    A page holds keys and values of 18 layers, 18 * 2 * 32 KiB = 1152 KiB: 28 slots on the GPU and as many in host memory.
    704 tokens are 22 blocks. Computed in chunks of a block, the last step has 672 tokens of history: the windowed layers need
    the sink's block and those from (673 - 128) // 32 = 17 on, 6 in all. 22 + 6 = 28 slots, every one there is. The 705th
    token needs two more blocks, and releases the one that leaves the window.
    """
    layers = [
        AttentionLayerConfig(
            LayerId(index),
            [BufferConfig("key", 32 << 10), BufferConfig("value", 32 << 10)],
            128 if index % 2 == 0 else None,
            1 if index % 2 == 0 else None,
        )
        for index in range(36)
    ]
    gpu, host = GpuCacheTierConfig(32 * MIB), HostCacheTierConfig(32 * MIB)
    tiers = (gpu, host, DiskCacheTierConfig(1 << 30, str(tmp_path)))
    config = KVCacheManagerConfig(tokens_per_block=32, cache_tiers=tiers, layers=layers, max_util_for_resume=1.0)
    with Bench(config, HostDevice()) as bench:
        assert bench.counts(0) == (28, 28)
        first = bench.manager.create_kv_cache(id=1)
        assert first.resume() and bench.write(first, 704, chunk=32)
        assert bench.counts(0) == (28, 0)
        first.suspend()
        second = bench.manager.create_kv_cache(id=2)
        assert second.resume() and bench.write(second, 704, chunk=32)
        second.suspend()
        assert first.resume()
        bench.check(first)
        first.suspend()
        assert second.resume()
        bench.check(second)
        second.suspend()
        third = bench.manager.create_kv_cache(id=3)
        assert third.resume() and bench.write(third, 704, chunk=32)
        before = bench.manager.describe()
        with pytest.raises(OutOfPagesError, match="level 0, pool group 0"):
            third.capacity = 705
        assert bench.manager.describe() == before
        # Of the 84 pages that the three need, 28 at most are on each of the upper levels.
        assert bench.counts(2)[0] - bench.counts(2)[1] >= 84 - 3 - 28 - 28


@pytest.mark.parametrize("is_open", [False, True])
def test_no_more_pages_are_offloaded_than_slots_are_missing(is_open: bool) -> None:
    """Four droppable pages, or held ones, fill the GPU: each page more pushes one out, and what is there is still a hit."""
    with Bench(tiered_config(4, [("host", 16)]), HostDevice()) as bench:
        first = bench.suspended(1, 4 * TOKENS_PER_BLOCK, commit=True)
        if not is_open:
            first.close()
        second = bench.manager.create_kv_cache(id=2)
        assert second.resume()
        for num_pages in range(1, 5):
            assert bench.write(second, TOKENS_PER_BLOCK)
            assert bench.counts(1) == (16, 16 - num_pages)


def devices() -> list[str]:
    return ["host", "simulated"]


def make_device(kind: str, seed: int = 0) -> Device:
    return HostDevice() if kind == "host" else SimulatedDevice(seed)


@pytest.mark.parametrize("kind", devices())
@pytest.mark.parametrize("lower", [(("host", 8),), (("host", 4), ("disk", 4)), (("disk", 4), ("disk", 4))], ids=str)
def test_with_all_levels_exactly_full_any_order_of_resuming_works(
    kind: str, lower: tuple[tuple[str, int], ...], tmp_path: Path
) -> None:
    """Four sequences of 4 pages in 8 + 8 slots: each one onboarded swaps with one offloaded. What has come to a level and has not left
    it is there, in the statistics too."""
    for order in permutations(range(4)):
        with Bench(tiered_config(8, lower, str(tmp_path)), make_device(kind, sum(order[:2]))) as bench:
            sequences = [bench.suspended(number, 4 * TOKENS_PER_BLOCK) for number in range(4)]
            assert [bench.counts(level)[1] for level in range(1 + len(lower))] == [0] * (1 + len(lower))
            for number in order:
                assert sequences[number].resume()
                bench.check(sequences[number])
                sequences[number].suspend()
                bench.manager.check_invariants()
            for level in range(1, 1 + len(lower)):
                others = [other for other in range(1 + len(lower)) if other != level]
                has_come = sum([bench.num_copied(other, level) for other in others])
                has_left = sum([bench.num_copied(level, other) for other in others])
                assert has_come - has_left == bench.counts(level)[0]
            for number in reversed(order):
                assert sequences[number].resume()
                bench.check(sequences[number])
                sequences[number].close()


@pytest.mark.parametrize("is_on_its_way", [False, True])
@pytest.mark.parametrize("kind", devices())
def test_tokens_behind_a_published_part_of_a_block_stay(kind: str, is_on_its_way: bool, tmp_path: Path) -> None:
    """Of 7 written tokens 5 are published: block 1 holds one for all sequences, and two for its sequence alone.

    A reader matches the 5 and has a copy of block 1. The page itself goes to the disk for others; then the reader ends, on
    level 0, with the same token. What it has must not take the place of the page, whether that is on the disk or on its way up.
    """
    with Bench(tiered_config(4, [("disk", 4)], str(tmp_path)), make_device(kind)) as bench:
        first = bench.manager.create_kv_cache(id=1)
        assert first.resume() and bench.write(first, 7)
        text = bench.texts[1]
        first.commit(text[:5])
        first.stop_committing()
        reader = bench.manager.create_kv_cache(input_tokens=text[:5], id=2)
        assert reader.resume() and reader.num_committed_tokens == 5
        bench.texts[2] = text[:5]
        assert bench.write(reader, 1)
        first.suspend()
        other = bench.manager.create_kv_cache(id=3)
        assert other.resume() and bench.write(other, 5)
        # Block 0 is shared, block 1 there twice, and two blocks of the other one's: one page had to go.
        assert bench.num_copied(0, 1) == 1
        other.close()
        if is_on_its_way:
            assert first.resume(wait=False)
        reader.close()
        bench.manager.check_invariants()
        if not is_on_its_way:
            assert first.resume()
        bench.check(first)


@pytest.mark.parametrize("is_fifo", [True, False])
def test_two_at_a_time_while_the_last_level_is_exactly_full(is_fifo: bool, tmp_path: Path) -> None:
    """8 + 4 + 4 slots for four sequences of 4 pages; two are always active and one comes as another goes."""
    with Bench(tiered_config(8, [("host", 4), ("disk", 4)], str(tmp_path)), HostDevice()) as bench:
        waiting = [bench.suspended(number, 4 * TOKENS_PER_BLOCK) for number in range(4)]
        running = [waiting.pop(0), waiting.pop(0)]
        for kv_cache in running:
            assert kv_cache.resume()
        for _turn in range(12):
            leaving = running.pop(0)
            leaving.suspend()
            waiting.append(leaving)
            coming = waiting.pop(0 if is_fifo else -2)
            assert coming.resume(), bench.manager.last_refusal
            running.append(coming)
            for kv_cache in running:
                bench.check(kv_cache)
            bench.manager.check_invariants()


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("end", ["suspend", "close", "evict"])
def test_pages_in_flight_survive_whatever_happens_to_their_sequence(seed: int, end: str) -> None:
    """Resumed without waiting, and suspended, closed or driven out again while the copies are queued."""
    device = SimulatedDevice(seed, eager=False if seed % 2 else None)
    lower = [("host", 6), ("disk", 12)] if seed % 3 else [("disk", 18)]
    with Bench(tiered_config(6, lower), device) as bench:
        streams = [device.default_stream(), device.create_stream()]
        # 16 tokens: 4 published blocks each.
        first = bench.suspended(1, 16, commit=True, stream=streams[0])
        second = bench.suspended(2, 16, commit=True, stream=streams[1])
        assert first.resume(streams[1], wait=False)
        if end == "close":
            first.close()
            # What it published is matched by another, on another stream.
            again = bench.manager.create_kv_cache(input_tokens=list(bench.texts[1]), id=3)
            bench.texts[3] = list(bench.texts[1])
            assert again.num_committed_tokens == 16
            assert second.resume(streams[0], wait=False)
            second.suspend()
            assert again.resume(streams[0])
            bench.check(again)
            again.close()
        else:
            first.suspend()
            assert second.resume(streams[0], wait=False)
            if end == "evict":
                # Nothing but what second needs may stay: first's pages are offloaded again while they are being onboarded.
                assert second.resize(24)
            second.suspend()
            assert first.resume(streams[0])
            bench.check(first)
            assert bench.write(first, 4)
            first.close()
        assert second.resume(streams[1])
        bench.check(second)
        second.close()
        assert device.races == ()
        bench.engine.synchronize()
