"""With pages for all prompts a match ends at the last snapshot on the prompt's path, or at the last known token if replay is allowed.

Compared with a list of all snapshots that were left. Tokens are 0 and 1, so prompts leave each other at every place of a block.
"""

from random import Random

import pytest
from hybrid_models import Rig

from kv_cache_manager_v2 import MatchedTokens, SnapshotPolicy

ONLY_LISTED = SnapshotPolicy(at_prompt_end=False, at_branches=False, at_commits=False, max_per_path=1000)


def count_shared(one: list[int], other: list[int]) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("replay", [0, 3, 9])
def test_the_last_snapshot_of_the_path_is_found(replay: int, seed: int) -> None:
    random = Random(seed)
    texts: list[list[int]] = []
    snapshots: set[tuple[int, ...]] = set()
    num_inside = num_replayed = 0
    with Rig(quota=1 << 17, snapshot_policy=ONLY_LISTED, max_state_replay_tokens=replay) as rig:
        for _ in range(30):
            text = [random.randrange(2) for _ in range(random.randint(1, 22))]
            if texts and random.random() < 0.6:
                other = random.choice(texts)
                text = other[: random.randint(1, len(other))] + text[:12]
            for length in range(1, len(text) + 1):
                # The attention has all tokens of some earlier prompt; the state is the one after the last snapshot among them.
                known = max([count_shared(text[:length], other) for other in texts], default=0)
                last = max([at for at in range(1, known + 1) if tuple(text[:at]) in snapshots], default=0)
                is_replayed = 0 < last < known <= last + replay
                assert rig.manager.probe_reuse(None, text[:length]) == (known if is_replayed else last), (text[:length], known)
                num_inside += last % 4 > 0
                num_replayed += is_replayed
            stops = random.sample(range(1, len(text) + 1), random.randint(0, min(3, len(text))))
            kv_cache = rig.create(text, snapshot_positions=stops)
            assert kv_cache.match_info == MatchedTokens(known, last)
            begin = kv_cache.num_committed_tokens
            if begin > last:
                rig.engine.replay_states(kv_cache, text[:begin], last)
            for end in sorted({*stops, len(text)}):
                if end > begin:
                    rig.step(kv_cache, text, begin, end)
                    begin = end
                    if end in stops:
                        snapshots.add(tuple(text[:end]))
            kv_cache.close()
            texts.append(text)
    assert num_inside > 50
    assert (num_replayed > 50) == (replay > 0)


@pytest.mark.parametrize("seed", range(4))
def test_a_prompt_stops_where_it_leaves_what_is_known(seed: int) -> None:
    """In whole blocks, and only where the tree goes on otherwise: not where the prompt ends among its tokens, or goes on behind them."""
    random = Random(seed)
    policy = SnapshotPolicy(at_prompt_end=False, at_commits=False)
    paths: set[tuple[int, ...]] = set()
    counts = {True: 0, False: 0}
    with Rig(quota=1 << 17, snapshot_policy=policy) as rig:
        for _ in range(150):
            text = [random.randrange(2) for _ in range(random.randint(1, 16))]
            known = max([length for length in range(0, len(text) + 1, 4) if length == 0 or tuple(text[:length]) in paths])
            children = [path[known:] for path in paths if len(path) == known + 4 and path[:known] == tuple(text[:known])]
            rest = tuple(text[known : known + 4])
            leaves = len(children) > 0 and not any(child[: len(rest)] == rest for child in children)
            kv_cache = rig.create(text)
            assert kv_cache.next_snapshot_position == (known if leaves and known > 0 else None), (text, children)
            counts[leaves and known > 0] += 1
            kv_cache.close()
            # What is computed has whole blocks only.
            text = text[: len(text) // 4 * 4]
            if random.random() < 0.3 and text:
                rig.prefill(text).close()
                paths.update(tuple(text[:length]) for length in range(4, len(text) + 1, 4))
    assert min(counts.values()) > 10
