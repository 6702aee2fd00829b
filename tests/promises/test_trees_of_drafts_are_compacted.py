"""Of a tree of drafts the accepted nodes are moved together and committed; every byte is where the next step reads it."""

import random
from typing import Any

import numpy as np
import pytest
from small_models import config_of, manager_of, run_prompt

from kv_cache_manager_v2 import HostDevice, KVCacheManager, LayerId, LogicError, SwaScratchReuseConfig
from kv_cache_manager_v2.testing import FakeEngine, SimulatedDevice, Step


def token_of(view: Any, manager: KVCacheManager, kv_cache: Any, role: str, position: int, heads: int) -> Any:
    """The 8 bytes of a token of layer 0, as a view of the pool: ``heads`` pieces of them; T = 4."""
    (index,) = manager.get_page_index_converter(LayerId(0), role)([kv_cache.get_base_page_indices(0)[position // 4]])
    return np.asarray(view)[index].reshape(heads, 4, 8 // heads)[:, position % 4]


def bytes_of(manager: KVCacheManager, kv_cache: Any, position: int, heads: int) -> bytes:
    found = b""
    for role in ("key", "value"):
        view = manager.pool_view(LayerId(0), role)
        found += token_of(view, manager, kv_cache, role, position, heads).tobytes()
        view.release()
    return found


def write(manager: KVCacheManager, kv_cache: Any, position: int, value: int, heads: int) -> None:
    for role in ("key", "value"):
        view = manager.pool_view(LayerId(0), role)
        token_of(view, manager, kv_cache, role, position, heads)[:] = value
        view.release()


@pytest.mark.parametrize("heads", [1, 2, 4])
@pytest.mark.parametrize("seed", range(8))
def test_accepted_nodes_are_moved_together(seed: int, heads: int) -> None:
    """Each position holds its own number; afterwards token i of the accepted ones has the number of its node."""
    rng = random.Random(seed)
    prompt = rng.randrange(1, 9)
    size = rng.randrange(1, 15)
    with manager_of() as manager, run_prompt(manager, list(range(prompt))) as kv_cache:
        assert kv_cache.resize(prompt + size, prompt)
        for position in range(prompt, prompt + size):
            write(manager, kv_cache, position, position, heads)
        accepted = sorted(rng.sample(range(prompt, prompt + size), rng.randrange(size + 1)))
        kv_cache.commit_tree([500 + position for position in accepted], accepted, num_heads=heads)
        manager.check_invariants()
        assert kv_cache.committed_tokens == [*range(prompt), *[500 + position for position in accepted]]
        assert kv_cache.capacity == prompt + size
        for number, position in enumerate(accepted):
            assert set(bytes_of(manager, kv_cache, prompt + number, heads)) == {position}


def test_the_next_step_reads_the_accepted_branch() -> None:
    """A chain of drafts whose first nodes are accepted needs no move; the next step reads them, and writes over the rest."""
    for seed in range(5):
        device = SimulatedDevice(seed)
        config = config_of([None, 6], num_slots=64)
        with KVCacheManager(config, device=device) as manager, FakeEngine(config, device) as engine:
            prompt = [1, 2, 3, 4, 5]
            kv_cache = manager.create_kv_cache()
            assert kv_cache.resume() and kv_cache.resize(5, 0)
            engine.execute([Step(kv_cache, prompt, [])])
            kv_cache.commit(prompt)
            assert kv_cache.resize(12, 5)
            engine.execute([Step(kv_cache, [10, 11, 12, 90, 91], prompt)])
            kv_cache.commit_tree([10, 11, 12], [5, 6, 7])
            assert kv_cache.resize(9, 8)
            engine.execute([Step(kv_cache, [13], [*prompt, 10, 11, 12])])
            kv_cache.commit([13])
            kv_cache.close()
            manager.check_invariants()
        assert not device.races


@pytest.mark.parametrize("seed", range(6))
def test_a_branch_between_others_is_read_by_the_next_step(seed: int) -> None:
    """Behind 5 tokens 7 nodes of a tree in one step; accepted are those at 6, 9 and 10, each below the one before."""
    device = SimulatedDevice(seed)
    config = config_of([None, 6], num_slots=64)
    with KVCacheManager(config, device=device) as manager, FakeEngine(config, device) as engine:
        prompt = [1, 2, 3, 4, 5]
        kv_cache = manager.create_kv_cache()
        assert kv_cache.resume() and kv_cache.resize(12, 0)
        engine.execute([Step(kv_cache, prompt, [])])
        nodes, parents = [20, 21, 22, 23, 24, 25, 26], [-1, -1, 0, 1, 1, 4, 2]
        engine.execute([Step(kv_cache, nodes, prompt, parents)])
        kv_cache.commit_tree([*prompt, 21, 24, 25], [0, 1, 2, 3, 4, 6, 9, 10])
        assert kv_cache.resize(9, 8)
        engine.execute([Step(kv_cache, [27], [*prompt, 21, 24, 25])])
        kv_cache.close()
    assert not device.races


def test_a_tree_that_is_none_is_refused() -> None:
    config = config_of(num_slots=64)
    device = HostDevice()
    with KVCacheManager(config, device=device) as manager, FakeEngine(config, device) as engine:
        with manager.create_kv_cache() as kv_cache:
            assert kv_cache.resume() and kv_cache.resize(4, 0)
            for parents, words in (([-1], "1 parents"), ([-1, 1], "-1 .. 0"), ([-2, 0], "-1 .. -1")):
                with pytest.raises(ValueError, match=words):
                    engine.execute([Step(kv_cache, [1, 2], [], parents)])


def test_what_the_window_has_passed_is_moved_too() -> None:
    """A window of 2, blocks of 4 tokens, a tree of 11 nodes at 1 to 11 of which all but the first are accepted: 11 tokens, and the
    next one reads from block floor((11 + 1 - 2) / 4) = 2 on. Block 1 is published nevertheless, and a prompt of 7 of these tokens
    reads its position 6: that is the node from position 7."""
    with manager_of([2]) as manager, run_prompt(manager, [100]) as kv_cache:
        assert kv_cache.resize(12, 1)
        for position in range(1, 12):
            write(manager, kv_cache, position, position, 1)
        kv_cache.commit_tree(list(range(102, 112)), list(range(2, 12)))
        with manager.create_kv_cache(input_tokens=[100, *range(102, 108)]) as shorter:
            assert shorter.num_committed_tokens == 7 and shorter.resume()
            assert set(bytes_of(manager, shorter, 6, 1)) == {7}


def test_mistakes_change_nothing() -> None:
    with manager_of() as manager, run_prompt(manager, [1, 2, 3, 4, 5]) as kv_cache:
        assert kv_cache.resize(10, 5)
        before = manager.describe()
        for tokens, positions in (([7], [5, 6]), ([7, 8], [5]), ([7, 8], [6, 6]), ([7, 8], [7, 6]), ([7], [4]), ([7], [10]), ([-7], [5])):
            with pytest.raises(ValueError):
                kv_cache.commit_tree(tokens, positions)
        for heads in (0, 3, 64):
            with pytest.raises(ValueError, match="num_heads"):
                kv_cache.commit_tree([7], [6], num_heads=heads)
        assert manager.describe() == before
        with kv_cache.fork():
            with pytest.raises(LogicError, match="fork"):
                kv_cache.commit_tree([7], [6])
            kv_cache.commit_tree([7], [5])
        kv_cache.suspend()
        with pytest.raises(LogicError):
            kv_cache.commit_tree([7], [6])
        assert kv_cache.resume()
        kv_cache.stop_committing()
        with pytest.raises(LogicError):
            kv_cache.commit_tree([7], [6])


def test_a_tree_and_scratch_slots() -> None:
    """Blocks of 4, a window of 4. A tree of 12 behind 8 tokens: with rewinds of 12 nothing of it is scratch, with 0 some is."""
    for max_rewind_len in (12, 0):
        scratch = SwaScratchReuseConfig(max_rewind_len=max_rewind_len)
        with manager_of([4], num_slots=64, swa_scratch_reuse=scratch) as manager:
            kv_cache = manager.create_kv_cache()
            assert kv_cache.resume() and kv_cache.resize(8, 0)
            kv_cache.commit(list(range(8)))
            assert kv_cache.resize(20, 8)
            if max_rewind_len == 0:
                assert kv_cache.has_scratch_slots
                with pytest.raises(LogicError, match="max_rewind_len"):
                    kv_cache.commit_tree([100, 101], [8, 13])
            else:
                kv_cache.commit_tree([100, 101], [8, 13])
            manager.check_invariants()


def test_a_tree_is_recorded_and_runs_again(tmp_path: Any) -> None:
    from kv_cache_manager_v2.replay.rerun import rerun

    path = tmp_path / "journal"
    with KVCacheManager(config_of(), device=HostDevice(), journal=path) as manager:
        with run_prompt(manager, [1, 2, 3, 4, 5]) as kv_cache:
            assert kv_cache.resize(12, 5)
            kv_cache.commit_tree([6, b"an image", 8], [5, 8, 11])
        digest = manager.state_digest()
    assert rerun(path, HostDevice(), True).digest == digest
