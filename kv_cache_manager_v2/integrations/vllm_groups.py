"""vLLM's KV cache groups as layer groups of a `KVCacheManager` whose memory vLLM's workers own.

Block ids are slots: one pool group with as many as vLLM has blocks, slot 0 reserved as its null block. Each group of vLLM is a part of its
own, with one layer that stands for all that the group has. Recurrent layers are a window of two tokens: the state of the last one is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

# First: it says so when vLLM is missing, or of another version.
from .vllm_version import SUPPORTED

from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from ..base.ids import CacheTier, DataRole, LayerId
from ..config.cache_tier_config import ExternalCacheTierConfig
from ..config.eviction_policy import EvictionPolicy
from ..config.layer_config import AttentionLayerConfig, BufferConfig
from ..config.manager_config import KVCacheManagerConfig
from ..config.scratch_reuse_config import SwaScratchReuseConfig
from ..events.event_manager import KVCacheEventManager
from ..manager.kv_cache_manager import KVCacheManager

MAX_EVENTS: Final = 1 << 16
KINDS: Final = (FullAttentionSpec, MLAAttentionSpec, SlidingWindowSpec, SlidingWindowMLASpec, ChunkedLocalAttentionSpec, MambaSpec)
"""Specifications of layers that are supported, by their exact class: a subclass may ask for more."""


POOL: Final = "which asks vLLM's own block pool or coordinator"
POOL_USERS: Final = dict.fromkeys(("SimpleCPUOffloadConnector", "HiSparseConnector", "MooncakeStoreConnector", "OffloadingConnector"), POOL)
UNTRIED: Final = "whose transfers were never tried with it"
TRIED: Final = ("ExampleConnector", "NixlConnector")
TIERED: Final = "TieredConnector"


def require_supported(vllm_config: Any, kv_cache_config: KVCacheConfig) -> None:
    """`ValueError` that names the option or layer which is not supported, and what is."""
    model = vllm_config.model_config
    connectors = list_connectors(vllm_config.kv_transfer_config)
    has_tiers = connectors == [TIERED]
    others = [name for name in connectors if name not in (TIERED, *TRIED)]
    known = f"none, or {TIERED}, or {' or '.join(TRIED)}"
    for is_refused, found, supported in (
        (vllm_config.parallel_config.decode_context_parallel_size > 1, "decode context parallelism", "a decode_context_parallel_size of 1"),
        *((True, f"the KV connector {name}, {POOL_USERS.get(name, UNTRIED)}", known) for name in others),
        (has_tiers and not vllm_config.cache_config.enable_prefix_caching, f"{TIERED} without prefix caching", "enable_prefix_caching"),
        (model.is_encoder_decoder, f"the encoder-decoder model {model.model!r}", "decoders"),
        (model.is_diffusion, f"the diffusion model {model.model!r}", "models that generate token by token"),
    ):
        if is_refused:
            raise ValueError(f"ManagedScheduler of vllm {SUPPORTED} does not support {found}; supported: {supported}")
    block_sizes = set()
    layers = list_layers(kv_cache_config)
    for layer_name, spec in layers:
        if type(spec) not in KINDS or spec.prefix_replay_tokens > 0:
            kinds = ", ".join(kind.__name__ for kind in KINDS)
            raise ValueError(f"layer {layer_name!r} has a {type(spec).__name__}; ManagedScheduler supports {kinds}")
        block_sizes.add(spec.block_size)
    states = find_states(kv_cache_config).values()
    if has_tiers and vllm_config.use_v2_model_runner and (states or kv_cache_config.needs_kv_cache_zeroing):
        what = "recurrent layers, or blocks that are filled with zeros, in vLLM's second model runner, which writes before it copies"
        raise ValueError(f"{TIERED} of vllm {SUPPORTED} does not support {what}; supported: VLLM_USE_V2_MODEL_RUNNER=0")
    if connectors and not has_tiers and (states or kv_cache_config.needs_kv_cache_zeroing):
        what = f"recurrent layers, or blocks that are filled with zeros, beside the KV connector {connectors[0]}"
        raise ValueError(f"ManagedScheduler of vllm {SUPPORTED} does not support {what}; supported: none, or {TIERED}")
    windows = [name for name, spec in layers if not isinstance(spec, MambaSpec) and find_window(spec) is not None]
    unit = vllm_config.cache_config.prefix_match_unit
    for is_refused, found, supported in (
        (any(spec.mamba_cache_mode != "align" for spec in states), "without prefix caching", "enable_prefix_caching"),
        (vllm_config.speculative_config is not None, "with speculative decoding", "no speculative_config"),
        (len(windows) > 0, f"beside the window of {windows[:1]}", "recurrent layers beside full attention"),
        (unit is not None and {unit} != block_sizes, f"with a prefix_match_unit of {unit}", "none, or that of a block"),
    ):
        if states and is_refused:
            raise ValueError(f"ManagedScheduler of vllm {SUPPORTED} does not support recurrent layers {found}; supported: {supported}")
    if len(block_sizes) != 1:
        raise ValueError(f"layers have blocks of {sorted(block_sizes)} tokens; ManagedScheduler supports one block size for all layers")


def list_connectors(kv_transfer_config: Any) -> list[str]:
    """Names of the KV connectors that are asked for; those of a MultiConnector, too."""
    if kv_transfer_config is None:
        return []
    extra = kv_transfer_config.kv_connector_extra_config or {}
    return [one["kv_connector"] for one in extra.get("connectors", ())] + [kv_transfer_config.kv_connector]


def list_layers(kv_cache_config: KVCacheConfig) -> list[tuple[str, Any]]:
    """Names and specifications of all layers, group by group."""
    layers = []
    for group in kv_cache_config.kv_cache_groups:
        specs = getattr(group.kv_cache_spec, "kv_cache_specs", {})
        layers += [(name, specs.get(name, group.kv_cache_spec)) for name in group.layer_names]
    return layers


def find_window(spec: Any) -> int | None:
    """Tokens that the group's layers read, the computed one included; None for all. What a chunk reads is in a window of its length."""
    if isinstance(spec, UniformTypeKVCacheSpecs):
        windows = [find_window(one) for one in spec.kv_cache_specs.values()]
        return None if None in windows else max(window for window in windows if window is not None)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return int(spec.attention_chunk_size)
    if isinstance(spec, MambaSpec):
        return 2
    return int(spec.sliding_window + spec.extra_retained_tokens) if isinstance(spec, SlidingWindowSpec) else None


def find_states(kv_cache_config: KVCacheConfig) -> dict[int, MambaSpec]:
    """Specifications of recurrent layers, by the number of their group; all layers of a group are of one kind."""
    found = {}
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        spec = next(iter(getattr(group.kv_cache_spec, "kv_cache_specs", {"": group.kv_cache_spec}).values()))
        if isinstance(spec, MambaSpec):
            found[number] = spec
    return found


def make_manager(
    kv_cache_config: KVCacheConfig,
    has_events: bool,
    journal: str | None = None,
    policy: EvictionPolicy = EvictionPolicy.LEARNED,
    tiers: Sequence[int] = (),
    num_workers: int = 0,
) -> KVCacheManager:
    """``tiers``: how many blocks ``num_workers`` workers have in each tier below vLLM's."""
    layers = [
        AttentionLayerConfig(
            LayerId(number), [BufferConfig(DataRole("blocks"), 1)], sliding_window_size=find_window(group.kv_cache_spec), part=number
        )
        for number, group in enumerate(kv_cache_config.kv_cache_groups)
    ]
    tokens_per_block = kv_cache_config.kv_cache_groups[0].kv_cache_spec.block_size
    states = find_states(kv_cache_config).values()
    # A step leaves the state behind its last token. Some kernels also leave the one behind the block before, if it is the step's own.
    num_kept = 2 if all(spec.num_prefill_checkpoint_blocks > 0 for spec in states) else 1
    config = KVCacheManagerConfig(
        tokens_per_block=tokens_per_block,
        cache_tiers=[
            ExternalCacheTierConfig([kv_cache_config.num_blocks - 1], policy, num_workers),
            *[ExternalCacheTierConfig([num_blocks], policy, tier=CacheTier.HOST_MEM) for num_blocks in tiers],
        ],
        layers=layers,
        max_util_for_resume=1.0,
        reserve_null_slot=True,
        enable_partial_reuse=False,
        allow_seq_rebasing=False,
        swa_scratch_reuse=SwaScratchReuseConfig(num_kept * tokens_per_block - 1) if states else None,
    )
    return KVCacheManager(config, event_manager=KVCacheEventManager(MAX_EVENTS) if has_events else None, journal=journal)
