"""Before a manager ends: published pages that the durable level does not have yet are written to it, parents before children."""

from operator import itemgetter
from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..device.monotonic_clock import MonotonicClock
from ..durable.durable_level import DurableLevel
from ..durable.record_format import MOST_PASSED, PASSED_SHIFT
from ..reuse.block import Block
from ..reuse.radix_tree import RadixTree
from ..sequence.shared_state import SharedState
from ..storage.page_storage import PageStorage
from ..storage.victim_queue import NOT_KNOWN

_NO_SLOT: Final = -1
_BATCH_BLOCKS: Final = 256
"""Between two looks at the clock."""


def drain_pages(shared: SharedState, seconds: float) -> None:
    """No sequence is open. What is not begun within so many seconds is not written."""
    early = shared.traffic.early_copies
    assert early is not None, "a durable level without copies"
    clock = MonotonicClock()
    deadline = clock.seconds() + seconds
    pending = _list_blocks(shared.tree)
    pages = vec[i64]()
    num_blocks = 0
    for position, block in enumerate(pending, 1):
        for life_cycle in range(shared.num_life_cycles):
            pages = append(pages, block.first_page + life_cycle)
        num_blocks += 1
        if num_blocks == _BATCH_BLOCKS or position == len(pending):
            if clock.seconds() >= deadline:
                break
            with shared.storage.changes:
                early.offload_copies(pages)
            shared.order.synchronize_all()
            pages = vec[i64]()
            num_blocks = 0
    shared.order.synchronize_all()
    record_written(shared)


def record_written(shared: SharedState) -> None:
    """Pages that lie on the durable level and are not in its index: they were written there before they were published."""
    storage = shared.storage
    durable = storage.durable
    assert durable is not None, "what is written is recorded without a durable level"
    storage.reads.settle()
    for block in _list_blocks(shared.tree):
        for life_cycle in range(shared.num_life_cycles):
            page = block.first_page + life_cycle
            if not storage.rows.has_page(page) or storage.reads.knows(int(page)):
                continue
            pool_group = storage.pool_group_of[life_cycle]
            slot = _find_slot(storage, durable.index, page, pool_group)
            if slot == _NO_SLOT:
                continue
            node = shared.tree.durable_nodes(vec[i64]([page]))[0]
            if node > 0:
                durable.record_page(pool_group, slot, node, life_cycle)


def _find_slot(storage: PageStorage, level: i64, page: i64, pool_group: i64) -> i64:
    """The slot of that level that has the page, or a copy of it; _NO_SLOT if none has."""
    if storage.rows.level(page) == level:
        return storage.rows.slot(page)
    has_copy = storage.copies.has_copy_at(page, level * storage.num_pool_groups + pool_group)
    return storage.copies.slot_of(page) if has_copy else _NO_SLOT


def _list_blocks(tree: RadixTree) -> list[Block]:
    """Breadth first: what many prefixes share comes first."""
    blocks: list[Block] = []
    for scope in tree.scopes():
        root = tree.find_root(scope)
        if root is not None:
            blocks.extend(tree.children_of(root))
    for block in blocks:
        # The list grows meanwhile.
        blocks.extend(tree.children_of(block))
    return blocks


def record_weights(shared: SharedState) -> None:
    """Record what the policies have learned, for the next process."""
    storage = shared.storage
    if storage.durable is not None and storage.learns:
        storage.durable.record_weights(storage.save_weights())



@final
class UseOrder:
    """In which order the published pages were used: as decisions have made it, whatever the disk has. No sequence is open.

    `record`, once all is written, tells the next process.
    """

    __slots__ = ("_shared", "_durable", "_pages", "_generations")

    def __init__(self, shared: SharedState) -> None:
        storage = shared.storage
        assert storage.durable is not None, "an order of use without a durable level"
        self._shared: Final = shared
        self._durable: Final[DurableLevel] = storage.durable
        self._pages: Final[list[list[tuple[int, int]]]] = []
        """By pool group: page, and its description as a record has it."""
        for pool_group in range(storage.num_pool_groups):
            found: list[tuple[int, int, int]] = []
            for level in range(storage.durable.index, -1, -1):
                # What is on a warmer level was used later, as far as is known.
                latest = max([used_at for used_at, _page, _description in found], default=0)
                for used_at, page, description in storage.queues[level * storage.num_pool_groups + pool_group].describe_all():
                    found.append((latest if used_at == NOT_KNOWN else used_at, page, description))
            found.sort(key=itemgetter(0))
            passed = [min(now[0] - before[0], MOST_PASSED) for before, now in zip([(0, 0, 0), *found], found)]
            self._pages.append([(item[1], item[2] | time << PASSED_SHIFT) for item, time in zip(found, passed)])
        self._generations: Final[list[int]] = [int(self._durable.take_generations(len(pages))) for pages in self._pages]
        """By pool group, of the first page."""

    def record(self) -> None:
        storage = self._shared.storage
        for pool_group, pages in enumerate(self._pages):
            words: list[int] = []
            for position, (number, description) in enumerate(pages):
                page: i64 = number
                if not storage.rows.has_page(page):
                    continue
                slot = _find_slot(storage, self._durable.index, page, pool_group)
                if slot != _NO_SLOT:
                    words += [int(slot), self._generations[pool_group] + position, description]
            self._durable.record_order(pool_group, words)


