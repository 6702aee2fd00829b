"""The rules of planned blocks, for the reference model: what is offered, what a prompt finds, and who is void.

A plan is one block that its writer has promised. It is looked for where the tree ends, and serves whole, with the pages that its writer
or a reader needs.
"""

from collections.abc import Sequence, Set
from typing import Final, final


from .reference_pages import ReferencePages
from .reference_sequence import ReferenceSequence
from .reference_tree import Page, Scope, Text


@final
class ReferencePlan:
    """``above``: the plan that it is below, if that is no block of the tree yet."""

    __slots__ = ("node", "ordinal", "writer", "readers", "above")

    def __init__(self, node: int, ordinal: int, writer: ReferenceSequence, above: "ReferencePlan | None") -> None:
        self.node: Final = node
        self.ordinal: Final = ordinal
        self.writer: Final = writer
        self.readers: Final[list[ReferenceSequence]] = []
        self.above: "Final[ReferencePlan | None]" = above


@final
class ReferencePlans:
    """The plans of one manager, in the order in which they were made. At most one for each block."""

    __slots__ = ("_pages", "_plans")

    def __init__(self, pages: ReferencePages) -> None:
        self._pages: Final = pages
        self._plans: Final[list[ReferencePlan]] = []

    def __len__(self) -> int:
        return len(self._plans)

    def find(self, node: int) -> ReferencePlan | None:
        for plan in self._plans:
            if plan.node == node:
                return plan
        return None

    def list_read(self, sequence: ReferenceSequence) -> list[ReferencePlan]:
        """The plans that the sequence reads, in order."""
        return [plan for plan in self._plans if sequence in plan.readers]

    def offer(self, sequence: ReferenceSequence, text: Text, in_tree: Set[int]) -> int:
        """The sequence plans the full blocks of its first tokens ``text``; how many of these are offered, counted in tokens."""
        pages = self._pages
        if sequence.is_retired:
            return 0
        size = pages.tokens_per_block
        read = self.list_read(sequence)
        first = len(sequence.path) + len(read)
        node = read[-1].node if read else (sequence.path[-1] if sequence.path else pages.tree.root(sequence.scope))
        above = read[-1] if read else None
        num_offered = 0
        for ordinal in range(first, self._find_matchable_end(sequence, read, text, in_tree)):
            node = pages.tree.child(node, text[ordinal * size : (ordinal + 1) * size])
            plan = self.find(node)
            if plan is not None and plan.writer is not sequence:
                break
            if plan is None and node not in in_tree:
                plan = ReferencePlan(node, ordinal, sequence, above)
                self._plans.append(plan)
                sequence.planned.add(ordinal)
                num_offered += 1
            above = None if node in in_tree else plan
        return num_offered * size

    def _find_matchable_end(self, sequence: ReferenceSequence, read: list[ReferencePlan], text: Text, in_tree: Set[int]) -> int:
        """Behind the last block of the text that a prompt may end with: there every window has pages, which scratch blocks have not."""
        pages = self._pages
        size = pages.tokens_per_block
        nodes = [*sequence.path, *[plan.node for plan in read]]
        first = len(nodes)
        node = nodes[-1] if nodes else pages.tree.root(sequence.scope)
        for ordinal in range(first, len(text) // size):
            node = pages.tree.child(node, text[ordinal * size : (ordinal + 1) * size])
            nodes.append(node)
        present = set(pages.statuses)
        for ordinal, node in enumerate(nodes):
            owners = [sequence]
            for plan in read:
                if plan.node == node:
                    owners = [plan.writer, *plan.readers]
            for group, rule in enumerate(pages.rules):
                is_private_page = node not in in_tree and any([pages.is_needed(owner, group, ordinal) for owner in owners])
                if rule.window is None or is_private_page:
                    present.add((node, group))
        end = len(nodes)
        while end > first and not pages.tree.is_reusable(nodes[:end], end * size, present):
            end -= 1
        return end

    def find_longest(self, scope: Scope, text: Text, present: Set[Page], in_tree: Set[int], content: int, backoff: int) -> int:
        """The longest reusable prefix that ends with a planned block; 0 if there is none. ``content``: as the tree has it."""
        pages = self._pages
        size = pages.tokens_per_block
        node = pages.tree.root(scope)
        path: list[int] = []
        planned: set[Page] = set()
        first_planned = len(text)
        for ordinal in range(len(text) // size):
            node = pages.tree.child(node, text[ordinal * size : (ordinal + 1) * size])
            plan = self.find(node)
            if node not in in_tree:
                if plan is None:
                    break
                first_planned = min(first_planned, ordinal)
                planned.update([(node, group) for group in range(len(pages.rules)) if self._has_page(plan, group)])
            path.append(node)
            unbounded = [group for group, rule in enumerate(pages.rules) if rule.window is None and not rule.is_state]
            if any([(node, group) not in present and (node, group) not in planned for group in unbounded]):
                path.pop()
                break
        end = len(path)
        if backoff > 0:
            end = min(end, max(0, max(content, len(path) * size) - backoff) // size)
        for num_blocks in range(end, first_planned, -1):
            is_whole = pages.tree.is_reusable(path[:num_blocks], num_blocks * size, present | planned)
            if is_whole and pages.can_resume(num_blocks * size):
                return num_blocks * size
        return 0

    def _has_page(self, plan: ReferencePlan, group: int) -> bool:
        return any([self._pages.is_needed(owner, group, plan.ordinal) for owner in [plan.writer, *plan.readers]])

    def read(self, sequence: ReferenceSequence, nodes: Sequence[int]) -> None:
        """A new sequence reads these planned blocks, each behind the one before."""
        for node in nodes:
            plan = self.find(node)
            assert plan is not None, "a block is read that is not planned"
            number = plan.writer.shared_private.get(plan.ordinal)
            if number is None:
                number = self._pages.take_number()
                plan.writer.shared_private[plan.ordinal] = number
            sequence.shared_private[plan.ordinal] = number
            plan.readers.append(sequence)

    def confirm(self, sequence: ReferenceSequence, ordinal: int, node: int) -> None:
        """The sequence has committed its block, which is that node of the tree: it and all readers have it on their paths."""
        if ordinal not in sequence.planned:
            return
        plan = self.find(node)
        assert plan is not None and plan.writer is sequence, "a planned block was committed with other tokens"
        sequence.planned.discard(ordinal)
        self._plans.remove(plan)
        for reader in plan.readers:
            reader.grow_path(node)

    def take_back(self, sequence: ReferenceSequence, begin: int) -> list[ReferenceSequence]:
        """From block ``begin`` on the sequence plans nothing any more, and nothing is planned below; who is void now."""
        gone = [plan for plan in self._plans if plan.writer is sequence and plan.ordinal >= begin]
        for plan in self._plans:
            # A plan comes after the one that it is below.
            if plan not in gone and plan.above is not None and plan.above in gone:
                gone.append(plan)
        void: list[ReferenceSequence] = []
        for plan in sorted(gone, key=_by_ordinal):
            for reader in plan.readers:
                if reader not in void:
                    void.append(reader)
                    self._make_void(reader, plan.ordinal)
            plan.writer.planned.discard(plan.ordinal)
            self._plans.remove(plan)
        return void

    def leave(self, sequence: ReferenceSequence) -> None:
        """The sequence is about to end."""
        self.take_back(sequence, 0)
        for plan in self.list_read(sequence):
            plan.readers.remove(sequence)

    def _make_void(self, reader: ReferenceSequence, ordinal: int) -> None:
        for plan in self._plans:
            if reader in plan.readers and plan.ordinal > ordinal:
                plan.readers.remove(reader)
        num_tokens = ordinal * self._pages.tokens_per_block
        reader.passed_history = max(reader.passed_history, reader.history)
        del reader.committed[num_tokens:]
        reader.history = num_tokens
        reader.capacity = num_tokens
        reader.is_void = True
        reader.scratch = [(0, 0)] * len(reader.scratch)
        for number in [number for number in reader.shared_private if number >= ordinal]:
            del reader.shared_private[number]


def _by_ordinal(plan: ReferencePlan) -> int:
    return plan.ordinal
