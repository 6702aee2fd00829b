"""Which pages of a path are listed for copies beyond this process, beside a look at every block and page."""

from array import array
from random import Random

import pytest
from hybrid_models import hybrid_config
from small_models import config_of

from kv_cache_manager_v2 import BAD_PAGE_INDEX, HostDevice, KVCacheManager, SnapshotPolicy
from kv_cache_manager_v2.reuse.content_key import block_key
from kv_cache_manager_v2.sequence.committed_pages import list_committed, pack_blocks
from kv_cache_manager_v2.sequence.sequence_state import SequenceState

BLOCK = 4
Listed = tuple[int, int, int, int]
"""Number, row, content, slot."""


def plain_list(state: SequenceState, begin: int, end: int, most: int, offered: dict[int, int]) -> tuple[list[Listed], int]:
    found: list[Listed] = []
    num_life_cycles = int(state.shared.num_life_cycles)
    rows = state.shared.storage.rows
    for ordinal in range(begin, end):
        block = state.blocks[ordinal]
        content = int(block_key(block, state.shared.tree.block_bytes))
        of_block: list[Listed] = []
        for number, life_cycle in enumerate(state.shared.life_cycles):
            row = int(block.first_page) + number
            if life_cycle.has_page_per_block:
                slot = int(state.tables[number].entries[ordinal])
            else:
                slot = int(rows.slot(row)) if rows.has_page(row) and rows.level(row) == 0 else BAD_PAGE_INDEX
            if slot != BAD_PAGE_INDEX and offered.get(row) != content:
                of_block.append((ordinal * num_life_cycles + number, row, content, slot))
        if len(found) + len(of_block) > most:
            return found, ordinal
        found += of_block
    return found, max(begin, end)


@pytest.mark.parametrize("seed", range(12))
def test_what_is_listed_and_where_it_ends(seed: int) -> None:
    random = Random(seed)
    windows = random.choice(([None], [None, 6], [6, 14]))
    if seed % 3 == 0:
        policy = SnapshotPolicy(every_num_blocks=random.choice((1, 2)))
        config = hybrid_config(windows, BLOCK, quota=1 << 16, snapshot_policy=policy)
    else:
        config = config_of(windows, BLOCK, 256)
    with KVCacheManager(config, device=HostDevice()) as manager, manager.create_kv_cache() as kv_cache:
        tokens = [random.randrange(1000) for _ in range(random.randint(20, 50))]
        assert kv_cache.resume()
        while kv_cache.num_committed_tokens < len(tokens):
            begin = kv_cache.num_committed_tokens
            end = min(begin + BLOCK, len(tokens))
            assert kv_cache.resize(end)
            kv_cache.commit(tokens[begin:end])
        state = kv_cache._state_for_batch()
        published = int(state.num_published)
        most_seen = 0
        for _ in range(60):
            begin = random.randint(0, published)
            end = random.randint(begin, published)
            everything, _end = plain_list(state, 0, published, 1 << 20, {})
            offered = {row: content + random.choice((0, 0, 1)) for _, row, content, _ in everything if random.random() < 0.3}
            most = random.choice((0, 1, 2, 3, 7, 100))
            found = list_committed(state, begin, end, most, offered)
            listed = [
                (int(page), int(row), int(content), int(slot))
                for page, row, content, slot in zip(found.pages, found.rows, found.contents, found.slots, strict=True)
            ]
            assert (listed, int(found.end)) == plain_list(state, begin, end, most, offered)
            most_seen = max(most_seen, len(listed))
            packed = array("i", tokens[begin * BLOCK : end * BLOCK]).tobytes()
            assert pack_blocks(state, begin, end) == packed
        assert most_seen > 1
