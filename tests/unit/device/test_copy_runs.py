"""`CopyRuns` against merging bytes one by one, and `CopyBatch` itself."""

import random

import pytest

from kv_cache_manager_v2.base.ids import CacheTier
from kv_cache_manager_v2.device.copy_runs import CopyRuns
from kv_cache_manager_v2.device.port import CopyBatch

GPU, HOST = CacheTier.GPU_MEM, CacheTier.HOST_MEM


@pytest.mark.parametrize("seed", range(10))
def test_runs_say_the_same_as_the_batch_and_none_continues_the_one_before(seed: int) -> None:
    generator = random.Random(seed)
    size = generator.choice([1, 3, 4096])
    batch = CopyBatch(GPU, HOST, size)
    expected: list[tuple[int, int]] = []
    dst = src = 1 << 44
    for _ in range(200):
        if generator.random() < 0.4:
            dst = (1 << 44) + generator.randrange(50) * size
            src = (1 << 45) + generator.randrange(50) * size
        else:
            dst += size
            src += size
        batch.add(dst, src)
        expected += [(dst + byte, src + byte) for byte in (range(size) if size < 10 else (0, size - 1))]
    runs = CopyRuns(batch)
    found: list[tuple[int, int]] = []
    for index in range(runs.count):
        dst, src, num_bytes = runs.dst_addresses[index], runs.src_addresses[index], runs.sizes[index]
        assert num_bytes % size == 0
        for offset in range(0, num_bytes, size):
            found += [(dst + offset + b, src + offset + b) for b in (range(size) if size < 10 else (0, size - 1))]
        if index > 0:
            before = (
                runs.dst_addresses[index - 1] + runs.sizes[index - 1],
                runs.src_addresses[index - 1] + runs.sizes[index - 1],
            )
            assert before != (dst, src)
    assert found == expected
    dsts, srcs = [pair[0] for pair in expected], [pair[1] for pair in expected]
    assert (runs.dst_beg, runs.dst_end) == (min(dsts), max(dsts) + 1)
    assert (runs.src_beg, runs.src_end) == (min(srcs), max(srcs) + 1)


def test_a_cleared_batch_forgets_what_lies_behind_its_count() -> None:
    batch = CopyBatch(GPU, HOST, 10)
    for index in range(5):
        batch.add(1000 + 20 * index, 5000 + 20 * index)
    batch.clear()
    batch.add(100, 200)
    batch.add(110, 210)
    runs = CopyRuns(batch)
    assert (runs.count, runs.dst_addresses[0], runs.src_addresses[0], runs.sizes[0]) == (1, 100, 200, 20)
    assert (runs.dst_beg, runs.dst_end, runs.src_beg, runs.src_end) == (100, 120, 200, 220)
