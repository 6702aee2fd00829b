"""The guard against a batch that no order of steps can finish: what may be admitted, and which requests may grow in a step.

`KVCacheManager.can_finish` says in which order the open sequences could finish one after the other, and how many slots they may take before
that has to be asked again. The first of the order, the *favoured* request, may always grow, and is resumed first; the others grow while
there are spare slots. So no sequence ever has to be closed and started again for lack of room.
"""

from typing import Final, final


from .. import plan_capacity
from .served_request import ServedRequest
from .timed_calls import TimedCalls


_SPARE_PART: Final = 3
"""A newcomer is admitted if spare slots hold the third part of what all are going to grow: the others finish meanwhile."""


@final
class FinishGuard:
    """One manager's. ``favoured`` is None while no order is known."""

    __slots__ = ("favoured", "_calls", "_max_step", "_slots_per_block", "_spare")

    def __init__(self, calls: TimedCalls, max_step: int) -> None:
        manager = calls.manager
        self.favoured: ServedRequest | None = None
        self._calls: Final = calls
        self._max_step: Final = max_step
        self._slots_per_block: Final[list[int]] = [
            len([one for one in group.layer_groups if manager.life_cycle_of_group(one).has_page_per_block])
            for group in plan_capacity(manager.init_config).levels[0].pool_groups
        ]
        """Per pool group, the slots that a new block takes at most."""
        self._spare: list[int] = [0] * len(self._slots_per_block)
        """Per pool group, slots that requests other than the favoured one may still take."""

    def ask(self, served: list[ServedRequest]) -> bool:
        """Whether all of these can finish; the first of the list that can begin is favoured from now on."""
        kv_caches = [one.open_kv_cache() for one in served]
        remaining = [max(0, one.num_tokens - kv_cache.capacity) for one, kv_cache in zip(served, kv_caches)]
        plan = self._calls.can_finish(kv_caches, remaining, self._max_step)
        self._spare = list(plan.spare_slots)
        self.favoured = served[plan.order[0]] if plan and len(served) > 0 else None
        return bool(plan)

    def admits(self, served: list[ServedRequest], newcomer: ServedRequest) -> bool:
        """Whether all can finish with the newcomer too, and room is left for so much of their growth that few have to wait for it."""
        if not self.ask([*served, newcomer]):
            return False
        size = self._calls.manager.tokens_per_block
        remaining = sum([max(0, one.num_tokens - one.open_kv_cache().capacity) for one in [*served, newcomer]])
        return self._has_spare(remaining // size // _SPARE_PART)

    def forget(self, served: ServedRequest) -> None:
        """Its sequence is closed."""
        if self.favoured is served:
            self.favoured = None

    def choose(self, batch: list[ServedRequest], served: list[ServedRequest]) -> list[ServedRequest]:
        """Those of a batch that may grow in this step; all of them where no order is known. ``served``: all with a sequence."""
        blocks = [self._count_new_blocks(one) for one in batch]
        if self.favoured is None or not self._has_spare(sum(blocks)):
            if not self.ask(served):
                return batch
        chosen: list[ServedRequest] = []
        for position, one in enumerate(batch):
            if one is self.favoured:
                chosen.append(one)
            elif self._has_spare(blocks[position]):
                chosen.append(one)
                for pool_group, count in enumerate(self._slots_per_block):
                    self._spare[pool_group] -= blocks[position] * count
        return chosen

    def _has_spare(self, num_blocks: int) -> bool:
        for pool_group, count in enumerate(self._slots_per_block):
            if num_blocks * count > self._spare[pool_group]:
                return False
        return True

    def _count_new_blocks(self, served: ServedRequest) -> int:
        size = self._calls.manager.tokens_per_block
        count = (served.history + served.num_inputs + size - 1) // size - served.open_kv_cache().num_blocks
        return max(0, count)
