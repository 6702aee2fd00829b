"""vLLM's real schedulers, made without a GPU, without a model and without workers: `make_scheduler`.

Everything is vLLM's own but the layers, which a `Shape` names: the groups are the ones that vLLM makes of such layers.
"""

import json
import logging
import os
import tempfile
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ.update(HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from vllm.config import CacheConfig, DeviceConfig, KVTransferConfig, ModelConfig, SchedulerConfig, SpeculativeConfig, VllmConfig
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, MambaSpec, SlidingWindowSpec

try:
    from vllm.v1.core.kv_cache_planning import get_kv_cache_config_from_groups, get_kv_cache_groups
except ImportError:
    # Up to vLLM 0.32.
    from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups, get_kv_cache_groups

# Its warnings about running on a CPU do not apply to these tests.
logging.getLogger("vllm").setLevel(logging.ERROR)
MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 1024, "max_position_embeddings": 1 << 20, "torch_dtype": "bfloat16",
}  # fmt: skip
"""What vLLM is told that it serves. Schedulers look at none of it."""
CALL_TOKEN = 5000
"""Of the tokenizer: what an answer has that calls a tool."""


@dataclass(frozen=True)
class Shape:
    """A model's layers and the settings of its scheduler."""

    layers: tuple[str, ...] = ("full",) * 2
    """Of each layer "full", "window" or "state"."""
    window: int = 64
    block_size: int = 16
    num_blocks: int = 200
    max_model_len: int = 1024
    max_step_tokens: int = 256
    max_num_seqs: int = 16
    threshold: int = 0
    """``long_prefill_token_threshold``: the longest chunk of a prefill."""
    exports_states: bool = False
    """Whether kernels leave the state at a chunk's last block boundary too."""
    num_drafts: int = 0
    policy: str = "fcfs"
    is_async: bool = False
    num_stages: int = 1
    """Pipeline stages; batches in flight, unless the scheduler is asynchronous."""
    runner: int = 1
    """The model runner whose form of output the scheduler writes: vLLM has two."""
    watermark: float = 0.0
    element_bytes: int = 4
    """Of a token in a layer the key's, and as many the value's."""
    additional: dict[str, Any] = field(default_factory=dict)
    """What ``--additional-config`` asks for."""
    tiers: dict[str, Any] = field(default_factory=dict)
    """What `TieredConnector` is told; empty for none."""
    num_workers: int = 1
    has_peer: bool = False
    """Whether another engine has computed some of the prompts."""


GEMMA = ("window",) * 5 + ("full",)
HYBRID = ("state",) * 3 + ("full",)


@cache
def model_config(max_model_len: int) -> ModelConfig:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(MODEL))
        return ModelConfig(model=folder, skip_tokenizer_init=True, max_model_len=max_model_len, dtype="bfloat16", enforce_eager=True)


def make_config(shape: Shape) -> VllmConfig:
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
    scheduler = SchedulerConfig(
        max_num_seqs=shape.max_num_seqs, max_num_batched_tokens=shape.max_step_tokens, max_model_len=shape.max_model_len,
        is_encoder_decoder=False, enable_chunked_prefill=True, long_prefill_token_threshold=shape.threshold, policy=shape.policy,
        watermark=shape.watermark,
    )  # fmt: skip
    cache_config = CacheConfig(block_size=shape.block_size, enable_prefix_caching=True)
    config = VllmConfig(
        model_config=model_config(shape.max_model_len), scheduler_config=scheduler, cache_config=cache_config,
        device_config=DeviceConfig("cpu"),
    )  # fmt: skip
    # The platform is the CPU, or none, which turns these off; the scheduler itself needs no platform.
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    config.scheduler_config.async_scheduling = shape.is_async
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(shape.runner - 1)
    config.parallel_config.pipeline_parallel_size = shape.num_stages
    if shape.num_drafts:
        config.speculative_config = SpeculativeConfig(
            method="ngram", num_speculative_tokens=shape.num_drafts, prompt_lookup_max=4, prompt_lookup_min=2,
            target_model_config=config.model_config, target_parallel_config=config.parallel_config,
        )  # fmt: skip
    config.additional_config = shape.additional
    config.parallel_config.world_size = shape.num_workers
    if shape.tiers:
        config.kv_transfer_config = KVTransferConfig(
            kv_connector="TieredConnector", kv_connector_module_path="kv_cache_manager_v2.integrations.vllm_connector",
            kv_role="kv_both", kv_connector_extra_config=shape.tiers,
        )  # fmt: skip
    if shape.has_peer:
        config.kv_transfer_config = KVTransferConfig(
            kv_connector="NixlConnector", kv_connector_module_path="integrations.vllm_peer_connector", kv_role="kv_both",
            kv_load_failure_policy="recompute",
        )  # fmt: skip
    config.cache_config.kv_cache_layout = "LBNHC"
    config.cache_config.num_gpu_blocks = shape.num_blocks
    if "state" in shape.layers:
        config.cache_config.mamba_cache_mode = "align"
    return config


def make_spec(kind: str, shape: Shape) -> Any:
    if kind == "state":
        # As large as a block of attention: vLLM sees to that.
        size = 2 * shape.block_size * shape.element_bytes
        exports = {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 1} if shape.exports_states else {}
        return MambaSpec(block_size=shape.block_size, shapes=((size,),), dtypes=(torch.int8,), mamba_cache_mode="align", **exports)
    sizes: dict[str, Any] = {"block_size": shape.block_size, "num_kv_heads": 1, "head_size": shape.element_bytes, "dtype": torch.int8}
    return FullAttentionSpec(**sizes) if kind == "full" else SlidingWindowSpec(**sizes, sliding_window=shape.window)


def make_cache_config(config: VllmConfig, shape: Shape) -> KVCacheConfig:
    specs = {f"layer.{number}": make_spec(kind, shape) for number, kind in enumerate(shape.layers)}
    groups = get_kv_cache_groups(config, specs)
    config.cache_config.num_gpu_blocks_override = shape.num_blocks
    return get_kv_cache_config_from_groups(config, groups, available_memory=1)


@dataclass
class Engine:
    """A scheduler, and what the engine core has beside it."""

    scheduler: Any
    config: VllmConfig
    cache_config: KVCacheConfig
    block_hasher: Any
    shape: Shape

    def close(self) -> None:
        self.scheduler.shutdown()


def make_scheduler(shape: Shape, name: str) -> Engine:
    """``name``: "stock" or "ours"."""
    config = make_config(shape)
    cache_config = make_cache_config(config, shape)
    function = get_hash_fn_by_name("sha256")
    init_none_hash(function)
    hasher = get_request_block_hasher(shape.block_size, function)
    kind: Any = AsyncScheduler if shape.is_async else Scheduler
    if name == "ours":
        from kv_cache_manager_v2.integrations.vllm import ManagedScheduler as kind

        config.scheduler_config.scheduler_cls = kind
    structured = SimpleNamespace(
        accept_tokens=lambda request, tokens: True, validate_tokens=lambda request, tokens: tokens,
        tokenizer=SimpleNamespace(get_added_vocab=lambda: {"<tool_call>": CALL_TOKEN, "<|im_end|>": CALL_TOKEN + 1}),
    )  # fmt: skip
    scheduler = kind(config, cache_config, structured, shape.block_size, log_stats=True)
    # The model takes no images, but requests may have some.
    scheduler.max_num_encoder_input_tokens = shape.max_step_tokens
    scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=shape.max_step_tokens)
    return Engine(scheduler, config, cache_config, hasher, shape)


__all__ = ["CALL_TOKEN", "GEMMA", "HYBRID", "Engine", "Shape", "make_scheduler"]
