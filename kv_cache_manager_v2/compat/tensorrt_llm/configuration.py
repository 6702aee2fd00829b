"""Configurations as TensorRT-LLM's engine writes them: records that can be changed, copied and replaced.

Each is validated when it is made, and again when a manager is: by making the library's own configuration from it (`to_core`), whose
errors name the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeAlias

from mypy_extensions import mypyc_attr

from ...base.checks import other_kind, to_int, to_number
from ...base.ids import CacheTier, DataRole, LayerId
from ...config import batch_desc, cache_tier_config, layer_config, manager_config, scratch_reuse_config
from ...config.config_value import ConfigValue, given, take_float, take_int, to_tuple, validate_bool, validate_optional_instance
from ...config.rebalance_config import RebalanceConfig
from ...config.snapshot_policy import SnapshotPolicy
from ...layout.registry import LifeCycleRegistry
from ...layout.slot_layout import compute_slot_layout


@mypyc_attr(native_class=False)
class ConfigRecord(ConfigValue):
    """Fields can be set, and nothing else: a misspelled name is an error where it is written."""

    def __setattr__(self, name: str, value: object) -> None:
        known: Any = self
        names = [field.name for field in fields(known)]
        if name not in names:
            raise AttributeError(f"{type(self).__name__} has no field {name}; its fields are {', '.join(names)}")
        object.__setattr__(self, name, value)


@dataclass
@mypyc_attr(native_class=False)
class GpuCacheTierConfig(ConfigRecord):
    """Level 0: GPU memory of ``quota`` bytes."""

    quota: int

    def __post_init__(self) -> None:
        take_int(self, "quota", "GpuCacheTierConfig.quota", 0)

    @property
    def tier(self) -> CacheTier:
        """The kind of memory."""
        return CacheTier.GPU_MEM

    def assert_valid(self) -> None:
        """`ValueError` for a quota of 0."""
        _require_quota(self.quota, "GpuCacheTierConfig.quota")

    def to_core(self) -> cache_tier_config.GpuCacheTierConfig:
        """The library's own form."""
        return cache_tier_config.GpuCacheTierConfig(_as_given(self, "quota"))


@dataclass
@mypyc_attr(native_class=False)
class HostCacheTierConfig(ConfigRecord):
    """Host memory of ``quota`` bytes; 0: the manager does without this tier."""

    quota: int

    def __post_init__(self) -> None:
        take_int(self, "quota", "HostCacheTierConfig.quota", 0)

    @property
    def tier(self) -> CacheTier:
        """The kind of memory."""
        return CacheTier.HOST_MEM

    def assert_valid(self) -> None:
        """`ValueError` for a quota of 0."""
        _require_quota(self.quota, "HostCacheTierConfig.quota")

    def to_core(self) -> cache_tier_config.HostCacheTierConfig:
        """The library's own form."""
        return cache_tier_config.HostCacheTierConfig(_as_given(self, "quota"))


@dataclass
@mypyc_attr(native_class=False)
class DiskCacheTierConfig(ConfigRecord):
    """Files of ``quota`` bytes under ``path``, a folder; 0: the manager does without this tier."""

    quota: int
    path: str

    def __post_init__(self) -> None:
        take_int(self, "quota", "DiskCacheTierConfig.quota", 0)
        cache_tier_config.DiskCacheTierConfig(1, given_path(given(self, "path")))

    @property
    def tier(self) -> CacheTier:
        """The kind of memory."""
        return CacheTier.DISK

    def assert_valid(self) -> None:
        """`ValueError` for a quota of 0."""
        _require_quota(self.quota, "DiskCacheTierConfig.quota")

    def to_core(self) -> cache_tier_config.DiskCacheTierConfig:
        """The library's own form."""
        return cache_tier_config.DiskCacheTierConfig(_as_given(self, "quota"), _as_given(self, "path"))


CacheTierConfig: TypeAlias = GpuCacheTierConfig | HostCacheTierConfig | DiskCacheTierConfig


def _as_given(config: object, field: str) -> Any:
    """`given`, for the library's own configuration to check and to name."""
    return given(config, field)


def given_path(path: object) -> str:
    if not isinstance(path, str):
        raise TypeError(f"DiskCacheTierConfig.path must be a str, not {type(path).__name__}")
    return path


def _require_quota(quota: int, name: str) -> None:
    if quota <= 0:
        raise ValueError(f"{name} is {quota}; it must be at least 1")


@dataclass
@mypyc_attr(native_class=False)
class BufferConfig(ConfigRecord):
    """What a layer stores for one block under one role: ``size`` bytes, for each kernel's block of ``tokens_per_block_override``."""

    role: DataRole
    size: int
    tokens_per_block_override: int | None = None

    def __post_init__(self) -> None:
        self.to_core()

    def to_core(self) -> layer_config.BufferConfig:
        """The library's own form."""
        return layer_config.BufferConfig(_as_given(self, "role"), _as_given(self, "size"), _as_given(self, "tokens_per_block_override"))


@dataclass
@mypyc_attr(native_class=False)
class AttentionLayerConfig(ConfigRecord):
    """A layer that attends to all tokens, or to a window and the first ``num_sink_tokens``."""

    layer_id: LayerId
    buffers: Sequence[BufferConfig]
    sliding_window_size: int | None = None
    num_sink_tokens: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "buffers", list(to_tuple(given(self, "buffers"), "AttentionLayerConfig.buffers")))
        self.to_core()

    @property
    def window_size(self) -> int | None:
        """Tokens that the layer looks back on, the one that is computed included; None: all."""
        return self.sliding_window_size

    def to_core(self) -> layer_config.AttentionLayerConfig:
        """The library's own form."""
        buffers = _to_core_buffers(to_tuple(given(self, "buffers"), "AttentionLayerConfig.buffers"))
        num_sinks = _as_given(self, "num_sink_tokens")
        return layer_config.AttentionLayerConfig(
            _as_given(self, "layer_id"), buffers, _as_given(self, "sliding_window_size"), None if num_sinks == 0 else num_sinks
        )


@dataclass
@mypyc_attr(native_class=False)
class SsmLayerConfig(ConfigRecord):
    """A recurrent layer: each buffer's size is bytes per sequence and beam."""

    layer_id: LayerId
    buffers: Sequence[BufferConfig]

    def __post_init__(self) -> None:
        object.__setattr__(self, "buffers", list(to_tuple(given(self, "buffers"), "SsmLayerConfig.buffers")))
        self.to_core()

    def to_core(self) -> layer_config.SsmLayerConfig:
        """The library's own form."""
        buffers = _to_core_buffers(to_tuple(given(self, "buffers"), "SsmLayerConfig.buffers"))
        return layer_config.SsmLayerConfig(_as_given(self, "layer_id"), buffers)


LayerConfig: TypeAlias = AttentionLayerConfig | SsmLayerConfig


def _to_core_buffers(buffers: Sequence[object]) -> list[layer_config.BufferConfig]:
    found: list[layer_config.BufferConfig] = []
    for buffer in buffers:
        if not isinstance(buffer, BufferConfig):
            raise TypeError(f"buffers must be BufferConfig objects, not {other_kind(buffer, BufferConfig)}")
        found.append(buffer.to_core())
    return found


@dataclass
@mypyc_attr(native_class=False)
class KVCacheDesc(ConfigRecord):
    """A sequence in a step: ``history_length`` tokens are there, room is needed for ``capacity``."""

    capacity: int
    history_length: int

    def __post_init__(self) -> None:
        self.to_core()

    def to_core(self) -> batch_desc.KVCacheDesc:
        """The library's own form."""
        return batch_desc.KVCacheDesc(_as_given(self, "capacity"), _as_given(self, "history_length"))


@dataclass
@mypyc_attr(native_class=False)
class BatchDesc(ConfigRecord):
    """Sequences that run together; the first ``system_prompt_length`` tokens are the same in all of them."""

    kv_caches: Sequence[KVCacheDesc]
    system_prompt_length: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "kv_caches", list(to_tuple(given(self, "kv_caches"), "BatchDesc.kv_caches")))
        self.to_core()

    def to_core(self) -> batch_desc.BatchDesc:
        """The library's own form."""
        descs: list[batch_desc.KVCacheDesc] = []
        items: Sequence[object] = to_tuple(given(self, "kv_caches"), "BatchDesc.kv_caches")
        for item in items:
            if not isinstance(item, KVCacheDesc):
                raise TypeError(f"BatchDesc.kv_caches must be KVCacheDesc objects, not {other_kind(item, KVCacheDesc)}")
            descs.append(item.to_core())
        return batch_desc.BatchDesc(descs, _as_given(self, "system_prompt_length"))


@dataclass
@mypyc_attr(native_class=False)
class SwaScratchReuseConfig(ConfigRecord):
    """Scratch slots for windowed layers; the last ``max_rewind_len`` tokens of a step may be taken back."""

    max_rewind_len: int = 0

    def __post_init__(self) -> None:
        self.to_core()

    def to_core(self) -> scratch_reuse_config.SwaScratchReuseConfig:
        """The library's own form."""
        return scratch_reuse_config.SwaScratchReuseConfig(_as_given(self, "max_rewind_len"))


@dataclass
@mypyc_attr(native_class=False)
class KVCacheManagerConfig(ConfigRecord):
    """What a manager is made with.

    ``initial_pool_ratio`` has a share for each layer group: recurrent state first, then full attention, then windows by their size.
    ``rebalance_*`` are `RebalanceConfig` in other terms: a pool group may lack ``rebalance_ratio_threshold - 1`` of its slots, and one
    look at the mix weighs ``1 - rebalance_moving_average_decay``; the target is always up to date, so that
    ``rebalance_target_ratio_update_interval`` has no effect. Neither have ``commit_min_snapshot``, which is how the library always
    commits, and ``text_only``, which it does not need to know.
    """

    tokens_per_block: int
    cache_tiers: Sequence[CacheTierConfig]
    layers: Sequence[LayerConfig]
    max_util_for_resume: float = 0.97
    enable_partial_reuse: bool = True
    reuse_match_backoff: int = 0
    constraints: Sequence[BatchDesc] = ()
    typical_step: BatchDesc | None = None
    initial_pool_ratio: Sequence[float] | None = None
    swa_scratch_reuse: SwaScratchReuseConfig | None = None
    commit_min_snapshot: bool = False
    enable_stats: bool = True
    text_only: bool = False
    rebalance_min_sampled_kv_caches: int = 2000
    rebalance_cooldown_secs: float = 120.0
    rebalance_target_ratio_update_interval: int = 100
    rebalance_ratio_threshold: float = 1.25
    rebalance_moving_average_decay: float = 0.9999

    def __post_init__(self) -> None:
        for field in ("cache_tiers", "layers", "constraints"):
            object.__setattr__(self, field, list(to_tuple(given(self, field), field)))
        self.validate()

    @property
    def enable_swa_scratch_reuse(self) -> bool:
        """Whether `swa_scratch_reuse` is set."""
        return self.swa_scratch_reuse is not None

    def validate(self) -> None:
        """`ValueError` or `TypeError` for a field that can never work."""
        self.to_core()

    def to_core(self) -> manager_config.KVCacheManagerConfig:
        """The library's own form. Tiers of a quota of 0 are left out."""
        validate_bool(self, "commit_min_snapshot", "commit_min_snapshot")
        validate_bool(self, "text_only", "text_only")
        take_int(self, "rebalance_target_ratio_update_interval", "rebalance_target_ratio_update_interval", 1)
        validate_optional_instance(self, "typical_step", BatchDesc)
        validate_optional_instance(self, "swa_scratch_reuse", SwaScratchReuseConfig)
        core = manager_config.KVCacheManagerConfig(
            tokens_per_block=_as_given(self, "tokens_per_block"),
            cache_tiers=_to_core_tiers(to_tuple(given(self, "cache_tiers"), "cache_tiers")),
            layers=_to_core_layers(to_tuple(given(self, "layers"), "layers")),
            max_util_for_resume=_as_given(self, "max_util_for_resume"),
            enable_partial_reuse=_as_given(self, "enable_partial_reuse"),
            constraints=_to_core_batches(to_tuple(given(self, "constraints"), "constraints")),
            typical_step=None if self.typical_step is None else self.typical_step.to_core(),
            swa_scratch_reuse=None if self.swa_scratch_reuse is None else self.swa_scratch_reuse.to_core(),
            reuse_match_backoff=_as_given(self, "reuse_match_backoff"),
            enable_stats=_as_given(self, "enable_stats"),
            rebalance=self._to_core_rebalance(),
            snapshot_policy=SnapshotPolicy(),
        )
        if given(self, "initial_pool_ratio") is None:
            return core
        return replace(core, initial_pool_ratio=_to_pool_ratio(core, self.initial_pool_ratio))

    def _to_core_rebalance(self) -> RebalanceConfig:
        take_int(self, "rebalance_min_sampled_kv_caches", "rebalance_min_sampled_kv_caches", 0)
        take_float(self, "rebalance_cooldown_secs", "rebalance_cooldown_secs", 0, MAX_COOLDOWN_SECONDS)
        take_float(self, "rebalance_ratio_threshold", "rebalance_ratio_threshold", LEAST_THRESHOLD, MAX_THRESHOLD)
        take_float(self, "rebalance_moving_average_decay", "rebalance_moving_average_decay", 0, LARGEST_DECAY)
        return RebalanceConfig(
            threshold=min(1.0, self.rebalance_ratio_threshold - 1.0),
            cool_down_seconds=self.rebalance_cooldown_secs,
            min_samples=max(1, self.rebalance_min_sampled_kv_caches),
            smoothing=1.0 - self.rebalance_moving_average_decay,
        )


MAX_COOLDOWN_SECONDS: Final = 1e9
LEAST_THRESHOLD: Final = 1.0 + 1e-9
MAX_THRESHOLD: Final = 1e9
LARGEST_DECAY: Final = 1.0 - 1e-9


def _to_core_tiers(tiers: Sequence[object]) -> list[cache_tier_config.CacheTierConfig]:
    found: list[cache_tier_config.CacheTierConfig] = []
    for level, tier in enumerate(tiers):
        if not isinstance(tier, (GpuCacheTierConfig, HostCacheTierConfig, DiskCacheTierConfig)):
            found_kind = other_kind(tier, GpuCacheTierConfig, HostCacheTierConfig, DiskCacheTierConfig)
            raise TypeError(f"cache_tiers[{level}] must be a cache tier configuration, not {found_kind}")
        if tier.quota > 0 or level == 0:
            found.append(tier.to_core())
    return found


def _to_core_layers(layers: Sequence[object]) -> list[layer_config.LayerConfig]:
    found: list[layer_config.LayerConfig] = []
    for index, layer in enumerate(layers):
        if not isinstance(layer, (AttentionLayerConfig, SsmLayerConfig)):
            found_kind = other_kind(layer, AttentionLayerConfig, SsmLayerConfig)
            raise TypeError(f"layers[{index}] must be an AttentionLayerConfig or SsmLayerConfig, not {found_kind}")
        found.append(layer.to_core())
    return found


def _to_core_batches(batches: Sequence[object]) -> list[batch_desc.BatchDesc]:
    found: list[batch_desc.BatchDesc] = []
    for batch in batches:
        if not isinstance(batch, BatchDesc):
            raise TypeError(f"constraints must be BatchDesc objects, not {other_kind(batch, BatchDesc)}")
        found.append(batch.to_core())
    return found


def _to_pool_ratio(config: manager_config.KVCacheManagerConfig, ratio: object) -> list[float]:
    """From a share for each layer group to a share for each pool group."""
    shares = [to_number(share, f"initial_pool_ratio[{index}]") for index, share in enumerate(to_tuple(ratio, "initial_pool_ratio"))]
    for index, share in enumerate(shares):
        if not 0 < share < float("inf"):
            raise ValueError(f"initial_pool_ratio[{index}] is {share}; it must be positive and finite")
    life_cycles = LifeCycleRegistry(config)
    if len(shares) != len(life_cycles):
        raise ValueError(f"initial_pool_ratio has {len(shares)} entries for {len(life_cycles)} layer groups; give one for each")
    layout = compute_slot_layout(config, life_cycles)
    order: list[tuple[int, int, int]] = []
    for group, cycle in enumerate(life_cycles):
        window = cycle.window_size
        kind = 0 if not cycle.has_page_per_block else 1 if window is None else 2
        order.append((kind, 0 if window is None else to_int(window, "window"), group))
    by_pool_group = [0.0] * layout.num_pool_groups
    for share, place in zip(shares, sorted(order)):
        by_pool_group[layout.pool_group_indices[place[2]]] += share
    return by_pool_group
