"""Pages of one pool group on their way from one level to another: the slots they leave and those they take.

One batch at a time, in three steps; the device may refuse until the last one, which cannot fail.

    begin, add...    a slot of the target level is taken for each page; the pages are in no queue of victims
    enqueue          the copies are in stream order. Refused: `undo`, and all slots are as before
    settle           for each page: it has its new slot, and the old one is free or a clean copy
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.ids import CacheTier
from ..device.stream_order import NO_POINT, StreamOrder
from ..durable.durable_level import DurableLevel
from ..stats.page_counters import PageCounters
from .page_mover import PageMover, describe_lost_copies
from .page_removal import is_published, place_page
from .page_rows import LOW_MASK, PLACE, ROW_WORDS
from .page_storage import PageStorage

_PAGES_PER_WEIGHTS: Final = 4096
"""Pages that are written to a durable level between two records of what the policies have learned: 31 KB each."""


@final
class MoveBatch:
    __slots__ = ("pages", "sources", "targets", "_storage", "_mover", "_order")

    def __init__(self, storage: PageStorage, mover: PageMover) -> None:
        self.pages = vec[i64]()
        self.sources = vec[i64]()
        """The slot of each page."""
        self.targets = vec[i64]()
        """The one that it gets."""
        self._storage: Final = storage
        self._mover: Final = mover
        self._order: Final[StreamOrder] = storage.order

    def begin(self, count: i64 = 0) -> None:
        """``count``: so many calls of `add` take no memory."""
        self.sources = vec[i64](capacity=count)
        self.targets = vec[i64](capacity=count)
        self.pages = vec[i64](capacity=count)

    def add(self, page: i64, target_index: i64) -> None:
        """Take a slot for a page that is in no queue; the target level has one free."""
        storage = self._storage
        if storage.allocators[target_index].num_aside > 0:
            storage.copies.make_plain_slot(target_index)
        slot = storage.allocators[target_index].allocate()
        self.pages = append(self.pages, page)
        self.sources = append(self.sources, storage.rows.slot(page))
        self.targets = append(self.targets, slot)

    def add_all(self, pages: vec[i64], target_index: i64) -> None:
        """`add` each of the pages, the first ones of the batch; so many slots of the target level are free and hold no copy."""
        storage = self._storage
        count: i64 = len(pages)
        words = storage.rows.words
        sources = vec[i64](capacity=count)
        for page in pages:
            sources = append(sources, words[page * ROW_WORDS + PLACE] & LOW_MASK)
        self.pages = pages
        self.sources = sources
        self.targets = storage.allocators[target_index].allocate_many(count)

    def enqueue(self, pool_group: i64, source_level: i64, target_level: i64) -> i64:
        """Have all of them copied; returns the point after that. Whatever it raises, the caller must `undo`."""
        storage = self._storage
        durable = storage.durable
        try:
            if durable is not None and target_level == durable.index:
                _announce_pages(storage, durable, pool_group, self.pages, self.targets, len(self.pages))
            point = self._mover.move(pool_group, source_level, self.sources, target_level, self.targets, len(self.pages), self.pages)
        finally:
            if durable is not None:
                durable.retract(pool_group)
        source = storage.pool_groups[source_level * storage.num_pool_groups + pool_group]
        if source.tier == CacheTier.DISK:
            storage.reads.record(point, source_level, source, self.pages, self.sources, len(self.pages))
        return point

    def settle(self, position: i64, source_index: i64, level: i64, pool_group: i64, point: i64, account: PageCounters | None) -> None:
        """The copy is enqueued: the page has the new slot, and both may be touched after ``point``."""
        storage = self._storage
        target = self.targets[position]
        source_level = source_index // storage.num_pool_groups
        storage.counters.record_copied(source_level, level, pool_group, 1, account)
        place_page(storage, self.pages[position], level, target)
        storage.allocators[level * storage.num_pool_groups + pool_group].ready[target] = point
        source = self.sources[position]
        durable = storage.durable
        if durable is not None and storage.copies.has_copy_at(self.pages[position], durable.index * storage.num_pool_groups + pool_group):
            # A page has one copy: that on the durable level stays, and it leaves none here.
            storage.slots.free_slot(source_index, source, storage.copies.end_read(self.pages[position], point))
        elif level < source_level and is_published(storage, self.pages[position]):
            # What it leaves behind serves when it is offloaded again.
            storage.allocators[source_index].ready[source] = point
            storage.copies.keep(self.pages[position], source_index, source, NO_POINT)
        else:
            storage.slots.free_slot(source_index, source, point)

    def undo(self, source_level: i64, pool_group: i64, target_level: i64) -> None:
        """The device refused: some copies may be under way, into slots without an owner; the pages stay where they are.

        They are in no queue, as before. An assertion fails where the device refuses an event for these copies too: then no caller can
        wait for them, and the manager is broken.
        """
        try:
            self._undo(source_level, pool_group, target_level)
        except Exception as error:
            raise describe_lost_copies(error) from error

    def _undo(self, source_level: i64, pool_group: i64, target_level: i64) -> None:
        storage = self._storage
        # Without a timeline there was no copy either: the device refused its stream or its first event.
        has_copies = self._mover.has_timeline(source_level, target_level)
        timeline = self._mover.timeline(source_level, target_level) if has_copies else 0
        point = self._order.mark(timeline) if has_copies else NO_POINT
        sources = storage.allocators[source_level * storage.num_pool_groups + pool_group].ready
        targets = storage.allocators[target_level * storage.num_pool_groups + pool_group]
        # The last slot taken is the first on the stack again: the next call takes the same ones.
        for position in range(len(self.targets) - 1, -1, -1):
            source = self.sources[position]
            target = self.targets[position]
            ready = targets.ready[target]
            if has_copies:
                sources[source] = self._order.advance(sources[source], timeline, point)
                ready = self._order.advance(ready, timeline, point)
            targets.free(target, ready)


def _announce_pages(storage: PageStorage, durable: DurableLevel, pool_group: i64, pages: vec[i64], slots: vec[i64], count: i64) -> None:
    """These pages are about to be written to those slots. Pages that are private, or whose own bytes a disk may have failed to read,
    are not recorded."""
    rows = storage.rows
    # Also for pages that are not recorded: which ones are is no decision.
    generation = durable.take_generations(count)
    if storage.learns and generation // _PAGES_PER_WEIGHTS != (generation + count) // _PAGES_PER_WEIGHTS:
        durable.record_weights(storage.save_weights())
    nodes = storage.owner().durable_nodes(pages)
    if not storage.reads.is_idle:
        for position in range(count):
            if storage.reads.knows(int(pages[position])):
                nodes[position] = 0
    # The next batch begins with new arrays, so that the workers may read these later.
    durable.announce(pool_group, nodes, slots, pages, rows.first_page_of_blocks, rows.num_life_cycles, generation)
