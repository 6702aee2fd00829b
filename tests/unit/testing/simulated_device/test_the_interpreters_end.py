"""A manager that is forgotten until the interpreter ends is closed by destructors, which compiled code runs without any Python frame."""

import subprocess
import sys

FORGET = """
from kv_cache_manager_v2 import AttentionLayerConfig, BufferConfig, GpuCacheTierConfig, LayerId
from kv_cache_manager_v2 import KVCacheManager, KVCacheManagerConfig
from kv_cache_manager_v2.testing import SimulatedDevice

layer = AttentionLayerConfig(LayerId(0), [BufferConfig("key", 64)])
device = SimulatedDevice(seed=1)
manager = KVCacheManager(KVCacheManagerConfig(4, [GpuCacheTierConfig(1 << 14)], [layer]), device=device)
sequence = manager.create_kv_cache()
assert sequence.resume() and sequence.resize(10)
print("about to end", flush=True)
"""


def test_a_forgotten_manager_says_nothing_but_that_it_was_forgotten() -> None:
    run = subprocess.run([sys.executable, "-P", "-c", FORGET], capture_output=True, text=True)
    assert run.stdout == "about to end\n"
    assert run.returncode == 0 and "call stack" not in run.stderr and "Traceback" not in run.stderr, run.stderr
