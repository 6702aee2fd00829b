"""Brute force over random paths: no windowed page is kept that no match could use, but where paths branch close by."""

import random

import pytest

from kv_cache_manager_v2 import AttentionLayerConfig, BufferConfig, GpuCacheTierConfig, KVCacheManager, KVCacheManagerConfig, ReuseScope
from kv_cache_manager_v2.device.host_device import HostDevice

T = 2
WINDOW_BLOCKS = 3
WINDOW = WINDOW_BLOCKS * T + 1
SIZE = 64


def make_manager(num_windowed_slots: int) -> KVCacheManager:
    """One windowed layer and one with full attention, of different slot sizes, so that each has slots of its own."""
    layers = [AttentionLayerConfig(0, [BufferConfig("key", SIZE)], WINDOW), AttentionLayerConfig(1, [BufferConfig("key", 2 * SIZE)])]
    num_full_slots = 200
    quota = num_windowed_slots * SIZE + num_full_slots * 2 * SIZE
    config = KVCacheManagerConfig(
        T, [GpuCacheTierConfig(quota)], layers,
        initial_pool_ratio=[SIZE * num_windowed_slots / quota, 2 * SIZE * num_full_slots / quota],
    )  # fmt: skip
    return KVCacheManager(config, device=HostDevice(granularity_bytes=4096))


def windowed_pages(manager: KVCacheManager) -> list[list[tuple[tuple[int, ...], bool, bool]]]:
    """Every path from a root to a leaf: (tokens, has the windowed page, a sequence needs it) by block."""
    paths = []
    for scope in [scope_dump for scope_dump in manager.describe()["tree"] if scope_dump["lora_id"] == 1]:
        path: list[tuple[tuple[int, ...], bool, bool]] = []
        blocks = scope["blocks"]
        for index, block in enumerate(blocks):
            del path[block["depth"] :]
            page = block["pages"][0]
            path.append((tuple(block["tokens"]), page is not None, page is not None and page["status"] != "droppable"))
            if index + 1 == len(blocks) or blocks[index + 1]["depth"] <= block["depth"]:
                paths.append(list(path))
    return paths


def is_useful(path: list[tuple[tuple[int, ...], bool, bool]], ordinal: int) -> bool:
    """Whether some prompt that ends on this path would read the page: a run of a window's blocks, or from the start on."""
    for end in range(ordinal, len(path)):
        needed = range(max(0, end - WINDOW_BLOCKS + 1), end + 1)
        if ordinal in needed and all(path[block][1] for block in needed):
            return True
    return False


def is_beside_a_branch(name: tuple[tuple[int, ...], ...], paths: list[list[tuple[tuple[int, ...], bool, bool]]]) -> bool:
    """Whether the run of pages around the block has a block with pages in two children: such runs are left alone."""
    with_page = set()
    for path in paths:
        for ordinal, block in enumerate(path):
            if block[1]:
                with_page.add(tuple(other[0] for other in path[: ordinal + 1]))
    top = name
    while top[:-1] in with_page:
        top = top[:-1]
    run = [other for other in with_page if other[: len(top)] == top]
    return any(len([other for other in run if len(other) == len(block) + 1 and other[: len(block)] == block]) > 1 for block in run)


@pytest.mark.parametrize("seed", range(30))
def test_what_is_kept_is_of_use(seed: int) -> None:
    rng = random.Random(seed)
    with make_manager(60) as manager:
        # At most 6 * 8 pages: nothing is evicted yet. Few tokens, so that paths are shared and branch.
        for _request in range(6):
            serve(manager, ReuseScope(1), [token for _block in range(rng.randrange(1, 9)) for token in (rng.randrange(2), 7)])
        num_kept = []
        for request in range(20):
            serve(manager, ReuseScope(2), [100 + request] * (4 * T))
            manager.check_invariants()
            paths = windowed_pages(manager)
            by_block: dict[tuple[tuple[int, ...], ...], bool] = {}
            for path in paths:
                for ordinal, (_tokens, has_page, _is_needed) in enumerate(path):
                    if has_page:
                        name = tuple(block[0] for block in path[: ordinal + 1])
                        by_block[name] = by_block.get(name, False) or is_useful(path, ordinal)
            num_kept.append(len(by_block))
            useless = [name for name, useful in by_block.items() if not useful and not is_beside_a_branch(name, paths)]
            assert not useless, f"seed {seed}: {useless} of {paths}"
        assert num_kept[-1] < num_kept[0], "nothing was evicted"


def serve(manager: KVCacheManager, scope: ReuseScope, text: list[int]) -> None:
    kv_cache = manager.create_kv_cache(scope, text)
    assert kv_cache.resume() and kv_cache.resize(len(text))
    kv_cache.commit(text[kv_cache.num_committed_tokens :])
    kv_cache.close()
