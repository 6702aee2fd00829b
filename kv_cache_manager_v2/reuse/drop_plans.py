"""Drop plans of the caller: the published ends of sequences, each until its plan is carried out, cancelled or void.

A plan remembers a path of the tree and how many of its tokens count; it pins the path's last block, and holds no page: what it
names may be evicted meanwhile. It *needs* the pages without which its prefix could not be matched to its end.

    state    way out
    OPEN     drop -> over: the pages at the end are dropped that no other prefix needs; cancel -> over; void_of -> VOID
    VOID     its scope's epoch has ended; drop and cancel do nothing -> over

Conservation: every OPEN plan has one pin, on its last block.
"""

from typing import Final, final

from mypy_extensions import i64

from ..storage.page_removal import drop
from ..events.removal_cause import REQUESTED
from ..layout.life_cycle import LifeCycle
from ..layout.registry import LifeCycleRegistry
from ..storage.decision_digest import VICTIM
from .block import Block
from .radix_tree import RadixTree


@final
class DropPlan:
    __slots__ = ("blocks", "num_tokens")

    def __init__(self, blocks: list[Block], num_tokens: i64) -> None:
        self.blocks: Final = blocks
        """The path; while the plan is OPEN all of it is in the tree."""
        self.num_tokens: Final = num_tokens


@final
class DropPlans:
    __slots__ = ("_tree", "_cycles", "_tokens_per_block", "_backoff", "_open", "_num_made")

    def __init__(self, tree: RadixTree, life_cycles: LifeCycleRegistry, tokens_per_block: int, backoff: int) -> None:
        self._tree: Final = tree
        self._cycles: Final[list[LifeCycle]] = list(life_cycles)
        self._tokens_per_block: Final = tokens_per_block
        self._backoff: Final[i64] = backoff
        """`reuse_match_backoff`: of so many tokens behind a match it must be known that they were published there."""
        self._open: Final[dict[int, DropPlan]] = {}
        self._num_made = 0

    def make(self, blocks: list[Block], num_tokens: i64) -> int:
        """A plan for a path of published blocks, the first one below a root; its number, counted from 0."""
        number = self._num_made
        self._num_made += 1
        self._open[number] = DropPlan(blocks, num_tokens)
        blocks[-1].num_pins += 1
        return number

    def is_open(self, number: int) -> bool:
        return number in self._open

    def open_plans(self) -> list[DropPlan]:
        return list(self._open.values())

    def drop(self, number: int) -> int:
        """Drop what the plan names and no other prefix needs; how many pages. 0 for a plan that is not open."""
        plan = self._open.pop(number, None)
        if plan is None:
            return 0
        # What every longer prefix needs goes last: the tree drops with it what can be reached no more, and that would not be counted.
        self._tree.dropped_ends.note(plan.blocks[-1], self._backoff)
        count = self._drop_end(plan, False) + self._drop_end(plan, True)
        self._tree.unpin(plan.blocks[-1])
        return count

    def _drop_end(self, plan: DropPlan, of_unbounded: bool) -> int:
        count = 0
        last: i64 = len(plan.blocks) - 1
        for life_cycle, cycle in enumerate(self._cycles):
            if of_unbounded == (cycle.has_page_per_block and cycle.window_size is None):
                begin = self._find_begin(plan, life_cycle)
                for ordinal in range(last, begin - 1, -1):
                    count += self._drop_page(plan.blocks[ordinal], ordinal, life_cycle)
        return count

    def cancel(self, number: int) -> None:
        """The plan is over, and everything stays."""
        plan = self._open.pop(number, None)
        if plan is not None:
            self._tree.unpin(plan.blocks[-1])

    def void_of(self, root: Block) -> None:
        """Nothing below that root is going to be matched again."""
        for number, plan in list(self._open.items()):
            if plan.blocks[0].parent is root:
                self.cancel(number)

    def _find_begin(self, plan: DropPlan, life_cycle: i64) -> i64:
        """The first block whose page goes: of windowed layers the last window, of others the last block."""
        last: i64 = len(plan.blocks) - 1
        cycle = self._cycles[life_cycle]
        window = cycle.window_size
        if window is None or not cycle.has_page_per_block:
            return last
        begin: i64 = (plan.num_tokens + 1 - window) // self._tokens_per_block
        if begin < 0:
            begin = 0
        return begin if begin < last else last

    def _drop_page(self, block: Block, ordinal: i64, life_cycle: i64) -> int:
        storage = self._tree.storage
        page = block.first_page + life_cycle
        if not storage.rows.has_page(page) or storage.rows.num_holds(page) > 0:
            return 0
        for other in self._open.values():
            if ordinal < len(other.blocks) and other.blocks[ordinal] is block and self._needs(other, ordinal, life_cycle):
                return 0
        storage.digest.record(VICTIM, page)
        drop(storage, page, storage.pool_group_of[life_cycle], REQUESTED, None)
        self._tree.on_page_dropped(page, None)
        return 1

    def _needs(self, plan: DropPlan, ordinal: i64, life_cycle: i64) -> bool:
        """Whether the plan's prefix could not be matched to its end without that page."""
        cycle = self._cycles[life_cycle]
        if not cycle.has_page_per_block:
            return ordinal == len(plan.blocks) - 1
        stale_beg = cycle.compute_stale_beg(int(plan.num_tokens), self._tokens_per_block)
        stale_end = cycle.compute_stale_end(int(plan.num_tokens), self._tokens_per_block)
        return not stale_beg <= ordinal < stale_end
