"""Drop plans of a sequence's published end, applied or cancelled some time later."""

from random import Random
from typing import Final, final


from ...manager.committed_block_drop import CommittedBlockDrop
from ...manager.kv_cache_manager import KVCacheManager
from ..reference_model import ReferenceModel
from ..reference_pages import ModelDisagreement, StateDump
from .simulated_sequence import SimulatedSequence


@final
class PlannedDrops:
    __slots__ = ("_plans",)

    def __init__(self) -> None:
        self._plans: Final[list[tuple[CommittedBlockDrop, int]]] = []
        """Each with the node that it drops."""

    def plan(self, sequence: SimulatedSequence, manager: KVCacheManager, model: ReferenceModel, random: Random) -> None:
        """Plan for a sequence that commits no more."""
        if random.random() < 0.7:
            plan = sequence.handle.plan_committed_block_drop()
            if plan is not None:
                self._plans.append((plan, model.find_published_end(sequence.model, manager.describe())))
                model.num_drop_plans += 1

    def carry_one_out(self, manager: KVCacheManager, model: ReferenceModel, random: Random) -> None:
        """Apply or cancel a plan. Only unneeded pages may be dropped, which the model checks, and as many as reported."""
        if len(self._plans) == 0:
            return
        plan, node = self._plans.pop(int(random.random() * len(self._plans)))
        model.num_drop_plans -= 1
        num_before = _count_pages(manager.describe())
        if random.random() < 0.2:
            plan.cancel()
            if _count_pages(manager.describe()) != num_before:
                raise ModelDisagreement("cancel() of a plan has changed pages")
            return
        num_dropped = plan.drop()
        if not model.tree.is_retired(node):
            model.tree.dropped.add(node)
        num_gone = num_before - _count_pages(manager.describe())
        # Pages that are reachable only through a dropped one are dropped with it, and not counted.
        if num_gone < num_dropped or (num_dropped == 0 and num_gone != 0):
            raise ModelDisagreement(f"drop() reported {num_dropped} dropped pages; {num_gone} are gone")
        model.make_room()


def _count_pages(dump: StateDump) -> int:
    return sum([page is not None for scope in dump["tree"] for block in scope["blocks"] for page in block["pages"]])
