"""`can_finish` in examples that are worked out by hand: what several sequences share counts once, and who is named.

What managers then do is compared in `tests/property/test_finish_orders_exist.py`.
"""

import pytest
from refused_work import Refused
from small_models import manager_of, run_prompt
from tiered_models import TOKENS_PER_BLOCK, Bench, tiered_config

from kv_cache_manager_v2 import KVCache, KVCacheManager
from kv_cache_manager_v2.testing import SimulatedDevice

PREFIX = list(range(40))
"""Ten blocks."""


def open_agents(manager: KVCacheManager, count: int, prefix: list[int], first: int = 1) -> list[KVCache]:
    """Each has a block of its own behind the prefix."""
    return [run_prompt(manager, [*prefix, *range(1000 * number, 1000 * number + 4)]) for number in range(first, first + count)]


@pytest.mark.parametrize("is_active", [False, True])
@pytest.mark.parametrize("num_agents", [1, 3, 64])
def test_a_prefix_of_many_counts_once(num_agents: int, is_active: bool) -> None:
    """Ten blocks of a prefix, one for each agent, and each in its turn takes two more, which are free when it is closed."""
    with manager_of(num_slots=12 + num_agents, max_util_for_resume=1.0) as manager:
        agents = open_agents(manager, num_agents, PREFIX)
        for agent in agents:
            if not is_active:
                agent.suspend()
        plan = manager.can_finish(agents, [8] * num_agents)
        assert plan and plan.order == tuple(range(num_agents)) and plan.spare_slots == (0,)
        # The first one's third block takes what another one leaves.
        later = tuple(range(1, num_agents)) + (0,) if num_agents > 1 else ()
        assert manager.can_finish(agents, [9] + [8] * (num_agents - 1)).order == later
        assert not manager.can_finish(agents, [9] * num_agents)
        for agent in agents:
            agent.close()


def test_a_prefix_is_free_when_its_last_sequence_has_finished() -> None:
    """Two families of two: 2 + 2 blocks, then 10 + 2. The last of the second family grows by all that the first one had, and no more."""
    with manager_of(num_slots=16, max_util_for_resume=1.0) as manager:
        first, second = open_agents(manager, 2, [7000 + position for position in range(8)]), open_agents(manager, 2, PREFIX, 3)
        plan = manager.can_finish([*second, *first], [0, 5 * 4, 0, 0])
        assert plan.order == (0, 2, 3, 1) and plan.spare_slots == (0,)
        assert manager.can_finish([*second, *first], [0, 6 * 4, 0, 0]).order == (0, 2, 3)
        # Who is not on the list keeps the prefix.
        assert manager.can_finish([*second, first[0]], [0, 2 * 4, 0]) and not manager.can_finish([*second, first[0]], [0, 3 * 4, 0])
        for kv_cache in [*first, *second]:
            kv_cache.close()


def test_what_others_lock_is_no_room_and_there_for_who_shares_it() -> None:
    """Twelve slots of level 0, ten of a host. An active sequence outside has the prefix and a block, so one slot is left."""
    with Bench(tiered_config(12, [("host", 10)]), SimulatedDevice(1)) as bench:
        manager = bench.manager
        other = open_agents(manager, 1, PREFIX)[0]
        agent = manager.create_kv_cache(input_tokens=PREFIX)
        assert agent.resume()
        assert manager.can_finish([agent], [4]) and not manager.can_finish([agent], [5])
        agent.suspend()
        assert manager.can_finish([agent], [4]) and not manager.can_finish([agent], [5])
        agent.close()
        other.close()


@pytest.mark.parametrize("is_alone", [False, True])
def test_a_shared_tail_is_copied(is_alone: bool) -> None:
    """Six tokens are a block and a published part of one; the next one goes into a copy, unless no other sequence has it: three slots."""
    for num_slots in (2, 3):
        with manager_of(num_slots=num_slots, max_util_for_resume=1.0) as manager:
            kv_cache = run_prompt(manager, list(range(6)))
            kv_cache.stop_committing()
            fork = None if is_alone else kv_cache.fork()
            assert bool(manager.can_finish([kv_cache], [1])) is (num_slots == 3 or is_alone)
            kv_cache.close()
            if fork is not None:
                fork.close()


def test_pages_on_a_failed_disk_come_up_and_find_no_way_back() -> None:
    """GPU, host and a disk that fails: what lies there is needed on the levels that are left."""
    device = SimulatedDevice(3, eager=True)
    with Bench(tiered_config(4, [("host", 4), ("disk", 60)]), device) as bench:
        manager = bench.manager
        listed = [bench.suspended(number, 4 * TOKENS_PER_BLOCK, commit=True) for number in range(1, 4)]
        assert manager.can_finish(listed, [0, 0, 0])
        device.faults.fail("disk_write", 1, Refused("worn out"))
        other = bench.suspended(9, 4 * TOKENS_PER_BLOCK, commit=True)
        bench.engine.synchronize()
        # The first one's four pages are on the disk, and the two levels above are full.
        assert not manager.can_finish(listed[:1], [0])
        assert manager._shared.storage.closed.first == 2
        other.close()
        assert manager.can_finish(listed[:1], [0])
        for one in listed:
            one.close()
