"""A look-up by a list of ids says what one by an array says, and looks at no more of a long list than decides it."""

from pathlib import Path
from random import Random

import numpy as np
import pytest
from hybrid_models import Rig
from small_models import config_of, manager_of, run_prompt

from kv_cache_manager_v2 import HostDevice, KVCacheManager, ReuseScope, SnapshotPolicy
from kv_cache_manager_v2.replay.rerun import rerun

SCOPE = ReuseScope(salt="tenant")
# Of the tokens of a list so many are packed at first, and then eight times as many.
FIRST = 1024
LENGTHS = (1, FIRST - 1, FIRST, FIRST + 1, 8 * FIRST, 8 * FIRST + 1, 9000)


def make_prompts(text: list[int]) -> list[list[int]]:
    """Which leave a text at each end of what is packed, and beside it by a token and by a block of 8; and go on behind its end."""
    places = {end + shift for end in (0, 8, FIRST, 8 * FIRST, len(text)) for shift in (-9, -8, -7, -1, 0, 1, 7, 8, 9)}
    leaving = [[*text[:place], 7, *text[place:]] for place in sorted(places) if 0 <= place <= len(text)]
    return [*leaving, *(text[:length] for length in LENGTHS), [*text, *range(3000)]]


@pytest.mark.parametrize("partial", [True, False])
@pytest.mark.parametrize("windows", [(None,), (None, 24), (24,)])
def test_lists_and_arrays_find_the_same(windows: tuple[int | None, ...], partial: bool) -> None:
    random = Random(1)
    text = [random.randrange(8, 2**31) for _token in range(8200)]
    other = [*text[: FIRST + 3], *(random.randrange(8, 2**31) for _token in range(500))]
    with manager_of(windows, tokens_per_block=8, num_slots=2400, enable_partial_reuse=partial) as manager:
        for prompt in (text, other):
            run_prompt(manager, prompt, reuse_scope=SCOPE).close()
        prompts = make_prompts(text) + make_prompts(other)
        arrays = [manager.probe_reuse(SCOPE, np.array(prompt, np.int32)) for prompt in prompts]
        assert len(set(arrays)) > 10 or windows == (24,)
        assert [manager.probe_reuse(SCOPE, prompt) for prompt in prompts] == arrays
        # A sequence that is created packs all of them.
        for prompt, found in zip(prompts[::7], arrays[::7], strict=True):
            with manager.create_kv_cache(SCOPE, prompt) as kv_cache:
                assert kv_cache.num_committed_tokens == found
        assert manager.probe_reuse_batch(prompts, [SCOPE] * len(prompts)) == arrays
        assert manager.probe_reuse_batch(prompts) == [0] * len(prompts)


@pytest.mark.parametrize("windows", [(), (None,), (24,)])
def test_with_recurrent_layers(windows: tuple[int, ...]) -> None:
    text = list(range(9000))
    with Rig(windows=windows, tokens_per_block=8, quota=1 << 20, snapshot_policy=SnapshotPolicy(at_commits=True)) as rig:
        kv_cache = rig.manager.create_kv_cache(None, text, snapshot_positions=[8, 1000, FIRST, 8190])
        assert kv_cache.resume()
        for end in (8, 1000, FIRST, 8190, 9000):
            assert kv_cache.resize(end)
            kv_cache.commit(text[kv_cache.num_committed_tokens : end])
        kv_cache.close()
        prompts = make_prompts(text)
        arrays = [rig.manager.probe_reuse(None, np.array(prompt, np.int32)) for prompt in prompts]
        assert len(set(arrays)) > 3
        assert [rig.manager.probe_reuse(None, prompt) for prompt in prompts] == arrays


def test_planned_blocks_are_found_behind_what_is_packed_first() -> None:
    text = list(range(5000))
    with manager_of((None,), tokens_per_block=8, num_slots=700) as manager:
        with manager.create_kv_cache(None, text) as writer:
            assert writer.resume() and writer.resize(len(text))
            writer.publish_planned(text)
            assert manager.probe_reuse(None, text, include_planned=True) == 5000
            assert manager.probe_reuse_batch([text, text[:100]], None, True) == [5000, 96]
            assert manager.probe_reuse_batch([text]) == [0]


def test_what_is_far_behind_the_tree_is_not_looked_at() -> None:
    """The list has bad ids and digests where no answer depends on them; where one does they are errors, and digests, as ever."""
    text = list(range(3000))
    digest = b"image"
    with manager_of((None,), tokens_per_block=8, num_slots=900) as manager:
        run_prompt(manager, [*text, digest, 5]).close()
        assert manager.probe_reuse(None, [*text[:900], *text]) == 900
        for bad, error in (("a", TypeError), (-1, ValueError), (2**31, ValueError), (1.5, TypeError)):
            assert manager.probe_reuse(None, [7, *text, bad]) == 0  # type: ignore[list-item]
            for place in (0, 1000, FIRST, 2990):
                with pytest.raises(error, match=rf"input_tokens\[{place}\]"):
                    manager.probe_reuse(None, [*text[:place], bad, *text[place:]])  # type: ignore[list-item]
            with pytest.raises(error, match=r"prompts\[1\]\[5\]"):
                manager.probe_reuse_batch([text, [*text[:5], bad]])  # type: ignore[list-item]
        assert manager.probe_reuse(None, [*text, digest, 5]) == 3002
        assert manager.probe_reuse(None, [*text, b"other", 5]) == 3000
        manager.check_invariants()


def test_arguments_of_a_batch_are_named() -> None:
    with manager_of() as manager:
        with pytest.raises(ValueError, match="reuse_scopes has 1 entries for 2 prompts"):
            manager.probe_reuse_batch([[1], [2]], [None])
        with pytest.raises(TypeError, match="each of reuse_scopes must be a ReuseScope"):
            manager.probe_reuse_batch([[1]], ["tenant"])  # type: ignore[list-item]
        assert manager.probe_reuse_batch([]) == []


def test_journals_have_what_was_looked_at(tmp_path: Path) -> None:
    text = list(range(9000))
    path = tmp_path / "journal"
    with KVCacheManager(config_of((None,), 8, 1200), device=HostDevice(), journal=path) as manager:
        run_prompt(manager, text).close()
        assert manager.probe_reuse_batch([text, text[5:], [*text[:FIRST], *text]]) == [9000, 0, FIRST]
    assert rerun(path, HostDevice()).num_calls > 3
    assert path.stat().st_size < 200_000
