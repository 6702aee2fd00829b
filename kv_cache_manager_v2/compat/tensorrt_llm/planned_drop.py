"""A plan to drop the published end of a sequence, as TensorRT-LLM's engine holds it: to forget it is to carry it out."""

from __future__ import annotations

from typing import ClassVar, Final, final


from ...base.handle import Handle
from ...manager.committed_block_drop import CommittedBlockDrop


@final
class PlannedDropHandle(Handle):
    """Made by `_KVCache.plan_committed_block_drop`. A handle that is dropped unused is carried out by the manager's next call."""

    __slots__ = ("_plan",)

    _NAMES: ClassVar[str] = "blocks of this process"

    def __init__(self, plan: CommittedBlockDrop) -> None:
        """Not for users."""
        plan.drop_when_forgotten()
        self._plan: Final = plan

    def drop(self) -> None:
        """Drop what no other plan and no open sequence needs. Twice is fine."""
        if not self._plan.is_done:
            self._plan.drop()
