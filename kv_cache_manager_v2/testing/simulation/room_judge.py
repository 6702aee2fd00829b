"""The judge of refusals: whether a call that takes slots must pass, counted from the model, pool group by pool group.

Every page that no open sequence needs can be evicted, and pages of suspended sequences can be offloaded to any lower level.
So a call must pass if its slots fit beside the needed pages, on all levels together, and beside the locked ones, on level 0;
and it must be refused if they do not.
"""

from collections.abc import Sequence
from typing import Final, final


from ...manager.kv_cache_manager import KVCacheManager
from ..reference_model import ReferenceModel
from ..reference_pages import ModelDisagreement
from ..reference_room import SlotNeed


@final
class RoomJudge:
    """The judge. Constant but for the model, which it asks."""

    __slots__ = (
        "excuses_refusals", "_model", "_pool_group_of", "_num_slots", "_num_all_slots", "_max_util_for_resume", "_constraint_slots"
    )  # fmt: skip

    _num_slots: Sequence[int]  # by pool group, of level 0
    _num_all_slots: Sequence[int]  # of all levels

    def __init__(
        self,
        model: ReferenceModel,
        pool_group_of: Sequence[int],
        num_slots: Sequence[int],
        num_all_slots: Sequence[int],
        max_util_for_resume: float,
        constraint_slots: Sequence[int],
    ) -> None:
        self.excuses_refusals = False
        """The device may fail: a call may be refused although there are enough slots."""
        self._model: Final = model
        model.pool_group_of = pool_group_of
        self._pool_group_of: Final = pool_group_of  # by layer group
        self.set_slots(num_slots, num_all_slots)
        self._max_util_for_resume: Final = max_util_for_resume
        self._constraint_slots: Final = constraint_slots  # by pool group, of the largest constraint

    def set_slots(self, num_slots: Sequence[int], num_all_slots: Sequence[int]) -> None:
        """Those of the levels now."""
        self._model.num_slots = num_slots
        self._num_slots = num_slots
        self._num_all_slots = num_all_slots

    def num_used(self, pool_group: int) -> int:
        """Slots that hold a page, needed or not, or are scratch."""
        return sum([self._model.num_used_slots(group) for group in self._groups(pool_group)])

    def is_overused(self) -> bool:
        """Whether active sequences lock more slots than `max_util_for_resume` allows."""
        for pool_group, num_slots in enumerate(self._num_slots):
            locked = sum([self._model.num_locked_slots(group) for group in self._groups(pool_group)])
            if locked > max(self._max_util_for_resume * num_slots, self._constraint_slots[pool_group]):
                return True
        return False

    def has_room(self, group: int) -> bool:
        """Whether there is surely a slot for one more page of that layer group: not if a level may have failed."""
        if self.excuses_refusals:
            return False
        pool_group = self._pool_group_of[group]
        needed = sum([self._model.num_needed_slots(other) for other in self._groups(pool_group)])
        locked = sum([self._model.num_locked_slots(other) for other in self._groups(pool_group)])
        return self._num_all_slots[pool_group] > needed and self._num_slots[pool_group] > locked

    def has_free_slot(self, manager: KVCacheManager, group: int) -> bool:
        """Whether a slot of level 0 is free now."""
        return manager.get_storage_statistics(0)[self._pool_group_of[group]].free > 0

    def judge_turns(self, call: str, needs: Sequence[SlotNeed], passed: bool) -> None:
        """Judge a call on several beams, one after another: ``needs`` of all copies, then of the first beam, the first two, and so on."""
        if passed:
            for need in needs:
                self.judge(call, need, True)
            return
        refusals: list[ModelDisagreement] = []
        for need in needs:
            try:
                self.judge(call, need, False)
            except ModelDisagreement as disagreement:
                refusals.append(disagreement)
        if len(refusals) == len(needs):
            raise refusals[-1]

    def judge(self, call: str, need: SlotNeed, passed: bool) -> None:
        """Raise if the call passed and should not have, or the other way round."""
        must_pass = True
        may_pass = True
        numbers: list[str] = []
        for pool_group, num_slots in enumerate(self._num_slots):
            groups = self._groups(pool_group)
            released = sum([need.released[group] for group in groups])
            needed = sum([self._model.num_needed_slots(group) for group in groups])
            locked = sum([self._model.num_locked_slots(group) + need.newly_locked[group] for group in groups])
            room = min(self._num_all_slots[pool_group] - needed, num_slots - locked) + released
            least = sum([need.least[group] for group in groups])
            most = sum([need.most[group] for group in groups])
            must_pass = must_pass and most <= room - sum([need.doubtful[group] for group in groups])
            may_pass = may_pass and least <= room
            numbers.append(f"pool group {pool_group}: {least} to {most} slots, {room} of {num_slots} available")
        if passed and not may_pass:
            raise ModelDisagreement(f"{call} passed without enough slots; {'; '.join(numbers)}")
        if not passed and must_pass and not self.excuses_refusals:
            raise ModelDisagreement(f"{call} was refused; {'; '.join(numbers)}")

    def _groups(self, pool_group: int) -> list[int]:
        return [group for group, its_pool_group in enumerate(self._pool_group_of) if its_pool_group == pool_group]


def count_slots(manager: KVCacheManager) -> tuple[list[int], list[int]]:
    """Slots by pool group: of level 0, and of all levels."""
    levels = [[counts.total for counts in manager.get_storage_statistics(level)] for level in range(len(manager.cache_tier_list))]
    return levels[0], [sum(totals) for totals in zip(*levels)]
