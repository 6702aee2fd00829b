"""How long until the first call: importing the package, and a manager for a large tier."""

import statistics
import subprocess
import sys
import time

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    GpuCacheTierConfig,
    HostDevice,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
)
from models import BLOCK
from workload import Row, Size, Workload

_IMPORT = """
import sys, time
begin = time.perf_counter()
import kv_cache_manager_v2
print((time.perf_counter() - begin) * 1000)
heavy = ("numpy", "cuda", "kv_cache_manager_v2.testing")
print([name for name in heavy if name in sys.modules])
"""


def start(size: Size) -> dict[str, float]:
    times: list[float] = []
    for _ in range(7):
        output = subprocess.run(
            [sys.executable, "-P", "-c", _IMPORT], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        times.append(float(output[0]))
        imported = output[1]
    return {
        "import": statistics.median(times),
        "heavy_imports": float(imported.count("'") // 2),
        "tier_100_gb": _tier_ms(),
    }


def _tier_ms() -> float:
    """48 layers of a 12-billion-parameter model with windows: 48 keys and 48 values of 128 kB and more per block."""
    layers = [
        AttentionLayerConfig(
            LayerId(number),
            [BufferConfig("key", 4096 * BLOCK), BufferConfig("value", 4096 * BLOCK)],
            sliding_window_size=None if number % 6 == 5 else 1024,
        )
        for number in range(48)
    ]
    config = KVCacheManagerConfig(tokens_per_block=BLOCK, cache_tiers=[GpuCacheTierConfig(100 << 30)], layers=layers)
    device = HostDevice()
    begin = time.perf_counter()
    manager = KVCacheManager(config, device=device)
    seconds = time.perf_counter() - begin
    manager.shutdown()
    device.close()
    return seconds * 1000


WORKLOADS = [
    Workload(
        "start",
        start,
        {
            "import": Row("import kv_cache_manager_v2", "ms", 150),
            "heavy_imports": Row("numpy, CUDA, testing imported by it", "modules", 0),
            "tier_100_gb": Row("manager for a 100 GB tier, host", "ms", 1000),
        },
    )
]
