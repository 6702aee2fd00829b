"""The cache tiers: kind, size and eviction policy of each cache level, warmest first.

``eviction_policy`` orders pages of equal priority for eviction. ``max_quota`` is the largest quota that `KVCacheManager.resize` may give
the tier: addresses for it are reserved at the start, for each pool group, memory only for the quota. None: `DEFAULT_GROWTH` times the
quota, or `LEAST_MAX_QUOTA` if that is more, but no more than the device has, and at least the quota.

``min_reuse_probability``: pages are offloaded to the tier only if they are at least this likely to be reused, by what LEARNED on the tier
above has seen come back so far; others are dropped. It spares a disk's wear and bandwidth, at the cost of hits. 0: no such floor.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from mypy_extensions import mypyc_attr

from ..base.checks import require_path, to_instance_or_none, to_int_within, to_text
from ..base.ids import CacheTier
from .config_value import ConfigValue, given, take_float, take_int, take_optional_int, take_text, to_tuple, validate_bool, validate_instance
from .eviction_policy import EvictionPolicy, to_eviction_policy
from .model_id import ModelId


DEFAULT_GROWTH: Final = 8
LEAST_MAX_QUOTA: Final = 64 << 20
MAX_COPY_WORKERS: Final = 2**16
MAX_SLOTS: Final = 2**31 - 2
"""Of a pool group: base page indices are int32."""


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class GpuCacheTierConfig(ConfigValue):
    """The memory that kernels use: the GPU's, or host memory on a software device. ``quota`` is in bytes."""

    quota: int
    eviction_policy: EvictionPolicy = EvictionPolicy.LEARNED
    max_quota: int | None = None

    def __post_init__(self) -> None:
        take_int(self, "quota", "GpuCacheTierConfig.quota", 1)
        to_eviction_policy(given(self, "eviction_policy"), "GpuCacheTierConfig.eviction_policy")
        take_optional_int(self, "max_quota", "GpuCacheTierConfig.max_quota", self.quota)

    @property
    def tier(self) -> CacheTier:
        """The kind of memory."""
        return CacheTier.GPU_MEM


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class ExternalCacheTierConfig(ConfigValue):
    """Memory that the engine owns, where the manager hands out slot numbers and touches no byte: ``slot_counts`` by pool group.

    The null slot of `reserve_null_slot` is not counted. With `swa_scratch_reuse` a step's scratch blocks have no slots.

    ``copy_workers``, of the first tier: so many processes execute the lists of `KVCacheManager.take_copies`. With 0 nothing is copied, and
    it is the only tier: `KVCacheManagerConfig.takes_no_copies` says what that excludes. ``tier``: HOST_MEM for each tier below the first,
    whatever the engine keeps its slots in.
    """

    slot_counts: Sequence[int]
    eviction_policy: EvictionPolicy = EvictionPolicy.LEARNED
    copy_workers: int = 0
    tier: CacheTier = CacheTier.GPU_MEM

    def __post_init__(self) -> None:
        name = "ExternalCacheTierConfig.slot_counts"
        counts = [int(to_int_within(count, f"each of {name}", 1, MAX_SLOTS)) for count in to_tuple(given(self, "slot_counts"), name)]
        object.__setattr__(self, "slot_counts", tuple(counts))
        to_eviction_policy(given(self, "eviction_policy"), "ExternalCacheTierConfig.eviction_policy")
        take_int(self, "copy_workers", "ExternalCacheTierConfig.copy_workers", 0, MAX_COPY_WORKERS)
        validate_instance(self, "tier", CacheTier)
        if self.tier == CacheTier.DISK:
            raise ValueError("ExternalCacheTierConfig.tier is DISK; give HOST_MEM for each tier below the first, wherever its slots are")

    @property
    def quota(self) -> int:
        """Bytes of the manager: none."""
        return 0


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class HostCacheTierConfig(ConfigValue):
    """Pinned host memory. ``quota`` is in bytes."""

    quota: int
    eviction_policy: EvictionPolicy = EvictionPolicy.LEARNED
    max_quota: int | None = None
    min_reuse_probability: float = 0.0

    def __post_init__(self) -> None:
        take_int(self, "quota", "HostCacheTierConfig.quota", 1)
        to_eviction_policy(given(self, "eviction_policy"), "HostCacheTierConfig.eviction_policy")
        take_optional_int(self, "max_quota", "HostCacheTierConfig.max_quota", self.quota)
        take_float(self, "min_reuse_probability", "HostCacheTierConfig.min_reuse_probability", 0.0, 1.0)

    @property
    def tier(self) -> CacheTier:
        """The kind of memory."""
        return CacheTier.HOST_MEM


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class DiskCacheTierConfig(ConfigValue):
    """Files in the folder ``path``, which must exist when the manager is made. ``quota`` is in bytes, of all paths together.

    ``durable``: the level outlives the process. Published pages are written to it as they are published, and the next manager with
    an equal ``model_id`` and equal layers finds them again. It is the last tier; it needs the package ``xxhash``.

    ``more_paths``: of a durable level that lies on several disks, in a fixed order. Slots go to
    ``path`` and these in turn.

    ``read_only``: a durable level that another process writes, or has written: what it has when the manager is made is read, nothing there
    is changed, and no page goes there.
    """

    quota: int
    path: str
    eviction_policy: EvictionPolicy = EvictionPolicy.LEARNED
    durable: bool = False
    model_id: ModelId | None = None
    min_reuse_probability: float = 0.0
    more_paths: tuple[str, ...] = ()
    read_only: bool = False

    def __post_init__(self) -> None:
        take_int(self, "quota", "DiskCacheTierConfig.quota", 1)
        take_float(self, "min_reuse_probability", "DiskCacheTierConfig.min_reuse_probability", 0.0, 1.0)
        to_eviction_policy(given(self, "eviction_policy"), "DiskCacheTierConfig.eviction_policy")
        take_text(self, "path", "DiskCacheTierConfig.path")
        validate_bool(self, "durable", "DiskCacheTierConfig.durable")
        validate_bool(self, "read_only", "DiskCacheTierConfig.read_only")
        if self.read_only and not self.durable:
            raise ValueError(
                "DiskCacheTierConfig.read_only is True and durable is False: only a durable level has pages of another process; give both"
            )
        _take_paths(self)
        model_id = to_instance_or_none(given(self, "model_id"), ModelId, "DiskCacheTierConfig.model_id")
        if self.durable and model_id is None:
            raise ValueError(
                "DiskCacheTierConfig.durable is True and model_id is None, but it needs a model_id: another process must be able to tell "
                "whose bytes are there; give ModelId(name, revision, dtype, details)"
            )
        if not self.durable and model_id is not None:
            raise ValueError("DiskCacheTierConfig.model_id is given and durable is False; give both, or neither")
        if self.durable and self.min_reuse_probability > 0.0:
            raise ValueError(
                f"DiskCacheTierConfig.min_reuse_probability is {self.min_reuse_probability:g} and durable is True, but a durable level "
                f"gets each page when it is published, whether it is reused or not; use min_reuse_probability=0"
            )

    @property
    def tier(self) -> CacheTier:
        """The kind of memory."""
        return CacheTier.DISK

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths, ``path`` first."""
        return (self.path, *self.more_paths)


def _take_paths(tier: DiskCacheTierConfig) -> None:
    name = "DiskCacheTierConfig.more_paths"
    more = [to_text(path, f"each of {name}") for path in to_tuple(given(tier, "more_paths"), name)]
    object.__setattr__(tier, "more_paths", tuple(more))
    if len(more) > 0 and not tier.durable:
        raise ValueError(f"{name} has {len(more)} paths and durable is False: only a durable level lies on several; give one path")
    for path in tier.paths:
        require_path(path, "a path of DiskCacheTierConfig", "folder")
    places = [os.path.realpath(path) for path in tier.paths]
    if "" in more or len(set(places)) < len(places):
        raise ValueError(f"DiskCacheTierConfig has the paths {', '.join([repr(path) for path in tier.paths])}: each must be another folder")


CacheTierConfig: TypeAlias = GpuCacheTierConfig | ExternalCacheTierConfig | HostCacheTierConfig | DiskCacheTierConfig


def compute_max_quota(tier: CacheTierConfig, total_bytes: int) -> int:
    """The largest quota that the tier may get, on a device with so many bytes of its kind. A disk's files may take all that there is."""
    if isinstance(tier, ExternalCacheTierConfig):
        return 0
    if isinstance(tier, DiskCacheTierConfig):
        return max(tier.quota, total_bytes)
    if tier.max_quota is not None:
        return tier.max_quota
    return max(tier.quota, min(max(DEFAULT_GROWTH * tier.quota, LEAST_MAX_QUOTA), total_bytes))
