"""Models with recurrent layers share prefixes too: attention's pages, and the snapshot of the state at a block's end."""

from collections.abc import Sequence
from typing import Any

import pytest
from hybrid_models import hybrid_config
from shared_models import Rank

from kv_cache_manager_v2 import SnapshotPolicy
from kv_cache_manager_v2.shared import MemoryStore


def make_rank(store: Any, windows: Sequence[int | None] = (None,), every: int | None = 1, **settings: Any) -> Rank:
    policy = SnapshotPolicy(every_num_blocks=every)
    return Rank(store, hybrid_config(windows, quota=1 << 18, max_util_for_resume=1.0, snapshot_policy=policy, **settings))


@pytest.mark.parametrize("windows", [(None,), (None, 8), ()])
@pytest.mark.parametrize("settings", [{}, {"state_checkpoints": 2}])
def test_another_process_goes_on_from_the_last_snapshot(windows: tuple[int | None, ...], settings: dict[str, Any]) -> None:
    store = MemoryStore()
    text = list(range(22))
    with make_rank(store, windows, **settings) as writer:
        assert writer.run(text) == 0
        writer.drain()
        assert writer.num_computed == 22
    with make_rank(store, windows, **settings) as reader:
        # Snapshots are at 4, 8 .. 20; of the window of 8 at 22 tokens, position 15 and on are there, so block 3 and on; at 20 block 3 is
        # the first that is read (13).
        assert reader.run([*text, 7, 7]) == 20
        assert reader.num_computed == 4
        reader.forget()
        if 8 not in windows:
            assert reader.run([*text[:9], 99, 98]) == 8  # a shorter prefix, at another snapshot
            reader.forget()
        assert reader.run(text[:4]) == 0  # all but the last of 4 tokens: no whole block


def test_only_lengths_with_a_snapshot_can_be_restored() -> None:
    store = MemoryStore()
    text = list(range(33))
    with make_rank(store, every=3) as writer:
        writer.run(text)
        writer.drain()
    with make_rank(store, every=3) as reader:
        request = reader.begin([*text[:22], 99, 98])
        reader.wait(lambda: request.remote_tokens is not None)
        assert request.remote_tokens == 12  # 12, 24 and, at the prompt's end, 32: of 22 equal tokens 12
        assert reader.load(request) == 12
        reader.compute(request, [*text[:22], 99, 98])
        reader.forget()
        assert reader.run([*text, 5]) == 32


def test_what_is_matched_here_goes_on_there() -> None:
    store = MemoryStore()
    text = list(range(33))
    with make_rank(store) as writer:
        writer.run(text)
        writer.drain()
    with make_rank(store) as reader:
        reader.compute(reader.begin(text[:13]), text[:13])
        assert reader.run([*text, 5]) == 32 - 12


def test_a_snapshot_that_is_gone_or_wrong_costs_its_length_only() -> None:
    store = MemoryStore()
    text = list(range(21))
    with make_rank(store) as writer:
        writer.run(text)
        writer.drain()
    keys = [key for key in store.keys() if b"/g1/" in key]
    assert len(keys) == 5
    store.discard(keys[4])
    with make_rank(store) as reader:
        assert reader.run(text) == 16
    damaged = store.get(keys[3])
    assert damaged is not None
    store.put(keys[3], damaged[:-1] + bytes([damaged[-1] ^ 1]))
    with make_rank(store, every=None) as reader:
        assert reader.run(text) == 0
        assert reader.level.statistics.corrupt_pages == 1
    with make_rank(store) as reader:
        assert reader.run(text) == 12  # what was wrong has been removed


def test_a_state_behind_its_sequence_is_not_looked_up() -> None:
    store = MemoryStore()
    text = list(range(33))
    with make_rank(store) as writer:
        writer.run(text)
        writer.drain()
    with make_rank(store, every=3, max_state_replay_tokens=8) as reader:
        reader.compute(reader.begin(text[:23]), text[:23])
        request = reader.begin(text)
        matched = request.kv_cache.match_info
        assert matched.state_tokens < request.kv_cache.num_committed_tokens < 32
        assert request.remote_tokens == 0
        request.cancel_remote()
        request.kv_cache.close()
