"""Lists of copies that an engine's workers execute: slots instead of addresses, numbers, and which workers have executed them."""

from bisect import bisect_right
from typing import Final, SupportsIndex, TypeAlias, final


from ..base.checks import to_count, to_int_within, to_list
from ..base.errors import CopyListError
from ..device.copy_log import CopyLog
from ..storage.page_mover import PageMover
from ..storage.page_storage import PageStorage

SlotCopy: TypeAlias = tuple[int, int, int, int, int]
"""From level, from slot, to level, to slot, pool group."""


@final
class CopyLists:
    """Law: each list is taken once, in order; each worker reports each list once, in order. A list that no report can follow is lost."""

    __slots__ = ("log", "layout", "_bases", "_places", "_done", "_lost")

    def __init__(self, log: CopyLog, storage: PageStorage, mover: PageMover, num_workers: int) -> None:
        self.log: Final = log
        num_groups = int(storage.num_pool_groups)
        counts = [int(group.allocator.first_slot + group.allocator.num_slots) for group in storage.pool_groups]
        layout = [tuple(counts[begin : begin + num_groups]) for begin in range(0, len(counts), num_groups)]
        places: list[tuple[int, tuple[int, int, int, int, int]]] = []
        for index, group in enumerate(storage.pool_groups):
            for pool, base in enumerate(group.base_addresses):
                places.append((int(base), (index // num_groups, index % num_groups, pool, int(group.slot_bytes[pool]), 0)))
        if len(layout) > 1:
            # Below the last level: the two slots through which full levels swap.
            for index, addresses in enumerate(mover.bounce.addresses()):
                num_pools = len(addresses) // 2
                for number, base in enumerate(addresses):
                    places.append((base, (len(layout), index, number % num_pools, 1, number // num_pools)))
            layout.append((2,) * num_groups)
        places.sort()
        self.layout: Final[tuple[tuple[int, ...], ...]] = tuple(layout)
        self._bases: Final[list[int]] = [base for base, _ in places]
        """First addresses of all pools, ascending."""
        self._places: Final[list[tuple[int, int, int, int, int]]] = [place for _, place in places]
        """Level, pool group, pool, bytes of a slot there, and the first slot."""
        self._done: Final[list[int]] = [0] * num_workers
        """By worker, the last list that it reported."""
        self._lost = 0
        """0, or the number of a list that was lost."""

    def take(self, after: SupportsIndex) -> tuple[int, list[SlotCopy]]:
        last = int(to_count(after, "after"))
        self._require_none_lost()
        taken = int(self.log.num_taken)
        if last != taken:
            raise CopyListError(
                f"take_copies(): after is {last}, and the last list that was taken is {taken}: another scheduler takes lists of this "
                f"manager, or one was taken and not kept. One scheduler takes all; reset_copies() is the way on", min(last, taken) + 1
            )  # fmt: skip
        copies: list[SlotCopy] = []
        for target, source in zip(self.log.targets, self.log.sources):
            from_level, pool_group, pool, from_slot = self._find(source)
            if pool == 0:
                # All pools of a group are copied together.
                to_level, _, _, to_slot = self._find(target)
                copies.append((from_level, from_slot, to_level, to_slot, pool_group))
        self.log.clear()
        self.log.num_taken = taken + 1
        return taken + 1, copies

    def report(self, number: SupportsIndex, worker: SupportsIndex, layout: object) -> None:
        given, index = int(to_count(number, "number")), int(to_int_within(worker, "worker", 0, len(self._done) - 1))
        levels = [to_list(counts, "each of layout") for counts in to_list(layout, "layout")]
        found = tuple([tuple([int(to_count(count, "a number of layout")) for count in counts]) for counts in levels])
        self._require_none_lost()
        taken = int(self.log.num_taken)
        awaited = self._done[index] + 1
        if found != self.layout:
            raise CopyListError(f"worker {index} has the slots {found}, and the manager {self.layout}: make it with copy_layout", given)
        if given > taken:
            raise CopyListError(f"worker {index} reports list {given} of copies, and {taken} is the last that was taken", given)
        if given < awaited:
            raise CopyListError(f"worker {index} reports list {given} of copies, and has reported {awaited - 1} already", given)
        if given > awaited:
            self._lost = awaited
            self._require_none_lost()
        self._done[index] = given
        self.log.num_done = min(self._done)

    def reset(self) -> int:
        """Nothing is open or kept any more: what was listed is void, and nothing is lost. Returns the last number."""
        taken = int(self.log.num_taken)
        self.log.clear()
        self.log.num_done = taken
        self._done[:] = [taken] * len(self._done)
        self._lost = 0
        return taken

    def _find(self, address: int) -> tuple[int, int, int, int]:
        """Level, pool group, pool and slot."""
        index = bisect_right(self._bases, address) - 1
        level, pool_group, pool, slot_bytes, first = self._places[index]
        return level, pool_group, pool, first + (address - self._bases[index]) // slot_bytes

    def _require_none_lost(self) -> None:
        if self._lost > 0:
            raise CopyListError(
                f"list {self._lost} of copies is lost, so pages have other bytes than their tokens say: close all sequences, and "
                f"reset_copies()", self._lost
            )  # fmt: skip
