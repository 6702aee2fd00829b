"""How many slots a pool group of level 0 may have so that page indices are int32: it may grow after a table was made."""

from typing import Final, final

from mypy_extensions import i64

from ..base.ids import INT32_MAX
from ..manager.kv_cache_manager import KVCacheManager
from ..pools.slot_allocator import SlotAllocator
from .page_family import PageRule


@final
class _GroupLimit:
    __slots__ = ("allocator", "most_slots", "text")

    def __init__(self, allocator: SlotAllocator, rule: PageRule) -> None:
        self.allocator: Final = allocator
        # Slots count from 1 where slot 0 is reserved.
        self.most_slots: Final[i64] = INT32_MAX // (rule.scale * rule.expansion) - 1
        self.text: Final[str] = rule.text

    def require(self) -> None:
        num_slots = self.allocator.num_slots
        if num_slots > self.most_slots:
            raise ValueError(
                f"{self.text}: int32 holds the page indices of {self.most_slots} slots, and level 0 has {num_slots} in that pool group; "
                "make it smaller with KVCacheManager.resize, or each slot's pages larger"
            )


@final
class IndexLimits:
    """The limits of one batch's outputs: the least for each pool group."""

    __slots__ = ("_allocators", "_pool_groups", "_limits")

    def __init__(self, manager: KVCacheManager) -> None:
        storage = manager._shared_for_batch().storage
        self._allocators: Final[list[SlotAllocator]] = storage.allocators
        self._pool_groups: Final[tuple[int, ...]] = storage.layout.pool_group_indices
        """By layer group."""
        self._limits: Final[list[_GroupLimit]] = []

    def require(self, rule: PageRule) -> None:
        """`ValueError` if int32 does not hold the rule's page indices now."""
        self._limit_of(rule).require()

    def add(self, rule: PageRule) -> None:
        limit = self._limit_of(rule)
        for position, known in enumerate(self._limits):
            if known.allocator is limit.allocator:
                if limit.most_slots < known.most_slots:
                    self._limits[position] = limit
                return
        self._limits.append(limit)

    def require_all(self) -> None:
        """`ValueError` if a pool group has grown past what int32 holds."""
        for limit in self._limits:
            limit.require()

    def _limit_of(self, rule: PageRule) -> _GroupLimit:
        return _GroupLimit(self._allocators[self._pool_groups[int(rule.layer_group)]], rule)
