"""Importing the library loads no numpy, no CUDA and none of its tools; what needs them loads them at the first use."""

import subprocess
import sys

PROGRAM = """
import sys
sys.path[:] = {path!r}
import kv_cache_manager_v2 as library
manager = library.KVCacheManager(
    library.KVCacheManagerConfig(
        tokens_per_block=4,
        cache_tiers=[library.GpuCacheTierConfig(1 << 20)],
        layers=[library.AttentionLayerConfig(library.LayerId(0), [library.BufferConfig("key", 64)])],
    ),
    device=library.HostDevice(),
)
for _ in range(2):
    with manager.create_kv_cache(None, [1, 2, 3, 4, 5]) as kv_cache:
        assert kv_cache.resume() and kv_cache.resize(5)
        kv_cache.commit([1, 2, 3, 4, 5][kv_cache.num_committed_tokens:])
manager.shutdown()
heavy = ("numpy", "cuda", "kv_cache_manager_v2.testing", "kv_cache_manager_v2.replay", "kv_cache_manager_v2.kernels")
print([name for name in heavy if name in sys.modules])
print(sorted(set(library.__all__) - set(dir(library))))
print(sorted(name for name in library.__all__ if not hasattr(library, name)))
print("numpy" in sys.modules)
"""


def test_serving_lists_of_tokens_needs_no_numpy_and_every_public_name_is_there() -> None:
    """All lines in one process: what the first request needs, what ``dir`` lists, then all names, of which some need numpy."""
    program = PROGRAM.format(path=sys.path)
    result = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, timeout=60)
    assert result.stdout.splitlines() == ["[]", "[]", "[]", "True"], result.stdout + result.stderr
