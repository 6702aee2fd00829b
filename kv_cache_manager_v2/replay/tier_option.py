"""The option ``--tiers gpu=64MiB,host=256MiB,disk=1GiB:/path``: the memory of a replay, level by level.

A disk without a folder gets one of its own in the system's temporary folder, which is deleted after the replay. A durable one may have
several, ``disk=1GiB:/disk0/kv:/disk1/kv``.
"""

from dataclasses import dataclass
from typing import Final

from .. import DiskCacheTierConfig, EvictionPolicy, HostCacheTierConfig, ModelId
from ..base.value import Value
from .option_values import parse_size

_EXAMPLE: Final = "gpu=64MiB,host=256MiB,disk=1GiB:/folder"


@dataclass(frozen=True)
class LowerTier(Value):
    """One level below the GPU: ``kind`` is host or disk, ``path`` the disk's folder; None: a temporary one. ``more_paths``: the further
    folders of a durable disk."""

    kind: str
    num_bytes: int
    path: str | None = None
    is_durable: bool = False
    more_paths: tuple[str, ...] = ()

    def tier_config(self, temporary_folder: str, policy: EvictionPolicy, model_id: ModelId) -> HostCacheTierConfig | DiskCacheTierConfig:
        """``model_id``: of a durable disk."""
        if self.kind == "host":
            return HostCacheTierConfig(self.num_bytes, eviction_policy=policy)
        folder = self.path if self.path is not None else temporary_folder
        if self.is_durable:
            return DiskCacheTierConfig(self.num_bytes, folder, policy, True, model_id, more_paths=self.more_paths)
        return DiskCacheTierConfig(self.num_bytes, folder, eviction_policy=policy)


@dataclass(frozen=True)
class TierSizes(Value):
    """All levels, the GPU first."""

    gpu_bytes: int
    lower: tuple[LowerTier, ...]


def parse_tiers(text: str) -> TierSizes:
    """`ValueError` says what is wrong, and what is right."""
    gpu_bytes: int | None = None
    lower: list[LowerTier] = []
    for part in text.split(","):
        kind, _, value = part.strip().partition("=")
        size, *paths = value.split(":")
        num_bytes = parse_size(size)
        if kind not in ("gpu", "host", "disk"):
            raise ValueError(f"{part!r} is no tier; there are gpu, host and disk, as in {_EXAMPLE}")
        if num_bytes is None:
            raise ValueError(f"{size!r} is no size of the {kind} tier; say {_EXAMPLE}")
        if len(paths) > 0 and (kind != "disk" or "" in paths):
            raise ValueError(f"{part!r}: a disk tier may have a folder behind a colon, as in {_EXAMPLE}, or several, each behind a colon")
        if (kind == "gpu") != (gpu_bytes is None):
            raise ValueError(f"the gpu tier comes first, and once: {_EXAMPLE}")
        if kind == "gpu":
            gpu_bytes = num_bytes
        else:
            lower.append(LowerTier(kind, num_bytes, paths[0] if len(paths) > 0 else None, False, tuple(paths[1:])))
    assert gpu_bytes is not None, "a text always has a first part"
    return TierSizes(gpu_bytes, tuple(lower))
