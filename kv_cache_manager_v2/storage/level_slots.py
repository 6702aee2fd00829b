"""The slots of one level: its tier, its folder, its slots by pool group, its eviction policy."""

from typing import Final, final

from mypy_extensions import mypyc_attr

from ..base.ids import CacheTier
from ..config.eviction_policy import EvictionPolicy


@final
@mypyc_attr(native_class=True)
class LevelSlots:
    """``path``: the folder of a disk level's files. ``num_slots`` by pool group."""

    __slots__ = ("tier", "path", "num_slots", "eviction_policy")

    tier: Final[CacheTier]
    path: Final[str | None]
    num_slots: Final[tuple[int, ...]]
    eviction_policy: Final[EvictionPolicy]

    def __init__(
        self,
        tier: CacheTier,
        path: str | None,
        num_slots: tuple[int, ...],
        eviction_policy: EvictionPolicy = EvictionPolicy.LEARNED,
    ) -> None:
        self.tier = tier
        self.path = path
        self.num_slots = num_slots
        self.eviction_policy = eviction_policy
