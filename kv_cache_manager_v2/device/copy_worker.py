"""What executes lists of copies in an engine's worker process: each list once, in order, on slots that the worker has."""

from abc import ABCMeta, abstractmethod
from collections.abc import Sequence
from typing import SupportsIndex

from mypy_extensions import mypyc_attr

from ..base.checks import to_count
from ..base.errors import CopyListError
from ..base.handle import Handle


@mypyc_attr(allow_interpreted_subclasses=True)
class CopyWorker(Handle, metaclass=ABCMeta):
    """Executes the lists of `KVCacheManager.take_copies` on memory of its own; subclasses define `copy`.

    ``layout``: slots by level and pool group, as `KVCacheManager.copy_layout` has them. ``after``: the number after which its lists go on,
    which `KVCacheManager.reset_copies` returns.
    """

    __slots__ = ("layout", "num_done")

    def __init__(self, layout: Sequence[Sequence[int]], after: SupportsIndex = 0) -> None:
        self.layout: tuple[tuple[int, ...], ...] = tuple([tuple(counts) for counts in layout])
        self.num_done: int = int(to_count(after, "after"))
        """The number of the last list that was executed; what `KVCacheManager.report_copies` is told."""

    @abstractmethod
    def copy(self, from_level: int, from_slot: int, to_level: int, to_slot: int, pool_group: int) -> None:
        """Copy all bytes of a slot; behind all earlier copies, and behind the kernels of earlier steps."""
        raise NotImplementedError("CopyWorker.copy is for subclasses to define")

    def execute(self, number: SupportsIndex, copies: Sequence[tuple[int, int, int, int, int]]) -> None:
        """Execute one list, before the kernels of its step. `CopyListError`, before any byte is copied, unless it is the next one and all
        its slots are there; if some are not, it names the first that is not."""
        given = int(to_count(number, "number"))
        awaited = self.num_done + 1
        if given != awaited:
            what = f"list {given} of copies was executed already" if given < awaited else f"list {awaited} of copies is lost, {given} came"
            raise CopyListError(f"{what}; reset_copies() and new workers are the way on", min(given, awaited))
        for from_level, from_slot, to_level, to_slot, pool_group in copies:
            for level, slot in ((from_level, from_slot), (to_level, to_slot)):
                if not (0 <= level < len(self.layout) and 0 <= pool_group < len(self.layout[level])):
                    raise CopyListError(f"list {given} names pool group {pool_group} of level {level}: the layout is {self.layout}", given)
                if not 0 <= slot < self.layout[level][pool_group]:
                    raise CopyListError(
                        f"list {given} names slot {slot} of pool group {pool_group} of level {level}, which has "
                        f"{self.layout[level][pool_group]} slots here: make workers with KVCacheManager.copy_layout", given
                    )  # fmt: skip
        for from_level, from_slot, to_level, to_slot, pool_group in copies:
            self.copy(from_level, from_slot, to_level, to_slot, pool_group)
        self.num_done = given
