"""The slots of one level: its tier, its folder, its slots by pool group, its eviction policy."""

from typing import Final, final


from ..base.ids import CacheTier
from ..config.cache_tier_config import CacheTierConfig, ExternalCacheTierConfig, GpuCacheTierConfig, compute_max_quota
from ..config.eviction_policy import EvictionPolicy
from ..device.port import Device
from ..durable.durable_level import DurableLevel


@final
class LevelSlots:
    """``path``: the folder of a disk level's files. ``num_slots`` by pool group."""

    __slots__ = ("tier", "path", "num_slots", "eviction_policy", "durable", "_config")

    def __init__(
        self,
        tier: CacheTier,
        path: str | None,
        num_slots: tuple[int, ...],
        eviction_policy: EvictionPolicy = EvictionPolicy.LEARNED,
        config: CacheTierConfig | None = None,
    ) -> None:
        self.tier: Final = tier
        self.path: Final = path
        self.num_slots: Final = num_slots
        self.eviction_policy: Final = eviction_policy
        self.durable: DurableLevel | None = None
        """The level that outlives the process; None if nothing does."""
        self._config: Final = config

    @property
    def min_reuse_probability(self) -> float:
        """How likely a droppable page must be reused to be offloaded to the level; 0.0 for any."""
        config = self._config
        return 0.0 if config is None or isinstance(config, (GpuCacheTierConfig, ExternalCacheTierConfig)) else config.min_reuse_probability

    def compute_max_bytes(self, device: Device) -> int:
        """The bytes that its slots may take at most, later."""
        return 0 if self._config is None else compute_max_quota(self._config, device.total_bytes(self.tier))
