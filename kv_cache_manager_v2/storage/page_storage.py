"""All pages of a manager: made, held, locked, released, freed.

Owns the page rows, the slots (`SlotStore`), and per level and pool group the eviction queues; what belongs to pool group ``g`` at level
``l`` is at index ``l * num_pool_groups + g``. Knows nothing of tokens or of the tree. The states of a page and what each guarantees
are the table in `page_rows`; the ways from one to another:

    from        to          by
    (none)      LOCKED      make_locked_page
    DROPPABLE   HELD        hold
    HELD        LOCKED      lock (on level 0; `Onboarding` brings it there)
    LOCKED      HELD        unlock
    HELD        DROPPABLE   release (a published page)
    LOCKED      (none)      free_page (a private page: no other sequence can want it)
    HELD        (none)      drop_hold (one that others may hold)
    DROPPABLE   (none)      drop (`page_removal`)

Which page is evicted, and where it goes, is decided by `SlotReclaimer` and `DropOrder`, and by the tree where several are dropped;
queues change in `page_queues`, pages go in `page_removal`, and bytes move by `MoveBatch` and `PageMover`.
"""

import struct
from collections.abc import Sequence
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.change_count import ChangeCount
from ..config.eviction_policy import EvictionPolicy
from ..device.port import Device
from ..device.stream_order import NO_POINT, StreamOrder
from ..durable.durable_level import DurableLevel
from ..events.event_log import EventLog
from ..events.removal_cause import CAPACITY
from ..layout.slot_layout import SlotLayout
from ..pools.pool_group import PoolGroup
from ..pools.slot_allocator import SlotAllocator
from ..stats.page_counters import PageCounters
from .clean_copies import CleanCopies
from .closed_levels import ClosedLevels
from .page_fill import DebugFill
from .decision_digest import REFUSAL, SLOT, DecisionDigest
from .disk_reads import DiskReads
from .page_owner import DropWatch
from .eviction.hazard_model import MODEL_BYTES
from .eviction.learned import NUM_SENTINELS, make_queue
from .eviction.page_notes import find_block_mates
from .eviction.segment_records import NEVER, Learning, LevelOrder, SegmentRecords
from .eviction_queue import EvictionQueue
from .level_slots import LevelSlots
from .page_fill import clear_at_start
from .page_owner import OwnerKeys, PageOwner
from .page_rows import (
    LINKS,
    LOCKED_ONCE,
    LOW_MASK,
    MOST_HOLDS,
    NO_PAGE,
    NOT_QUEUED,
    ONE_HOLD,
    ONE_LOCK,
    PLACE,
    ROW_WORDS,
    PageRows,
    add_priority,
    holds_of_place,
    level_of_place,
    locks_of_links,
    pack_place,
    priority_of_place,
)
from .refusal import Refusal
from .slot_store import SlotStore
from .page_owner import TwinOwner
from .victim_queue import NUM_PRIORITIES, VictimQueue

GPU: Final = 0
_ACCOUNT: Final = struct.Struct("<2q")


@final
class PageStorage:
    __slots__ = (
        "device", "order", "layout", "rows", "slots", "pool_groups", "allocators", "queues", "held_queues", "pool_group_of",
        "num_pool_groups", "num_levels", "last_level", "num_locked", "num_evicted", "counters", "last_cause", "digest",
        "last_refusal", "num_refusals", "sink", "drop_watch", "twin_owner", "reads", "copies", "closed", "changes", "durable",
        "learning", "packs_with_loss", "unpacked", "_keys", "level_orders", "has_one_order", "least_chances", "_records", "_policies",
    )  # fmt: skip

    def __init__(
        self,
        device: Device,
        order: StreamOrder,
        layout: SlotLayout,
        levels: Sequence[LevelSlots],
        num_null_slots: int,
        debug_fill: DebugFill | None = None,
    ) -> None:
        self.device: Final = device
        self.order: Final = order
        self.layout: Final = layout
        self.num_pool_groups: Final[i64] = layout.num_pool_groups
        self.num_levels: Final[i64] = len(levels)
        self.last_level: Final[i64] = len(levels) - 1
        self.pool_group_of: Final = vec[i64](layout.pool_group_indices)  # pool group of each life cycle
        num_places = layout.num_pool_groups * len(levels)
        self.rows: Final = PageRows(layout.num_life_cycles, (NUM_PRIORITIES + NUM_SENTINELS) * num_places)
        self.digest: Final = DecisionDigest()
        self.slots: Final = SlotStore(device, order, layout, self.digest)  # the memory; the next three are its own
        self.pool_groups: Final[list[PoolGroup]] = self.slots.pool_groups
        self.allocators: Final[list[SlotAllocator]] = self.slots.allocators
        self.num_locked: vec[i64] = self.slots.num_locked
        self.queues: Final[list[VictimQueue]] = []  # droppable pages
        self.held_queues: Final[list[EvictionQueue]] = []  # held pages, which may be offloaded but not dropped; none on the last level
        self.num_evicted = vec[i64]([0] * num_places)  # evicted pages, offloaded or dropped, since the start, by index
        self.counters: Final = PageCounters(len(levels), vec[i64](layout.list_slot_bytes(len(levels))))
        self.last_cause: i64 = CAPACITY  # why the latest dropped page was dropped
        self.last_refusal: Refusal | None = None
        self.num_refusals = vec[i64]([0] * num_places)  # refused calls since the start, by index: where slots were missing
        self.sink: EventLog | None = None  # hears where published pages go; None without a listener
        self.drop_watch: DropWatch | None = None
        self.twin_owner: TwinOwner | None = None  # None where a commit takes equal published pages over
        self.changes: Final = ChangeCount()
        """Changes that cannot be undone, with which a call may be busy: the storage's own are drops, of several pages that go together."""
        self.durable: Final[DurableLevel | None] = levels[len(levels) - 1].durable  # the last level, if what is there outlives the process
        self.reads: Final = DiskReads(device, order, self.changes)
        self.copies: Final = CleanCopies(self.rows, order, self.allocators, layout.num_pool_groups, len(levels))
        self.packs_with_loss = False  # whether a codec packs pages on their way down and unpacks them to other bytes
        self.unpacked: Final[set[int]] = set()  # pages that were packed with loss and came back to level 0; some are gone by now
        self._keys: Final = OwnerKeys()
        self.learning: Final = Learning()  # the learning that the queues of all levels share
        pages = [layout.pool_group_indices.count(index) for index in range(layout.num_pool_groups)]
        self._records: Final[list[SegmentRecords]] = [
            SegmentRecords(self.learning, count, find_block_mates(self.rows, layout, index)) for index, count in enumerate(pages)
        ]
        """By pool group."""
        self._policies: Final[list[EvictionPolicy]] = [level.eviction_policy for level in levels]  # by level
        self.level_orders: Final[list[LevelOrder]] = [LevelOrder(self.rows, records) for records in self._records]  # by pool group
        all_learn = all([level.eviction_policy is EvictionPolicy.LEARNED for level in levels])
        self.least_chances: Final = vec[float]([level.min_reuse_probability for level in levels])
        """By level: `min_reuse_probability`, 0.0 for none."""
        self.has_one_order: Final[bool] = all_learn and len(levels) > 1 and self.durable is None
        """Whether the page of least value is dropped wherever it lies: all of several levels are LEARNED, and none is durable."""
        self._add_levels(levels, num_null_slots)
        self.closed: Final = ClosedLevels(device, self.pool_groups, layout.num_pool_groups)
        if debug_fill is not None:
            self.slots.fill_pages(debug_fill)

    def _add_levels(self, levels: Sequence[LevelSlots], num_null_slots: int) -> None:
        try:
            self._add_level(levels[0], num_null_slots)
            clear_at_start(self.device, self.pool_groups)
            for level in levels[1:]:
                self._add_level(level, 0)
        except BaseException:
            self.close()
            raise

    def _add_level(self, level: LevelSlots, num_null_slots: int) -> None:
        self.slots.add_level(level, num_null_slots)
        for _pool_group in range(self.layout.num_pool_groups):
            index = len(self.queues)
            self.held_queues.append(EvictionQueue(self.rows, _first_sentinel(index)))
            self.queues.append(self._make_queue(index))

    def _make_queue(self, index: i64) -> VictimQueue:
        level, pool_group = index // self.num_pool_groups, index % self.num_pool_groups
        sentinel = _first_sentinel(index) + NUM_PRIORITIES
        num_slots = self.allocators[index].num_slots
        return make_queue(self._policies[level], self.rows, sentinel, self._keys, num_slots, self._records[pool_group])

    def renew_queues(self) -> None:
        """All eviction queues are as they were made: nothing is queued, remembered or learned. No sequence was made yet."""
        self.learning.notes.forget_all()
        self.load_weights(b"")
        for number, old in enumerate(self._records):
            self._records[number] = SegmentRecords(self.learning, old.pages_per_block, old.block_mates)
            self.level_orders[number] = LevelOrder(self.rows, self._records[number])
        for index in range(len(self.queues)):
            self.queues[index] = self._make_queue(index)

    @property
    def learns(self) -> bool:
        """Whether some level's policy learns."""
        return EvictionPolicy.LEARNED in self._policies

    def expect_return(self, page: i64, pool_group: i64) -> i64:
        """`LevelOrder.expect_return`; NEVER too where the policy of the page's level does not learn."""
        if self._policies[self.rows.level(page)] is not EvictionPolicy.LEARNED:
            return NEVER
        return self.level_orders[pool_group].expect_return(page)

    def save_weights(self) -> bytes:
        """What the policies have learned, for `load_weights`: the model, then of each pool group what it may lose against recency."""
        accounts = [_ACCOUNT.pack(*records.shadow.save_account()) for records in self._records]
        return b"".join([self.learning.model.to_bytes(), *accounts])

    def load_weights(self, weights: bytes) -> bool:
        """What the policies of another process had learned; whether they know it now. Else they know what they did at first."""
        is_known = self.learning.model.load(weights[:MODEL_BYTES]) and self.learns
        if is_known and len(weights) == MODEL_BYTES + _ACCOUNT.size * len(self._records):
            for index, records in enumerate(self._records):
                credit, allowed = _ACCOUNT.unpack_from(weights, MODEL_BYTES + index * _ACCOUNT.size)
                records.shadow.load_account(credit, allowed)
        return is_known

    def set_owner(self, owner: PageOwner) -> None:
        self._keys.owner = owner

    def close(self) -> None:
        """Free the memory. The caller has synchronised."""
        self.slots.close()
        self._keys.owner = None

    def owner(self) -> PageOwner:
        """The tree, which owns the published pages."""
        owner = self._keys.owner
        assert owner is not None
        return owner

    def refuse(self, refusal: Refusal, number: i64) -> None:
        """A call finds too few slots: keep the reason, count it where slots are missing, record the decision."""
        self.digest.record(REFUSAL, number)
        self.last_refusal = refusal
        self.num_refusals[refusal.level * self.num_pool_groups + refusal.pool_group] += 1

    def take_refusal_back(self, before: Refusal | None) -> Refusal:
        """The last refusal, which was of no call of the user's, and so was none; ``before`` is the last one again."""
        refusal = self.last_refusal
        assert refusal is not None, "a refusal is taken back where there was none"
        self.num_refusals[refusal.level * self.num_pool_groups + refusal.pool_group] -= 1
        self.last_refusal = before
        return refusal

    # -- making and freeing pages -------------------------------------------------------------------------------------

    def make_locked_page(self, page: i64, pool_group: i64, priority: i64, timeline: i64) -> i64:
        """Give the row a free slot, held and locked once; returns the slot id. Room has been made before."""
        allocator = self.allocators[pool_group]
        words = self.rows.words
        assert words[page * ROW_WORDS + PLACE] == NO_PAGE, "a page was made where there is one"
        slot = allocator.allocate()
        self.digest.record(SLOT, slot)
        if self.packs_with_loss:
            self.unpacked.discard(int(page))
        # Before the device is asked for anything: the undo finds the page in its row.
        words[page * ROW_WORDS + PLACE] = pack_place(slot, GPU, priority) + ONE_HOLD
        words[page * ROW_WORDS + LINKS] = LOCKED_ONCE
        self.num_locked[pool_group] += 1
        ready = allocator.ready[slot]
        if ready != NO_POINT:
            self.order.wait(timeline, ready)
        filler = self.slots.filler
        if filler is not None:
            filler.fill_fresh(pool_group, slot, timeline)
        return slot

    def free_page(self, page: i64, pool_group: i64, mark: i64) -> None:
        """A locked page that only its one user knew is gone; its slot may be touched after ``mark``."""
        words = self.rows.words
        place = words[page * ROW_WORDS + PLACE]
        assert holds_of_place(place) == 1 and words[page * ROW_WORDS + LINKS] == LOCKED_ONCE, "a page was freed that others hold"
        self.num_locked[pool_group] -= 1
        slot = place & LOW_MASK
        words[page * ROW_WORDS + PLACE] = NO_PAGE
        words[page * ROW_WORDS + LINKS] = NOT_QUEUED
        self.reads.forget(page)
        self.slots.free_slot(pool_group, slot, mark)

    def free_unfinished_page(self, page: i64, pool_group: i64, timeline: i64, mark: i64) -> None:
        """The same after the device has refused something: perhaps the wait for the slot's last use, which stays to be waited for."""
        ready = self.allocators[pool_group].ready[self.rows.slot(page)]
        self.free_page(page, pool_group, self.order.advance(ready, timeline, mark))

    def has_loss(self, page: i64) -> bool:
        """Whether a page, if there is one, was packed with loss since its bytes were written."""
        return self.packs_with_loss and self.rows.has_page(page) and (self.rows.level(page) > GPU or int(page) in self.unpacked)

    def record_copy(self, source: i64, target: i64) -> None:
        """The target gets the bytes of the source, and is as good as they are."""
        self.reads.record_copy(source, target)
        if self.packs_with_loss:
            if int(source) in self.unpacked:
                self.unpacked.add(int(target))
            else:
                self.unpacked.discard(int(target))

    def pool_group_of_page(self, page: i64) -> i64:
        rows = self.rows
        return self.pool_group_of[(page - rows.first_page_of_blocks) % rows.num_life_cycles]

    # -- holds and locks ----------------------------------------------------------------------------------------------

    def hold(self, page: i64, pool_group: i64, is_use: bool = True) -> None:
        """One more sequence needs the page. ``is_use``: False where that is no use yet, until `use_held_run` of its queue says so."""
        words = self.rows.words
        place = words[page * ROW_WORDS + PLACE]
        assert holds_of_place(place) < MOST_HOLDS, "a page has more users than its row can count"
        words[page * ROW_WORDS + PLACE] = place + ONE_HOLD
        if place < ONE_HOLD:
            level = level_of_place(place)
            index = level * self.num_pool_groups + pool_group
            if is_use:
                self.queues[index].use(page)
            else:
                self.queues[index].hold_run(vec[i64]([page]), 1)
            if level < self.last_level:
                self.held_queues[index].push(page)

    def release(self, page: i64, pool_group: i64, goes_first: bool = False) -> None:
        """Drop a hold of a published page; the last one makes it droppable: as its queue's policy says (LRU: as the most recently used), or
        evict-first."""
        if self._take_hold_off(page, pool_group):
            queue = self.queues[self.rows.level(page) * self.num_pool_groups + pool_group]
            if goes_first:
                queue.push_first(page)
            else:
                queue.push(page)

    def _take_hold_off(self, page: i64, pool_group: i64) -> bool:
        """Whether it was the last one; then the page is in no queue."""
        words = self.rows.words
        place = words[page * ROW_WORDS + PLACE] - ONE_HOLD
        links = words[page * ROW_WORDS + LINKS]
        assert place >= 0 and holds_of_place(place) >= locks_of_links(links), "a hold was released twice"
        words[page * ROW_WORDS + PLACE] = place
        if place >= ONE_HOLD:
            return False
        if links != NOT_QUEUED:
            self.held_queues[level_of_place(place) * self.num_pool_groups + pool_group].remove(page)
        return True

    def lock(self, page: i64, pool_group: i64, timeline: i64) -> i64:
        """Lock a held page on level 0; the stream waits until its bytes are there. Returns the slot id."""
        slot = self.lock_without_wait(page, pool_group)
        ready = self.allocators[pool_group].ready[slot]
        if ready != NO_POINT:
            self.order.wait(timeline, ready)
        return slot

    def lock_without_wait(self, page: i64, pool_group: i64) -> i64:
        """`lock`, where the caller makes sure that the bytes are not touched before they are there."""
        words = self.rows.words
        place = words[page * ROW_WORDS + PLACE]
        links = words[page * ROW_WORDS + LINKS]
        assert holds_of_place(place) > locks_of_links(links), "a page was locked that is not held"
        if links < NOT_QUEUED:
            words[page * ROW_WORDS + LINKS] = links + ONE_LOCK
            return place & LOW_MASK
        assert level_of_place(place) == GPU, "a page was locked that is not on level 0"
        self.num_locked[pool_group] += 1
        if links != NOT_QUEUED:
            self.held_queues[pool_group].remove(page)
        words[page * ROW_WORDS + LINKS] = LOCKED_ONCE
        return place & LOW_MASK

    def unlock(self, page: i64, pool_group: i64, timeline: i64, mark: i64) -> None:
        """Drop a lock; the next user of the slot waits for ``mark``, a fresh mark of ``timeline``, too."""
        self.advance_ready(page, pool_group, timeline, mark)
        self.unlock_at_rest(page, pool_group)

    def unlock_at_rest(self, page: i64, pool_group: i64) -> None:
        """Drop a lock whose owner does nothing with the bytes any more."""
        if self._take_lock_off(page, pool_group):
            twins = self.twin_owner
            if (twins is None or not twins.take_over(page)) and self.last_level > 0:
                self.held_queues[pool_group].push(page)

    def unlock_and_release(self, page: i64, pool_group: i64, timeline: i64, mark: i64) -> None:
        """Drop a lock and the hold that goes with it, of a published page."""
        self.advance_ready(page, pool_group, timeline, mark)
        is_unlocked = self._take_lock_off(page, pool_group)
        words = self.rows.words
        place = words[page * ROW_WORDS + PLACE] - ONE_HOLD
        assert place >= 0, "a hold was released twice"
        words[page * ROW_WORDS + PLACE] = place
        twins = self.twin_owner
        if is_unlocked and twins is not None and twins.take_over(page):
            return
        if place < ONE_HOLD:
            self.queues[pool_group].push(page)
        elif is_unlocked and self.last_level > 0:
            self.held_queues[pool_group].push(page)

    def _take_lock_off(self, page: i64, pool_group: i64) -> bool:
        """Whether it was the last one; then the page is in no queue."""
        words = self.rows.words
        links = words[page * ROW_WORDS + LINKS] - ONE_LOCK
        assert links <= NOT_QUEUED, "a page was unlocked twice"
        words[page * ROW_WORDS + LINKS] = links
        if links != NOT_QUEUED:
            return False
        self.num_locked[pool_group] -= 1
        return True

    def share_locked_page(self, page: i64) -> i64:
        """One more hold and lock, for a sequence on the stream of one that has the page locked; returns the slot id."""
        words = self.rows.words
        place = words[page * ROW_WORDS + PLACE]
        links = words[page * ROW_WORDS + LINKS]
        assert links < NOT_QUEUED, "a page was shared as locked that is not"
        assert holds_of_place(place) < MOST_HOLDS, "a page has more users than its row can count"
        words[page * ROW_WORDS + PLACE] = place + ONE_HOLD
        words[page * ROW_WORDS + LINKS] = links + ONE_LOCK
        return place & LOW_MASK

    def drop_hold(self, page: i64, pool_group: i64) -> None:
        """A hold of a private page; the last one, which has no lock, frees its slot: all that used it is in the slot's own point."""
        if self._take_hold_off(page, pool_group):
            words = self.rows.words
            index = self.rows.level(page) * self.num_pool_groups + pool_group
            slot = words[page * ROW_WORDS + PLACE] & LOW_MASK
            words[page * ROW_WORDS + PLACE] = NO_PAGE
            self.reads.forget(page)
            self.slots.free_slot(index, slot, self.allocators[index].ready[slot])

    def advance_ready(self, page: i64, pool_group: i64, timeline: i64, mark: i64) -> None:
        """The next user of the slot waits for ``mark``, a fresh mark of ``timeline``, too."""
        self.slots.advance_ready(self.rows.words[page * ROW_WORDS + PLACE] & LOW_MASK, pool_group, timeline, mark)

    def set_ready(self, page: i64, pool_group: i64, point: i64) -> None:
        """The bytes of a page on level 0 are there after ``point``."""
        self.allocators[pool_group].ready[self.rows.words[page * ROW_WORDS + PLACE] & LOW_MASK] = point

    def raise_priority(self, page: i64, pool_group: i64, priority: i64) -> None:
        """A reused page keeps the higher of its priorities."""
        if priority > self.rows.priority(page):
            self.set_priority(page, pool_group, priority)

    def set_priority(self, page: i64, pool_group: i64, priority: i64) -> None:
        """A queued page changes places: among those of its new priority, as its queue's policy says (LRU: as the most recently used)."""
        words = self.rows.words
        place = words[page * ROW_WORDS + PLACE]
        words[page * ROW_WORDS + PLACE] = add_priority(place, priority - priority_of_place(place))
        if words[page * ROW_WORDS + LINKS] > NOT_QUEUED:
            index = level_of_place(place) * self.num_pool_groups + pool_group
            (self.queues[index] if place < ONE_HOLD else self.held_queues[index]).requeue(page)
        if self.sink is not None:
            self.sink.on_priority_changed(page, priority_of_place(place), priority)


def _first_sentinel(index: i64) -> i64:
    """The first row of the queues of that index: those of held pages come first, those of droppable ones behind them."""
    return index * (NUM_PRIORITIES + NUM_SENTINELS)
