"""`KVCacheEventManager` as TensorRT-LLM's engine makes it, fills it and drains it.

The library's own event manager records what a manager does; `flush_iteration_events` puts that into TensorRT-LLM's form, behind what the
engine itself has added, and queues it for the drainer, after gathering all attention-DP ranks' events where there are several. Created
events are the engine's to add, once it knows the window sizes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final, Never, SupportsFloat, SupportsIndex, TypeAlias, final


from ...base.checks import to_count, to_instance, to_instance_or_none, to_int, to_list, to_number, to_text
from ...base.given import Given
from ...base.handle import Handle
from ...events import event_manager, kv_cache_event
from ...events.block_digest import V1_BLOCK_KEY, V2_SHA256, V2_SHA256_64, show_digest
from .event_payloads import (
    BlockHashesLike,
    BlockHashLike,
    EventBlockHash,
    EventData,
    KVCacheCreatedData,
    KVCacheEvent,
    KVCacheEventDiff,
    KVCacheRemovedData,
    KVCacheStoredBlockData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)
from .item_runs import ItemRuns
from .multimodal_items import ItemNames
from .plain_names import refuse_name

AttentionDpGatherFn: TypeAlias = Callable[[list[KVCacheEvent]], list[list[KVCacheEvent]]]

_AUTO: Final = "auto"
_MAX_TIMEOUT_MS: Final = 86_400_000.0


def _to_engine_algorithm(hash_algo: object) -> str:
    algorithm = to_text(hash_algo, "hash_algo")
    if algorithm == _AUTO:
        return V1_BLOCK_KEY
    if algorithm not in (V1_BLOCK_KEY, V2_SHA256, V2_SHA256_64):
        raise ValueError(f"hash_algo is {algorithm!r}; there are {_AUTO}, {V1_BLOCK_KEY}, {V2_SHA256} and {V2_SHA256_64}")
    return algorithm


def _to_window_sizes(window_sizes: object, name: str) -> dict[int, int]:
    if not isinstance(window_sizes, Mapping):
        raise TypeError(f"{name} must be a dict of window sizes by layer group, not {type(window_sizes).__name__}")
    found: dict[int, int] = {}
    for group, size in window_sizes.items():
        found[to_int(group, f"each key of {name}")] = to_int(size, f"each value of {name}")
    return found


@final
class KVCacheEventManager(Handle):
    """Give it to one `KVCacheManager`. Adding and flushing is for the thread that calls the manager, draining for any.

    ``max_kv_event_entries``: events that wait at most, the oldest are dropped; 0: events are off. ``window_size`` is what events say
    of layer groups that ``window_size_by_layer_group`` leaves out. ``attention_dp_gather`` gets this rank's events at each flush and
    returns all ranks'; rank 0 alone queues them. ``hash_algo``: "v2_sha256", "v2_sha256_64", "v1_block_key", or "auto" for the last
    one. ``mm_token_id_offset``: the size of the vocabulary; with it, blocks say which multimodal items they are of.
    """

    __slots__ = (
        "_max_events", "_window_size", "_rank", "_gather", "_hash_algo", "_window_sizes", "_items", "_core", "_next_event_id",
        "_pending", "_removed", "_last_stored", "_queue", "_filled", "names",
    )  # fmt: skip

    _NAMES: ClassVar[str] = "what a manager of this process tells"

    def __init__(
        self,
        max_kv_event_entries: SupportsIndex,
        *,
        window_size: SupportsIndex = 0,
        attention_dp_rank: SupportsIndex | None = None,
        attention_dp_gather: AttentionDpGatherFn | None = None,
        hash_algo: Given[str] = V2_SHA256,
        window_size_by_layer_group: Mapping[int, int] | None = None,
        mm_token_id_offset: SupportsIndex | None = None,
    ) -> None:
        self._max_events: Final = int(to_count(max_kv_event_entries, "max_kv_event_entries"))
        self._window_size: Final[int] = to_int(window_size, "window_size")
        self._rank: Final[int | None] = None if attention_dp_rank is None else to_int(attention_dp_rank, "attention_dp_rank")
        if attention_dp_gather is not None and not callable(attention_dp_gather):
            raise TypeError(f"attention_dp_gather must be callable or None, not {type(attention_dp_gather).__name__}")
        self._gather: Final = attention_dp_gather
        self._hash_algo: Final[str] = _to_engine_algorithm(hash_algo)
        self._window_sizes: dict[int, int] = {}
        if window_size_by_layer_group is not None:
            self._window_sizes = _to_window_sizes(window_size_by_layer_group, "window_size_by_layer_group")
        offset = None if mm_token_id_offset is None else int(to_count(mm_token_id_offset, "mm_token_id_offset"))
        self.names: Final[ItemNames] = ItemNames()
        """Identifiers of multimodal items, shared with the manager."""
        self._items: Final = ItemRuns(offset, self.names)
        self._core: Final = event_manager.KVCacheEventManager(self._max_events, hash_algo=self._hash_algo, partial_blocks=True)
        self._next_event_id = 0
        self._pending: list[KVCacheEvent] = []
        self._removed: dict[int | None, list[EventBlockHash]] = {}
        """By layer group, names that wait for the next event of another kind."""
        self._last_stored: dict[int | None, int] = {}
        """By layer group, the place among the pending ones of the stored event that a next one may join."""
        self._queue: Final[deque[KVCacheEvent]] = deque()
        self._filled: Final = threading.Condition()
        """Guards the queue."""

    @property
    def core(self) -> event_manager.KVCacheEventManager:
        """The library's own event manager, which the manager binds."""
        return self._core

    @property
    def hash_algo(self) -> str:
        """How blocks are named."""
        return self._hash_algo

    # -- adding -------------------------------------------------------------------------------------------------------

    def set_layer_group_window_sizes(self, window_sizes: Mapping[int, int]) -> None:
        """The window sizes that events of these layer groups say from now on; all others are forgotten."""
        self._window_sizes = _to_window_sizes(window_sizes, "window_sizes")

    def __getattr__(self, name: str) -> Never:
        refuse_name("KVCacheEventManager", name)

    def add_created_event(self, num_blocks_per_cache_level: Sequence[int], layer_group_ids: Sequence[SupportsIndex] | None = None) -> None:
        """One event for each of the layer groups, or one that names none."""
        counts: list[int] = []
        for count in to_list(num_blocks_per_cache_level, "num_blocks_per_cache_level"):
            counts.append(to_int(count, "each of num_blocks_per_cache_level"))
        data = KVCacheCreatedData(counts)
        if layer_group_ids is None:
            self._take_over()
            self._add(data, None)
            return
        groups = [to_int(group, "each of layer_group_ids") for group in to_list(layer_group_ids, "layer_group_ids")]
        self._take_over()
        for group in groups:
            self._add(data, group)

    def add_stored_event(
        self,
        parent_hash: Given[EventBlockHash | None],
        blocks: Sequence[KVCacheStoredBlockData],
        layer_group_id: SupportsIndex | None = None,
    ) -> None:
        """Blocks of one path; they join the group's latest stored event where that ends with their parent. Nothing for no blocks."""
        listed = [to_instance(block, KVCacheStoredBlockData, "each of blocks") for block in to_list(blocks, "blocks")]
        parent = None if parent_hash is None else _to_name(parent_hash, "parent_hash")
        group = _to_group(layer_group_id)
        self._take_over()
        self._add_stored(parent, listed, group)

    def add_removed_event(self, block_hashes: Given[BlockHashesLike]) -> None:
        """One name or several; bytes are a block's key, the digest that "v2_sha256" shows, and are ignored with "v1_block_key"."""
        names: list[EventBlockHash] = []
        for item in [block_hashes] if isinstance(block_hashes, (int, str, bytes)) else to_list(block_hashes, "block_hashes"):
            name = self._show(item)
            if name is not None:
                names.append(name)
        self._take_over()
        self._add_removed(names, None)

    def add_updated_event(
        self,
        block_hash: Given[BlockHashLike],
        *,
        cache_level: Given[KVCacheEventDiff | None] = None,
        priority: Given[KVCacheEventDiff | None] = None,
        layer_group_id: SupportsIndex | None = None,
    ) -> None:
        """Nothing where neither has changed."""
        new_level = to_instance_or_none(cache_level, KVCacheEventDiff, "cache_level")
        new_priority = to_instance_or_none(priority, KVCacheEventDiff, "priority")
        shown = self._show(block_hash)
        group = _to_group(layer_group_id)
        if shown is None or (new_level is None and new_priority is None):
            return
        self._take_over()
        self._add(KVCacheUpdatedData(shown, new_level, new_priority), group)

    def _show(self, block_hash: object) -> EventBlockHash | None:
        if not isinstance(block_hash, bytes):
            return _to_name(block_hash, "block_hash")
        if self._hash_algo == V1_BLOCK_KEY:
            return None
        return show_digest(block_hash, self._hash_algo)

    def _add(self, data: EventData, group: int | None) -> None:
        if self._max_events == 0:
            return
        self._flush_removed()
        self._append(data, group)
        self._last_stored.pop(group, None)

    def _add_stored(self, parent: EventBlockHash | None, blocks: list[KVCacheStoredBlockData], group: int | None) -> None:
        if len(blocks) == 0 or self._max_events == 0:
            return
        place = self._last_stored.get(group)
        if place is not None and len(self._removed) == 0:
            event = self._pending[place]
            before = event.data
            if isinstance(before, KVCacheStoredData) and before.blocks[-1].block_hash == parent:
                data = KVCacheStoredData(before.parent_hash, [*before.blocks, *blocks])
                self._pending[place] = self._make_event(event.event_id, data, group)
                return
        self._flush_removed()
        self._last_stored[group] = len(self._pending)
        self._append(KVCacheStoredData(parent, blocks), group)

    def _add_removed(self, names: list[EventBlockHash], group: int | None) -> None:
        if len(names) == 0 or self._max_events == 0:
            return
        self._removed.setdefault(group, []).extend(names)
        self._last_stored.pop(group, None)

    def _flush_removed(self) -> None:
        removed = self._removed
        self._removed = {}
        for group, names in removed.items():
            self._append(KVCacheRemovedData(names), group)

    def _append(self, data: EventData, group: int | None) -> None:
        self._pending.append(self._make_event(self._next_event_id, data, group))
        self._next_event_id += 1

    def _make_event(self, event_id: int, data: EventData, group: int | None) -> KVCacheEvent:
        window_size = self._window_size if group is None else self._window_sizes.get(group, self._window_size)
        return KVCacheEvent(event_id, data, window_size, self._hash_algo, self._rank, group)

    def _take_over(self) -> None:
        """What the manager has done so far stands before what is added next."""
        core = self._core
        core.flush_iteration_events()
        for event in core.get_latest_events():
            data = event.data
            group = event.layer_group_id
            if isinstance(data, kv_cache_event.KVCacheStoredData):
                self._add_stored(data.parent_hash, self._items.to_blocks(data, group), group)
            elif isinstance(data, kv_cache_event.KVCacheRemovedData):
                self._items.forget(data.block_hashes, group)
                self._add_removed(list(data.block_hashes), group)
            elif isinstance(data, kv_cache_event.KVCacheUpdatedData):
                self._add(KVCacheUpdatedData(data.block_hash, _to_diff(data.cache_level), _to_diff(data.priority)), group)

    # -- draining -----------------------------------------------------------------------------------------------------

    def flush_iteration_events(self) -> None:
        """Queue what has happened since the last time; with ``attention_dp_gather`` that of all ranks, on rank 0."""
        self._take_over()
        self._flush_removed()
        events = self._pending[-self._max_events :] if self._max_events > 0 else []
        self._pending = []
        self._last_stored = {}
        limit = self._max_events
        gather = self._gather
        if gather is not None:
            by_rank = gather(events)
            if self._rank != 0:
                return
            events = []
            for of_rank in by_rank:
                events.extend(of_rank[-self._max_events :] if self._max_events > 0 else [])
            limit = self._max_events * max(1, len(by_rank))
        if len(events) == 0:
            return
        with self._filled:
            self._queue.extend(events)
            while len(self._queue) > limit:
                self._queue.popleft()
            self._filled.notify_all()

    def get_latest_events(self, timeout_ms: SupportsFloat | None = None) -> list[KVCacheEvent]:
        """All queued events, oldest first. Where there is none it waits for one: ``timeout_ms`` at most, or for ever with None."""
        seconds: float | None = None
        if timeout_ms is not None:
            milliseconds = to_number(timeout_ms, "timeout_ms")
            if not 0.0 <= milliseconds <= _MAX_TIMEOUT_MS:
                raise ValueError(f"timeout_ms is {timeout_ms}: it must be from 0 to {_MAX_TIMEOUT_MS:.0f} (a day), or None")
            seconds = milliseconds / 1000
        with self._filled:
            if len(self._queue) == 0:
                self._filled.wait_for(self._has_events, seconds)
            events = list(self._queue)
            self._queue.clear()
        return events

    def _has_events(self) -> bool:
        return len(self._queue) > 0


def _to_name(block_hash: object, name: str) -> EventBlockHash:
    if isinstance(block_hash, str):
        return block_hash
    return to_int(block_hash, f"{name}, unless a str,")


def _to_group(layer_group_id: SupportsIndex | None) -> int | None:
    return None if layer_group_id is None else to_int(layer_group_id, "layer_group_id")


def _to_diff(diff: kv_cache_event.KVCacheEventDiff | None) -> KVCacheEventDiff | None:
    return None if diff is None else KVCacheEventDiff(diff.old_value, diff.new_value)
