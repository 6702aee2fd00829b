"""Translates a manager's events to the wire form, which has media instead of levels, and no moves.

Keeps an index of all published events. It has the medium of a removed block and the content of a moved one, and answers consumers
that missed more than the replay buffer has. What a shared level has in its store is on the medium EXTERNAL (`SharedCopies`).
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, final


from ..base.fair_turns import FairTurns
from ..base.ids import CacheTier, TokenIdExt
from ..base.package_log import PackageLog
from ..events.block_digest import SHA256, BlockHash
from ..events.event_index import IndexedBlock, KVCacheEventIndex
from ..events.event_snapshot import KVCacheEventSnapshot
from ..events.kv_cache_event import (
    KVCacheEvent,
    KVCacheRemovedData,
    KVCacheStoredData,
    KVCacheUpdatedData,
)
from ..events.layer_group_facts import FULL_ATTENTION
from .shared_copies import SharedChange, SharedCopies
from .wire_event import AllBlocksCleared, BlockRemoved, BlockStored, ExtraKeys, WireEvent

_logger: Final = PackageLog("kv_cache_manager_v2")


def to_wire_hash(block_hash: BlockHash) -> int:
    """The first 8 bytes of the SHA-256."""
    return block_hash if isinstance(block_hash, int) else int(block_hash[:16], 16)


def to_wire_token(token: TokenIdExt) -> int:
    """The wire's id of a token. A multimodal digest becomes an id that depends on the digest, so that other items look different."""
    if isinstance(token, int):
        return token
    return int.from_bytes(hashlib.sha256(token).digest()[:4], "big") & 0x7FFFFFFF


_MEDIUM: Final = {CacheTier.GPU_MEM: "GPU", CacheTier.HOST_MEM: "CPU", CacheTier.DISK: "DISK"}
_EXTERNAL: Final = "EXTERNAL"


@final
class WireTranslator:
    __slots__ = (
        "has_groups", "_index", "_shared", "_tokens_per_block", "_media", "_kinds", "_windows", "_lora_names", "_nameless", "_turns"
    )  # fmt: skip

    def __init__(
        self,
        tokens_per_block: int,
        cache_tiers: Sequence[CacheTier],
        kinds: Sequence[str],
        lora_names: Mapping[int, str],
        shared: SharedCopies | None = None,
    ) -> None:
        self.has_groups: Final[bool] = len(kinds) > 1 or list(kinds) != [FULL_ATTENTION]
        """Whether messages name layer groups: not if the whole model is one full-attention group. The same in all messages of a stream."""
        self._index = KVCacheEventIndex()
        self._shared: Final[SharedCopies] = SharedCopies(len(cache_tiers), SHA256) if shared is None else shared
        self._tokens_per_block: Final = tokens_per_block
        self._media: Final[list[str]] = [*[_MEDIUM[tier] for tier in cache_tiers], _EXTERNAL]
        """By cache level; behind them the shared level's."""
        self._kinds: Final[list[str]] = list(kinds)
        self._windows: Final[dict[int, int | None]] = {}
        self._lora_names: Final = lora_names
        self._nameless: Final[set[int]] = set()
        """LoRA ids that were logged."""
        self._turns: Final = FairTurns()
        """Nothing else here is seen by other threads."""

    @property
    def needs_snapshot(self) -> bool:
        return self._index.needs_snapshot

    def translate(self, events: list[KVCacheEvent]) -> list[WireEvent]:
        """The events in the wire form. Events that the index has are skipped. Stops at a gap.

        The list is emptied: each event is freed when it is done with, as freeing all of them at once would take long.
        """
        found: list[WireEvent] = []
        cleared: list[WireEvent] = []
        events.reverse()
        while len(events) > 0:
            event = events.pop()
            if event.event_id <= self._index.last_event_id:
                continue
            data = event.data
            is_clearing = isinstance(data, KVCacheRemovedData) and data.reason == "cleared"
            self._turns.pause()
            if not is_clearing:
                self._add_cleared(found, cleared)
                cleared = []
            said: list[WireEvent] = []
            if event.num_dropped == 0:
                said = self._say(event)
            self._index.apply([event])
            if self._index.needs_snapshot:
                return found
            if is_clearing:
                cleared.extend(said)
            else:
                found.extend(said)
        self._add_cleared(found, cleared)
        return found

    def _add_cleared(self, found: list[WireEvent], cleared: list[WireEvent]) -> None:
        # What clears the manager clears no store.
        if len(cleared) > 0 and len(self._index) == 0 and len(self._shared) == 0:
            found.append(AllBlocksCleared())
        else:
            found.extend(cleared)

    def _say(self, event: KVCacheEvent) -> list[WireEvent]:
        data = event.data
        group = event.layer_group_id
        self._windows[group] = event.window_size
        if isinstance(data, KVCacheStoredData):
            return self._say_stored(data, group)
        if isinstance(data, KVCacheRemovedData):
            hashes: dict[str, list[int]] = {}
            for block_hash in data.block_hashes:
                block = self._index.find(block_hash)
                place = None if block is None else block.places.get(group)
                if place is not None:
                    hashes.setdefault(self._media[place[0]], []).append(to_wire_hash(block_hash))
            return [BlockRemoved(hashes[medium], medium, self._group(group)) for medium in hashes]
        if isinstance(data, KVCacheUpdatedData) and data.cache_level is not None:
            old = self._media[data.cache_level.old_value]
            new = self._media[data.cache_level.new_value]
            moved = self._index.find(data.block_hash)
            if old != new and moved is not None:
                # First the new place, so that consumers never see the block gone in between.
                gone = BlockRemoved([to_wire_hash(data.block_hash)], old, self._group(group))
                return [self._stored([moved], new, group), gone]
        return []

    def _say_stored(self, data: KVCacheStoredData, group: int) -> list[WireEvent]:
        blocks: list[IndexedBlock] = []
        parent_hash = data.parent_hash
        for block in data.blocks:
            place = {group: (block.cache_level, block.priority)}
            blocks.append(IndexedBlock(block.block_hash, parent_hash, block.tokens, data.lora_id, place, data.salt))
            parent_hash = block.block_hash
        return self._say_blocks(blocks, group)

    def _say_blocks(self, blocks: list[IndexedBlock], group: int) -> list[WireEvent]:
        """One event for each run of blocks on one medium, each the parent of the next."""
        found: list[WireEvent] = []
        run: list[IndexedBlock] = []
        medium = ""
        for block in blocks:
            medium_of_block = self._media[block._places[group][0]]
            if len(run) > 0 and (medium_of_block != medium or run[-1].block_hash != block.parent_hash):
                found.append(self._stored(run, medium, group))
                run = []
            medium = medium_of_block
            run.append(block)
        if len(run) > 0:
            found.append(self._stored(run, medium, group))
        return found

    def _stored(self, blocks: list[IndexedBlock], medium: str, group: int) -> BlockStored:
        first = blocks[0]
        tokens: list[int] = []
        keys: ExtraKeys = []
        has_keys = False
        for block in blocks:
            digests: list[str | tuple[str, int]] = []
            for position, token in enumerate(block.tokens):
                tokens.append(to_wire_token(token))
                if isinstance(token, bytes):
                    digests.append((token.hex(), position))
            keys.append(digests if len(digests) > 0 else None)
            self._turns.pause()
            has_keys = has_keys or len(digests) > 0
        return BlockStored(
            [to_wire_hash(block.block_hash) for block in blocks],
            None if first.parent_hash is None else to_wire_hash(first.parent_hash),
            tokens,
            self._tokens_per_block,
            first.lora_id,
            medium,
            None if first.lora_id is None else self._name_lora(first.lora_id),
            keys if has_keys else None,
            self._group(group),
            self._kinds[group],
            self._windows.get(group),
            None if first.salt is None else str(first.salt),
        )

    def _name_lora(self, lora_id: int) -> str:
        """Routers tell adapters apart by name, and take blocks without one for the model's own."""
        name = self._lora_names.get(lora_id)
        if name is None:
            name = f"lora-{lora_id}"
            if lora_id not in self._nameless:
                self._nameless.add(lora_id)
                _logger.warning("LoRA id %d has no name in lora_names: routers are told %s, and must be asked for that", lora_id, name)
        return name

    def _group(self, group: int) -> int | None:
        return group if self.has_groups else None

    def translate_shared(self, change: SharedChange) -> list[WireEvent]:
        """What a shared level tells, in the wire form; what is known already is skipped."""
        found: list[WireEvent] = []
        gone = self._shared.remove(change.gone)
        for group in sorted(gone):
            found.append(BlockRemoved([to_wire_hash(block_hash) for block_hash in gone[group]], _EXTERNAL, self._group(group)))
        for group, run in self._shared.add(change):
            found.append(self._stored(run, _EXTERNAL, group))
        return found

    def begin_anew(self, snapshot: KVCacheEventSnapshot) -> None:
        """Events are lost: restart from a snapshot."""
        for event in snapshot.events:
            self._windows[event.layer_group_id] = event.window_size
        self._index._apply_snapshot(snapshot, self._turns)

    def events_of_state(self) -> list[WireEvent]:
        """The present state as events: cleared, then all blocks, parents first."""
        found: list[WireEvent] = [AllBlocksCleared()]
        for blocks in (self._index.blocks(), self._shared.blocks()):
            groups: set[int] = set()
            for block in blocks:
                groups.update(block.places)
                self._turns.pause()
            for group in sorted(groups):
                found.extend(self._say_blocks(self._parents_first(blocks, group), group))
        return found

    def _parents_first(self, blocks: list[IndexedBlock], group: int) -> list[IndexedBlock]:
        """The group's blocks, each right after its parent where that has no other child."""
        members: dict[BlockHash, IndexedBlock] = {}
        for block in blocks:
            if group in block.places:
                members[block.block_hash] = block
            self._turns.pause()
        children: dict[BlockHash, list[IndexedBlock]] = {}
        pending: list[IndexedBlock] = []
        for block in reversed(list(members.values())):
            parent = block.parent_hash
            if parent is None or parent not in members:
                pending.append(block)
            else:
                children.setdefault(parent, []).append(block)
            self._turns.pause()
        order: list[IndexedBlock] = []
        while len(pending) > 0:
            block = pending.pop()
            order.append(block)
            pending.extend(children.get(block.block_hash, []))
            self._turns.pause()
        return order
