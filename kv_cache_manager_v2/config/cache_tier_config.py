"""The cache tiers: kind, size and eviction policy of each cache level, warmest first.

``eviction_policy`` orders pages of equal priority for eviction.
"""

from dataclasses import dataclass
from typing import TypeAlias

from mypy_extensions import mypyc_attr

from ..base.ids import CacheTier
from .config_value import ConfigValue, given, take_int, validate_text
from .eviction_policy import EvictionPolicy, validate_eviction_policy


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class GpuCacheTierConfig(ConfigValue):
    """The memory that kernels use: the GPU's, or host memory on a software device. ``quota`` is in bytes."""

    quota: int
    eviction_policy: EvictionPolicy = EvictionPolicy.LEARNED

    def __post_init__(self) -> None:
        take_int(self, "quota", "GpuCacheTierConfig.quota", 1)
        validate_eviction_policy(given(self, "eviction_policy"), "GpuCacheTierConfig.eviction_policy")

    @property
    def tier(self) -> CacheTier:
        """The kind of memory."""
        return CacheTier.GPU_MEM


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class HostCacheTierConfig(ConfigValue):
    """Pinned host memory. ``quota`` is in bytes."""

    quota: int
    eviction_policy: EvictionPolicy = EvictionPolicy.LEARNED

    def __post_init__(self) -> None:
        take_int(self, "quota", "HostCacheTierConfig.quota", 1)
        validate_eviction_policy(given(self, "eviction_policy"), "HostCacheTierConfig.eviction_policy")

    @property
    def tier(self) -> CacheTier:
        """The kind of memory."""
        return CacheTier.HOST_MEM


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class DiskCacheTierConfig(ConfigValue):
    """Files in the folder ``path``, which must exist when the manager is made. ``quota`` is in bytes."""

    quota: int
    path: str
    eviction_policy: EvictionPolicy = EvictionPolicy.LEARNED

    def __post_init__(self) -> None:
        take_int(self, "quota", "DiskCacheTierConfig.quota", 1)
        validate_eviction_policy(given(self, "eviction_policy"), "DiskCacheTierConfig.eviction_policy")
        validate_text(self, "path", "DiskCacheTierConfig.path")

    @property
    def tier(self) -> CacheTier:
        """The kind of memory."""
        return CacheTier.DISK


CacheTierConfig: TypeAlias = GpuCacheTierConfig | HostCacheTierConfig | DiskCacheTierConfig
