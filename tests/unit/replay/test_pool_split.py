"""How the pool groups share a replay's memory: the manager's default against every fixed ratio, `--pool-ratio`, and adjusting."""

import pytest

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    GpuCacheTierConfig,
    HostDevice,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerConfig,
    LayerId,
    RebalanceConfig,
)
from kv_cache_manager_v2.replay.cli import main
from kv_cache_manager_v2.replay.generators import make_workload
from kv_cache_manager_v2.replay.plan import WORKLOAD_MEMORY_BYTES
from kv_cache_manager_v2.replay.pool_adjustment import PoolAdjustment
from kv_cache_manager_v2.replay.trace import TraceWorkload
from kv_cache_manager_v2.replay.recorder import CallRecorder
from kv_cache_manager_v2.replay.timed_calls import TimedCalls
from unit.replay.sweep_pool_ratios import MODELS, find_best_ratio, serve
from unit.replay.test_traces import find_trace


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
def test_no_fixed_ratio_beats_the_default_by_more_than_a_tenth(model: str) -> None:
    """In the default replay; ``python -P -m unit.replay.sweep_pool_ratios`` sweeps the other workloads too."""
    workload = make_workload("mix", 0, 200)
    default = serve(model, workload, WORKLOAD_MEMORY_BYTES, None).hit_rate
    best, ratio = find_best_ratio(model, workload, WORKLOAD_MEMORY_BYTES)
    assert default >= 0.9 * best, f"{default:.1%} by default, {best:.1%} with {ratio}"


@pytest.mark.slow
@pytest.mark.parametrize("workload", ["mix", "retrieval"])
@pytest.mark.parametrize("factor", [0.5, 4.0])
def test_nor_where_memory_is_scarce_or_plenty(workload: str, factor: float) -> None:
    requests = make_workload(workload, 0, 200)
    memory_bytes = int(WORKLOAD_MEMORY_BYTES * factor)
    report = serve("gemma-3-12b", requests, memory_bytes, None)
    assert report.requests_refused == 0
    best, ratio = find_best_ratio("gemma-3-12b", requests, memory_bytes, (0.3, 0.5, 0.7, 0.85, 0.95))
    assert report.hit_rate >= 0.9 * best, f"{report.hit_rate:.1%} by default, {best:.1%} with {ratio}"


@pytest.mark.slow
def test_nor_on_a_trace_of_long_chats() -> None:
    """Of 400 requests so few come back that a ratio is better or worse than the one beside it by a third, by chance."""
    trace = TraceWorkload(str(find_trace("conversation_first_4000.jsonl")), limit=800)
    default = serve("gemma-3-12b", trace, 320 << 30, None).hit_rate
    best, ratio = find_best_ratio("gemma-3-12b", trace, 320 << 30, (0.3, 0.5, 0.7))
    assert default >= 0.9 * best, f"{default:.1%} by default, {best:.1%} with {ratio}"


@pytest.mark.parametrize("model", MODELS)
def test_no_coarse_ratio_beats_the_default_by_more_than_a_tenth(model: str) -> None:
    workload = make_workload("mix", 0, 48)
    memory_bytes = WORKLOAD_MEMORY_BYTES // 2
    default = serve(model, workload, memory_bytes, None).hit_rate
    best, ratio = find_best_ratio(model, workload, memory_bytes, (0.5, 0.8, 0.9))
    assert default >= 0.9 * best, f"{default:.1%} by default, {best:.1%} with {ratio}"


def test_a_manager_that_asks_for_it_is_adjusted_once_a_minute_of_serving() -> None:
    """A windowed layer has 1 % of the memory, and the sequences need more of its pages."""
    layers: list[LayerConfig] = [
        AttentionLayerConfig(LayerId(0), [BufferConfig("key", 4096)]), AttentionLayerConfig(LayerId(1), [BufferConfig("key", 8192)], 64)
    ]  # fmt: skip
    config = KVCacheManagerConfig(
        32, [GpuCacheTierConfig(8 << 20)], layers, initial_pool_ratio=(0.99, 0.01), rebalance=RebalanceConfig(min_samples=1)
    )  # fmt: skip
    with KVCacheManager(config, device=HostDevice()) as manager:
        adjustment = PoolAdjustment([TimedCalls(manager, CallRecorder())])
        kv_cache = manager.create_kv_cache(input_tokens=range(95))
        assert kv_cache.resume() and kv_cache.resize(95)
        other = manager.create_kv_cache(input_tokens=range(1000, 1095))  # looks at what the first one needs
        # 20 ms, and 50 us for each input: 59.97 s, still in the cool-down. Then half a second: too early for a look.
        assert not adjustment.end_step(1_199_000)
        assert not adjustment.end_step(9_600)
        before = [group.total for group in manager.get_storage_statistics()]
        assert adjustment.end_step(10_000)
        after = [group.total for group in manager.get_storage_statistics()]
        assert adjustment.num_adjustments == 1 and after[1] > before[1]
        assert not adjustment.end_step(20_000), "its cool-down has begun again"
        manager.check_invariants()
        kv_cache.close()
        other.close()


def test_the_report_says_how_the_memory_was_shared(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["replay", "--limit", "4", "--quiet"]
    assert main([*small, "--pool-ratio", "0.4,0.6"]) == 0
    assert "split 0.4:0.6, adjusted 0 times while serving" in capsys.readouterr().out
    assert main([*small, "--equal-slots"]) == 0
    assert "one, which has all the memory" in capsys.readouterr().out
    assert main([*small, "--equal-slots", "--verify", "--scratch", "--tiers", "gpu=1MiB,host=256KiB", "--preempt", "0.3"]) == 0
    assert main([*small, "--no-adjust"]) == 0
    assert "the manager's default split, kept" in capsys.readouterr().out
    assert main([*small, "--model", "llama-3-8b"]) == 0
    assert "one, which has all the memory" in capsys.readouterr().out
