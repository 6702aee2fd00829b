"""Worlds in which a codec packs pages on their way to host memory and disks."""

from random import Random
from typing import Final

from ...base.ids import CacheTier
from ...config.manager_config import KVCacheManagerConfig
from ..reversing_codec import ReversingCodec

_SHARE_OF_SCENARIOS: Final = 0.5
_SHARE_WITH_DISKS: Final = 0.25
_SHARE_OF_LOSSLESS: Final = 0.5
_MOST_PAGES: Final = 24
"""Pages that a level must have slots for, and layer groups: more than any of these worlds has."""


def draw_codec(config: KVCacheManagerConfig, seed: int) -> ReversingCodec | None:
    """None where a level is the engine's, and in some other worlds; drawn apart, so that those stay as they were."""
    lower = config.cache_tiers[1:]
    if config.is_external or len(lower) == 0:
        return None
    random = Random(179 * seed + 71)
    share = _SHARE_WITH_DISKS if CacheTier.DISK in [tier.tier for tier in lower] else _SHARE_OF_SCENARIOS
    padding = random.choice((0, 1, 16, 64))
    # A packed page is longer than a page here, and the smallest levels have a few bytes.
    has_room = min([tier.quota for tier in lower]) >= _MOST_PAGES * (padding + _MOST_PAGES)
    return ReversingCodec(padding, random.random() < _SHARE_OF_LOSSLESS) if has_room and random.random() < share else None


def draw_fault_share(seed: int) -> float:
    """Of a world with a codec and without a disk: other worlds with failures of the device end on a disk."""
    return Random(181 * seed + 73).choice((0.0, 0.0, 0.05, 0.15))
