"""A step of beams that needs room: no more cached prompts are dropped than it takes, and none is lost where they can be offloaded,
whatever copy the device refuses. Beams share blocks in drawn ways, and their windows release pages in the same step.
"""

from random import Random

import pytest
from refused_work import Refused
from small_models import free_slots, run_prompt
from tiered_models import TOKENS_PER_BLOCK, tiered_config

from kv_cache_manager_v2 import KVCache, KVCacheManager
from kv_cache_manager_v2.base.errors import PageMoveError
from kv_cache_manager_v2.testing import SimulatedDevice


class Step:
    """Beams, and what they ask for next. Level 0 has some cached prompts of one block, and no free slot."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        self.seed = seed
        self.window = random.choice((4, 4, 8, None))
        self.width = random.randint(2, 7)
        self.parents = [random.choice((own, 0, self.width // 2)) for own in range(self.width)]
        self.length = random.randint(6, 28)
        self.capacity = random.randint(self.length - 1, self.length + 6)
        self.history = random.randint(5, self.capacity)
        self.num_cached = 0

    def open(self, num_cached: int, host_slots: int = 0) -> tuple[SimulatedDevice, KVCacheManager, list[KVCache]]:
        """Another sequence has what the beams and the cached prompts leave."""
        self.num_cached = num_cached
        device = SimulatedDevice(self.seed)
        lower = [("host", host_slots)] if host_slots > 0 else []
        manager = KVCacheManager(tiered_config(96, lower, windows=[self.window]), device=device)
        kv_cache: KVCache = run_prompt(manager, [1, 2, 3, 4, 5])
        kv_cache.beam_width = self.width
        assert kv_cache.resize(self.length, 5)
        kv_cache.reorder_beams(self.parents)
        for number in range(num_cached):
            run_prompt(manager, self.prompt(number)).close()
        other = manager.create_kv_cache()
        assert other.resume() and other.resize(TOKENS_PER_BLOCK * free_slots(manager))
        assert free_slots(manager) == 0 and self.count_found(manager) == num_cached
        return device, manager, [kv_cache, other]

    def prompt(self, number: int) -> list[int]:
        return [1000 + 10 * number + position for position in range(TOKENS_PER_BLOCK)]

    def count_found(self, manager: KVCacheManager) -> int:
        return [manager.probe_reuse(None, self.prompt(number)) for number in range(self.num_cached)].count(TOKENS_PER_BLOCK)

    def count_dropped(self, num_cached: int) -> int | None:
        """None: the step is refused."""
        device, manager, open_caches = self.open(num_cached)
        passed = open_caches[0].resize(self.capacity, self.history)
        num_dropped = num_cached - self.count_found(manager)
        close(device, manager, open_caches)
        return num_dropped if passed else None


def close(device: SimulatedDevice, manager: KVCacheManager, open_caches: list[KVCache]) -> None:
    manager.check_invariants()
    for kv_cache in open_caches:
        kv_cache.close()
    manager.shutdown()
    device.close()


@pytest.mark.parametrize("seed", range(60))
def test_no_more_is_dropped_than_the_step_takes(seed: int) -> None:
    """With fewer cached prompts than the step takes slots, it is refused; with more, the rest stay."""
    step = Step(seed)
    most = step.count_dropped(30)
    assert most is not None
    for num_cached in range(most):
        assert step.count_dropped(num_cached) is None, f"with {num_cached} cached prompts"
    assert step.count_dropped(most) == most


@pytest.mark.parametrize("seed", range(60))
def test_what_can_be_offloaded_is_not_dropped(seed: int) -> None:
    """Each copy is refused in turn: the step says so, or has passed without it, and all cached prompts are still there."""
    step = Step(seed)
    for nth in range(1, 100):
        device, manager, open_caches = step.open(30, 64)
        kv_cache = open_caches[0]
        device.faults.fail("copy", nth, Refused("not now"))
        try:
            assert kv_cache.resize(step.capacity, step.history)
        except (Refused, PageMoveError):
            assert (kv_cache.capacity, kv_cache.history_length) == (step.length, 5)
            assert kv_cache.resize(step.capacity, step.history)
        has_fired = device.faults.num_fired > 0
        device.faults.clear()
        assert step.count_found(manager) == 30
        close(device, manager, open_caches)
        if not has_fired:
            return
    raise AssertionError("a step that never ends")
