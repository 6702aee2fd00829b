"""Statistics as TensorRT-LLM's engine adds them up: counts in records whose fields can be set, added and subtracted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Final, Self

from mypy_extensions import mypyc_attr

from ...base.checks import to_instance, to_int
from ...config.config_value import ConfigValue, to_tuple


@mypyc_attr(native_class=False)
class CountsDelta(ConfigValue):
    """Base of records of counts. Arithmetic is field by field, with a record of the same class only."""

    def __post_init__(self) -> None:
        for name in self._names():
            setattr(self, name, to_int(getattr(self, name), f"{type(self).__name__}.{name}"))

    def _names(self) -> tuple[str, ...]:
        dataclass_self: Any = self
        return tuple([field.name for field in fields(dataclass_self)])

    def _require_same(self, other: object) -> None:
        if type(other) is not type(self):
            raise TypeError(f"other must be a {type(self).__name__}, not {type(other).__name__}")

    def add(self, other: Any) -> None:
        """Add each count of ``other``."""
        self._require_same(other)
        for name in self._names():
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def subtract(self, other: Any) -> None:
        """Subtract each count of ``other``."""
        self._require_same(other)
        for name in self._names():
            setattr(self, name, getattr(self, name) - getattr(other, name))

    def clear(self) -> None:
        """Set each count to 0."""
        for name in self._names():
            setattr(self, name, 0)

    def copy(self) -> Self:
        """Another record with the same counts."""
        record_class: Any = type(self)
        made: Self = record_class(*[getattr(self, name) for name in self._names()])
        return made

    @property
    def empty(self) -> bool:
        """Whether all counts are 0."""
        return all([getattr(self, name) == 0 for name in self._names()])


@dataclass
@mypyc_attr(native_class=False)
class KVCacheStatsDelta(CountsDelta):
    """Pages of all layer groups: made (both of the first two), found for reuse, and made for tokens of prompts."""

    alloc_total_blocks: int = 0
    alloc_new_blocks: int = 0
    reused_blocks: int = 0
    missed_blocks: int = 0


@dataclass
@mypyc_attr(native_class=False)
class KVCacheIterationStatsDelta(CountsDelta):
    """Pages of one layer group in one iteration: made, found, copied between levels or within one, and dropped from the last level."""

    iter_alloc_total_blocks: int = 0
    iter_alloc_new_blocks: int = 0
    iter_reused_blocks: int = 0
    iter_full_reused_blocks: int = 0
    iter_partial_reused_blocks: int = 0
    iter_missed_blocks: int = 0
    iter_gen_alloc_blocks: int = 0
    iter_onboard_blocks: int = 0
    iter_onboard_bytes: int = 0
    iter_offload_blocks: int = 0
    iter_offload_bytes: int = 0
    iter_intra_device_copy_blocks: int = 0
    iter_intra_device_copy_bytes: int = 0
    iter_host_dropped_blocks: int = 0
    iter_host_dropped_bytes: int = 0

    @property
    def iter_cache_hit_rate(self) -> float:
        """Found pages among those found and missed, from 0 to 1; 0 without either."""
        total = self.iter_reused_blocks + self.iter_missed_blocks
        return self.iter_reused_blocks / total if total > 0 else 0.0


_KV_CACHE_ITERATION_STATS_DELTA_FIELDS: Final = tuple([field.name for field in fields(KVCacheIterationStatsDelta)])
setattr(KVCacheIterationStatsDelta, "_field_names", _KV_CACHE_ITERATION_STATS_DELTA_FIELDS)


@dataclass
@mypyc_attr(native_class=False)
class SsmSnapshotIterationStatsDelta(CountsDelta):
    """Look-ups of snapshots of recurrent state in one iteration: one for each sequence that was made with tokens."""

    iter_snapshot_lookups: int = 0
    iter_snapshot_hits: int = 0
    iter_snapshot_misses: int = 0
    iter_reused_tokens: int = 0
    iter_unreused_tokens: int = 0
    iter_aligned_snapshot_hits: int = 0
    iter_unaligned_snapshot_hits: int = 0

    @property
    def iter_snapshot_hit_rate(self) -> float:
        """Hits among look-ups, from 0 to 1; 0 without look-ups."""
        return self.iter_snapshot_hits / self.iter_snapshot_lookups if self.iter_snapshot_lookups > 0 else 0.0


def _add_counts(first: Sequence[int], second: Sequence[int]) -> list[int]:
    counts = [0] * max(len(first), len(second))
    for level, count in [*enumerate(first), *enumerate(second)]:
        counts[level] += count
    return counts


@dataclass
@mypyc_attr(native_class=False)
class ReusedBlocksByLevel(ConfigValue):
    """Pages of one layer group that sequences found, by the cache level that they were on: in full, and in part."""

    full: Sequence[int] = ()
    partial: Sequence[int] = ()

    def __post_init__(self) -> None:
        for field in ("full", "partial"):
            counts = to_tuple(getattr(self, field), f"ReusedBlocksByLevel.{field}")
            setattr(self, field, [to_int(count, f"each of ReusedBlocksByLevel.{field}") for count in counts])

    def add(self, other: Any) -> None:
        """Add each count of ``other``, which may have more levels."""
        other = to_instance(other, ReusedBlocksByLevel, "other")
        self.full = _add_counts(self.full, other.full)
        self.partial = _add_counts(self.partial, other.partial)

    @property
    def empty(self) -> bool:
        """Whether all counts are 0."""
        return not any(self.full) and not any(self.partial)


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class PoolGroupPeakBlockStats(ConfigValue):
    """Slots of a pool group when the most of them were locked or held: free or evictable, neither, and evictable."""

    available: int
    unavailable: int
    evictable: int

    def __post_init__(self) -> None:
        for field in ("available", "unavailable", "evictable"):
            object.__setattr__(self, field, to_int(getattr(self, field), f"PoolGroupPeakBlockStats.{field}"))
