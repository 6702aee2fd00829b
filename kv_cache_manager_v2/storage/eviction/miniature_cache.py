"""A small copy of a cache for sampled blocks only: which of them another policy, or another size, would still have had.

It is played through from a `ReuseLog`. A cache of ``n`` blocks whose blocks are sampled at a rate of ``r`` is one of ``n * r`` blocks;
the policy is the manager's own queue, used as the manager uses it: a block that a sequence holds is in no queue, and one with others
below it never goes before them. What the manager had to compute again and this cache still has is a hit here, and the other way round.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64, mypyc_attr

from ...config.eviction_policy import EvictionPolicy
from ...stats.reuse_log import (
    ASKED,
    BELOW,
    RELEASED,
    KEY_SHIFT,
    KIND_MASK,
    PUBLISHED_PART,
)
from ..page_rows import LINKS, NO_PAGE, NOT_QUEUED, PLACE, ROW_WORDS, PageRows, pack_place
from ..victim_queue import NO_VICTIM, ContentKeys, VictimQueue
from .make_queue import MOST_SENTINELS, make_queue

_PRIORITY: Final = 35
NO_BLOCK: Final = -1
_IN_RUN: Final = -1
"""Instead of the number of its holders: the block goes back with others, and a log that says so twice is wrong."""


@final
@mypyc_attr(native_class=True)
class SampledBlocks:
    """The words of a log with the blocks numbered from 0 on, and which block is below which: made once, for any number of caches.

    ``blocks[i]`` is whom ``kinds[i]`` happened to.
    """

    __slots__ = ("kinds", "blocks", "keys", "parents", "children")

    kinds: vec[i64]
    blocks: vec[i64]
    keys: vec[i64]
    """By block, as the next two."""
    parents: vec[i64]
    children: Final[list[list[int]]]

    def __init__(self, words: vec[i64]) -> None:
        self.kinds = vec[i64]()
        self.blocks = vec[i64]()
        self.keys = vec[i64]()
        self.parents = vec[i64]()
        self.children = []
        numbers: dict[int, int] = {}
        parent: i64 = NO_BLOCK
        for position in range(len(words)):
            kind = words[position] & KIND_MASK
            key = words[position] >> KEY_SHIFT
            number: i64 = numbers.get(int(key), NO_BLOCK)
            if number == NO_BLOCK:
                number = len(numbers)
                numbers[int(key)] = int(number)
                self.keys = append(self.keys, key)
                self.parents = append(self.parents, NO_BLOCK)
                self.children.append([])
            if kind == BELOW:
                parent = number
            else:
                if parent != NO_BLOCK and self.parents[number] == NO_BLOCK and parent != number:
                    self.parents[number] = parent
                    self.children[parent].append(int(number))
                parent = NO_BLOCK
                self.kinds = append(self.kinds, kind)
                self.blocks = append(self.blocks, number)


@final
@mypyc_attr(native_class=True)
class _SampledKeys(ContentKeys):
    __slots__ = ("_keys",)

    _keys: Final[vec[i64]]

    def __init__(self, keys: vec[i64]) -> None:
        self._keys = keys

    def content_key(self, page: i64) -> i64:
        key = self._keys[page - MOST_SENTINELS]
        return key if key != 0 else 1


@final
@mypyc_attr(native_class=True)
class MiniatureCache:
    """``num_hits`` of ``num_queries`` were there.

    A block is away, or held (cached, in no queue), or queued. What several hold is queued when all of them have released it.
    """

    __slots__ = (
        "num_queries", "num_hits", "num_cached", "_num_slots", "_sample", "_rows", "_queue", "_num_holders", "_num_below",
        "_num_held_below", "_held", "_first_held", "_run", "_num_in_run",
    )  # fmt: skip

    num_queries: i64
    num_hits: i64
    num_cached: i64
    _num_slots: Final[i64]
    _sample: Final[SampledBlocks]
    _rows: Final[PageRows]
    _queue: Final[VictimQueue]
    _num_holders: vec[i64]
    _num_below: vec[i64]
    """Cached blocks right below each one."""
    _num_held_below: vec[i64]
    _held: vec[i64]
    """Blocks in the order in which sequences began to hold them; many are released by now."""
    _first_held: i64
    _run: vec[i64]
    """Pages that are about to go back together, the first ``_num_in_run``."""
    _num_in_run: i64

    def __init__(self, sample: SampledBlocks, policy: EvictionPolicy, num_slots: i64) -> None:
        """``num_slots`` is at least 1."""
        self.num_queries = 0
        self.num_hits = 0
        self.num_cached = 0
        self._num_slots = num_slots
        self._sample = sample
        self._rows = PageRows(1, MOST_SENTINELS)
        self._queue = make_queue(policy, self._rows, 0, _SampledKeys(sample.keys), int(num_slots))
        num_blocks: i64 = len(sample.keys)
        for number in range(num_blocks):
            self._rows.add_block()
        self._num_holders = vec[i64]([0] * num_blocks)
        self._num_below = vec[i64]([0] * num_blocks)
        self._num_held_below = vec[i64]([0] * num_blocks)
        self._held = vec[i64]()
        self._first_held = 0
        self._run = vec[i64]()
        self._num_in_run = 0

    def play(self, begin: i64, end: i64) -> None:
        """What happened from ``begin`` up to ``end``; the calls follow on each other."""
        kinds = self._sample.kinds
        blocks = self._sample.blocks
        for position in range(begin, end):
            kind = kinds[position]
            block = blocks[position]
            if kind != RELEASED and self._num_in_run > 0:
                self._push_run()
            if kind == ASKED:
                self.num_queries += 1
                if self._is_cached(block):
                    self.num_hits += 1
                    if self._is_queued(block):
                        # The sequence that asked is about to hold it, or to publish it once more.
                        self._queue.use(block + MOST_SENTINELS)
                        self._begin_hold(block)
            elif kind == RELEASED:
                if self._num_holders[block] > 0:
                    self._num_holders[block] -= 1
                if self._num_holders[block] == 0 and self._is_cached(block) and not self._is_queued(block):
                    self._add_to_run(block)
            else:
                if not self._is_cached(block):
                    self._bring_in(block)
                    self._begin_hold(block)
                if kind == PUBLISHED_PART:
                    if self._num_holders[block] == 0 and not self._is_queued(block):
                        self._release(block)
                else:
                    self._num_holders[block] += 1

    def _is_cached(self, block: i64) -> bool:
        return self._rows.words[(block + MOST_SENTINELS) * ROW_WORDS + PLACE] != NO_PAGE

    def _is_queued(self, block: i64) -> bool:
        return self._rows.words[(block + MOST_SENTINELS) * ROW_WORDS + LINKS] != NOT_QUEUED

    def _begin_hold(self, block: i64) -> None:
        self._held = append(self._held, block)
        parent = self._sample.parents[block]
        if parent != NO_BLOCK:
            self._num_held_below[parent] += 1

    def _add_to_run(self, block: i64) -> None:
        """What goes back without anything in between goes back together, as a request's blocks do."""
        if self._num_in_run == len(self._run):
            self._run = append(self._run, 0)
        self._num_holders[block] = _IN_RUN
        self._run[self._num_in_run] = block + MOST_SENTINELS
        self._num_in_run += 1

    def _push_run(self) -> None:
        self._queue.push_run(self._run, self._num_in_run)
        for position in range(self._num_in_run):
            block = self._run[position] - MOST_SENTINELS
            self._num_holders[block] = 0
            parent = self._sample.parents[block]
            if parent != NO_BLOCK:
                self._num_held_below[parent] -= 1
        self._num_in_run = 0

    def _release(self, block: i64) -> None:
        self._queue.push(block + MOST_SENTINELS)
        parent = self._sample.parents[block]
        if parent != NO_BLOCK:
            self._num_held_below[parent] -= 1

    def _bring_in(self, block: i64) -> None:
        queue = self._queue
        num_spared: i64 = 0
        while self.num_cached >= self._num_slots:
            page = queue.first()
            if page == NO_VICTIM or num_spared > queue.num_pages:
                self._release_longest_held()
                num_spared = 0
                continue
            victim = page - MOST_SENTINELS
            if self._num_held_below[victim] > 0:
                queue.requeue(page)
                num_spared += 1
            elif self._num_below[victim] > 0:
                queue.defer(page, self._find_below(victim) + MOST_SENTINELS)
            else:
                queue.evict(page)
                self._rows.words[page * ROW_WORDS + PLACE] = NO_PAGE
                self.num_cached -= 1
                self._count_below(victim, -1)
        self._rows.words[(block + MOST_SENTINELS) * ROW_WORDS + PLACE] = pack_place(0, 0, _PRIORITY)
        self.num_cached += 1
        self._count_below(block, 1)

    def _release_longest_held(self) -> None:
        """All that could go is held: more is in use than this cache can hold, or the log has lost who released it. The leaf of
        its path goes first, as what is above a block that is held stays."""
        block = self._held[self._first_held]
        while not self._is_held(block):
            self._first_held += 1
            block = self._held[self._first_held]
        while self._num_held_below[block] > 0:
            block = self._find_held_below(block)
        self._release(block)

    def _is_held(self, block: i64) -> bool:
        return self._is_cached(block) and not self._is_queued(block)

    def _find_held_below(self, block: i64) -> i64:
        for child in self._sample.children[block]:
            if self._is_held(child):
                return child
        raise AssertionError("held blocks were counted below a block that has none")

    def _find_below(self, block: i64) -> i64:
        for child in self._sample.children[block]:
            if self._is_cached(child):
                return child
        raise AssertionError("cached blocks were counted below a block that has none")

    def _count_below(self, block: i64, change: i64) -> None:
        parent = self._sample.parents[block]
        if parent != NO_BLOCK:
            self._num_below[parent] += change
