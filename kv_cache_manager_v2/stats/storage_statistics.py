"""How full one pool group is at one level."""

from dataclasses import dataclass

from ..base.value import Value


@dataclass(frozen=True)
class StorageStatistics(Value):
    """Slots of one pool group at one level, at the moment of the call.

    ``total == free + evictable + unavailable`` and ``available == free + evictable``. ``peak_used`` and ``evicted`` count since
    the manager was made; a slot is used from when it is taken until it is free again, droppable pages included.
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
    """Free slots that still hold the bytes of a page further up, which need not be written again when it comes down."""
