"""What a caller says of a sequence's future, and of its tokens, raises hits where it is right, and costs none where it says nothing."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from kv_cache_manager_v2 import (
    EvictionPolicy,
    GpuCacheTierConfig,
    KVCacheManager,
    KVCacheManagerConfig,
    RetentionConfig,
    TokenRangeRetention,
)
from kv_cache_manager_v2.device.host_device import HostDevice
from kv_cache_manager_v2.replay.rerun import rerun
from small_models import attention_layers

T = 2
SLOT_BYTES = 2 * 8 * T
NUM_SLOTS = 48
NUM_BLOCKS = 4
NUM_PROMPTS = 700
GAP = 20
"""Prompts between a turn and the next one: 80 blocks, more than there is room for."""
Hint = Callable[[bool], bool | None]


def manager_of(num_slots: int = NUM_SLOTS, journal: Path | None = None) -> KVCacheManager:
    tiers = [GpuCacheTierConfig(num_slots * SLOT_BYTES, EvictionPolicy.LEARNED)]
    return KVCacheManager(
        KVCacheManagerConfig(T, tiers, attention_layers([None], T)), device=HostDevice(granularity_bytes=4096), journal=journal
    )


def prompt_of(number: int) -> list[int]:
    return [1000 * number + position for position in range(NUM_BLOCKS * T)]


def serve(manager: KVCacheManager, tokens: list[int], retention: RetentionConfig | None = None) -> Any:
    kv_cache = manager.create_kv_cache(None, tokens, retention=retention)
    assert kv_cache.resume() and kv_cache.resize(len(tokens))
    kv_cache.commit(tokens[kv_cache.num_committed_tokens :])
    return kv_cache


def count_hits(
    hint: Hint, journal: Path | None = None, kind: Callable[[bool], int | None] = lambda continues: None, at_stop: bool = False
) -> float:
    """One prompt in three comes back once, `GAP` prompts later. The share of these that hit."""
    random = Random(1)
    coming_back: dict[int, int] = {}
    num_hits = 0
    num_back = 0
    with manager_of(journal=journal) as manager:
        for number in range(NUM_PROMPTS):
            again = coming_back.pop(number, None)
            if again is not None:
                num_back += NUM_BLOCKS
                num_hits += manager.probe_reuse(None, prompt_of(again)) // T
                serve(manager, prompt_of(again)).close(hint(False))
            continues = random.random() < 1 / 3
            if continues:
                coming_back[number + GAP] = number
            named = kind(continues)
            retention = None if named is None else RetentionConfig([TokenRangeRetention(0, None, 35, kind=named)])
            kv_cache = serve(manager, prompt_of(number), retention)
            if at_stop:
                kv_cache.stop_committing(hint(continues))
                kv_cache.close()
            else:
                kv_cache.close(continues=hint(continues))
    return num_hits / num_back


@pytest.fixture(scope="module")
def nothing_said() -> float:
    return count_hits(lambda continues: None)


def random_hint() -> Hint:
    random = Random(1)
    return lambda continues: random.random() < 0.5


def test_a_hint_that_tells_something_raises_hits(nothing_said: float) -> None:
    """Also said by `stop_committing`. What it means is learned: always the opposite tells as much."""
    right = count_hits(lambda continues: continues)
    assert right > nothing_said + 0.3
    assert count_hits(lambda continues: continues, at_stop=True) == right
    assert count_hits(lambda continues: not continues) > nothing_said + 0.3


@pytest.mark.parametrize("hint", [lambda continues: True, lambda continues: False, random_hint()], ids=["always", "never", "random"])
def test_a_hint_that_tells_nothing_costs_nothing(hint: Hint, nothing_said: float) -> None:
    assert abs(count_hits(hint) - nothing_said) <= 0.003


def test_kinds_of_tokens_tell_which_come_back(nothing_said: float) -> None:
    assert count_hits(lambda continues: None, kind=lambda continues: 7 if continues else 255) > nothing_said + 0.3
    assert abs(count_hits(lambda continues: None, kind=lambda continues: 7) - nothing_said) <= 0.003


def test_a_journal_with_hints_runs_again(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    count_hits(lambda continues: continues, journal, kind=lambda continues: 1 if continues else 2)
    assert rerun(journal, HostDevice(granularity_bytes=4096)).num_digests > 0


def test_a_hint_is_a_bool_and_a_kind_a_byte() -> None:
    wrong: Any = 1
    with manager_of() as manager:
        kv_cache = serve(manager, prompt_of(1))
        kv_cache.stop_committing(True)
        kv_cache.close(False)
        kv_cache.close(True)
        with pytest.raises(TypeError, match="continues must be a bool"):
            kv_cache.close(wrong)
    for number in (-1, 256, 1 << 70):
        with pytest.raises(ValueError, match=r"TokenRangeRetention\.kind"):
            TokenRangeRetention(0, 4, 50, kind=number)


def test_ranges_of_kinds_may_lie_anywhere() -> None:
    """Behind all tokens, beyond any number of them, one over the other: the highest priority that has a kind counts."""
    ranges = [
        TokenRangeRetention(0, 1 << 60, 35, kind=1),
        TokenRangeRetention(2, 5, 80, kind=2),
        TokenRangeRetention(4, 8, 80, kind=3),
        TokenRangeRetention(0, None, 90),
        TokenRangeRetention(1 << 60, None, 100, kind=4),
    ]
    with manager_of() as manager:
        kv_cache = serve(manager, prompt_of(1), RetentionConfig(ranges))
        facts = manager._shared.storage.learning.request
        kinds = kv_cache._state.request.kinds
        assert kinds is not None
        facts.begin(NUM_BLOCKS, 0, 0)
        kinds.describe(facts)
        # Tokens 2 and 3 are block 1, 4 to 7 blocks 2 and 3; the first range given of equal priority counts in block 2.
        assert [int(facts.kind_at(NUM_BLOCKS - 1 - block)) for block in range(NUM_BLOCKS)] == [2, 3, 3, 4]
        facts.end()
        kv_cache.close()
        serve(manager, prompt_of(1), RetentionConfig(ranges)).close(True)


def test_a_hint_holds_for_forks_and_ends_with_a_rewind() -> None:
    with manager_of() as manager:
        kv_cache = serve(manager, prompt_of(1))
        kv_cache.stop_committing(True)
        fork = kv_cache.fork()
        assert fork._state.request.continues == kv_cache._state.request.continues != 0
        kv_cache.rewind(4)
        assert kv_cache._state.request.continues == 0
        fork.close()
        kv_cache.close()
