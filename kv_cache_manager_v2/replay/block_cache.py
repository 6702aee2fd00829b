"""A cache of blocks without memory: which blocks of each prompt an eviction policy would have kept.

It takes one prompt after another. A prompt's hits are its longest prefix of cached blocks; then all of it is cached, as far as there
are slots, and becomes droppable, leaf first. The policy is the manager's own queue, used as the manager uses it: a hit block leaves the
queue and returns when the prompt is done, blocks are evicted before new ones are added, and a block with children is never evicted
before them.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..storage.eviction.hazard_model import HazardModel
from ..storage.eviction.learned import NUM_SENTINELS
from ..storage.eviction.segment_traits import NO_HINT, RequestFacts
from ..storage.eviction.segment_records import Learning, SegmentRecords
from ..storage.page_rows import NO_PAGE, PLACE, ROW_WORDS, PageRows, pack_place
from ..storage.victim_queue import NO_VICTIM, ContentKeys, VictimQueue
from .block_requests import BlockIds, BlockRequests
from .policies.own_policy import ComparedPolicy, make_compared_queue

CACHE_PRIORITY: Final = 35
_KEY_FACTOR: Final = 0x9E3779B97F4A7C15 & ((1 << 61) - 1)
_KEY_MASK: Final = (1 << 62) - 1


@final
class BlockKeys(ContentKeys):
    """A block's id is its content's key, mixed like the key of real content."""

    __slots__ = ()

    def content_key(self, page: i64) -> i64:
        key = ((page + 1) * _KEY_FACTOR) & _KEY_MASK
        key = ((key ^ (key >> 31)) * _KEY_FACTOR) & _KEY_MASK
        return key if key != 0 else 1


@final
class BlockCache:
    """The cache: ``num_cached`` blocks have a slot, never more than ``num_slots``."""

    __slots__ = (
        "num_slots", "num_cached", "num_hits", "num_evicted", "queue", "_rows", "_parents", "_children", "_num_below", "_run",
        "_request", "_model",
    )  # fmt: skip

    def __init__(self, policy: ComparedPolicy, num_slots: int, blocks: BlockRequests, prior: list[float] | None = None) -> None:
        """``prior``: what LEARNED knows at first (`decode_prior`)."""
        self.num_slots: Final[i64] = num_slots
        self.num_cached: i64 = 0
        self.num_hits: i64 = 0
        self.num_evicted: i64 = 0
        self._rows: Final = PageRows(1, NUM_SENTINELS)
        learning = Learning()
        if prior is not None:
            learning.model.begin_from(prior)
        self._model: Final[HazardModel] = learning.model
        self._request: Final[RequestFacts] = learning.request
        self.queue: Final[VictimQueue] = make_compared_queue(policy, self._rows, 0, BlockKeys(), num_slots, SegmentRecords(learning, 1))
        self._parents: Final[list[int]] = blocks.parents
        self._children: Final[list[list[int]]] = [[] for _ in blocks.parents]
        for block, parent in enumerate(blocks.parents):
            self._rows.add_block()
            if parent >= 0:
                self._children[parent].append(block)
        self._num_below = vec[i64]([0] * blocks.num_blocks)
        """By block: its cached children."""
        self._run = vec[i64]()

    def learned(self) -> list[float]:
        """What LEARNED knows by now, for another cache's ``prior``."""
        return self._model.weights()

    def serve(self, blocks: BlockIds, num_generated: int = 0, continues: int = NO_HINT) -> None:
        words = self._rows.words
        queue = self.queue
        num_kept: i64 = min(len(blocks), int(self.num_slots))
        num_new: i64 = 0
        is_hit = True
        place: i64 = 0
        while place < num_kept:
            page: i64 = blocks[place] + NUM_SENTINELS
            if words[page * ROW_WORDS + PLACE] == NO_PAGE:
                is_hit = False
                num_new += 1
            else:
                assert is_hit, "a block is cached without the one before it"
                self.num_hits += 1
                queue.use(page)
            place += 1
        self._make_room(num_new)
        if len(self._run) < num_kept:
            self._run = vec[i64]([0] * num_kept)
        run = self._run
        while place > 0:
            place -= 1
            block: i64 = blocks[place]
            page = block + NUM_SENTINELS
            if words[page * ROW_WORDS + PLACE] == NO_PAGE:
                words[page * ROW_WORDS + PLACE] = pack_place(0, 0, CACHE_PRIORITY)
                self._count_below(block, 1)
            run[num_kept - 1 - place] = page
        self._request.begin(num_kept, 0, num_generated, continues)
        queue.push_run(run, num_kept)
        self._request.end()
        self.num_cached += num_new

    def _make_room(self, num_new: i64) -> None:
        queue = self.queue
        words = self._rows.words
        while self.num_cached + num_new > self.num_slots:
            page = queue.first()
            assert page != NO_VICTIM, "no victim among cached blocks"
            block = page - NUM_SENTINELS
            if self._num_below[block] > 0:
                queue.defer(page, self._find_below(block) + NUM_SENTINELS)
                continue
            queue.evict(page)
            words[page * ROW_WORDS + PLACE] = NO_PAGE
            self._count_below(block, -1)
            self.num_cached -= 1
            self.num_evicted += 1

    def _find_below(self, block: i64) -> i64:
        """A cached child of this block; there is one."""
        words = self._rows.words
        for child in self._children[block]:
            if words[(child + NUM_SENTINELS) * ROW_WORDS + PLACE] != NO_PAGE:
                return child
        raise AssertionError("cached blocks were counted below a block that has none")

    def _count_below(self, block: i64, change: i64) -> None:
        parent: i64 = self._parents[block]
        if parent >= 0:
            self._num_below[parent] += change
