"""What a restart finds can be used: a text with a page of a window, or a snapshot, missing restores to the longest prefix that works."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from durable_models import TOKENS_PER_BLOCK, Process, durable_config
from hybrid_models import Rig, hybrid_config

from kv_cache_manager_v2 import DiskCacheTierConfig, GpuCacheTierConfig, KVCacheManagerConfig, ModelId, SnapshotPolicy
from kv_cache_manager_v2.device.os_files import OsFiles
from kv_cache_manager_v2.device.read_only_files import ReadOnlyFiles
from kv_cache_manager_v2.durable.cache_folder import CacheFolder
from kv_cache_manager_v2.replay.folder_contents import FolderContents, find_folders
from kv_cache_manager_v2.durable.record_format import encode_free
from kv_cache_manager_v2.replay.stored_index import list_nodes, list_stored_pages

SIZE = TOKENS_PER_BLOCK
TEXT = list(range(100, 128))
WINDOW = 2 * SIZE


def read_folder(folder: Path) -> FolderContents:
    return FolderContents(ReadOnlyFiles(), find_folders(ReadOnlyFiles(), str(folder))[0])


def free_page(folder: Path, place: tuple[int, int]) -> None:
    """From now on the index says that nothing of use lies there: as if another page had been begun in the slot."""
    contents = read_folder(folder)
    identity = json.dumps(contents.identity, sort_keys=True)
    opened = CacheFolder(OsFiles(), [os.path.dirname(contents.path)], identity, json.dumps(contents.layout))
    opened.append(encode_free(place[1], place[0]))
    opened.close()


def pages_of(contents: FolderContents) -> dict[tuple[int, int], tuple[int, int]]:
    """By ordinal of the block and life cycle, where the page lies; one path."""
    ordinals: dict[int, int] = {}
    for number, node in list_nodes(contents.state).items():
        ordinals[number] = -1 if node.parent == 0 else ordinals[node.parent] + 1
    return {(ordinals[page.node], page.life_cycle): place for place, page in list_stored_pages(contents.state).items()}


def longest_prefix(pages: set[tuple[int, int]], full: int, windowed: int) -> int:
    """By brute force: all blocks of full attention, and those that the next token's window reads."""
    lengths = [0]
    for num_blocks in range(1, len(TEXT) // SIZE + 1):
        begin = max((num_blocks * SIZE + 1 - WINDOW) // SIZE, 0)
        has_all = all((ordinal, full) in pages for ordinal in range(num_blocks))
        if has_all and all((ordinal, windowed) in pages for ordinal in range(begin, num_blocks)):
            lengths.append(num_blocks * SIZE)
    return max(lengths)


@pytest.mark.parametrize("life_cycle", [0, 1])
@pytest.mark.parametrize("ordinal", range(len(TEXT) // SIZE))
def test_without_a_page_the_longest_prefix_is_found(tmp_path: Path, ordinal: int, life_cycle: int) -> None:
    config = durable_config(str(tmp_path), gpu_slots=60, disk_slots=160, windows=(None, WINDOW))
    first = Process(config)
    for length in range(SIZE, len(TEXT) + 1, SIZE):
        # In steps, so that windows of shorter prefixes were published, too.
        first.run(TEXT[:length])
    groups = {first.manager.life_cycle_of_group(group).window_size: group for group in (0, 1)}
    first.end()
    pages = pages_of(read_folder(tmp_path))
    assert longest_prefix(set(pages), groups[None], groups[WINDOW]) == len(TEXT)
    place = pages.pop((ordinal, life_cycle), None)
    if place is not None:
        free_page(tmp_path, place)
    expected = longest_prefix(set(pages), groups[None], groups[WINDOW])
    again = Process(config)
    assert again.manager.probe_reuse(None, TEXT) == expected
    assert again.run([*TEXT, 7]) == expected, "and its bytes are right"
    again.end()


def hybrid_durable(folder: Path) -> KVCacheManagerConfig:
    tiers: list[Any] = [GpuCacheTierConfig(1 << 14), DiskCacheTierConfig(1 << 16, str(folder), durable=True, model_id=ModelId("hybrid"))]
    return hybrid_config((None,), cache_tiers=tiers, snapshot_policy=SnapshotPolicy(every_num_blocks=2))


@pytest.mark.parametrize("missing", [None, 2 * SIZE, 4 * SIZE, 6 * SIZE])
def test_without_a_snapshot_the_one_before_it_is_found(tmp_path: Path, missing: int | None) -> None:
    config = hybrid_durable(tmp_path)
    text = TEXT[: 6 * SIZE]
    first = Rig(config=config)
    first.prefill(text, [2 * SIZE, 4 * SIZE]).close()
    state_group = first.state_group
    first.engine.close()
    first.manager.shutdown(60.0)
    first.device.close()
    pages = pages_of(read_folder(tmp_path))
    assert {ordinal for ordinal, group in pages if group == state_group} == {1, 3, 5}
    if missing is not None:
        free_page(tmp_path, pages[(missing // SIZE - 1, state_group)])
    again = Rig(config=config)
    expected = 4 * SIZE if missing == len(text) else len(text)
    kv_cache = again.create([*text, 7])
    assert kv_cache.num_committed_tokens == expected and kv_cache.match_info.state_tokens == expected
    again.step(kv_cache, [*text, 7], expected, len(text) + 1)
    kv_cache.close()
    again.engine.close()
    again.manager.check_invariants()
    again.manager.shutdown()
    again.device.close()
