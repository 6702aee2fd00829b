"""Pages that another machine reads or writes: leased, they are not used again before the lease is settled.

A lease has a hold and a lock on each of its pages, as an active sequence has, so they stay on level 0 and keep their slots, whatever
becomes of the sequence that they were taken from. Of private blocks a lease is one more owner (`Block.num_co_owners`): a sequence
that is going to write there gets a copy, and a block that is published meanwhile is pinned for the lease.

    event                                     what the lease has
    reserve                                   holds and locks; co-ownership of the blocks that are private
    such a block is published                 a pin instead of the co-ownership
    its sequence takes over an equal block    a page that goes over keeps its holds and locks under its new row
    settle                                    nothing

Only `settle` ends a lease.
"""

from typing import Final, final

from mypy_extensions import i64

from ..device.stream_order import StreamOrder
from ..reuse.block import Block
from ..reuse.radix_tree import RadixTree
from ..storage.page_storage import PageStorage
from .block_owners import release_owner


@final
class TransferLeaseState:
    """``slots``: by life cycle, those of its blocks in order. ``pages``: by life cycle, the rows of the same and, before them, of
    pages that are kept so that the leased ones stay reachable."""

    __slots__ = ("number", "sequence_id", "private_blocks", "pages", "slots")

    def __init__(self, number: int, sequence_id: int, num_life_cycles: i64) -> None:
        self.number: Final = number
        self.sequence_id: Final = sequence_id
        self.private_blocks: Final[list[Block]] = []
        """Those that were private when the lease was made, which is one more owner of each (`block_owners`)."""
        self.pages: Final[list[list[int]]] = [[] for _ in range(num_life_cycles)]
        self.slots: Final[list[list[int]]] = [[] for _ in range(num_life_cycles)]


@final
class TransferLeases:
    """The open leases of one manager. Conservation: a lease is here from `open` until `settle`."""

    __slots__ = ("_storage", "_tree", "_order", "_open", "_num_made")

    def __init__(self, storage: PageStorage, tree: RadixTree) -> None:
        self._storage: Final = storage
        self._tree: Final = tree
        self._order: Final[StreamOrder] = storage.order
        self._open: Final[dict[int, TransferLeaseState]] = {}
        self._num_made = 0

    def __len__(self) -> int:
        return len(self._open)

    def open(self, sequence_id: int) -> TransferLeaseState:
        """A lease of nothing; `add_page` and its private blocks follow."""
        lease = TransferLeaseState(self._num_made, sequence_id, self._storage.rows.num_life_cycles)
        self._open[lease.number] = lease
        self._num_made += 1
        return lease

    def add_page(self, lease: TransferLeaseState, life_cycle: i64, page: i64, is_lent: bool) -> None:
        """A page that an active sequence has locked, lent or merely kept."""
        slot = self._storage.share_locked_page(page)
        if is_lent:
            lease.slots[life_cycle].append(int(slot))
        lease.pages[life_cycle].append(int(page))

    def is_open(self, number: int) -> bool:
        return number in self._open

    def find(self, number: int) -> TransferLeaseState | None:
        return self._open.get(number)

    def open_leases(self) -> list[TransferLeaseState]:
        return list(self._open.values())

    def record_moved(self, old_page: i64, new_page: i64, life_cycle: i64) -> None:
        """A page goes on under another row, with all its holds and locks."""
        for lease in self._open.values():
            pages = lease.pages[life_cycle]
            if int(old_page) in pages:
                pages[pages.index(int(old_page))] = int(new_page)

    def settle(self, lease: TransferLeaseState, timeline: i64) -> None:
        """Free everything. ``timeline``, entered: the slots may be touched after what is enqueued there; -1: at once."""
        storage = self._storage
        mark: i64 = self._order.mark(timeline) if timeline >= 0 else 0
        for life_cycle in range(storage.rows.num_life_cycles):
            pool_group = storage.pool_group_of[life_cycle]
            for page in lease.pages[life_cycle]:
                if timeline >= 0:
                    storage.advance_ready(page, pool_group, timeline, mark)
                storage.unlock_at_rest(page, pool_group)
                block = self._tree.pool.block_of_page(page)
                if self._tree.is_published(page):
                    storage.release(page, pool_group)
                else:
                    storage.drop_hold(page, pool_group)
                    if block.parent is not None:
                        self._tree.prune(block)
        for block in lease.private_blocks:
            release_owner(self._tree, block)
        if timeline >= 0:
            self._order.leave(timeline)
        del self._open[lease.number]
