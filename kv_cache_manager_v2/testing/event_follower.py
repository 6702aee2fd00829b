"""A follower of a manager's events, which compares the index built from them with the manager's state dump.

A state dump (`KVCacheManager.describe`) has the published blocks with their tokens, levels and priorities. Their
hashes are computed from the tokens here, so nothing in the comparison comes from the events themselves.
"""

from typing import Any, Final, TypeAlias, final

from mypy_extensions import mypyc_attr

from ..base.ids import TokenIdExt
from ..events.block_digest import BlockHash, compute_block_digest, compute_root_digest, encode_tokens, show_digest
from ..events.event_index import KVCacheEventIndex
from ..events.event_manager import KVCacheEventManager
from ..events.kv_cache_event import KVCacheEvent, KVCacheRemovedData, KVCacheStoredData

Place: TypeAlias = tuple[int, int, BlockHash | None, tuple[TokenIdExt, ...], int | None]
"""Level, priority, hash of the parent, tokens, LoRA id"""
Places: TypeAlias = dict[tuple[BlockHash, int], Place]
"""By block and layer group."""


@final
@mypyc_attr(native_class=False)
class EventMismatch(Exception):
    """The events do not add up to the manager's state."""


def find_published(dump: dict[str, Any], hash_algo: str) -> Places:
    """The full published blocks in a state dump."""
    found: Places = {}
    for scope in [scope for scope in dump["tree"] if "ended_epoch" not in scope]:
        # The digests of the path to the present block, the root's first.
        digests = [compute_root_digest(scope["lora_id"], scope["salt"])]
        for block in scope["blocks"]:
            tokens: list[TokenIdExt] = [token if isinstance(token, int) else bytes.fromhex(token) for token in block["tokens"]]
            if len(tokens) < dump["tokens_per_block"]:
                continue
            depth: int = block["depth"]
            del digests[depth + 1 :]
            digests.append(compute_block_digest(digests[depth], encode_tokens(tokens)))
            block_hash = show_digest(digests[depth + 1], hash_algo)
            parent = show_digest(digests[depth], hash_algo) if depth > 0 else None
            for group, page in enumerate(block["pages"]):
                if page is not None:
                    place = (page["level"], page["priority"], parent, tuple(tokens), scope["lora_id"])
                    found[block_hash, group] = place
    return found


def find_indexed(index: KVCacheEventIndex) -> Places:
    """The blocks in an index."""
    found: Places = {}
    for block in index.blocks():
        for group, (level, priority) in block.places.items():
            found[block.block_hash, group] = (level, priority, block.parent_hash, tuple(block.tokens), block.lora_id)
    return found


@final
class EventFollower:
    """Follows one manager: call `check` after each step. The buffer may be small: dropped events are learnt from a snapshot."""

    __slots__ = ("index", "_event_manager", "_announced")

    def __init__(self, event_manager: KVCacheEventManager) -> None:
        self.index: Final = KVCacheEventIndex()
        self._event_manager: Final = event_manager
        self._announced: Final[set[tuple[BlockHash, int]]] = set()

    def check(self, dump: dict[str, Any]) -> None:
        """`EventMismatch` unless the events so far, and a snapshot by itself, both add up to the state dump.

        Does nothing if events are off.
        """
        if self._event_manager.max_kv_event_entries == 0:
            return
        self._event_manager.flush_iteration_events()
        events = self._event_manager.get_latest_events()
        expected = find_published(dump, self._event_manager.hash_algo)
        self._check_order(events)
        self.index.apply(events)
        snapshot = self._event_manager.snapshot()
        if self.index.needs_snapshot:
            self.index.apply_snapshot(snapshot)
            self._announced.clear()
            self._announced.update(expected)
        elif len(self.index.missing_event_ids) > 0:
            raise EventMismatch(f"events {self.index.missing_event_ids} are missing and were not reported as dropped")
        if self.index.last_event_id != snapshot.event_id:
            raise EventMismatch(f"the events end with {self.index.last_event_id}, the snapshot with {snapshot.event_id}")
        _compare("the events", find_indexed(self.index), expected)
        self._check_sizes(dump)
        fresh = KVCacheEventIndex()
        fresh.apply_snapshot(snapshot)
        _compare("a snapshot", find_indexed(fresh), expected)

    def _check_sizes(self, dump: dict[str, Any]) -> None:
        """Each size in the events must be that of one of the level's pool groups."""
        for group, num_blocks in self.index.num_blocks_per_cache_level.items():
            for level, count in enumerate(num_blocks):
                slots = [pool_group["slots"] for pool_group in dump["levels"][level]["pool_groups"]]
                if count not in slots:
                    raise EventMismatch(f"events say {count} slots for group {group} on level {level}; there are {slots}")

    def _check_order(self, events: list[KVCacheEvent]) -> None:
        """Ids grow by one; each block of a group is announced once until it is removed."""
        event_id = self.index.last_event_id
        for event in events:
            if event.event_id != event_id + 1 + event.num_dropped:
                raise EventMismatch(f"event {event.event_id} follows {event_id}, {event.num_dropped} were dropped")
            event_id = event.event_id
            if event.num_dropped > 0:
                return
            data = event.data
            if isinstance(data, KVCacheStoredData):
                for block in data.blocks:
                    if (block.block_hash, event.layer_group_id) in self._announced:
                        raise EventMismatch(f"event {event_id} announces a block again: {event!r}")
                    self._announced.add((block.block_hash, event.layer_group_id))
            elif isinstance(data, KVCacheRemovedData):
                for block_hash in data.block_hashes:
                    if (block_hash, event.layer_group_id) not in self._announced:
                        raise EventMismatch(f"event {event_id} removes a block that was not announced: {event!r}")
                    self._announced.discard((block_hash, event.layer_group_id))


def _compare(what: str, found: Places, expected: Places) -> None:
    if found == expected:
        return
    for key, place in expected.items():
        if found.get(key) != place:
            raise EventMismatch(f"{what} say {found.get(key)} of block {key[0]}, group {key[1]}; there is {place}")
    extra = [key for key in found if key not in expected]
    raise EventMismatch(f"{what} have block {extra[0][0]} of group {extra[0][1]}, which is not there")
