"""Handles: numbers of streams or events, checked on every use and recycled.

A handle is an index and the generation of that index, packed into one positive number, so that a released handle
is recognised even when its index has been reused. Indices are dense and handed out lowest first, last
freed first: a device keeps a handle's data in a list.

Conservation: every index is either live or on the free stack.
"""

from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.errors import LogicError

_GENERATION: Final = 1 << 24
_INDEX_MASK: Final = (1 << 24) - 1
_FIRST_CAPACITY: Final = 16


def handle_index(handle: i64) -> i64:
    """The dense index of a handle."""
    return handle & _INDEX_MASK


@final
class HandleTable:
    """Handles of one kind; ``what`` names the kind in errors. Generations suffice for 2**38 uses of an index."""

    __slots__ = ("_what", "_handles", "_free", "_num_free")

    def __init__(self, what: str) -> None:
        self._what: Final = what
        self._handles = vec[i64]()  # by index: the live handle, or minus the next one
        self._free = vec[i64]()  # a stack of indices; its first _num_free entries count
        self._num_free: i64 = 0

    def allocate(self) -> i64:
        if self._num_free == 0:
            self._grow()
        num_free = self._num_free - 1
        self._num_free = num_free
        index = self._free[num_free]
        handles = self._handles
        handle = -handles[index]
        handles[index] = handle
        return handle

    def is_live(self, handle: i64) -> bool:
        index = handle & _INDEX_MASK
        # A handle is never 0 and a freed entry is negative, so an invented handle matches nothing.
        return handle > 0 and index < len(self._handles) and self._handles[index] == handle

    def require_live(self, handle: i64) -> None:
        if not self.is_live(handle):
            raise LogicError(f"{handle} is no {self._what} of this device: never created, or released already")

    def free(self, handle: i64) -> None:
        self.require_live(handle)
        index = handle & _INDEX_MASK
        self._handles[index] = -(handle + _GENERATION)
        self._free[self._num_free] = index
        self._num_free += 1

    def num_live(self) -> i64:
        return len(self._handles) - self._num_free

    def _grow(self) -> None:
        old_capacity: i64 = len(self._handles)
        capacity = old_capacity * 2 if old_capacity > 0 else _FIRST_CAPACITY
        if capacity > _GENERATION:
            raise LogicError(f"{old_capacity} {self._what}s are in use; release some")
        handles = self._handles
        free = self._free
        for index in range(old_capacity, capacity):
            handles = append(handles, -(_GENERATION | index))
            free = append(free, 0)
        # Highest first, so that the lowest index is on top.
        for position in range(capacity - old_capacity):
            free[position] = capacity - 1 - position
        self._handles = handles
        self._free = free
        self._num_free = capacity - old_capacity
