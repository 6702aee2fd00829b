"""A manager's configuration, validated as far as possible without the machine.

Not checked here: whether quotas suffice and whether there is one initial ratio per pool group. That takes the slot
layout, which is computed from this configuration.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from mypy_extensions import mypyc_attr

from ..base.checks import to_number
from ..base.ids import CacheTier
from .batch_desc import BatchDesc
from .cache_tier_config import CacheTierConfig, DiskCacheTierConfig, ExternalCacheTierConfig, GpuCacheTierConfig, HostCacheTierConfig
from .config_value import (
    ConfigValue,
    given,
    take_float,
    take_int,
    take_optional_float,
    take_optional_int,
    take_share,
    to_objects,
    to_tuple,
    validate_bool,
    validate_instance,
    validate_optional_instance,
)
from .equal_slots import EqualSlots, divide_layers
from .eviction_policy import EvictionPolicy
from .layer_config import AttentionLayerConfig, LayerConfig, SsmLayerConfig
from .learned_prior import decode_prior
from .rebalance_config import RebalanceConfig
from .scratch_reuse_config import SwaScratchReuseConfig
from .snapshot_policy import SnapshotPolicy

from ..base.checks import to_text


WRITE_POLICIES: Final = ("back", "through")


def to_write_policy(value: object) -> str:
    policy = to_text(value, "write_policy")
    if policy not in WRITE_POLICIES:
        raise ValueError(f"write_policy is {policy!r}; it is 'back' (pages are written when they are evicted) or 'through' (early)")
    return policy


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class KVCacheManagerConfig(ConfigValue):
    """The model's layers, the memory for them, and how to share it out.

    - ``cache_tiers``: level 0 (the GPU) first, then never a warmer kind after a colder one.
    - ``max_util_for_resume``: `resume` is refused while the other sequences use more than this share of a pool group's slots, and
      more than the largest of ``constraints`` does, so that running sequences can grow.
    - ``constraints``: batches that must always fit, and run together whatever `max_util_for_resume` is. ``typical_step`` divides the
      quota between the pool groups, each of which gets at least what the constraints demand; ``initial_pool_ratio``, one share of
      the bytes per pool group, replaces it.
    - ``enable_partial_reuse``: a match may end inside a block. Without it, only where the prompt and a published partial
      block end together.
    - ``reuse_match_backoff``: a match is at most that many tokens shorter than the tokens' longest path in the tree.
    - ``snapshot_policy``: when the state of recurrent layers is kept for reuse.
    - ``max_state_replay_tokens``: a match may begin with a recurrent state that many tokens behind its attention; the engine
      runs those tokens again before anything else (`KVCache.match_info`). Of no effect without attention layers.
    - ``state_checkpoints``: slots of recurrent state, beside the live one, per sequence: its last that many tokens can be taken back.
    - ``max_pinned_share``: the largest share of all slots that `KVCacheManager.retain` may keep. ``min_offload_priority``: droppable
      pages of a lower priority are dropped rather than offloaded.
    - ``write_policy``: "back": pages are copied to level 1 when they are evicted from level 0. "through": published pages are copied
      early, at the commit that publishes them and at their sequence's end, so that evicting them needs no copy.
    - ``max_sequence_length``: the longest sequence in tokens, if known. It decides how pool groups share the quota where there is no
      typical step and no ratio; longer sequences are served as well.
    - ``allow_seq_rebasing``: a commit of a block that is published already takes that block's pages over, which changes base page indices,
      and `stop_committing` publishes the partial last block, which the next `resize` copies. False: indices of an ACTIVE sequence stay in
      `commit`, `stop_committing` and `resize` (docs/edges.md). It keeps its own pages as long as another active sequence uses the
      published ones; partial last blocks are published by `close`.
    - ``max_slot_padding``: divide attention layers into groups of equal slots, which share one pool group, so that pages take whatever slot
      is free; at most this share of the bytes is unused. None: layers that read the same blocks are one group, and groups with
      slots of other bytes have pool groups of their own.
    - ``learned_prior``: what LEARNED knows at first, the text of a file that `kvcm learn` has made of logs. What a durable tier has kept of
      the process before goes first. None: nothing.
    - ``rebalance``: when `KVCacheManager.need_adjustment` is true.
    - ``reserve_null_slot``: keep one slot of each pool group unused, outside the quota, for kernels that read a page even where
      there is none.
    - ``enable_stats``: count events, and remember why blocks were dropped. ``block_times_sampling``: the share of
      blocks whose times `KVCacheManager.record_block_times` measures.
    """

    tokens_per_block: int
    cache_tiers: Sequence[CacheTierConfig]
    layers: Sequence[LayerConfig]
    max_util_for_resume: float = 0.97
    enable_partial_reuse: bool = True
    constraints: Sequence[BatchDesc] = ()
    typical_step: BatchDesc | None = None
    initial_pool_ratio: Sequence[float] | None = None
    swa_scratch_reuse: SwaScratchReuseConfig | None = None
    reuse_match_backoff: int = 0
    reserve_null_slot: bool = False
    enable_stats: bool = True
    block_times_sampling: float = 0.01
    snapshot_policy: SnapshotPolicy = SnapshotPolicy()
    max_state_replay_tokens: int = 0
    state_checkpoints: int = 0
    rebalance: RebalanceConfig = RebalanceConfig()
    max_pinned_share: float = 0.5
    min_offload_priority: int = 0
    write_policy: str = "back"
    max_sequence_length: int | None = None
    allow_seq_rebasing: bool = True
    max_slot_padding: float | None = None
    learned_prior: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        take_int(self, "tokens_per_block", "tokens_per_block", 1, MAX_TOKENS_PER_BLOCK)
        object.__setattr__(self, "cache_tiers", _to_cache_tiers(self.cache_tiers))
        object.__setattr__(self, "layers", _to_layers(self.layers, self.tokens_per_block))
        object.__setattr__(self, "constraints", to_objects(self.constraints, BatchDesc, "constraints"))
        if self.initial_pool_ratio is not None:
            object.__setattr__(self, "initial_pool_ratio", _to_ratios(self.initial_pool_ratio))
        take_share(self, "max_util_for_resume", "max_util_for_resume")
        validate_optional_instance(self, "typical_step", BatchDesc)
        validate_optional_instance(self, "swa_scratch_reuse", SwaScratchReuseConfig)
        take_int(self, "reuse_match_backoff", "reuse_match_backoff", 0)
        validate_instance(self, "snapshot_policy", SnapshotPolicy)
        take_int(self, "max_state_replay_tokens", "max_state_replay_tokens", 0)
        take_int(self, "state_checkpoints", "state_checkpoints", 0, MAX_STATE_CHECKPOINTS)
        validate_instance(self, "rebalance", RebalanceConfig)
        take_share(self, "max_pinned_share", "max_pinned_share")
        take_int(self, "min_offload_priority", "min_offload_priority", 0, 100)
        take_optional_int(self, "max_sequence_length", "max_sequence_length", 1)
        object.__setattr__(self, "write_policy", to_write_policy(given(self, "write_policy")))
        self._validate_durable_tier()
        for name in ("enable_partial_reuse", "reserve_null_slot", "enable_stats", "allow_seq_rebasing"):
            validate_bool(self, name, name)
        take_float(self, "block_times_sampling", "block_times_sampling", 0, 1)
        take_optional_float(self, "max_slot_padding", "max_slot_padding", 0, 0.5)
        self._validate_learned_prior()
        self.divide_into_equal_slots()
        if self.is_external:
            self._validate_external()

    def _validate_durable_tier(self) -> None:
        last = len(self.cache_tiers) - 1
        for level, tier in enumerate(self.cache_tiers):
            if isinstance(tier, DiskCacheTierConfig) and tier.durable:
                if level < last:
                    raise ValueError(
                        f"cache_tiers[{level}] is durable, and cache_tiers[{last}] is below it; only the last tier can be durable"
                    )
                if self.write_policy == "through" and level > 1:
                    raise ValueError(
                        f"write_policy is 'through', which copies published pages to level 1, and they are copied to level {level}, which "
                        "is durable; use write_policy='back'"
                    )

    def _validate_learned_prior(self) -> None:
        if given(self, "learned_prior") is None:
            return
        object.__setattr__(self, "learned_prior", to_text(given(self, "learned_prior"), "learned_prior"))
        decode_prior(self.learned_prior, "learned_prior")
        if all([tier.eviction_policy is not EvictionPolicy.LEARNED for tier in self.cache_tiers]):
            raise ValueError("learned_prior is given, and no tier has EvictionPolicy.LEARNED; give it to one, or leave learned_prior out")

    def _validate_external(self) -> None:
        for level, tier in enumerate(self.cache_tiers[1:], 1):
            if isinstance(tier, ExternalCacheTierConfig) and tier.copy_workers > 0:
                raise ValueError(f"cache_tiers[{level}].copy_workers is {tier.copy_workers}; give it to cache_tiers[0] alone")
        num_own = sum([not isinstance(tier, ExternalCacheTierConfig) for tier in self.cache_tiers])
        none = self.takes_no_copies
        has_state = any([isinstance(layer, SsmLayerConfig) for layer in self.layers])
        for is_refused, found, way_out in (
            (
                len(self.cache_tiers) > 1 and (none or num_own > 0),
                f"cache_tiers has {len(self.cache_tiers)} tiers, {num_own} of other memory",
                "give no tier below it, or with copy_workers ExternalCacheTierConfigs",
            ),
            (none and self.write_policy != "back", f"write_policy is {self.write_policy!r}", "use 'back'"),
            (has_state, "an SsmLayerConfig has snapshots, which are copies", "give an AttentionLayerConfig with sliding_window_size=2"),
            (none and self.enable_partial_reuse, "enable_partial_reuse is True, and a part of a block is reused as a copy", "give False"),
            (none and self.allow_seq_rebasing, "allow_seq_rebasing is True, and the engine is told an index once", "give False"),
            (self.typical_step is not None, "typical_step divides bytes between pool groups", "leave it out"),
            (self.initial_pool_ratio is not None, "initial_pool_ratio divides bytes between pool groups", "leave it out"),
        ):
            if is_refused:
                raise ValueError(f"cache_tiers[0] is an ExternalCacheTierConfig, and {found}; {way_out}")

    def divide_into_equal_slots(self) -> EqualSlots | None:
        """The parts of the attention layers, as `max_slot_padding` has them; None without it."""
        return None if self.max_slot_padding is None else divide_layers(self.layers, self.tokens_per_block, self.max_slot_padding)

    @property
    def is_external(self) -> bool:
        """Whether level 0 is an `ExternalCacheTierConfig`: calls that need an address, or move parts of slots, are refused: several beams,
        `commit_tree`, leases, `resize` of a level."""
        return isinstance(self.cache_tiers[0], ExternalCacheTierConfig)

    @property
    def copy_workers(self) -> int:
        """Processes that execute the lists of `KVCacheManager.take_copies`; 0 where the manager copies itself, or nothing is copied."""
        tier = self.cache_tiers[0]
        return tier.copy_workers if isinstance(tier, ExternalCacheTierConfig) else 0

    @property
    def takes_no_copies(self) -> bool:
        """Whether it `is_external` without workers that copy: whole blocks alone are published and reused, base page indices stay, and
        `fork` is refused too."""
        return self.is_external and self.copy_workers == 0

    @property
    def enable_swa_scratch_reuse(self) -> bool:
        """Whether sequences may use scratch slots: `swa_scratch_reuse` is set."""
        return self.swa_scratch_reuse is not None


MAX_TOKENS_PER_BLOCK: Final = 2**20
MAX_STATE_CHECKPOINTS: Final = 2**10
MAX_CACHE_TIERS: Final = 32


def _to_cache_tiers(cache_tiers: Sequence[CacheTierConfig]) -> tuple[CacheTierConfig, ...]:
    tiers: list[CacheTierConfig] = []
    for level, item in enumerate(to_tuple(cache_tiers, "cache_tiers")):
        if not isinstance(item, (GpuCacheTierConfig, ExternalCacheTierConfig, HostCacheTierConfig, DiskCacheTierConfig)):
            raise TypeError(f"cache_tiers[{level}] must be a cache tier configuration, not {type(item).__name__}")
        if level > 0 and isinstance(item, ExternalCacheTierConfig) and not isinstance(tiers[0], ExternalCacheTierConfig):
            raise ValueError(f"cache_tiers[{level}] is an ExternalCacheTierConfig, and cache_tiers[0] is not; make both so, or neither")
        if (item.tier == CacheTier.GPU_MEM) != (level == 0):
            raise ValueError(
                f"cache_tiers[{level}] is {item.tier.name}; the first tier, and no other, must be a GpuCacheTierConfig or "
                "ExternalCacheTierConfig"
            )
        if level > 0 and item.tier < tiers[-1].tier:
            raise ValueError(f"cache_tiers[{level}] is {item.tier.name} behind {tiers[-1].tier.name}; order tiers from warm to cold")
        if not isinstance(item, (GpuCacheTierConfig, ExternalCacheTierConfig)) and item.min_reuse_probability > 0.0:
            policy = tiers[-1].eviction_policy
            if policy is not EvictionPolicy.LEARNED:
                raise ValueError(
                    f"cache_tiers[{level}].min_reuse_probability is {item.min_reuse_probability:g}, and cache_tiers[{level - 1}] has "
                    f"EvictionPolicy.{policy.name}, which knows no probability; give that tier EvictionPolicy.LEARNED, or use 0"
                )
        tiers.append(item)
    if len(tiers) > MAX_CACHE_TIERS:
        raise ValueError(f"cache_tiers has {len(tiers)} tiers; there can be {MAX_CACHE_TIERS}, so put several of one kind into one")
    if not tiers:
        raise ValueError("cache_tiers is empty; it must begin with a GpuCacheTierConfig")
    return tuple(tiers)


def _to_layers(layers: Sequence[LayerConfig], tokens_per_block: int) -> tuple[LayerConfig, ...]:
    items: list[LayerConfig] = []
    attention_ids: set[int] = set()
    state_ids: set[int] = set()
    roles: set[tuple[int, str]] = set()
    for index, item in enumerate(to_tuple(layers, "layers")):
        if isinstance(item, AttentionLayerConfig):
            same_kind, kind = attention_ids, "AttentionLayerConfig"
        elif isinstance(item, SsmLayerConfig):
            same_kind, kind = state_ids, "SsmLayerConfig"
        else:
            raise TypeError(f"layers[{index}] must be an AttentionLayerConfig or SsmLayerConfig, not {type(item).__name__}")
        if item.layer_id in same_kind:
            raise ValueError(f"layers[{index}] is the second {kind} with layer_id {item.layer_id}")
        same_kind.add(item.layer_id)
        for buffer in item.buffers:
            if (item.layer_id, buffer.role) in roles:
                raise ValueError(
                    f"layer {item.layer_id} has the role {buffer.role!r} both for attention and for its state;"
                    f" a role names one buffer of a layer"
                )
            roles.add((item.layer_id, buffer.role))
            override = buffer.tokens_per_block_override
            if override is not None and tokens_per_block % override != 0:
                raise ValueError(
                    f"tokens_per_block_override {override} of buffer {buffer.role!r} of layer {item.layer_id} does not"
                    f" divide tokens_per_block {tokens_per_block}"
                )
        items.append(item)
    if not items:
        raise ValueError("layers is empty; a model has at least one layer")
    return tuple(items)


def _to_ratios(ratios: Sequence[float]) -> tuple[float, ...]:
    items: list[float] = []
    for index, item in enumerate(to_tuple(ratios, "initial_pool_ratio")):
        ratio = to_number(item, f"initial_pool_ratio[{index}]")
        if not math.isfinite(ratio) or ratio <= 0:
            raise ValueError(f"initial_pool_ratio[{index}] is {item}; it must be positive and finite")
        items.append(ratio)
    if not items:
        raise ValueError("initial_pool_ratio is empty; give one positive number per pool group, or None")
    return tuple(items)
