"""`can_finish` says whether open sequences can be finished one after the other, and in which order, else what binds; it changes nothing."""

import itertools
import random
from typing import Any

import pytest
from small_models import attention_layers, config_of, new_manager

from kv_cache_manager_v2 import (
    FinishPlan,
    GpuCacheTierConfig,
    HostCacheTierConfig,
    HostDevice,
    KVCache,
    KVCacheManager,
    KVCacheManagerConfig,
    LogicError,
)

BLOCK = 4


def manager_with(num_slots: int, num_host_slots: int = 0, window: int | None = None) -> KVCacheManager:
    layers = attention_layers([window], BLOCK)
    slot_bytes = sum(buffer.size for layer in layers for buffer in layer.buffers)
    tiers: list[GpuCacheTierConfig | HostCacheTierConfig] = [GpuCacheTierConfig(num_slots * slot_bytes)]
    if num_host_slots > 0:
        tiers.append(HostCacheTierConfig(num_host_slots * slot_bytes))
    return KVCacheManager(KVCacheManagerConfig(BLOCK, tiers, layers), device=HostDevice())


def open_sequence(manager: KVCacheManager, number: int, num_blocks: int) -> KVCache:
    """Active, with so many full blocks of tokens that no other sequence has."""
    tokens = [1000 * number + position for position in range(num_blocks * BLOCK)]
    kv_cache = manager.create_kv_cache(id=number)
    assert kv_cache.resume() and kv_cache.resize(len(tokens))
    kv_cache.commit(tokens)
    return kv_cache


def finish(kv_caches: list[KVCache], order: tuple[int, ...], remaining: list[int]) -> None:
    """What the plan promises: the others suspended, one after the other grows token by token and is closed."""
    for kv_cache in kv_caches:
        if kv_cache.is_active:
            kv_cache.suspend()
    for position in order:
        kv_cache = kv_caches[position]
        assert kv_cache.resume()
        for _ in range(remaining[position]):
            assert kv_cache.resize(kv_cache.capacity + 1, kv_cache.capacity)
        kv_cache.close()


def close(manager: KVCacheManager, kv_caches: list[KVCache]) -> None:
    for kv_cache in kv_caches:
        kv_cache.close()
    manager.shutdown()


def test_what_is_full_cannot_finish() -> None:
    """2 sequences fill 8 slots with 4 blocks each, and each lacks one block: 9 of 8. One slot below is enough."""
    manager = manager_with(8)
    both = [open_sequence(manager, number, 4) for number in range(2)]
    plan = manager.can_finish(both, [4, 4])
    assert not plan and plan.order == () and plan.spare_slots == (0,)
    assert plan.refusal is not None
    assert (plan.refusal.level, plan.refusal.pool_group, plan.refusal.asked, plan.refusal.free) == (0, 0, 9, 8)
    assert "sequence 0, grown by 4 tokens to 20" in str(plan)
    close(manager, both)
    manager = manager_with(8, 1)
    both = [open_sequence(manager, number, 4) for number in range(2)]
    plan = manager.can_finish(both, [4, 4])
    assert plan == FinishPlan((0, 1), None, (0,))
    finish(both, plan.order, [4, 4])
    close(manager, both)


def test_the_order_is_one_that_works() -> None:
    """3 blocks each of 8 slots; one needs 3 more, which is 9 with the other's, the other 1 more, which is 7. Then 6."""
    manager = manager_with(8)
    both = [open_sequence(manager, number, 3) for number in range(2)]
    plan = manager.can_finish(both, [12, 4])
    assert plan == FinishPlan((1, 0), None, (1,)) and "in the order 1, 0" in str(plan)
    # The spare slot: a block that the first one takes now does no harm, a second one does.
    assert both[0].resize(16)
    assert manager.can_finish(both, [8, 4]) == FinishPlan((1, 0), None, (0,))
    assert both[0].resize(20)
    assert not manager.can_finish(both, [4, 4])
    assert both[0].resize(16)
    finish(both, (1, 0), [8, 4])
    close(manager, both)


def test_some_of_the_list_finish() -> None:
    """The last of three can never have 9 of 8 slots; the others can finish."""
    manager = manager_with(8)
    three = [open_sequence(manager, number, 2) for number in range(3)]
    plan = manager.can_finish(three, [4, 4, 28])
    assert not plan and plan.order == (0, 1)
    assert plan.refusal is not None and (plan.refusal.asked, plan.refusal.free) == (9, 8)
    close(manager, three)


def test_what_can_never_finish_is_named_first() -> None:
    """5 blocks each of 12 slots. The second lacks one slot, as the first one keeps 5; the first would never have room for 255 blocks."""
    manager = manager_with(12)
    both = [open_sequence(manager, number, 5) for number in range(2)]
    for order in ((0, 1), (1, 0)):
        plan = manager.can_finish([both[position] for position in order], [(1000, 10)[position] for position in order])
        assert plan.order == () and plan.refusal is not None and plan.refusal.asked == 255
        assert str(plan).startswith("FinishPlan(none finishes; level 0") and "sequence 0, grown by 1000 tokens" in str(plan)
    plan = manager.can_finish(both, [1000, 4])
    assert str(plan).startswith("FinishPlan(only 1 finishes; ")
    close(manager, both)


def test_leased_pages_and_other_active_sequences_are_no_room() -> None:
    manager = manager_with(8, 8)
    sequence, other = (open_sequence(manager, number, 3) for number in range(2))
    assert manager.can_finish([sequence, other], [20, 0])
    assert not manager.can_finish([sequence], [20 + 4])
    # The other one, outside the list, keeps its 3 slots of level 0.
    assert manager.can_finish([sequence], [8]) and not manager.can_finish([sequence], [12])
    lease = other.reserve_transfer()
    other.close()
    assert not manager.can_finish([sequence], [12])
    lease.settle()
    assert manager.can_finish([sequence], [12])
    close(manager, [sequence])


def test_windows_hold_the_widest_step() -> None:
    """A window of 6 tokens is in 2 blocks of 4, or 3 with the next token. Steps of 9 take up to 3 blocks more."""
    manager = manager_with(4, window=6)
    kv_cache = manager.create_kv_cache()
    assert manager.can_finish([kv_cache], [1000], 1)
    plan = manager.can_finish([kv_cache], [1000], 9)
    assert plan.refusal is not None and plan.refusal.asked == 5
    assert not manager.can_finish([kv_cache], [1000])
    finish([kv_cache], (0,), [50])
    close(manager, [kv_cache])


def test_asking_changes_nothing() -> None:
    manager = manager_with(8, 2)
    both = [open_sequence(manager, number, 3) for number in range(2)]
    both[1].suspend()
    before = manager.state_digest(), manager.describe(), manager.last_refusal, manager.get_statistics()
    for remaining in (0, 4, 100):
        manager.can_finish(both, [remaining, remaining], 3)
        assert (manager.state_digest(), manager.describe(), manager.last_refusal, manager.get_statistics()) == before
    assert manager.can_finish([], []) == FinishPlan((), None, (4,)), "sequences outside the list have 6 of 8 + 2"
    close(manager, both)


def test_wrong_questions_are_errors() -> None:
    manager = KVCacheManager(config_of(), device=HostDevice())
    stranger = KVCacheManager(config_of(), device=HostDevice())
    kv_cache, closed, foreign = manager.create_kv_cache(), manager.create_kv_cache(id=7), stranger.create_kv_cache()
    closed.close()
    with pytest.raises(ValueError, match="sequences has 1 sequences, remaining_tokens 2 numbers"):
        manager.can_finish([kv_cache], [1, 2])
    with pytest.raises(ValueError, match="max_step is 0"):
        manager.can_finish([kv_cache], [1], 0)
    with pytest.raises(ValueError, match="listed twice"):
        manager.can_finish([kv_cache, kv_cache], [1, 2])
    with pytest.raises(ValueError, match="of another manager"):
        manager.can_finish([foreign], [1])
    with pytest.raises(ValueError, match="remaining_tokens"):
        manager.can_finish([kv_cache], [-1])
    with pytest.raises(LogicError, match="sequence 7 is closed"):
        manager.can_finish([closed], [1])
    with pytest.raises(TypeError, match=r"sequences\[0\] must be a KVCache"):
        manager.can_finish([3], [1])  # type: ignore[list-item]  # what the test is about
    foreign.close()
    close(manager, [kv_cache])
    stranger.shutdown()


PROMPT = list(range(100, 108))
"""Two blocks."""


def twins_of(num_slots: int, num_twins: int, num_matched: int, is_forked: bool, has_lease: bool) -> tuple[Any, list[Any], list[Any]]:
    """Where indices stay: sequences with the same two blocks, the first with the published pages, others with twins of them."""
    manager = new_manager(num_slots=num_slots, allow_seq_rebasing=False, max_util_for_resume=1.0)
    sequences: list[Any] = [manager.create_kv_cache(input_tokens=PROMPT) for _number in range(1 + num_twins)]
    for sequence in sequences:
        assert sequence.resume() and sequence.resize(8)
    for sequence in sequences:
        sequence.commit(PROMPT)
    for _number in range(num_matched):
        sequences.append(manager.create_kv_cache(input_tokens=PROMPT))
        assert sequences[-1].resume()
    if is_forked:
        sequences.append(sequences[1].fork())
    return manager, sequences, [sequences[0].reserve_transfer()] if has_lease else []


def can_be_finished(made: tuple[Any, list[Any], list[Any]], listed: list[int], remaining: list[int], order: tuple[int, ...]) -> bool:
    """By doing it."""
    manager, sequences, leases = made
    for number in listed:
        sequences[number].suspend()
    is_done = True
    for position in order:
        sequence = sequences[listed[position]]
        is_done = is_done and sequence.resume() and sequence.resize(8 + remaining[position], 8)
        if is_done:
            sequence.close()
    end_all(made)
    return is_done


def end_all(made: tuple[Any, list[Any], list[Any]]) -> None:
    manager, sequences, leases = made
    for sequence in sequences:
        sequence.close()
    for lease in leases:
        lease.settle()
    manager.shutdown()


def test_answers_about_twins_are_those_of_doing_it() -> None:
    """Some listed, the others active; forks share twins, and leases keep published pages."""
    randomness = random.Random(1)
    answers = []
    for _number in range(60):
        num_twins, num_matched = randomness.randrange(1, 3), randomness.randrange(3)
        num_slots = 2 * (num_twins + 1) + randomness.randrange(6)
        shape = (num_slots, num_twins, num_matched, randomness.random() < 0.4, randomness.random() < 0.3)
        made = twins_of(*shape)
        listed = randomness.sample(range(len(made[1])), randomness.randrange(1, min(3, len(made[1])) + 1))
        remaining = [randomness.choice([0, 1, 4, 5, 8, 12, 16]) for _listed in listed]
        answer = bool(made[0].can_finish([made[1][number] for number in listed], remaining))
        end_all(made)
        orders = itertools.permutations(range(len(listed)))
        works = any(can_be_finished(twins_of(*shape), listed, remaining, order) for order in orders)
        assert works or not answer, (shape, listed, remaining)
        answers.append(answer == works)
    # That twins are room once their sequences are suspended is not counted.
    assert 40 < sum(answers) <= 60


@pytest.mark.parametrize("window", [None, 3, 9])
@pytest.mark.parametrize("max_step", [None, 1, 7])
def test_long_sequences_are_asked_about_as_fast_as_short_ones(window: int | None, max_step: int | None) -> None:
    """Were each block of 2**25 tokens looked at, this would take minutes."""
    with manager_with(40, window=window) as manager, manager.create_kv_cache(input_tokens=[1, 2, 3]) as kv_cache:
        for _question in range(100):
            finishes = bool(manager.can_finish([kv_cache], [2**25], max_step))
            assert finishes == (window is not None and max_step is not None)
