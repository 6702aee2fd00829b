"""A process that is out of host memory loses the call that meets it: `resize` of a level and `adjust` are refused and pass later.

Each story is a process of its own whose address space is bounded a little above what it uses, as by a container's limit.
"""

import os
import subprocess
import sys
import textwrap

import pytest

STORY = textwrap.dedent(
    """
    import gc, resource, sys
    from kv_cache_manager_v2 import *
    from kv_cache_manager_v2.device.host_device import HostDevice

    NUM_SLOTS = 5_000
    policy, call = EvictionPolicy(sys.argv[1]), sys.argv[2]
    layers = [
        AttentionLayerConfig(LayerId(0), [BufferConfig("key", 16)], 40),
        AttentionLayerConfig(LayerId(1), [BufferConfig("key", 32)]),
    ]
    rebalance = RebalanceConfig(threshold=0.01, cool_down_seconds=0, min_samples=1, smoothing=1.0)
    tiers = [GpuCacheTierConfig(NUM_SLOTS * 48, policy), HostCacheTierConfig(NUM_SLOTS * 24, policy)]
    config = KVCacheManagerConfig(1, tiers, layers, initial_pool_ratio=[0.8, 0.2], rebalance=rebalance, max_util_for_resume=1.0)
    calls = {
        "shrink": lambda manager: manager.resize(0, NUM_SLOTS * 12),
        "grow": lambda manager: manager.resize(0, NUM_SLOTS * 4800),
        "shrink below": lambda manager: manager.resize(1, NUM_SLOTS * 6),
        "adjust": lambda manager: manager.adjust(),
    }


    def used_bytes():
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0]) * resource.getpagesize()


    def serve(manager, first, num_tokens):
        tokens = list(range(first, first + num_tokens))
        with manager.create_kv_cache(input_tokens=tokens) as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(len(tokens))
            kv_cache.commit(tokens)


    outcomes = []
    for left_kib in (0, 64, 256, 512, 1024):
        with KVCacheManager(config, device=HostDevice(granularity_bytes=4096)) as manager:
            for number in range(6):
                serve(manager, 1000 * number, 1000)
            kv_cache = manager.create_kv_cache()
            assert kv_cache.resume() and kv_cache.resize(1000, 900)
            for _sample in range(3):
                manager.create_kv_cache().close()
            sizes = [group.total for group in manager.get_storage_statistics()]
            gc.collect()
            resource.setrlimit(resource.RLIMIT_AS, (used_bytes() + left_kib * 1024, resource.RLIM_INFINITY))
            refused = None
            try:
                calls[call](manager)
            except (MemoryError, PageMoveError) as error:
                refused = repr(error)
            resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            try:
                manager.check_invariants()
                if refused is not None:
                    assert sizes == [group.total for group in manager.get_storage_statistics()]
                    calls[call](manager)
                kv_cache.close()
                serve(manager, 1_000_000, 100)
                outcomes.append("refused" if refused else "passed")
            except CorruptedError:
                # In the last few KiB any object may be the one for which there is no room, in the middle of a change too.
                assert refused is not None, left_kib
                outcomes.append("broken")
    print(" ".join(outcomes))
    """
)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc and RLIMIT_AS")
@pytest.mark.parametrize("call", ["shrink", "grow", "shrink below", "adjust"])
@pytest.mark.parametrize("policy", ["learned", "lru"])
def test_a_level_keeps_its_size_where_memory_ends(policy: str, call: str) -> None:
    run = subprocess.run([sys.executable, "-P", "-c", STORY, policy, call], env=dict(os.environ), capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    outcomes = run.stdout.split()
    assert len(outcomes) == 5 and "broken" not in outcomes[2:], outcomes
    if call == "grow":
        assert "refused" in outcomes
