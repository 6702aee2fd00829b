"""All pages of a manager: makes them, holds and locks them, evicts them to make room, gives their slots back.

Owns the page rows, and per level and pool group the pools and the eviction queue. Knows nothing of tokens or of the tree;
tells the `PageOwner` when a published page is gone. The states of a page and what each guarantees are the table in
`page_rows`; the ways from one to another:

    from        to          by
    (none)      LOCKED      make_locked_page
    DROPPABLE   HELD        hold
    HELD        LOCKED      lock
    LOCKED      HELD        unlock
    HELD        DROPPABLE   release (a published page)
    HELD        (none)      free_page (a private page: nobody else can want it), drop_hold (one that forks may share)
    DROPPABLE   (none)      evict, drop

Making room is asked in two steps, `find_refusal` (changes nothing) and `evict`, so that a caller can refuse before it has
changed anything.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..base.ids import CacheTier
from ..device.port import CopyBatch, Device
from ..device.stream_order import NO_POINT, StreamOrder
from ..events.page_events import PageEventSink
from ..events.removal_cause import CAPACITY, UNREACHABLE
from ..layout.slot_layout import SlotLayout
from ..pools.pool_group import PoolGroup
from ..pools.slot_allocator import SlotAllocator
from ..stats.page_counters import PageCounters
from ..stats.storage_statistics import StorageStatistics
from .debug_fill import DebugFill
from .decision_digest import REFUSAL, SLOT, VICTIM, DecisionDigest
from .eviction_queue import NO_VICTIM, NUM_PRIORITIES, EvictionQueue
from .page_fill import PageFiller, clear_at_start
from .page_owner import PageOwner
from .page_rows import (
    LINKS,
    LOW_MASK,
    NO_PAGE,
    NOT_QUEUED,
    ONE_HOLD,
    ONE_LOCK,
    ONE_LOCKED_HOLD,
    PLACE,
    ROW_WORDS,
    USERS,
    PageRows,
    level_of_place,
    pack_place,
    priority_of_place,
)
from .refusal import Refusal

GPU: Final = 0


@final
@mypyc_attr(native_class=True)
class PageStorage:
    __slots__ = (
        "device",
        "order",
        "layout",
        "rows",
        "pool_groups",
        "allocators",
        "queues",
        "pool_group_of",
        "num_pool_groups",
        "num_locked",
        "num_evicted",
        "counters",
        "last_cause",
        "digest",
        "last_refusal",
        "sink",
        "_owner",
        "_filler",
    )

    device: Final[Device]
    order: Final[StreamOrder]
    layout: Final[SlotLayout]
    rows: Final[PageRows]
    pool_groups: Final[list[PoolGroup]]
    allocators: Final[list[SlotAllocator]]
    queues: Final[list[EvictionQueue]]
    pool_group_of: Final[vec[i64]]
    """Pool group of each life cycle."""
    num_pool_groups: Final[i64]
    num_locked: vec[i64]
    """Pages with a lock and scratch slots, per pool group."""
    num_evicted: vec[i64]
    """Pages evicted since the start, per pool group."""
    counters: Final[PageCounters]
    last_cause: i64
    """Why the latest dropped page went."""
    digest: Final[DecisionDigest]
    last_refusal: Refusal | None
    sink: PageEventSink | None
    """Who is told what becomes of published pages; None if nobody listens."""
    _owner: PageOwner | None
    _filler: PageFiller | None
    """None unless slots are filled with a debug pattern."""

    def __init__(
        self,
        device: Device,
        order: StreamOrder,
        layout: SlotLayout,
        num_slots: tuple[int, ...],
        num_null_slots: int,
        debug_fill: DebugFill | None = None,
    ) -> None:
        self.device = device
        self.order = order
        self.layout = layout
        self.num_pool_groups = layout.num_pool_groups
        self.pool_group_of = vec[i64](layout.pool_group_indices)
        self.rows = PageRows(layout.num_life_cycles, layout.num_pool_groups * NUM_PRIORITIES)
        self.pool_groups = []
        self.allocators = []
        self.queues = []
        self.num_locked = vec[i64]([0] * layout.num_pool_groups)
        self.num_evicted = vec[i64]([0] * layout.num_pool_groups)
        page_bytes = [sum(layout.slot_bytes(index)) for index in range(layout.num_pool_groups)]
        self.counters = PageCounters(1, vec[i64](page_bytes))
        self.last_cause = CAPACITY
        self.digest = DecisionDigest()
        self.last_refusal = None
        self.sink = None
        self._owner = None
        self._filler = None
        try:
            for index in range(layout.num_pool_groups):
                group = PoolGroup(
                    device, CacheTier.GPU_MEM, layout.slot_bytes(index), num_slots[index], num_null_slots
                )
                self.pool_groups.append(group)
                self.allocators.append(group.allocator)
                self.queues.append(EvictionQueue(self.rows, index * NUM_PRIORITIES))
            clear_at_start(device, self.pool_groups)
        except BaseException:
            self.close()
            raise
        if debug_fill is not None:
            self._filler = PageFiller(device, order, self.pool_groups, debug_fill)

    def set_owner(self, owner: PageOwner) -> None:
        self._owner = owner

    def close(self) -> None:
        """Give the memory back. The caller has synchronised."""
        if self._filler is not None:
            self._filler.close()
        for group in self.pool_groups:
            group.close()
        self._owner = None

    # -- making and freeing pages -------------------------------------------------------------------------------------

    def make_locked_page(self, page: i64, pool_group: i64, priority: i64, timeline: i64) -> i64:
        """Give the row a free slot, held and locked once; returns the slot id. Room has been made before."""
        allocator = self.allocators[pool_group]
        words = self.rows.words
        at = page * ROW_WORDS
        assert words[at + PLACE] == NO_PAGE, "a page was made where there is one"
        slot = allocator.allocate()
        self.digest.note(SLOT, slot)
        # Before the device is asked for anything: whoever undoes this finds the page in its row.
        words[at + PLACE] = pack_place(slot, GPU, priority)
        words[at + USERS] = ONE_LOCKED_HOLD
        self.num_locked[pool_group] += 1
        ready = allocator.ready[slot]
        if ready != NO_POINT:
            self.order.wait(timeline, ready)
        if self._filler is not None:
            self._filler.fill_fresh(pool_group, slot, timeline)
        return slot

    def free_page(self, page: i64, pool_group: i64, mark: i64) -> None:
        """A page that only its one user knew is gone; its slot may be touched after ``mark``."""
        words = self.rows.words
        at = page * ROW_WORDS
        users = words[at + USERS]
        slot = words[at + PLACE] & LOW_MASK
        assert users & LOW_MASK == 1, "a page was freed that others hold"
        if users >= ONE_LOCK:
            self.num_locked[pool_group] -= 1
        words[at + PLACE] = NO_PAGE
        words[at + USERS] = 0
        self._free_slot(pool_group, slot, mark)

    def _free_slot(self, pool_group: i64, slot: i64, point: i64) -> None:
        if self._filler is not None:
            point = self._filler.fill_freed(pool_group, slot, point)
        self.allocators[pool_group].free(slot, point)

    def free_unlocked_page(self, page: i64, pool_group: i64) -> None:
        """The same for a page that is not locked: all that used its slot is in the slot's own point already."""
        slot = self.rows.slot(page)
        self.free_page(page, pool_group, self.allocators[pool_group].ready[slot])

    def move_page(self, source: i64, target: i64) -> None:
        """A private page goes on under a row of the published block that lacked it; nothing is copied."""
        words = self.rows.words
        at_source = source * ROW_WORDS
        at_target = target * ROW_WORDS
        assert words[at_target + PLACE] == NO_PAGE, "a page was moved onto another"
        assert words[at_source + LINKS] == NOT_QUEUED, "a queued page was moved"
        words[at_target + PLACE] = words[at_source + PLACE]
        words[at_target + USERS] = words[at_source + USERS]
        words[at_source + PLACE] = NO_PAGE
        words[at_source + USERS] = 0
        sink = self.sink
        if sink is not None:
            sink.on_page_published(target, self.rows.level(target), self.rows.priority(target))

    # -- scratch slots ------------------------------------------------------------------------------------------------

    def take_scratch_slot(self, pool_group: i64, timeline: i64) -> i64:
        """A free slot without a page; room has been made before."""
        allocator = self.allocators[pool_group]
        slot = allocator.allocate()
        self.digest.note(SLOT, slot)
        self.order.wait(timeline, allocator.ready[slot])
        if self._filler is not None:
            self._filler.fill_fresh(pool_group, slot, timeline)
        self.num_locked[pool_group] += 1
        return slot

    def free_scratch_slot(self, pool_group: i64, slot: i64, mark: i64) -> None:
        self.num_locked[pool_group] -= 1
        self._free_slot(pool_group, slot, mark)

    # -- holds and locks ----------------------------------------------------------------------------------------------

    def hold(self, page: i64, pool_group: i64) -> None:
        words = self.rows.words
        at = page * ROW_WORDS + USERS
        users = words[at]
        words[at] = users + ONE_HOLD
        if users == 0:
            self.queues[pool_group].remove(page)

    def release(self, page: i64, pool_group: i64) -> None:
        """Drop a hold of a published page; the last one makes it droppable, as the most recently used."""
        words = self.rows.words
        at = page * ROW_WORDS + USERS
        users = words[at] - ONE_HOLD
        assert users >= 0 and (users >> 32) <= (users & LOW_MASK), "a hold was released twice"
        words[at] = users
        if users == 0:
            self.queues[pool_group].push(page)

    def release_first(self, page: i64, pool_group: i64) -> None:
        """Drop a hold of a published page; the last one puts it first in line for eviction."""
        words = self.rows.words
        at = page * ROW_WORDS + USERS
        users = words[at] - ONE_HOLD
        assert users >= 0 and (users >> 32) <= (users & LOW_MASK), "a hold was released twice"
        words[at] = users
        if users == 0:
            self.queues[pool_group].push_first(page)

    def lock(self, page: i64, pool_group: i64, timeline: i64) -> i64:
        """Lock a held page; the stream waits until its bytes are there. Returns the slot id."""
        words = self.rows.words
        at = page * ROW_WORDS
        users = words[at + USERS]
        assert users & LOW_MASK > users >> 32, "a page was locked that is not held"
        words[at + USERS] = users + ONE_LOCK
        if users < ONE_LOCK:
            self.num_locked[pool_group] += 1
        slot = words[at + PLACE] & LOW_MASK
        ready = self.allocators[pool_group].ready[slot]
        if ready != NO_POINT:
            self.order.wait(timeline, ready)
        return slot

    def unlock(self, page: i64, pool_group: i64, timeline: i64, mark: i64) -> None:
        """Drop a lock; whoever takes the slot over waits for ``mark``, a fresh mark of ``timeline``, too."""
        words = self.rows.words
        at = page * ROW_WORDS
        users = words[at + USERS] - ONE_LOCK
        assert users >= 0, "a page was unlocked twice"
        words[at + USERS] = users
        if users < ONE_LOCK:
            self.num_locked[pool_group] -= 1
        slot = words[at + PLACE] & LOW_MASK
        ready = self.allocators[pool_group].ready
        ready[slot] = self.order.advance(ready[slot], timeline, mark)

    def share_locked_page(self, page: i64) -> i64:
        """One more hold and lock, for a sequence on the stream of one that has the page locked; returns the slot id."""
        words = self.rows.words
        at = page * ROW_WORDS
        assert words[at + USERS] >= ONE_LOCK, "a page was shared as locked that is not"
        words[at + USERS] += ONE_LOCKED_HOLD
        return words[at + PLACE] & LOW_MASK

    def drop_hold(self, page: i64, pool_group: i64) -> None:
        """A hold of a private page that several sequences may have; the last one frees its slot, at the slot's own point."""
        words = self.rows.words
        at = page * ROW_WORDS
        users = words[at + USERS] - ONE_HOLD
        assert users >= 0 and (users >> 32) <= (users & LOW_MASK), "a hold was dropped twice"
        words[at + USERS] = users
        if users == 0:
            slot = words[at + PLACE] & LOW_MASK
            words[at + PLACE] = NO_PAGE
            self._free_slot(pool_group, slot, self.allocators[pool_group].ready[slot])

    def advance_ready(self, page: i64, pool_group: i64, timeline: i64, mark: i64) -> None:
        """Whoever takes the slot over waits for ``mark``, a fresh mark of ``timeline``, too."""
        slot = self.rows.words[page * ROW_WORDS + PLACE] & LOW_MASK
        allocator = self.allocators[pool_group]
        allocator.ready[slot] = self.order.advance(allocator.ready[slot], timeline, mark)

    def set_ready(self, page: i64, pool_group: i64, point: i64) -> None:
        """The page's bytes are there after ``point``."""
        self.allocators[pool_group].ready[self.rows.words[page * ROW_WORDS + PLACE] & LOW_MASK] = point

    def raise_priority(self, page: i64, pool_group: i64, priority: i64) -> None:
        """A reused page keeps the higher of its priorities."""
        words = self.rows.words
        at = page * ROW_WORDS
        place = words[at + PLACE]
        old = priority_of_place(place)
        if priority <= old:
            return
        queued = words[at + LINKS] != NOT_QUEUED
        if queued:
            self.queues[pool_group].remove(page)
        words[at + PLACE] = place + ((priority - old) << 40)
        if queued:
            self.queues[pool_group].push(page)
        if self.sink is not None:
            self.sink.on_priority_changed(page, old, priority)

    # -- room ---------------------------------------------------------------------------------------------------------

    def find_refusal(self, needed: vec[i64], given_back: vec[i64]) -> bool:
        """Whether ``needed`` slots per pool group, after ``given_back`` ones, are not to be had; notes why."""
        pool_group: i64 = 0
        while pool_group < self.num_pool_groups:
            asked = needed[pool_group] - given_back[pool_group]
            free = self.allocators[pool_group].num_free
            if asked > free:
                evictable = self.queues[pool_group].num_pages
                if asked > free + evictable:
                    self.digest.note(REFUSAL, asked)
                    self.last_refusal = self._describe_refusal(pool_group, asked, free, evictable)
                    return True
            pool_group += 1
        return False

    def _describe_refusal(self, pool_group: i64, asked: i64, free: i64, evictable: i64) -> Refusal:
        allocator = self.allocators[pool_group]
        text = (
            f"level 0, pool group {pool_group}: {asked} slots asked for, {free} free and {evictable} evictable of "
            f"{allocator.num_slots}; {self.num_locked[pool_group]} are locked by active sequences. Suspend or close "
            f"sequences, or enlarge the GPU tier's quota"
        )
        return Refusal(0, int(pool_group), int(asked), int(free), int(evictable), text)

    def evict(self, needed: vec[i64]) -> None:
        """Make ``needed`` slots per pool group free; `find_refusal` has said that they are to be had."""
        pool_group: i64 = 0
        while pool_group < self.num_pool_groups:
            allocator = self.allocators[pool_group]
            queue = self.queues[pool_group]
            while allocator.num_free < needed[pool_group]:
                page = queue.first()
                assert page != NO_VICTIM, "no victim where one was counted"
                self._evict_or_defer(page, pool_group)
            pool_group += 1

    def _evict_or_defer(self, page: i64, pool_group: i64) -> None:
        """On one path of the tree the far end goes first: a page with others below it takes its place behind one of them."""
        owner = self._owner
        assert owner is not None
        below = owner.find_page_below(page)
        if below == NO_PAGE:
            self._evict_page(page, pool_group)
            return
        queue = self.queues[pool_group]
        queue.remove(page)
        words = self.rows.words
        priority = priority_of_place(words[below * ROW_WORDS + PLACE])
        at = page * ROW_WORDS + PLACE
        old = priority_of_place(words[at])
        if priority > old:
            words[at] += (priority - old) << 40
            if self.sink is not None:
                self.sink.on_priority_changed(page, old, priority)
        queue.push(page)

    def _evict_page(self, page: i64, pool_group: i64) -> None:
        self.digest.note(VICTIM, page)
        self.drop(page, pool_group, CAPACITY)
        owner = self._owner
        assert owner is not None
        owner.on_page_dropped(page)

    def drop(self, page: i64, pool_group: i64, cause: i64) -> None:
        """A droppable page is gone, for a `removal_cause`; its slot is free."""
        words = self.rows.words
        at = page * ROW_WORDS
        assert words[at + USERS] == 0, "a page was dropped that somebody holds"
        self.queues[pool_group].remove(page)
        place = words[at + PLACE]
        slot = place & LOW_MASK
        words[at + PLACE] = NO_PAGE
        if cause == CAPACITY or cause == UNREACHABLE:
            self.num_evicted[pool_group] += 1
        self.last_cause = cause
        self.counters.note_dropped(level_of_place(place), pool_group, cause)
        self._free_slot(pool_group, slot, self.allocators[pool_group].ready[slot])
        if self.sink is not None:
            self.sink.on_page_removed(page, cause)

    def compute_statistics(self, pool_group: i64) -> StorageStatistics:
        allocator = self.allocators[pool_group]
        free = int(allocator.num_free)
        evictable = int(self.queues[pool_group].num_pages)
        total = int(allocator.num_slots)
        return StorageStatistics(
            slot_sizes=self.layout.slot_bytes(int(pool_group)),
            total=total,
            free=free,
            evictable=evictable,
            available=free + evictable,
            unavailable=total - free - evictable,
            peak_used=int(allocator.total_peak),
            evicted=int(self.num_evicted[pool_group]),
        )

    # -- bytes --------------------------------------------------------------------------------------------------------

    def copy_page(self, source: i64, target: i64, pool_group: i64, stream: int) -> None:
        """Enqueue a copy of all bytes of a page on level 0; both are locked by the stream's sequence."""
        source_slot = self.rows.slot(source)
        target_slot = self.rows.slot(target)
        group = self.pool_groups[pool_group]
        pool: i64 = 0
        while pool < len(group.slot_bytes):
            num_bytes = group.slot_bytes[pool]
            base = group.base_addresses[pool]
            batch = CopyBatch(CacheTier.GPU_MEM, CacheTier.GPU_MEM, num_bytes)
            batch.add(base + target_slot * num_bytes, base + source_slot * num_bytes)
            self.device.copy_batch(stream, batch)
            pool += 1

    def clear_page(self, page: i64, pool_group: i64, stream: int) -> None:
        """Enqueue zeros for all bytes of a page on level 0 that the stream's sequence has locked."""
        slot = self.rows.slot(page)
        group = self.pool_groups[pool_group]
        pool: i64 = 0
        while pool < len(group.slot_bytes):
            num_bytes = group.slot_bytes[pool]
            self.device.fill(stream, group.base_addresses[pool] + slot * num_bytes, num_bytes, 0)
            pool += 1
