"""Checksums of pages that travel: made by the side that has computed the bytes, compared by the side that gets them. Host memory alone."""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.ids import DataRole, LayerId
from ..manager.kv_cache_manager import KVCacheManager
from .page_offer import BufferPlace, PageOffer, RangePlan, only_their_blocks


def _sum(manager: KVCacheManager, places: Sequence[BufferPlace], slots: Sequence[int]) -> int:
    """A CRC-32 of these buffers' bytes, slot by slot, in host memory."""
    views = [np.asarray(manager.pool_view(LayerId(place.layer_id), DataRole(place.role), by_slot=True)) for place in places]
    checksum = 0
    for slot in slots:
        for view in views:
            checksum = zlib.crc32(view[slot], checksum)
    return checksum


def sum_offered(manager: KVCacheManager, offer: PageOffer) -> tuple[tuple[int, ...], ...]:
    """`PageOffer.checksums`, of the bytes here."""
    checksums: list[tuple[int, ...]] = []
    for group, pages in enumerate(offer.pages):
        places = [place for place in offer.buffers if place.layer_group_id == group]
        checksums.append(tuple([_sum(manager, places, [slot]) for _block, slot in pages]))
    return tuple(checksums)


def find_wrong_page(manager: KVCacheManager, ours: PageOffer, theirs: PageOffer) -> int | None:
    """The first block whose page has other bytes here than its checksum in their offer says. Pages of which this side has other heads, or
    not all layers, cannot be compared."""
    here = {(place.layer_id, place.role): place for place in ours.buffers}
    for group, checksums in enumerate(theirs.checksums):
        keys = [(place.layer_id, place.role) for place in theirs.buffers if place.layer_group_id == group]
        places = [here[key] for key in keys if key in here]
        if len(places) < len(keys) or ours.heads != theirs.heads or len({place.layer_group_id for place in places}) != 1:
            continue
        slot_of = dict(ours.pages[places[0].layer_group_id])
        for (block, _slot), checksum in zip(theirs.pages[group], checksums):
            if block in slot_of and _sum(manager, places, [slot_of[block]]) != checksum:
                return block
    return None


def sum_written(manager: KVCacheManager, ours: PageOffer, theirs: PageOffer, plan: RangePlan, makes_checksums: bool) -> list[list[object]]:
    """Heads of each buffer that is written, and a checksum of its bytes, block by block; None where the other side has other heads."""
    mine = only_their_blocks(ours, theirs)
    places = {(place.layer_id, place.role): place for place in mine.buffers}
    heads: list[list[object]] = []
    for key, span in plan.heads.items():
        checksum: int | None = None
        if makes_checksums and theirs.device < 0 and theirs.heads == mine.heads:
            checksum = _sum(manager, [places[key]], [slot for _block, slot in mine.pages[places[key].layer_group_id]])
        heads.append([*key, *span, checksum])
    return heads


def find_wrong_buffer(manager: KVCacheManager, ours: PageOffer, heads: list[Any]) -> str:
    """The first buffer, of those that a peer says it has written, with other bytes here; "" if there is none."""
    for layer, role, _first, _end, checksum in heads:
        places = [place for place in ours.buffers if (place.layer_id, place.role) == (layer, role)]
        if checksum is not None and len(places) > 0:
            slots = [slot for _block, slot in ours.pages[places[0].layer_group_id]]
            if _sum(manager, places, slots) != checksum:
                return f"layer {places[0].layer_id}, {places[0].role!r}"
    return ""
