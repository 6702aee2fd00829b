"""How long the constructor takes to find again what another process has left on a durable level: runs of a thousand blocks."""

import sys
import tempfile
import time
from pathlib import Path

from kv_cache_manager_v2 import HostDevice, KVCacheManager
from measure import Stopwatch
from workload import Row, Size, Workload

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "drills"))
from made_index import TOKENS_PER_BLOCK, make_index  # noqa: E402

_NUM_BLOCKS = 1_000_000


def restore(size: Size) -> dict[str, float]:
    num_blocks = size.of(_NUM_BLOCKS, 10_000)
    with tempfile.TemporaryDirectory() as name:
        config = make_index(Path(name), num_blocks)
        device = HostDevice()
        watch = Stopwatch()
        begin = time.perf_counter()
        with watch:
            manager = KVCacheManager(config, device=device)
        wall_seconds = time.perf_counter() - begin
        names = Stopwatch()
        with names:
            num_names = len(manager.restored())
        assert num_names == num_blocks and manager.probe_reuse(None, list(range(TOKENS_PER_BLOCK))) == TOKENS_PER_BLOCK
        manager.shutdown(0)
        device.close()
    return {
        "load": watch.ns / 1000 / num_blocks,
        "load_wall": wall_seconds * 1e6 / num_blocks,
        "names": names.ns / 1000 / num_blocks,
    }


WORKLOADS = [
    Workload(
        "restore",
        restore,
        {
            "load": Row("constructor, a durable level with 10^6 blocks, per block", "us", 2.0),
            "load_wall": Row("the same, by the wall clock", "us", 2.0),
            "names": Row("restored(), per block", "us"),
        },
    )
]
