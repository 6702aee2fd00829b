"""Which multimodal items the tokens of announced blocks belong to: an item's digest may stand in an earlier block of the path."""

from __future__ import annotations

from typing import Final, final


from ...base.ids import TokenIdExt
from ...events import kv_cache_event
from .event_payloads import EventBlockHash, KVCacheStoredBlockData, MmKey, UniqueToken
from .multimodal_items import ItemNames


@final
class ItemRuns:
    """Remembers, for announced blocks at or behind a digest, the last digest of their path. ``offset``: None looks for no items."""

    __slots__ = ("_offset", "_names", "_digests")

    def __init__(self, offset: int | None, names: ItemNames) -> None:
        self._offset: Final = offset
        self._names: Final = names
        self._digests: Final[dict[EventBlockHash, tuple[bytes, set[int]]]] = {}
        """By block: the digest, and the layer groups that have announced the block."""

    def to_blocks(self, data: kv_cache_event.KVCacheStoredData, group: int) -> list[KVCacheStoredBlockData]:
        parent = data.parent_hash
        found: list[KVCacheStoredBlockData] = []
        for block in data.blocks:
            entry = None if parent is None else self._digests.get(parent)
            keys: list[MmKey] = []
            if self._offset is not None:
                digest = self._find_runs(block.tokens, None if entry is None else entry[0], self._offset, keys)
                if digest is not None:
                    self._digests.setdefault(block.block_hash, (digest, set()))[1].add(group)
            tokens = [UniqueToken(token.hex() if isinstance(token, bytes) else token) for token in block.tokens]
            found.append(KVCacheStoredBlockData(block.block_hash, tokens, block.cache_level, block.priority, keys, None))
            parent = block.block_hash
        return found

    def forget(self, block_hashes: list[EventBlockHash], group: int) -> None:
        """These blocks of the group are gone."""
        for block_hash in block_hashes:
            entry = self._digests.get(block_hash)
            if entry is not None:
                entry[1].discard(group)
                if len(entry[1]) == 0:
                    del self._digests[block_hash]

    def _find_runs(self, tokens: list[TokenIdExt], digest: bytes | None, offset: int, keys: list[MmKey]) -> bytes | None:
        """Appends a key for each run; the last digest, which later blocks go on with."""
        is_in_run = False
        for token in tokens:
            if isinstance(token, bytes):
                digest = token
                keys.append(self._make_key(token, 0))
                is_in_run = True
            elif digest is not None and token > offset:
                if not is_in_run:
                    keys.append(self._make_key(digest, token - offset))
                is_in_run = True
            else:
                is_in_run = False
        return digest

    def _make_key(self, digest: bytes, start: int) -> MmKey:
        uuid = self._names.find(digest)
        return (digest, start) if uuid is None else (digest, start, uuid)
