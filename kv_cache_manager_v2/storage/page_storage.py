"""All pages of a manager: makes them, holds and locks them, gives their slots back.

Owns the page rows, and per level and pool group the pools and the eviction queues; what belongs to pool group ``g`` at level
``l`` is at index ``l * num_pool_groups + g``. Knows nothing of tokens or of the tree; tells the `PageOwner` when a published
page is gone. The states of a page and what each guarantees are the table in `page_rows`; the ways from one to another:

    from        to          by
    (none)      LOCKED      make_locked_page
    DROPPABLE   HELD        hold
    HELD        LOCKED      lock (on level 0; `Onboarding` brings it there)
    LOCKED      HELD        unlock
    HELD        DROPPABLE   release (a published page)
    HELD        (none)      free_page (a private page: nobody else can want it), drop_hold (one that forks may share)
    DROPPABLE   (none)      drop

Who makes room, and which page has to go, is `SlotReclaimer`'s business.
"""

from collections.abc import Sequence
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..base.change_count import ChangeCount
from ..device.port import Device
from ..device.stream_order import NO_POINT, StreamOrder, timeline_of_point
from ..events.page_events import PageEventSink
from ..events.removal_cause import CAPACITY, SHRUNK, UNREACHABLE
from ..layout.slot_layout import SlotLayout
from ..pools.pool_group import PoolGroup
from ..pools.slot_allocator import SlotAllocator
from ..stats.page_counters import PageCounters
from .clean_copies import CleanCopies
from .closed_levels import ClosedLevels
from .debug_fill import DebugFill
from .decision_digest import SLOT, DecisionDigest
from .disk_reads import DiskReads
from .eviction.make_queue import count_sentinels, make_queue
from .eviction.page_notes import PageNotes
from .eviction_queue import EvictionQueue
from .level_slots import LevelSlots
from .owner_keys import OwnerKeys
from .page_fill import PageFiller, clear_at_start
from .page_owner import PageOwner
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
    moved_place,
    pack_place,
    priority_of_place,
)
from .refusal import Refusal
from .victim_queue import NUM_PRIORITIES, VictimQueue

GPU: Final = 0


@final
@mypyc_attr(native_class=True)
class PageStorage:
    __slots__ = (
        "device", "order", "layout", "rows", "pool_groups", "allocators", "queues", "held_queues", "pool_group_of",
        "num_pool_groups", "num_levels", "last_level", "num_locked", "num_evicted", "counters", "last_cause", "digest",
        "last_refusal", "sink", "reads", "copies", "closed", "changes", "_keys", "_notes", "_num_sentinels_used", "_filler",
    )  # fmt: skip

    device: Final[Device]
    order: Final[StreamOrder]
    layout: Final[SlotLayout]
    rows: Final[PageRows]
    pool_groups: Final[list[PoolGroup]]
    allocators: Final[list[SlotAllocator]]
    queues: Final[list[VictimQueue]]
    """Droppable pages."""
    held_queues: Final[list[EvictionQueue]]
    """Held pages, which may go down but not vanish; none on the last level."""
    pool_group_of: Final[vec[i64]]
    """Pool group of each life cycle."""
    num_pool_groups: Final[i64]
    num_levels: Final[i64]
    last_level: Final[i64]
    num_locked: vec[i64]
    """Pages with a lock and scratch slots, per pool group."""
    num_evicted: vec[i64]
    """Pages that left to make room, moved down or dropped, since the start, by index."""
    counters: Final[PageCounters]
    last_cause: i64
    """Why the latest dropped page went."""
    digest: Final[DecisionDigest]
    last_refusal: Refusal | None
    sink: PageEventSink | None
    """Who is told what becomes of published pages; None if nobody listens."""
    reads: Final[DiskReads]
    copies: Final[CleanCopies]
    closed: Final[ClosedLevels]
    changes: Final[ChangeCount]
    """Changes that cannot be undone, with which a call may be busy: the storage's own are drops, of several pages that go together."""
    _keys: Final[OwnerKeys]
    _notes: Final[PageNotes]
    _num_sentinels_used: int
    _filler: PageFiller | None
    """None unless slots are filled with a debug pattern."""

    def __init__(
        self,
        device: Device,
        order: StreamOrder,
        layout: SlotLayout,
        levels: Sequence[LevelSlots],
        num_null_slots: int,
        debug_fill: DebugFill | None = None,
    ) -> None:
        self.device = device
        self.order = order
        self.layout = layout
        self.num_pool_groups = layout.num_pool_groups
        self.num_levels = len(levels)
        self.last_level = len(levels) - 1
        self.pool_group_of = vec[i64](layout.pool_group_indices)
        num_places = layout.num_pool_groups * len(levels)
        num_sentinels = sum(count_sentinels(level.eviction_policy) + NUM_PRIORITIES for level in levels) * layout.num_pool_groups
        self.rows = PageRows(layout.num_life_cycles, num_sentinels)
        self.pool_groups = []
        self.allocators = []
        self.queues = []
        self.held_queues = []
        self.num_locked = vec[i64]([0] * layout.num_pool_groups)
        self.num_evicted = vec[i64]([0] * num_places)
        page_bytes = [sum(layout.slot_bytes(index)) for index in range(layout.num_pool_groups)]
        self.counters = PageCounters(len(levels), vec[i64](page_bytes))
        self.last_cause = CAPACITY
        self.digest = DecisionDigest()
        self.last_refusal = None
        self.sink = None
        self.changes = ChangeCount()
        self.reads = DiskReads(device, order, self.changes)
        self.copies = CleanCopies(self.rows, order, self.allocators, layout.num_pool_groups)
        self._keys = OwnerKeys()
        self._notes = PageNotes()
        self._num_sentinels_used = 0
        self._filler = None
        try:
            self._add_level(levels[0], num_null_slots)
            clear_at_start(device, self.pool_groups)
            for level in levels[1:]:
                self._add_level(level, 0)
        except BaseException:
            self.close()
            raise
        self.closed = ClosedLevels(device, self.pool_groups, layout.num_pool_groups)
        if debug_fill is not None:
            self._filler = PageFiller(device, order, self.pool_groups, debug_fill)

    def _add_level(self, level: LevelSlots, num_null_slots: int) -> None:
        for index in range(self.layout.num_pool_groups):
            group = PoolGroup(
                self.device, level.tier, self.layout.slot_bytes(index), level.num_slots[index], num_null_slots, level.path
            )
            self.pool_groups.append(group)
            self.allocators.append(group.allocator)
            num_slots = level.num_slots[index]
            sentinel = self._num_sentinels_used
            self.held_queues.append(EvictionQueue(self.rows, sentinel))
            sentinel += NUM_PRIORITIES
            self.queues.append(make_queue(level.eviction_policy, self.rows, sentinel, self._keys, num_slots, self._notes))
            self._num_sentinels_used = sentinel + count_sentinels(level.eviction_policy)

    def set_owner(self, owner: PageOwner) -> None:
        self._keys.owner = owner

    def close(self) -> None:
        """Give the memory back. The caller has synchronised."""
        if self._filler is not None:
            self._filler.close()
        for group in self.pool_groups:
            group.close()
        self._keys.owner = None

    @property
    def fills_pages(self) -> bool:
        """Whether slots are filled with a debug pattern as they are handed out."""
        return self._filler is not None

    def keep_bytes(self, pool_group: i64, slot: i64) -> None:
        """That slot of level 0 is about to be given back, with bytes of its next owner in it: no debug pattern may go there."""
        if self._filler is not None:
            self._filler.keep(pool_group, slot)

    @property
    def num_kept_slots(self) -> int:
        """Of those that `keep_bytes` named, how many were not given back yet; 0 between calls."""
        return 0 if self._filler is None else self._filler.num_kept

    # -- making and freeing pages -------------------------------------------------------------------------------------

    def make_locked_page(self, page: i64, pool_group: i64, priority: i64, timeline: i64) -> i64:
        """Give the row a free slot, held and locked once; returns the slot id. Room has been made before."""
        allocator = self.allocators[pool_group]
        words = self.rows.words
        at = page * ROW_WORDS
        assert words[at + PLACE] == NO_PAGE, "a page was made where there is one"
        slot = allocator.allocate()
        self.digest.record(SLOT, slot)
        # Before the device is asked for anything: whoever undoes this finds the page in its row.
        words[at + PLACE] = pack_place(slot, GPU, priority) + ONE_HOLD
        words[at + LINKS] = LOCKED_ONCE
        self.num_locked[pool_group] += 1
        ready = allocator.ready[slot]
        if ready != NO_POINT:
            self.order.wait(timeline, ready)
        if self._filler is not None:
            self._filler.fill_fresh(pool_group, slot, timeline)
        return slot

    def make_locked_page_at(self, page: i64, pool_group: i64, slot: i64, priority: i64) -> None:
        """The same in a slot that was taken before, and that the owner's stream has waited for."""
        words = self.rows.words
        at = page * ROW_WORDS
        assert words[at + PLACE] == NO_PAGE, "a page was made where there is one"
        self.digest.record(SLOT, slot)
        words[at + PLACE] = pack_place(slot, GPU, priority) + ONE_HOLD
        words[at + LINKS] = LOCKED_ONCE
        self.num_locked[pool_group] += 1

    def free_page(self, page: i64, pool_group: i64, mark: i64) -> None:
        """A locked page that only its one user knew is gone; its slot may be touched after ``mark``."""
        words = self.rows.words
        at = page * ROW_WORDS
        place = words[at + PLACE]
        assert holds_of_place(place) == 1 and words[at + LINKS] == LOCKED_ONCE, "a page was freed that others hold"
        self.num_locked[pool_group] -= 1
        slot = place & LOW_MASK
        words[at + PLACE] = NO_PAGE
        words[at + LINKS] = NOT_QUEUED
        self.reads.forget(page)
        self.free_slot(pool_group, slot, mark)

    def free_unfinished_page(self, page: i64, pool_group: i64, timeline: i64, mark: i64) -> None:
        """The same after the device has refused something: perhaps the wait for the slot's last use, which stays to be waited for."""
        ready = self.allocators[pool_group].ready[self.rows.slot(page)]
        self.free_page(page, pool_group, self.order.advance(ready, timeline, mark))

    def free_unlocked_page(self, page: i64, pool_group: i64) -> None:
        """The same for a page that is not locked: all that used its slot is in the slot's own point already."""
        words = self.rows.words
        at = page * ROW_WORDS
        place = words[at + PLACE]
        links = words[at + LINKS]
        assert holds_of_place(place) == 1 and links >= NOT_QUEUED, "a page was freed that others need"
        index = level_of_place(place) * self.num_pool_groups + pool_group
        if links != NOT_QUEUED:
            self.held_queues[index].remove(page)
        slot = place & LOW_MASK
        words[at + PLACE] = NO_PAGE
        self.reads.forget(page)
        self.free_slot(index, slot, self.allocators[index].ready[slot])

    def free_slot(self, index: i64, slot: i64, point: i64) -> None:
        if self._filler is not None and index < self.num_pool_groups:
            point = self._filler.fill_freed(index, slot, point)
        self.allocators[index].free(slot, point)

    def pool_group_of_page(self, page: i64) -> i64:
        rows = self.rows
        return self.pool_group_of[(page - rows.first_page_of_blocks) % rows.num_life_cycles]

    # -- scratch slots ------------------------------------------------------------------------------------------------

    def take_scratch_slot(self, pool_group: i64, timeline: i64) -> i64:
        """A free slot without a page; room has been made before. It stays free if the device refuses to wait for it or to fill it."""
        allocator = self.allocators[pool_group]
        slot = allocator.allocate()
        self.digest.record(SLOT, slot)
        try:
            self.order.wait(timeline, allocator.ready[slot])
            if self._filler is not None:
                self._filler.fill_fresh(pool_group, slot, timeline)
        except BaseException:
            allocator.free(slot, allocator.ready[slot])
            raise
        self.num_locked[pool_group] += 1
        return slot

    def free_scratch_slot(self, pool_group: i64, slot: i64, mark: i64) -> None:
        """The slot may be touched after ``mark``, and after what its owner would have waited for had he got to use it."""
        self.num_locked[pool_group] -= 1
        point = self.order.advance(self.allocators[pool_group].ready[slot], timeline_of_point(mark), mark)
        self.free_slot(pool_group, slot, point)

    # -- holds and locks ----------------------------------------------------------------------------------------------

    def hold(self, page: i64, pool_group: i64) -> None:
        """One more sequence needs the page."""
        words = self.rows.words
        at = page * ROW_WORDS
        place = words[at + PLACE]
        assert holds_of_place(place) < MOST_HOLDS, "a page has more users than its row can count"
        words[at + PLACE] = place + ONE_HOLD
        if place < ONE_HOLD:
            level = level_of_place(place)
            index = level * self.num_pool_groups + pool_group
            self.queues[index].use(page)
            if level < self.last_level:
                self.held_queues[index].push(page)

    def release(self, page: i64, pool_group: i64) -> None:
        """Drop a hold of a published page; the last one makes it droppable, as the most recently used."""
        if self._take_hold_off(page, pool_group):
            self.queues[self.rows.level(page) * self.num_pool_groups + pool_group].push(page)

    def release_evict_first_page(self, page: i64, pool_group: i64) -> None:
        """Drop a hold of a published page; the last one puts it first in line for eviction."""
        if self._take_hold_off(page, pool_group):
            self.queues[self.rows.level(page) * self.num_pool_groups + pool_group].push_first(page)

    def _take_hold_off(self, page: i64, pool_group: i64) -> bool:
        """Whether it was the last one; then the page is in no queue."""
        words = self.rows.words
        at = page * ROW_WORDS
        place = words[at + PLACE] - ONE_HOLD
        links = words[at + LINKS]
        assert place >= 0 and holds_of_place(place) >= locks_of_links(links), "a hold was released twice"
        words[at + PLACE] = place
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
        """The same, where the caller sees to it that nobody touches the bytes before they are there."""
        words = self.rows.words
        at = page * ROW_WORDS
        place = words[at + PLACE]
        links = words[at + LINKS]
        assert holds_of_place(place) > locks_of_links(links), "a page was locked that is not held"
        if links < NOT_QUEUED:
            words[at + LINKS] = links + ONE_LOCK
            return place & LOW_MASK
        assert level_of_place(place) == GPU, "a page was locked that is not on level 0"
        self.num_locked[pool_group] += 1
        if links != NOT_QUEUED:
            self.held_queues[pool_group].remove(page)
        words[at + LINKS] = LOCKED_ONCE
        return place & LOW_MASK

    def unlock(self, page: i64, pool_group: i64, timeline: i64, mark: i64) -> None:
        """Drop a lock; whoever takes the slot over waits for ``mark``, a fresh mark of ``timeline``, too."""
        if self._drop_lock(page, pool_group, timeline, mark) and self.last_level > 0:
            self.held_queues[pool_group].push(page)

    def unlock_and_release(self, page: i64, pool_group: i64, timeline: i64, mark: i64) -> None:
        """Drop a lock and the hold that goes with it, of a published page."""
        is_unlocked = self._drop_lock(page, pool_group, timeline, mark)
        words = self.rows.words
        at = page * ROW_WORDS + PLACE
        place = words[at] - ONE_HOLD
        assert place >= 0, "a hold was released twice"
        words[at] = place
        if place < ONE_HOLD:
            self.queues[pool_group].push(page)
        elif is_unlocked and self.last_level > 0:
            self.held_queues[pool_group].push(page)

    def _drop_lock(self, page: i64, pool_group: i64, timeline: i64, mark: i64) -> bool:
        """Whether it was the last one; then the page is in no queue."""
        words = self.rows.words
        at = page * ROW_WORDS
        links = words[at + LINKS] - ONE_LOCK
        assert links <= NOT_QUEUED, "a page was unlocked twice"
        words[at + LINKS] = links
        slot = words[at + PLACE] & LOW_MASK
        ready = self.allocators[pool_group].ready
        ready[slot] = self.order.advance(ready[slot], timeline, mark)
        if links == NOT_QUEUED:
            self.num_locked[pool_group] -= 1
            return True
        return False

    def share_locked_page(self, page: i64) -> i64:
        """One more hold and lock, for a sequence on the stream of one that has the page locked; returns the slot id."""
        words = self.rows.words
        at = page * ROW_WORDS
        place = words[at + PLACE]
        links = words[at + LINKS]
        assert links < NOT_QUEUED, "a page was shared as locked that is not"
        assert holds_of_place(place) < MOST_HOLDS, "a page has more users than its row can count"
        words[at + PLACE] = place + ONE_HOLD
        words[at + LINKS] = links + ONE_LOCK
        return place & LOW_MASK

    def drop_hold(self, page: i64, pool_group: i64) -> None:
        """A hold of a private page that several sequences may have; the last one frees its slot, at the slot's own point."""
        if self._take_hold_off(page, pool_group):
            words = self.rows.words
            at = page * ROW_WORDS
            index = self.rows.level(page) * self.num_pool_groups + pool_group
            slot = words[at + PLACE] & LOW_MASK
            words[at + PLACE] = NO_PAGE
            self.reads.forget(page)
            self.free_slot(index, slot, self.allocators[index].ready[slot])

    def unlock_at_rest(self, page: i64, pool_group: i64) -> None:
        """Drop a lock of somebody who does nothing with the bytes any more."""
        words = self.rows.words
        at = page * ROW_WORDS
        links = words[at + LINKS] - ONE_LOCK
        assert links <= NOT_QUEUED, "a page was unlocked twice"
        words[at + LINKS] = links
        if links == NOT_QUEUED:
            self.num_locked[pool_group] -= 1
            if self.last_level > 0:
                self.held_queues[pool_group].push(page)

    def advance_ready(self, page: i64, pool_group: i64, timeline: i64, mark: i64) -> None:
        """Whoever takes the slot over waits for ``mark``, a fresh mark of ``timeline``, too."""
        self.advance_ready_slot(self.rows.words[page * ROW_WORDS + PLACE] & LOW_MASK, pool_group, timeline, mark)

    def advance_ready_slot(self, slot: i64, pool_group: i64, timeline: i64, mark: i64) -> None:
        """The same for a slot without a page."""
        allocator = self.allocators[pool_group]
        allocator.ready[slot] = self.order.advance(allocator.ready[slot], timeline, mark)

    def set_ready(self, page: i64, pool_group: i64, point: i64) -> None:
        """The bytes of a page on level 0 are there after ``point``."""
        self.allocators[pool_group].ready[self.rows.words[page * ROW_WORDS + PLACE] & LOW_MASK] = point

    def raise_priority(self, page: i64, pool_group: i64, priority: i64) -> None:
        """A reused page keeps the higher of its priorities."""
        if priority > self.rows.priority(page):
            self.set_priority(page, pool_group, priority)

    def set_priority(self, page: i64, pool_group: i64, priority: i64) -> None:
        """A queued page becomes the most recently used of its new priority."""
        words = self.rows.words
        at = page * ROW_WORDS
        place = words[at + PLACE]
        words[at + PLACE] = add_priority(place, priority - priority_of_place(place))
        if words[at + LINKS] > NOT_QUEUED:
            index = level_of_place(place) * self.num_pool_groups + pool_group
            (self.queues[index] if place < ONE_HOLD else self.held_queues[index]).requeue(page)
        if self.sink is not None:
            self.sink.on_priority_changed(page, priority_of_place(place), priority)

    # -- queues, for those who move pages -----------------------------------------------------------------------------

    def take_out(self, page: i64, pool_group: i64) -> None:
        """Take a page out of its queue, if it is in one: nobody may choose it as a victim until `put_back`."""
        words = self.rows.words
        at = page * ROW_WORDS
        if words[at + LINKS] > NOT_QUEUED:
            place = words[at + PLACE]
            index = level_of_place(place) * self.num_pool_groups + pool_group
            (self.queues[index] if place < ONE_HOLD else self.held_queues[index]).remove(page)

    def take_out_victim(self, page: i64, pool_group: i64) -> None:
        """The same for the next victim, which goes down to make room: the policy of its level may remember it."""
        index = self.rows.level(page) * self.num_pool_groups + pool_group
        if self.rows.num_holds(page) == 0:
            self.queues[index].evict(page)
        else:
            self.held_queues[index].remove(page)

    def stands_first(self, page: i64, index: i64) -> bool:
        """Whether a victim was put before all others of its priority, and not because it came last."""
        return self.rows.num_holds(page) == 0 and self.queues[index].stands_first(page)

    def put_back(self, page: i64, pool_group: i64) -> None:
        """Into the queue where an unlocked page belongs now, as the most recently used."""
        level = self.rows.level(page)
        index = level * self.num_pool_groups + pool_group
        if self.rows.num_holds(page) == 0:
            self.queues[index].push(page)
        elif level < self.last_level:
            self.held_queues[index].push(page)

    def put_back_first(self, page: i64, pool_group: i64) -> None:
        """The same, as the next to go."""
        level = self.rows.level(page)
        index = level * self.num_pool_groups + pool_group
        if self.rows.num_holds(page) == 0:
            self.queues[index].push_first(page)
        elif level < self.last_level:
            self.held_queues[index].push_first(page)

    def place_page(self, page: i64, level: i64, slot: i64) -> None:
        """The page, in no queue, has moved to that slot."""
        words = self.rows.words
        at = page * ROW_WORDS + PLACE
        place = words[at]
        words[at] = moved_place(place, level, slot)
        self.queues[level_of_place(place) * self.num_pool_groups + self.pool_group_of_page(page)].forget(page)
        if self.sink is not None:
            # A sink passes over what was never published.
            self.sink.on_page_moved(page, level_of_place(place), level)

    def drop(self, page: i64, pool_group: i64, cause: i64) -> None:
        """A droppable page is gone, for a `removal_cause`; its slot is free."""
        words = self.rows.words
        at = page * ROW_WORDS
        place = words[at + PLACE]
        assert 0 <= place < ONE_HOLD, "a page was dropped that somebody holds"
        if self.copies.num_copies > 0:
            self.copies.forget(page)
        level = level_of_place(place)
        index = level * self.num_pool_groups + pool_group
        if cause == CAPACITY or cause == UNREACHABLE:
            # What is useless without a victim makes room as well.
            self.queues[index].evict(page)
        else:
            self.queues[index].remove(page)
        words[at + PLACE] = NO_PAGE
        if not self.reads.is_idle:
            self.reads.forget(page)
        self.count_dropped(level, pool_group, cause, 1)
        slot = place & LOW_MASK
        allocator = self.allocators[index]
        if self._filler is None:
            allocator.free_as_it_is(slot)
        else:
            self.free_slot(index, slot, allocator.ready[slot])
        if self.sink is not None:
            self.sink.on_page_removed(page, cause)

    def count_dropped(self, level: i64, pool_group: i64, cause: i64, num_pages: i64) -> None:
        if cause == CAPACITY or cause == UNREACHABLE or cause == SHRUNK:
            num_evicted = self.num_evicted
            num_evicted[level * self.num_pool_groups + pool_group] += num_pages
        self.last_cause = cause
        self.counters.record_dropped(level, pool_group, cause, num_pages)

    def defer(self, index: i64, page: i64, below: i64) -> None:
        """The next victim of a queue goes behind ``below``, with a priority that is not lower."""
        words = self.rows.words
        priority = priority_of_place(words[below * ROW_WORDS + PLACE])
        at = page * ROW_WORDS + PLACE
        old = priority_of_place(words[at])
        if priority > old:
            words[at] = add_priority(words[at], priority - old)
            if self.sink is not None:
                self.sink.on_priority_changed(page, old, priority)
        self.queues[index].defer(page, below)

    def drop_victims(self, level: i64, pool_group: i64, wanted: i64, cause: i64) -> None:
        """As `PageOwner` says."""
        owner = self._keys.owner
        assert owner is not None
        self.changes.begin()
        owner.drop_victims(level, pool_group, wanted, cause)
        self.changes.end()

    def drop_with_owner(self, page: i64, pool_group: i64, cause: i64) -> None:
        """`drop`, and the owner hears of it: what is useless without the page may go with it."""
        self.changes.begin()
        self.drop(page, pool_group, cause)
        owner = self._keys.owner
        assert owner is not None
        owner.on_page_dropped(page)
        self.changes.end()

    def is_published(self, page: i64) -> bool:
        """Whether its bytes never change any more."""
        owner = self._keys.owner
        assert owner is not None
        return owner.is_published(page)

    def find_page_below(self, page: i64) -> i64:
        """As `PageOwner` says."""
        owner = self._keys.owner
        assert owner is not None
        return owner.find_page_below(page)
