"""The use of one pool group's slots at one level."""

from dataclasses import dataclass

from ..base.value import Value


@dataclass(frozen=True)
class StorageStatistics(Value):
    """Slots of one pool group at one level, at the time of the call.

    ``total == free + evictable + unavailable`` and ``available == free + evictable``. ``peak_used`` and ``evicted`` count since
    the manager was made; a slot is used from its allocation until it is freed, droppable pages included.
    """

    slot_sizes: tuple[int, ...]
    """Bytes of a slot in each pool of the group."""
    total: int
    free: int
    evictable: int
    available: int
    unavailable: int
    """Locked by active sequences, held by suspended ones, or scratch."""
    peak_used: int
    evicted: int
    clean_copies: int = 0
    """Free slots that still hold a clean copy of a page on a warmer level; offloading that page again needs no write."""
    refusals: int = 0
    """Calls that were refused since the manager was made because slots of this pool group were missing on this level."""
    is_closed: bool = False
    """The level takes no more pages, as its disk failed to take a write; the same in all pool groups."""
    restored_pages: int = 0
    """Pages that the last process has left on a durable level, as the constructor found them."""
    damaged_pages: int = 0
    """Pages of a durable level that were read and are not what was written."""
    has_durable_failure: bool = False
    """The disk has refused the index of a durable level: what is published now is not found by the next process."""
    dropped_handles: int = 0
    """Sequences and plans that were dropped without `close`, and are not closed as another call is running: what they hold counts
    as unavailable until the next call. The same in all pool groups."""
