"""`KVCacheEventIndex`: a consumer's view of a manager, built from its events; for routers.

Events may come in order, twice, late, or not at all; their ids tell. An early event waits for those before it. If events are lost
for good, `needs_snapshot` is true, and a snapshot restores the view:

    state      guaranteed                                              ways out
    CURRENT    all events up to `last_event_id` are in it              an early event -> WAITING
    WAITING    the same; `missing_event_ids` are awaited               they come -> CURRENT; they are lost -> LOST
    LOST       its view is as of `last_event_id`, out of date          apply_snapshot -> CURRENT, or WAITING
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import ClassVar, Final, SupportsIndex, final

from rawref import untrack, untrack_class

from ..base.checks import to_count, to_instance, to_list
from ..base.fair_turns import FairTurns
from ..base.given import Given
from ..base.ids import TokenIdExt
from .block_digest import BlockHash, to_block_hash
from ..base.handle import Handle
from ..base.value import Value
from .event_snapshot import KVCacheEventSnapshot
from .kv_cache_event import (
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheRemovedData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)


@final
class IndexedBlock(Value):
    """A block that some layer group has cached. ``places``: (cache level, priority) by layer group."""

    __slots__ = ("block_hash", "parent_hash", "tokens", "lora_id", "_places", "salt")

    def __init__(
        self,
        block_hash: BlockHash,
        parent_hash: BlockHash | None,
        tokens: list[TokenIdExt],
        lora_id: int | None,
        places: Mapping[int, tuple[int, int]] | None = None,
        salt: int | str | None = None,
    ) -> None:
        self.block_hash: Final[BlockHash] = block_hash
        self.parent_hash: Final[BlockHash | None] = parent_hash
        self.tokens: Final[list[TokenIdExt]] = tokens
        self.lora_id: Final[int | None] = lora_id
        self._places: Final[dict[int, tuple[int, int]]] = {} if places is None else dict(places)
        self.salt: Final[int | str | None] = salt

    def _arguments(self) -> tuple[object, ...]:
        return (self.block_hash, self.parent_hash, self.tokens, self.lora_id, self._places, self.salt)

    @property
    def places(self) -> Mapping[int, tuple[int, int]]:
        """The cache level and priority, by layer group that has the block."""
        return MappingProxyType(self._places)

    def __repr__(self) -> str:
        return f"IndexedBlock({self.block_hash!r}, places={self._places})"


# One for each cached block, without cycles: the garbage collector would look at each, and its list of tokens, in every full collection.
untrack_class(IndexedBlock)


@final
class KVCacheEventIndex(Handle):
    """The blocks and layer groups known from the events of one `KVCacheEventManager`.

    ``max_waiting_events``: how many early events wait for missing ones before the missing ones count as lost.
    """

    __slots__ = (
        "_blocks", "_num_blocks_per_cache_level", "_last_event_id", "_waiting", "_max_waiting", "_lost_up_to"
    )  # fmt: skip

    _NAMES: ClassVar[str] = "events that this process received; make another index and give it a snapshot"

    def __init__(self, max_waiting_events: SupportsIndex = 1000) -> None:
        self._blocks: Final[dict[BlockHash, IndexedBlock]] = {}
        self._num_blocks_per_cache_level: Final[dict[int, list[int]]] = {}
        self._last_event_id: int = -1
        self._waiting: Final[dict[int, KVCacheEvent]] = {}
        self._max_waiting: Final[int] = to_count(max_waiting_events, "max_waiting_events")
        self._lost_up_to: int = -1
        """The last event that is lost for good; -1: none."""

    def __len__(self) -> int:
        return len(self._blocks)

    # -- input --------------------------------------------------------------------------------------------------------

    def apply(self, events: Iterable[KVCacheEvent]) -> None:
        """Apply events, in whatever order; known ones change nothing."""
        for event in [to_instance(event, KVCacheEvent, "each of events") for event in to_list(events, "events")]:
            if event.event_id <= self._last_event_id:
                continue
            self._waiting[event.event_id] = event
            if event.num_dropped > 0:
                self._lost_up_to = max(self._lost_up_to, event.event_id - 1)
        self._catch_up()

    def apply_snapshot(self, snapshot: Given[KVCacheEventSnapshot]) -> None:
        """Replace the view by the snapshot; events after it that are here already are applied again."""
        self._apply_snapshot(to_instance(snapshot, KVCacheEventSnapshot, "snapshot"), None)

    def _apply_snapshot(self, snapshot: KVCacheEventSnapshot, turns: FairTurns | None) -> None:
        """With ``turns`` other threads run meanwhile."""
        if snapshot.event_id < self._last_event_id:
            return
        self._blocks.clear()
        self._num_blocks_per_cache_level.clear()
        for event in snapshot.events:
            self._apply_event(event)
            if turns is not None:
                turns.pause()
        self._last_event_id = snapshot.event_id
        for event_id in [event_id for event_id in self._waiting if event_id <= snapshot.event_id]:
            del self._waiting[event_id]
        self._catch_up()

    def _catch_up(self) -> None:
        while True:
            event = self._waiting.pop(self._last_event_id + 1, None)
            if event is None:
                break
            self._apply_event(event)
            self._last_event_id = event.event_id
        if len(self._waiting) > self._max_waiting:
            for event_id in sorted(self._waiting)[: len(self._waiting) - self._max_waiting]:
                self._lost_up_to = max(self._lost_up_to, event_id)
                del self._waiting[event_id]

    def _apply_event(self, event: KVCacheEvent) -> None:
        data = event.data
        group = event.layer_group_id
        if isinstance(data, KVCacheStoredData):
            parent_hash = data.parent_hash
            kept: list[object] = []
            for stored in data.blocks:
                block = self._blocks.get(stored.block_hash)
                if block is None:
                    block = IndexedBlock(stored.block_hash, parent_hash, stored.tokens, data.lora_id, None, data.salt)
                    self._blocks[stored.block_hash] = block
                    kept.append(stored.tokens)
                block._places[group] = (stored.cache_level, stored.priority)
                parent_hash = stored.block_hash
            untrack(kept)
        elif isinstance(data, KVCacheRemovedData):
            for block_hash in data.block_hashes:
                gone = self._blocks.get(block_hash)
                if gone is not None and gone._places.pop(group, None) is not None and len(gone._places) == 0:
                    del self._blocks[block_hash]
        elif isinstance(data, KVCacheUpdatedData):
            changed = self._blocks.get(data.block_hash)
            if changed is not None and group in changed._places:
                level, priority = changed._places[group]
                if data.cache_level is not None:
                    level = data.cache_level.new_value
                if data.priority is not None:
                    priority = data.priority.new_value
                changed._places[group] = (level, priority)
        elif isinstance(data, KVCacheCreatedData):
            self._num_blocks_per_cache_level[group] = list(data.num_blocks_per_cache_level)

    # -- queries ------------------------------------------------------------------------------------------------------

    @property
    def last_event_id(self) -> int:
        """The id up to which all events are applied; -1: none is."""
        return self._last_event_id

    @property
    def missing_event_ids(self) -> range:
        """The first gap: these events, or a snapshot, must come before later events are applied. Empty if there is none."""
        if len(self._waiting) == 0:
            return range(0)
        return range(self._last_event_id + 1, min(list(self._waiting)))

    @property
    def needs_snapshot(self) -> bool:
        """Whether events are lost for good."""
        return self._lost_up_to > self._last_event_id

    @property
    def num_blocks_per_cache_level(self) -> Mapping[int, list[int]]:
        """By layer group."""
        return MappingProxyType(self._num_blocks_per_cache_level)

    def blocks(self) -> list[IndexedBlock]:
        """All known blocks, in the order in which they were stored."""
        return list(self._blocks.values())

    def find(self, block_hash: Given[BlockHash]) -> IndexedBlock | None:
        """The block of that hash; None if it is not known."""
        return self._blocks.get(to_block_hash(block_hash, "block_hash"))

    def count_leading_blocks(self, block_hashes: Iterable[BlockHash], layer_group_id: SupportsIndex = 0) -> int:
        """How many of a prompt's blocks (`compute_block_hashes`) the layer group has without a gap, from the first block on."""
        group = int(to_count(layer_group_id, "layer_group_id"))
        count = 0
        wanted = [to_block_hash(item, "each of block_hashes") for item in to_list(block_hashes, "block_hashes")]
        for block_hash in wanted:
            block = self._blocks.get(block_hash)
            if block is None or group not in block._places:
                break
            count += 1
        return count
