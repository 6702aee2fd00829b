"""A cache of blocks over several levels, without memory: where each prompt's blocks would have lain, and what would have been written.

It takes one prompt after another, as `BlockCache` does for one level. A prompt's hits are its longest prefix of cached blocks, on any
level; they are onboarded to level 0, and leave clean copies in the slots where they lay. Then all of the prompt is cached there. Room is
made as `SlotReclaimer` makes it, with the manager's own queues: offloaded by one level at a time, and with one order of value over all
levels where the policy is LEARNED.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from .. import EvictionPolicy
from ..storage.drop_order import MOST_STEPS
from ..storage.eviction.learned import NUM_SENTINELS
from ..storage.eviction.segment_records import Learning, LevelOrder, SegmentRecords
from ..storage.eviction.segment_traits import NO_HINT, RequestFacts
from ..storage.page_rows import NO_PAGE, PLACE, ROW_WORDS, PageRows, pack_place
from ..storage.victim_queue import NO_VICTIM, VictimQueue
from .block_cache import CACHE_PRIORITY, BlockKeys
from .block_requests import BlockIds, BlockRequests
from .policies.own_policy import ComparedPolicy, make_compared_queue

_NO_LEVEL: Final = -1
_NO_BLOCK: Final = -1


@final
class LevelCache:
    """``num_hits`` by level; ``num_written``: blocks copied from each level to the next one."""

    __slots__ = (
        "num_hits", "num_written", "num_dropped", "_num_slots", "_num_used", "_queues", "_rows", "_first_page", "_parents", "_children",
        "_copies", "_order", "_has_one_order", "_least_chance", "_request",
        "_victim", "_goes_alone",
    )  # fmt: skip

    def __init__(
        self, policy: ComparedPolicy, num_slots: list[int], blocks: BlockRequests, least_chance: float = 0.0,
        prior: list[float] | None = None,
    ) -> None:  # fmt: skip
        """``least_chance``: the `min_reuse_probability` of the levels below level 0, for LEARNED. ``prior``: as for `BlockCache`."""
        num_levels = len(num_slots)
        self.num_hits: Final[list[int]] = [0] * num_levels
        self.num_written: Final[list[int]] = [0] * (num_levels - 1)
        self.num_dropped = 0
        self._num_slots: Final = num_slots
        self._num_used: Final[list[int]] = [0] * num_levels
        self._first_page: Final[int] = NUM_SENTINELS * num_levels
        self._rows: Final = PageRows(1, self._first_page)
        learning = Learning()
        if prior is not None:
            learning.model.begin_from(prior)
        records = SegmentRecords(learning, 1)
        self._request: Final[RequestFacts] = learning.request
        self._victim: i64 = NO_VICTIM
        """That the latest `_find_least` has found."""
        self._goes_alone = False
        keys = BlockKeys()
        self._queues: Final[list[VictimQueue]] = [
            make_compared_queue(policy, self._rows, level * NUM_SENTINELS, keys, count, records) for level, count in enumerate(num_slots)
        ]
        self._order: Final = LevelOrder(self._rows, records)
        self._has_one_order: Final[bool] = policy is EvictionPolicy.LEARNED
        self._least_chance: Final[float] = least_chance if self._has_one_order else 0.0
        self._parents: Final[list[int]] = blocks.parents
        self._children: Final[dict[int, dict[int, None]]] = {}
        """By block: its cached children, on all levels, in the order in which they came."""
        for _ in blocks.parents:
            self._rows.add_block()
        self._copies: Final[list[dict[int, None]]] = [{} for _ in num_slots]
        """By level: blocks of warmer levels that a free slot there has a copy of, the oldest first."""

    def level_of(self, block: int) -> int:
        """-1 where it is not cached."""
        page = block + self._first_page
        return _NO_LEVEL if self._rows.words[page * ROW_WORDS + PLACE] == NO_PAGE else self._rows.level(page)

    def serve(self, blocks: BlockIds, num_generated: int = 0, continues: int = NO_HINT) -> None:
        num_kept = min(len(blocks), self._num_slots[0])
        levels = [self.level_of(block) for block in blocks[:num_kept]]
        for block, level in zip(blocks, levels):
            if level != _NO_LEVEL:
                self.num_hits[level] += 1
                self._queues[level].hold_run(vec[i64]([block + self._first_page]), 1)
        found = vec[i64]([block + self._first_page for block, level in zip(blocks, levels) if level != _NO_LEVEL])
        self._free(0, len(found) - levels.count(0))
        for block, level in zip(blocks, levels):
            if level > 0:
                self._place(block, level, 0)
                self._copies[level][block] = None
        self._queues[0].use_held_run(found, len(found))
        num_new = levels.count(_NO_LEVEL)
        self._free(0, num_new)
        run = vec[i64]([0] * num_kept)
        for place in range(num_kept):
            block = blocks[num_kept - 1 - place]
            if levels[num_kept - 1 - place] == _NO_LEVEL:
                self._place(block, _NO_LEVEL, 0)
            run[place] = block + self._first_page
        self._request.begin(num_kept, 0, num_generated, continues)
        self._queues[0].push_run(run, num_kept)
        self._request.end()

    def _place(self, block: int, old: int, level: int) -> None:
        """The block lies on that level from now on."""
        page = block + self._first_page
        self._rows.words[page * ROW_WORDS + PLACE] = pack_place(0, level, CACHE_PRIORITY)
        self._num_used[level] += 1
        if old != _NO_LEVEL:
            self._num_used[old] -= 1
            self._queues[old].forget(page)
        elif self._parents[block] >= 0:
            self._children.setdefault(self._parents[block], {})[block] = None

    def count_free(self, level: int) -> int:
        return self._num_slots[level] - self._num_used[level]

    # -- freeing slots -------------------------------------------------------------------------------------------------

    def _free(self, level: int, wanted: int) -> None:
        """As `SlotReclaimer`, where no page is held."""
        last = len(self._queues) - 1
        while self.count_free(level) < wanted:
            missing = min(wanted - self.count_free(level), int(self._queues[level].num_pages))
            assert missing > 0, "no victim among cached blocks"
            if level < last:
                self._offload_or_drop(level, missing)
            else:
                self._find_least(level, level)
                self._drop_found(missing)

    def _offload_or_drop(self, level: int, missing: int) -> None:
        queue = self._queues[level]
        last = len(self._queues) - 1
        page = self._find_victim(level, False)
        if self._least_chance > 0.0:
            block = int(page - self._first_page)
            if self._order.chance_of_reuse(page) < self._least_chance and self._find_below(block, _NO_LEVEL) == _NO_BLOCK:
                self._drop(block)
                return
        missing = self._count_alike(level, page, missing, self._copies[level + 1])
        num_pages = queue.num_pages
        free = self._count_free_below(level)
        if page - self._first_page not in self._copies[level + 1]:
            plain = free - sum([len(copies) for copies in self._copies[level + 1 :]])
            if 0 < plain < missing:
                missing = plain
            elif plain == 0 and free > 0 and self._find_least(level, last) == level:
                self._drop_found(missing)
                return
        while free < missing:
            chosen = self._find_least(level, last)
            if chosen == level and free > 0:
                break
            self._drop_found(self._count_alike(chosen, self._victim, missing - free, {}))
            if queue.num_pages < num_pages:
                return
            free = self._count_free_below(level)
        missing = min(missing, free)
        if self.count_free(level + 1) < missing:
            self._free(level + 1, missing)
            missing = self.count_free(level + 1)
        if queue.num_pages == num_pages:
            self._offload(level, missing)

    def _count_free_below(self, level: int) -> int:
        return sum([self.count_free(other) for other in range(level + 1, len(self._queues))])

    def _count_alike(self, level: int, page: i64, most: int, copies: dict[int, None]) -> int:
        """The next victims of equal value: all have a copy, or none."""
        has_copy = page - self._first_page in copies
        line = vec[i64]([0] * most)
        count = 1
        for position in range(int(self._queues[level].list_following(page, line, 0, most - 1))):
            if (line[position] - self._first_page in copies) != has_copy:
                break
            count += 1
        return count

    def _find_least(self, first: int, last: int) -> int:
        """The level that drops `_victim`, the block of least value; as `DropOrder`."""
        while True:
            chosen = _NO_LEVEL
            self._goes_alone = False
            for level in range(first, last + 1):
                if self._queues[level].num_pages > 0:
                    page = self._find_victim(level, True)
                    if chosen == _NO_LEVEL or not self._ranks_under(self._victim, page):
                        chosen = level
                        self._victim = page
            if not self._is_deferred(chosen, first):
                return int(self._rows.level(self._victim))

    def _ranks_under(self, page: i64, other: i64) -> bool:
        return self._has_one_order and self._order.ranks_under(page, other)

    def _is_deferred(self, level: int, first: int) -> bool:
        num_left = len(self._queues) + MOST_STEPS
        while True:
            below = self._find_below(int(self._victim - self._first_page), _NO_LEVEL)
            if below == _NO_BLOCK:
                return False
            if self._ranks_under(self._victim, below + self._first_page):
                self._queues[level].defer(self._victim, below + self._first_page)
                return True
            num_left -= 1
            if self.level_of(below) < first or num_left == 0:
                self._goes_alone = True
                return False
            level = self.level_of(below)
            if num_left > MOST_STEPS:
                self._victim = self._find_victim(level, True)
            else:
                self._victim = below + self._first_page
                self._goes_alone = True

    def _drop_found(self, most: int) -> None:
        """The block of least value, with up to ``most`` of its level in all."""
        victim = self._victim
        queue = self._queues[self._rows.level(victim)]
        self._drop(int(victim - self._first_page))
        for _ in range(0 if self._goes_alone else min(most - 1, int(queue.num_pages))):
            victim = queue.first_to_drop()
            if int(victim - self._first_page) in self._children:
                break
            self._drop(int(victim - self._first_page))

    def _find_victim(self, level: int, is_dropped: bool) -> i64:
        queue = self._queues[level]
        while True:
            page = queue.first_to_drop() if is_dropped else queue.first()
            below = self._find_below(page - self._first_page, level)
            if below == _NO_BLOCK:
                return page
            queue.defer(page, below + self._first_page)

    def _find_below(self, block: int, level: int) -> int:
        """A cached child of the block, which may be evicted, on that level or, with -1, on any."""
        children = self._children.get(block)
        if children is not None:
            for child in children:
                page = child + self._first_page
                if self._rows.is_queued(page) and (level == _NO_LEVEL or self._rows.level(page) == level):
                    return child
        return _NO_BLOCK

    def _drop(self, block: int) -> None:
        """And with it what is below."""
        pending = [block]
        while len(pending) > 0:
            block = pending.pop()
            pending.extend(self._children.get(block, {}))
            level = self.level_of(block)
            page = block + self._first_page
            self._queues[level].evict(page)
            self._rows.words[page * ROW_WORDS + PLACE] = NO_PAGE
            self._num_used[level] -= 1
            self.num_dropped += 1
            siblings = self._children.get(self._parents[block])
            if siblings is not None:
                del siblings[block]
                if len(siblings) == 0:
                    del self._children[self._parents[block]]
            for copies in self._copies:
                copies.pop(block, None)

    def _offload(self, level: int, count: int) -> None:
        victims = [self._take_victim(level) for _ in range(count)]
        copies = self._copies[level + 1]
        # First those that have a copy there: nothing is written, and the others cannot take their slots.
        for block in [block for block in victims if block in copies] + [block for block in victims if block not in copies]:
            if block in copies:
                del copies[block]
            else:
                if self.count_free(level + 1) == len(copies):
                    del copies[next(iter(copies))]
                self.num_written[level] += 1
            self._place(block, level, level + 1)
            self._queues[level + 1].push(block + self._first_page)

    def _take_victim(self, level: int) -> int:
        page = self._find_victim(level, False)
        self._queues[level].take_victim(page)
        return int(page - self._first_page)
