"""Slots that running sequences use: exact for one prompt, what the manager counts after every step, less with scratch."""

import json

import numpy as np
import pytest
from unit.replay.serving import SilentConsole, request_of

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    GpuCacheTierConfig,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerGroupId,
    LayerId,
    SwaScratchReuseConfig,
)
from kv_cache_manager_v2.device.external_device import ExternalDevice
from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.replay.plan import ReplayPlan
from kv_cache_manager_v2.replay.presets import LayerShape, ModelPreset
from kv_cache_manager_v2.replay.replayer import run_replay
from kv_cache_manager_v2.replay.serving_limits import ServingLimits
from kv_cache_manager_v2.replay.slot_census import SlotCensus
from kv_cache_manager_v2.replay.workload import ListedWorkload


@pytest.mark.parametrize(("scratch", "slots"), [(False, 32), (True, 5)])
def test_one_long_prompt_in_one_step(scratch: bool, slots: int) -> None:
    # 1024 tokens in blocks of 32, window 128: 32 blocks, the first floor((1024+1-128)/32) = 28 of them stale after the
    # step. As scratch blocks they share ceil(28/32) = 1 slot, as a slot has keys and values of 32 layers.
    model = ModelPreset("windowed", "", tuple([LayerShape(1, 4, 128)] * 32))
    plan = ReplayPlan(
        ListedWorkload("one", [request_of(0, [(0, 1024)], 3)]), model, memory_bytes=None, verify=True, device="host",
        limits=ServingLimits(4, 1024, 1024), scratch=scratch, check_invariants=True,
    )  # fmt: skip
    report = run_replay(plan, SilentConsole())
    assert [(group.window_size, group.num_layers, group.peak_slots) for group in report.layer_groups] == [(128, 32, slots)]
    assert report.mismatches == 0
    assert report.failure is None


@pytest.mark.parametrize("window", [None, 6, 8, 11])
@pytest.mark.parametrize("scratch", [False, True])
def test_looking_now_and_then_is_as_good_as_looking_always(window: int | None, scratch: bool) -> None:
    # Three sequences over the same text, two of them to the end: pages are shared, and those of equal blocks swapped.
    with KVCacheManager(two_layers(window, scratch), device=ExternalDevice()) as manager:
        census = SlotCensus(manager)
        sequences = [manager.create_kv_cache() for _ in range(3)]
        prompts = (9, 5, 13)
        positions = [0, 0, 0]
        must_look = [True, True, True]
        for kv_cache in sequences:
            assert kv_cache.resume()
        for _ in range(40):
            for place, kv_cache in enumerate(sequences):
                num_inputs = prompts[place] if positions[place] == 0 else 1
                assert kv_cache.resize(positions[place] + num_inputs)
            for place, kv_cache in enumerate(sequences):
                if must_look[place] or census.must_look(place, positions[place]):
                    census.look(place, kv_cache)
            assert census.num_used == brute_force(manager)
            for place, kv_cache in enumerate(sequences):
                num_inputs = prompts[place] if positions[place] == 0 else 1
                first = 0 if place < 2 else 1000 * (positions[place] >= 20)
                kv_cache.commit([first + token for token in range(positions[place], positions[place] + num_inputs)])
                positions[place] += num_inputs
                must_look[place] = num_inputs > 1
        for kv_cache in sequences:
            kv_cache.close()


def brute_force(manager: KVCacheManager) -> tuple[int, ...]:
    used: list[set[int]] = [set() for _ in manager.layer_grouping]
    for kv_cache in manager.open_kv_caches:
        for group, slots in enumerate(used):
            slots.update(np.array(kv_cache.get_base_page_indices(LayerGroupId(group))).tolist())
            slots.discard(-1)
            scratch = kv_cache.get_scratch_desc(LayerGroupId(group))
            slots.update(() if scratch is None else scratch.slot_ids)
    return tuple([len(slots) for slots in used])


def two_layers(window: int | None, scratch: bool) -> KVCacheManagerConfig:
    buffers = [BufferConfig(role="key", size=64)]
    return KVCacheManagerConfig(
        tokens_per_block=4,
        cache_tiers=[GpuCacheTierConfig(quota=1 << 20)],
        layers=[AttentionLayerConfig(LayerId(0), buffers), AttentionLayerConfig(LayerId(1), buffers, window)],
        swa_scratch_reuse=SwaScratchReuseConfig() if scratch else None,
    )


def test_a_shared_page_counts_once_and_a_left_one_not_at_all() -> None:
    with KVCacheManager(two_layers(8, True), device=ExternalDevice()) as manager:
        census = SlotCensus(manager)
        first = manager.create_kv_cache()
        assert first.resume() and first.resize(16)
        census.look(0, first)
        # Window 8 after 16 tokens: stale are floor((16+1-8)/4) = 2 blocks; as scratch blocks they take a slot each,
        # which holds one buffer of one layer. Two more blocks have their own.
        assert census.num_used == (4, 4)
        first.commit(range(16))
        second = manager.create_kv_cache(input_tokens=range(16))
        assert second.num_committed_tokens == 16
        assert second.resume() and second.resize(17)
        census.look(1, second)
        # Its 4 blocks are the first's, one more is its own. Of the windowed group the 2 blocks that are not stale are shared; the new
        # one has a scratch slot that the first's commit released. The first still counts as it was.
        assert census.num_used == (5, 4)
        census.look(0, first)
        # The first has no scratch slots any more: of the windowed group 2 shared pages and the new one are left.
        census.record_peak()
        census.leave(0)
        census.leave(1)
        census.leave(7)
        assert census.num_used == (0, 0)
        assert census.peak_used == (5, 3)
        first.close()
        second.close()


@pytest.mark.parametrize("model", ["gemma-3-12b", "gpt-oss-20b"])
def test_scratch_needs_fewer_slots_and_reads_no_wrong_byte(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    peaks: list[int] = []
    for extra in ([], ["--scratch"]):
        arguments = ["replay", "--limit", "8", "--model", model, "--verify", "--device", "host", "--json", "-"]
        assert main([*arguments, "--workload", "retrieval", *extra]) == 0
        values = json.loads(capsys.readouterr().out)
        assert values["mismatches"] == 0
        assert values["scratch"] is bool(extra)
        peaks.append(sum([group["peak_slots"] for group in values["layer_groups"] if group["window_size"] is not None]))
    assert peaks[1] < peaks[0]
