"""Slot needs of calls, counted from the pages that must exist: the reference model's answer to "are there enough slots?"."""

from typing import Final, final


from .reference_beams import list_beams
from .reference_forks import copy_blocks, list_sharers, num_first_written, restore_blocks
from .reference_pages import LOCKED, ReferencePages
from .reference_sequence import ReferenceSequence
from .reference_tree import Page


@final
class SlotNeed:
    """Pages that a call allocates and releases, per layer group. Between ``least`` and ``most`` the library may
    choose."""

    __slots__ = ("least", "most", "least_copied", "most_copied", "released", "doubtful", "newly_locked")

    def __init__(self, num_groups: int) -> None:
        self.least: Final[list[int]] = [0] * num_groups
        self.most: Final[list[int]] = [0] * num_groups
        self.least_copied: Final[list[int]] = [0] * num_groups  # copies of shared blocks, which are made before anything is released
        self.most_copied: Final[list[int]] = [0] * num_groups
        self.released: Final[list[int]] = [0] * num_groups
        self.doubtful: Final[list[int]] = [0] * num_groups
        """Released pages shared by beams that all release them, so that the library need not count them."""
        self.newly_locked: Final[list[int]] = [0] * num_groups  # existing pages that no active sequence needed so far

    def add(self, group: int, num_slots: int) -> None:
        self.least[group] += num_slots
        self.most[group] += num_slots

    def plus(self, other: "SlotNeed") -> "SlotNeed":
        total = SlotNeed(len(self.least))
        for counts, own, others in zip(total._lists(), self._lists(), other._lists(), strict=True):
            counts[:] = [first + second for first, second in zip(own, others, strict=True)]
        return total

    def copies(self) -> "SlotNeed":
        """The copies alone."""
        need = SlotNeed(len(self.least))
        need.least[:] = self.least_copied
        need.most[:] = self.most_copied
        return need

    def _lists(self) -> list[list[int]]:
        return [self.least, self.most, self.least_copied, self.most_copied, self.released, self.doubtful, self.newly_locked]


class ReferenceRoom(ReferencePages):
    """Computes needs, and changes nothing."""

    __slots__ = ()

    def slots_of_beams_to_resume(self, sequence: ReferenceSequence) -> SlotNeed:
        """The need of `resume` for all beams, one after another."""
        need = SlotNeed(len(self.rules))
        for beam in list_beams(sequence):
            need = need.plus(self.slots_to_resume(beam))
            beam.is_active = True
        for beam in list_beams(sequence):
            beam.is_active = False
        return need

    def slots_of_beams_to_resize(self, sequence: ReferenceSequence, capacity: int, history: int) -> list[SlotNeed]:
        """The needs of `resize`: for the copies of all beams, then also for what beam 0, beams 0 and 1, and so on take and release."""
        turns: list[SlotNeed] = []
        before: list[ReferenceSequence] = []
        alone = [self.slots_to_resize(beam, capacity, history) for beam in list_beams(sequence)]
        for beam, by_itself in zip(list_beams(sequence), alone):
            need = self.slots_to_resize(beam, capacity, history)
            for group in range(len(self.rules)):
                need.doubtful[group] = need.released[group] - by_itself.released[group]
            turns.append(need)
            before.append(copy_blocks(beam))
            self._move_beam(beam, capacity, history)
        for beam, old in zip(list_beams(sequence), before):
            restore_blocks(beam, old)
        totals = [SlotNeed(len(self.rules)) for _ in range(len(turns) + 1)]
        for position in range(len(totals)):
            for turn, need in enumerate(turns):
                totals[position] = totals[position].plus(need if turn < position else need.copies())
        return totals

    def _move_beam(self, beam: ReferenceSequence, capacity: int, history: int) -> None:
        """Move a beam as if it were resized."""
        if history < capacity and history < (len(beam.path) + 1) * self.tokens_per_block:
            beam.shared_tail = None
        beam.leave_shared(num_first_written(beam, capacity, history, self.tokens_per_block))
        beam.leave_shared(-(-capacity // self.tokens_per_block))
        beam.capacity = capacity
        beam.history = history

    def slots_to_resume(self, sequence: ReferenceSequence) -> SlotNeed:
        need = SlotNeed(len(self.rules))
        locked = {page for page, status in self._needed_pages().items() if status == LOCKED}
        for group in range(len(self.rules)):
            for ordinal in range(self.num_blocks(sequence)):
                node = sequence.node(ordinal)
                if not self.is_needed(sequence, group, ordinal) or not self.is_resident(sequence, group, ordinal):
                    continue
                sharers = list_sharers(self.sequences.values(), sequence, ordinal) if node is None else []
                is_locked = any([self.is_locked(other, group, ordinal) for other in sharers])
                is_locked = is_locked or any([lease.has_private(sequence, group, ordinal) for lease in self.leases.values()])
                if not is_locked and (node is None or (node, group) not in locked):
                    need.newly_locked[group] += 1
        self._count_tail_copy(sequence, sequence.history, sequence.is_matched_tail, need)
        for group in range(len(self._scratch_rules)):
            need.add(group, self._scratch_rules[group].compute_num_slots(sequence.scratch[group]))
        if self.state.group >= 0:
            self.state.count_resume(sequence, need.newly_locked, need.least, need.most)
        return need

    def slots_to_require(self, sequence: ReferenceSequence, group: int, ordinals: list[int]) -> SlotNeed:
        """The pages behind a residency window that `require_blocks` locks, and no other sequence does."""
        need = SlotNeed(len(self.rules))
        locked = {page for page, status in self._needed_pages().items() if status == LOCKED}
        for ordinal in set(ordinals):
            node = sequence.node(ordinal)
            if not self.is_locked(sequence, group, ordinal) and (node is None or (node, group) not in locked):
                need.newly_locked[group] += 1
        return need

    def slots_to_resize(self, sequence: ReferenceSequence, capacity: int, history: int) -> SlotNeed:
        """The pages that `resize` allocates, and those that it releases and no other open sequence needs."""
        need = SlotNeed(len(self.rules))
        old_num_blocks = self.num_blocks(sequence)
        num_blocks = -(-capacity // self.tokens_per_block)
        others: set[Page] = set(self._leased_pages())
        for other in self.sequences.values():
            if other is not sequence:
                kept = {(twin.node, twin.group) for twin in self.twins if other in twin.users}
                others.update([page for page in self._published_pages(other) if page not in kept])
        scratch = self._scratch_after_resize(sequence, capacity, history)
        first_written = max(num_first_written(sequence, capacity, history, self.tokens_per_block), len(sequence.path))
        for group, rule in enumerate(self.rules):
            beg, end = scratch[group]
            for ordinal in range(max(old_num_blocks, num_blocks)):
                will_need = ordinal < num_blocks and not rule.is_stale(ordinal, history, self.tokens_per_block)
                will_need = will_need and not beg <= ordinal < end
                did_need = ordinal < old_num_blocks and self.is_needed(sequence, group, ordinal)
                if will_need and not did_need:
                    need.add(group, 1)
                elif did_need and not will_need and not self._is_needed_by_others(sequence, group, ordinal, others):
                    need.released[group] += 1
                elif did_need and will_need and ordinal >= first_written and self._must_copy(sequence, ordinal):
                    need.add(group, 1)
                if did_need and first_written <= ordinal < num_blocks and self._must_copy(sequence, ordinal):
                    need.least_copied[group] += 1
                    need.most_copied[group] += 1
            if self._scratch_rules:
                need.add(group, self._scratch_rules[group].compute_num_slots(scratch[group]))
                need.released[group] += self.num_scratch_slots(sequence, group)
        self._count_tail_copy(sequence, history, history < capacity, need)
        return need

    def _is_needed_by_others(self, sequence: ReferenceSequence, group: int, ordinal: int, others: set[Page]) -> bool:
        node = sequence.node(ordinal)
        twin = self.find_twin(sequence, group, ordinal)
        if twin is not None:
            leased = [(page.number, page.group, page.node) for lease in self.leases.values() for page in lease.pages]
            return (twin.number, group, None) in leased or len(twin.users) > 1
        if node is not None:
            return (node, group) in others
        sharers = list_sharers(self.sequences.values(), sequence, ordinal)
        is_leased = any([lease.has_private(sequence, group, ordinal) for lease in self.leases.values()])
        return is_leased or any([self.is_needed(other, group, ordinal) for other in sharers])

    def _must_copy(self, sequence: ReferenceSequence, ordinal: int) -> bool:
        """Whether the block is copied before it is written: forks share it, or have published it. The shared tail is counted elsewhere."""
        if ordinal in sequence.planned or (ordinal == len(sequence.path) and sequence.shared_tail is not None):
            return False
        return sequence.node(ordinal) is not None or self.has_other_owners(sequence, ordinal)

    def has_other_owners(self, sequence: ReferenceSequence, ordinal: int) -> bool:
        """Whether forks or leases have that private block too."""
        number = sequence.shared_private.get(ordinal)
        if any([number in lease.numbers for lease in self.leases.values()]):
            return True
        return len(list_sharers(self.sequences.values(), sequence, ordinal)) > 0

    def _scratch_after_resize(self, sequence: ReferenceSequence, capacity: int, history: int) -> list[tuple[int, int]]:
        """The scratch blocks after a resize; one that changes the capacity begins a step."""
        if capacity == sequence.capacity:
            return self.list_kept_scratch(sequence, history)
        if not sequence.uses_scratch:
            return [(0, 0)] * len(self.rules)
        return [rule.compute_range(history, capacity) for rule in self._scratch_rules]

    def list_kept_scratch(self, sequence: ReferenceSequence, history: int) -> list[tuple[int, int]]:
        """The ranges that a history of that length has not passed to their ends."""
        size = self.tokens_per_block
        kept = [
            (0, 0) if beg < end and rule.is_stale(end - 1, history, size) else (beg, end)
            for rule, (beg, end) in zip(self.rules, sequence.scratch, strict=False)
        ]
        return kept + sequence.scratch[len(kept) :]

    def _count_tail_copy(self, sequence: ReferenceSequence, history: int, is_certain: bool, need: SlotNeed) -> None:
        """Count the private copy of a shared last block, made before the tokens after ``history`` are written into it.

        Without a slot for a copy the library may take the block out of the tree, if no other sequence needs it.
        """
        size = self.tokens_per_block
        ordinal = len(sequence.path)
        tail = sequence.shared_tail
        if tail is None or history >= (ordinal + 1) * size:
            return
        is_alone = all([other is sequence or other.shared_tail != tail for other in self.sequences.values()])
        is_alone = is_alone and all([tail not in other.path for other in self.sequences.values()])
        is_alone = is_alone and all([tail not in other.adopted.values() for other in self.sequences.values()])
        is_alone = is_alone and all([tail != node for node, _group in self._leased_pages()])
        num_certain = 1 if is_certain and not is_alone else 0
        for group, rule in enumerate(self.rules):
            if not rule.is_stale(ordinal, history, size):
                need.most[group] += 1
                need.least[group] += num_certain
            if self.is_needed(sequence, group, ordinal):
                need.most_copied[group] += 1
                need.least_copied[group] += num_certain
