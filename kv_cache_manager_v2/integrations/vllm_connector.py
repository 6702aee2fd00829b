"""Host and disk tiers behind vLLM's own block manager: `TieredConnector`, a KV connector that vLLM loads by its name.

    KVTransferConfig(
        kv_connector="TieredConnector", kv_connector_module_path="kv_cache_manager_v2.integrations.vllm_connector",
        kv_role="kv_both", kv_connector_extra_config={"host_bytes": 8 << 30, "disk_bytes": 64 << 30, "disk_path": "/cache"},
    )

Each full block is copied to a `KVCacheManager` in host memory in the step that computes it, and from there it is evicted to disk. What
vLLM has dropped from its pool is copied back when a prompt begins with it. Scheduler and worker must be in one process.
"""

from __future__ import annotations

from typing import Any, Final

from ..base.ids import DataRole, LayerId
from ..config.cache_tier_config import CacheTierConfig, DiskCacheTierConfig, GpuCacheTierConfig
from ..config.layer_config import AttentionLayerConfig, BufferConfig
from ..config.manager_config import KVCacheManagerConfig
from ..device.host_device import HostDevice
from ..manager.kv_cache import KVCache
from ..manager.kv_cache_manager import KVCacheManager
# First of all, as it says which vLLM is needed.
from .vllm_groups import list_layers

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata, KVConnectorRole
from vllm.v1.kv_cache_interface import FullAttentionSpec

from .torch import layer_view
from .vllm_manager import scope_of

ROLE: Final = DataRole("key_value")
OPTION_NAMES: Final = ("host_bytes", "disk_bytes", "disk_path")


class TieredConnector(KVConnectorBase_V1):
    """Made by vLLM, once for the scheduler and once for the worker; both use one `TierStore`.

    `ValueError` for options and layers that are not supported: the message names them.
    """

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        options = dict(vllm_config.kv_transfer_config.kv_connector_extra_config)
        _validate(options, vllm_config, kv_cache_config)
        engine = str(vllm_config.kv_transfer_config.engine_id)
        store = _STORES.get(engine)
        if store is None:
            store = _STORES[engine] = TierStore(engine, options, kv_cache_config)
        if role == KVConnectorRole.SCHEDULER and not store.has_layers:
            store.close()
            raise ValueError(
                "TieredConnector supports a worker in the scheduler's process: set the environment variable "
                "VLLM_ENABLE_V1_MULTIPROCESSING=0"
            )
        self.store: Final = store
        self._requests: Final[dict[str, _Request]] = {}

    # -- for the scheduler ---------------------------------------------------------------------------------------------

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        """How many tokens behind those that vLLM has are in the tiers. They are held until the step that loads them."""
        found = self.store.hold(request, num_computed_tokens)
        return found - num_computed_tokens, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        ids = list(blocks.get_block_ids()[0])
        self._requests[request.request_id] = _Request(request, ids)
        self.store.place(request.request_id, ids, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        cached = scheduler_output.scheduled_cached_reqs
        for request_id, ids in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if ids is not None and request_id not in cached.resumed_req_ids:
                self._requests[request_id].block_ids.extend(ids[0])
        saves = []
        for request_id, num_tokens in scheduler_output.num_scheduled_tokens.items():
            saved = self._requests[request_id]
            # The scheduler counts a step's tokens as computed only after this call.
            save = saved.take_full_blocks(saved.request.num_computed_tokens + num_tokens, self.store.tokens_per_block)
            if save is not None:
                saves.append(save)
        return TierWork(self.store.take_loads(), saves)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self._requests.pop(request.request_id, None)
        self.store.let_go(request.request_id)
        return False, None

    def reset_cache(self) -> bool:
        return self.store.clear()

    # -- for the worker ------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self.store.bind(kv_caches)

    def start_load_kv(self, forward_context: Any, **_keywords: Any) -> None:
        for load in self._work().loads:
            self.store.load(load)

    def wait_for_save(self) -> None:
        for save in self._work().saves:
            self.store.save(save)

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: `start_load_kv` has copied all layers."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **_keywords: Any) -> None:
        """Nothing: `wait_for_save` copies all layers."""

    def _work(self) -> TierWork:
        work = self._get_connector_metadata()
        assert isinstance(work, TierWork)
        return work

    def shutdown(self) -> None:
        self.store.close()


class TierWork(KVConnectorMetadata):
    """What the worker copies in one step."""

    def __init__(self, loads: list[_Load], saves: list[_Save]) -> None:
        self.loads: Final = loads
        self.saves: Final = saves


class _Load:
    """Blocks from ``begin_block`` on go from a held sequence to vLLM's blocks."""

    __slots__ = ("kv_cache", "begin_block", "block_ids")

    def __init__(self, kv_cache: KVCache, begin_block: int) -> None:
        self.kv_cache: Final = kv_cache
        self.begin_block: Final = begin_block
        self.block_ids: list[int] = []


class _Save:
    """A prompt's full blocks, all of them, and where vLLM has them."""

    __slots__ = ("request", "num_blocks", "block_ids")

    def __init__(self, request: Any, num_blocks: int, block_ids: list[int]) -> None:
        self.request: Final = request
        self.num_blocks: Final = num_blocks
        self.block_ids: Final = block_ids


class _Request:
    """A request that vLLM runs: its blocks, and how many are saved."""

    __slots__ = ("request", "block_ids", "num_saved")

    def __init__(self, request: Any, block_ids: list[int]) -> None:
        self.request: Final = request
        self.block_ids: Final = block_ids
        self.num_saved = 0

    def take_full_blocks(self, num_tokens: int, tokens_per_block: int) -> _Save | None:
        num_blocks = min(num_tokens, self.request.num_tokens) // tokens_per_block
        if num_blocks <= self.num_saved:
            return None
        self.num_saved = num_blocks
        return _Save(self.request, num_blocks, self.block_ids)


class TierStore:
    """The manager of the tiers: level 0 is host memory, level 1 a disk. ``num_loaded_tokens`` counts what was copied back."""

    def __init__(self, engine: str, options: dict[str, Any], kv_cache_config: Any) -> None:
        self._engine: Final = engine
        named = list_layers(kv_cache_config)
        self._names: Final = [name for name, _ in named]
        layers = [
            AttentionLayerConfig(LayerId(number), [BufferConfig(ROLE, spec.page_size_bytes)]) for number, (_, spec) in enumerate(named)
        ]
        tiers: list[CacheTierConfig] = [GpuCacheTierConfig(options["host_bytes"])]
        if "disk_bytes" in options:
            tiers.append(DiskCacheTierConfig(options["disk_bytes"], options["disk_path"]))
        self.tokens_per_block: Final[int] = named[0][1].block_size
        config = KVCacheManagerConfig(
            tokens_per_block=self.tokens_per_block, cache_tiers=tiers, layers=layers, max_util_for_resume=1.0, enable_partial_reuse=False
        )
        self._device: Final = HostDevice()
        try:
            self._manager: Final = KVCacheManager(config, device=self._device)
        except BaseException:
            self._device.close()
            raise
        self._copies: list[tuple[Any, Any]] = []
        """Of each layer vLLM's tensor and ours, both by block."""
        self._held: Final[dict[str, _Load]] = {}
        self._placed: list[_Load] = []
        self.num_loaded_tokens = 0
        self.num_refused_saves = 0

    @property
    def has_layers(self) -> bool:
        return len(self._copies) > 0

    def bind(self, kv_caches: dict[str, Any]) -> None:
        """Of layers that share a tensor only the one that owns it is copied."""
        for number, name in enumerate(self._names):
            tensor = kv_caches[name]
            pages = layer_view(self._manager, LayerId(number), ROLE, tensor.dtype, tuple(tensor.shape[1:])).tensor
            converter = self._manager.get_page_index_converter(LayerId(number), ROLE)
            self._copies.append((tensor, pages[converter.layer_offset :: converter.scale]))

    def hold(self, request: Any, num_computed: int) -> int:
        """Up to where the prompt can begin with what vLLM and the tiers have, in whole blocks; at least ``num_computed``."""
        self.let_go(request.request_id)
        if request.prompt_embeds is not None or request.mm_features or num_computed % self.tokens_per_block != 0:
            return num_computed
        # The last token is always computed.
        tokens = request.all_token_ids[: request.num_tokens - 1]
        scope = scope_of(request)
        if self._manager.probe_reuse(scope, tokens) <= num_computed:
            return num_computed
        kv_cache = self._manager.create_kv_cache(scope, tokens)
        num_tokens = kv_cache.num_committed_tokens
        if num_tokens <= num_computed or not kv_cache.resume():
            kv_cache.close()
            return num_computed
        self._held[request.request_id] = _Load(kv_cache, num_computed // self.tokens_per_block)
        return num_tokens

    def place(self, request_id: str, block_ids: list[int], num_external_tokens: int) -> None:
        """vLLM has blocks for the request: load what is held into them, or release it."""
        load = self._held.pop(request_id, None)
        if load is None:
            return
        if num_external_tokens == 0:
            load.kv_cache.close()
            return
        num_blocks = num_external_tokens // self.tokens_per_block
        load.block_ids = block_ids[load.begin_block : load.begin_block + num_blocks]
        self._placed.append(load)

    def let_go(self, request_id: str) -> None:
        load = self._held.pop(request_id, None)
        if load is not None:
            load.kv_cache.close()

    def take_loads(self) -> list[_Load]:
        # What is held of requests that found no room is found again when vLLM asks again.
        for request_id in list(self._held):
            self.let_go(request_id)
        loads, self._placed = self._placed, []
        return loads

    def load(self, load: _Load) -> None:
        kv_cache = load.kv_cache
        # torch works on the host's memory at once, not in the order of a stream: what the disk still reads comes first.
        self._device.synchronize_stream(kv_cache.cuda_stream)
        end = load.begin_block + len(load.block_ids)
        slots = torch.tensor(kv_cache.get_base_page_indices(0)[load.begin_block : end].tolist())
        blocks = torch.tensor(load.block_ids)
        for tensor, pages in self._copies:
            tensor[blocks] = pages[slots]
        self.num_loaded_tokens += len(load.block_ids) * self.tokens_per_block
        kv_cache.close()

    def save(self, save: _Save) -> None:
        """Copy the blocks that the tiers lack, and publish them. Without room nothing is saved."""
        num_tokens = save.num_blocks * self.tokens_per_block
        tokens = save.request.all_token_ids[:num_tokens]
        if save.request.prompt_embeds is not None or save.request.mm_features:
            return
        scope = scope_of(save.request)
        if self._manager.probe_reuse(scope, tokens) == num_tokens:
            return
        with self._manager.create_kv_cache(scope, tokens) as kv_cache:
            begin = kv_cache.num_committed_tokens
            if not kv_cache.resume() or not kv_cache.resize(num_tokens):
                self.num_refused_saves += 1
                return
            # What the disk still writes from these slots comes first.
            self._device.synchronize_stream(kv_cache.cuda_stream)
            first = begin // self.tokens_per_block
            slots = torch.tensor(kv_cache.get_base_page_indices(0)[first : save.num_blocks].tolist())
            blocks = torch.tensor(save.block_ids[first : save.num_blocks])
            for tensor, pages in self._copies:
                pages[slots] = tensor[blocks]
            kv_cache.commit(tokens[begin:])

    def clear(self) -> bool:
        for request_id in list(self._held):
            self.let_go(request_id)
        if self._placed:
            return False
        self._manager.clear_reusable_blocks()
        return True

    def close(self) -> None:
        """Free the memory. Twice is fine."""
        if _STORES.pop(self._engine, None) is None:
            return
        self.clear()
        for load in self._placed:
            load.kv_cache.close()
        self._copies.clear()
        self._manager.shutdown()
        self._device.close()


_STORES: Final[dict[str, TierStore]] = {}
"""By vLLM's engine id: what the scheduler's and the worker's connector of one engine share."""


def _validate(options: dict[str, Any], vllm_config: Any, kv_cache_config: Any) -> None:
    unknown = sorted(set(options) - set(OPTION_NAMES))
    if unknown or "host_bytes" not in options or ("disk_bytes" in options) != ("disk_path" in options):
        raise ValueError(
            f"kv_connector_extra_config has {sorted(options)}; TieredConnector needs host_bytes, and takes disk_bytes with disk_path"
        )
    world_size = vllm_config.parallel_config.world_size
    if world_size > 1:
        raise ValueError(f"there are {world_size} workers; TieredConnector supports one: no tensor or pipeline parallelism")
    if len(kv_cache_config.kv_cache_groups) != 1:
        raise ValueError(
            f"there are {len(kv_cache_config.kv_cache_groups)} KV cache groups; TieredConnector supports one: "
            f"set disable_hybrid_kv_cache_manager"
        )
    for name, spec in list_layers(kv_cache_config):
        if type(spec) is not FullAttentionSpec:
            raise ValueError(f"layer {name!r} has a {type(spec).__name__}; TieredConnector supports FullAttentionSpec")
