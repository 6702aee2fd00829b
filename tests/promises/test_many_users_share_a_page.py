"""So many beams, sequences and leases as a page's row can count: one more is refused by name, and has changed nothing."""

from collections.abc import Callable

import pytest

from kv_cache_manager_v2 import (
    AttentionLayerConfig,
    BufferConfig,
    GpuCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LayerId,
    LogicError,
    is_compiled,
)
from kv_cache_manager_v2.manager.open_sequences import MOST_USERS
from kv_cache_manager_v2.storage.page_rows import MOST_HOLDS

TOKENS = [1, 2, 3, 4]
MOST_BEAMS = 65_536


def test_there_is_room_for_what_a_call_holds_besides() -> None:
    assert MOST_USERS + 10_000 < MOST_HOLDS


@pytest.mark.slow
@pytest.mark.skipif(not is_compiled(), reason="half a million beams take minutes interpreted")
def test_one_more_is_refused() -> None:
    layer = AttentionLayerConfig(LayerId(0), [BufferConfig("key", 16)])
    config = KVCacheManagerConfig(2, [GpuCacheTierConfig(1 << 14)], [layer], enable_stats=False)
    with KVCacheManager(config, device=HostDevice()) as manager:
        opened: list[KVCache] = []

        def open_one() -> KVCache:
            kv_cache = manager.create_kv_cache(input_tokens=TOKENS)
            assert kv_cache.resume()
            opened.append(kv_cache)
            return kv_cache

        first = open_one()
        assert first.resize(4)
        first.commit(TOKENS)
        num_users = 1
        while num_users + MOST_BEAMS < MOST_USERS:
            open_one().beam_width = MOST_BEAMS
            num_users += MOST_BEAMS
        lease = first.reserve_transfer()
        open_one().beam_width = MOST_USERS - num_users - 1

        refused: list[Callable[[], object]] = [
            lambda: manager.create_kv_cache(input_tokens=TOKENS), first.fork, first.reserve_transfer,
            lambda: setattr(opened[-1], "beam_width", opened[-1].beam_width + 1),
        ]  # fmt: skip
        for call in refused:
            before = manager.state_digest()
            with pytest.raises(LogicError, match=f"with {MOST_USERS} beams of open sequences and leases: 1 more would be over"):
                call()
            assert manager.state_digest() == before
        lease.settle()
        child = first.fork()
        child.close()
        opened[1].beam_width = 1
        opened[-1].beam_width = MOST_BEAMS
        for kv_cache in opened:
            kv_cache.close()
        manager.check_invariants()
        with manager.create_kv_cache(input_tokens=TOKENS) as again:
            assert again.num_committed_tokens == 4
