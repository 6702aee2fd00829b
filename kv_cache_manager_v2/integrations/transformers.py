"""transformers on this library: `describe` a model, and `PagedCachePool`, whose caches `model.generate` takes as they are.

    pool = PagedCachePool(model, memory_bytes=1 << 30)
    with pool.open(input_ids) as cache:
        output = model.generate(input_ids, cache=cache, max_new_tokens=64)  # past_key_values=cache in transformers 5.23

Requests of one pool share prefixes; while room is short some are suspended, and their pages lie on the tiers below. Two hooks on the
model tell a `PagedCache` that a forward pass begins and ends, and which token ids it is over; other caches pass by.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..base.checks import to_count
from ..base.errors import LogicError, OutOfPagesError
from ..base.ids import DataRole
from ..base.missing_package import missing_package
from ..config.batch_desc import BatchDesc, KVCacheDesc
from ..config.cache_tier_config import CacheTierConfig, GpuCacheTierConfig
from ..config.snapshot_policy import SnapshotPolicy
from ..device.cold_page_codec import ColdPageCodec
from ..device.cuda_device import CudaDevice
from ..device.host_device import HostDevice
from ..device.port import Device
from ..manager.kv_cache import KVCache
from ..manager.kv_cache_manager import KVCacheManager
from ..reuse.reuse_scope import ReuseScope
from ..storage.page_fill import DebugFill

try:
    import torch

    from .torch import LayerView, layer_view
    from .transformers_batching import Batching
    from .transformers_cache import PagedCache, Row
    from .transformers_keys import KeyWatch, require_ids_alone, require_mask, require_positions
    from .transformers_model import ForwardArguments, LayerDescription, describe, describe_layers, make_config, require_release, unwrap
except ImportError as error:
    raise missing_package("kv_cache_manager_v2.integrations.transformers", "'transformers>=5.23,<5.25' torch", error) from error

__all__ = ["PagedCache", "PagedCachePool", "describe"]


class PagedCachePool:
    """A manager and its device for one model; a context manager, and leaving it frees all memory.

    ``model``: a transformers decoder on one device, the CPU or a GPU; the pool is there too. ``memory_bytes``: of the pool.
    ``lower_tiers``: host memory and disks below it, for what is evicted. ``tokens_per_block`` and ``options`` are those of
    `KVCacheManagerConfig`. ``typical_rows`` sequences of ``typical_length`` tokens are what the memory is split for between layers of
    full attention, windows and recurrent state, one of them in a prefill of one pass, unless ``options`` say so (``typical_step``,
    ``initial_pool_ratio``).
    ``max_mirror_bytes``: beside ``memory_bytes``, for copies from which caches that decode read their keys in one piece; a quarter of
    ``memory_bytes`` unless it is given, and 0 for none: then every step gathers the pages.
    ``debug_fill``: what is written into freed pages, ``cold_page_codec``: how pages below level 0 are packed, as for `KVCacheManager`.
    One thread at a time.

    `ValueError` for a model or a release of transformers that is not supported: the message names the layer, or the release. One that is
    newer than those tested is tried with one token, and then warned of.
    """

    __slots__ = (
        "manager", "layers", "tokens_per_block", "_model", "_forward", "_watch", "_device", "_views", "_caches", "_hooks", "_is_open",
        "_max_mirror_bytes",
    )  # fmt: skip

    def __init__(
        self,
        model: Any,
        memory_bytes: int,
        *,
        lower_tiers: Sequence[CacheTierConfig] = (),
        tokens_per_block: int = 32,
        typical_rows: int = 8,
        typical_length: int = 1024,
        max_mirror_bytes: int | None = None,
        debug_fill: DebugFill | None = None,
        cold_page_codec: ColdPageCodec | None = None,
        **options: Any,
    ) -> None:
        self._is_open = False
        self._max_mirror_bytes: Final = memory_bytes // 4 if max_mirror_bytes is None else to_count(max_mirror_bytes, "max_mirror_bytes")
        # PEFT's wrapper calls the model past its hooks, except to generate.
        wrapper, model = model, unwrap(model)
        self._forward: Final = ForwardArguments(model)
        require_release(model)
        self.layers: Final[list[LayerDescription]] = describe_layers(model)
        if all(layer.key_shape is None for layer in self.layers):
            raise ValueError(f"{type(model).__name__} has recurrent state alone, and its `generate` goes on with no cache that has tokens")
        devices = {parameter.device for parameter in model.parameters()}
        if len(devices) != 1:
            raise ValueError(f"the model is on {len(devices)} devices ({', '.join(sorted(map(str, devices)))}); it must be on one")
        if options.get("typical_step") is None and options.get("initial_pool_ratio") is None:
            # One row whose prompt is computed in one pass, as `generate` does, beside others that decode.
            num_others = max(1, to_count(typical_rows, "typical_rows")) - 1
            others = [KVCacheDesc(typical_length, typical_length - 1)] * num_others
            options["typical_step"] = BatchDesc([KVCacheDesc(typical_length, 0), *others])
        # Room is made by suspending caches that are not in a pass, so none has to be kept for those that run.
        options.setdefault("max_util_for_resume", 1.0)
        # The next turn of a chat begins where this one ends.
        options.setdefault("snapshot_policy", SnapshotPolicy(at_close=True))
        self._watch: Final = KeyWatch(model)
        config = make_config(self.layers, [GpuCacheTierConfig(memory_bytes), *lower_tiers], tokens_per_block, options)
        self._device: Final = _make_device(devices.pop())
        try:
            self.manager: Final = KVCacheManager(
                config, device=self._device, debug_fill=debug_fill, cold_page_codec=cold_page_codec
            )
        except BaseException:
            self._device.close()
            raise
        self.tokens_per_block: Final = config.tokens_per_block
        self._model: Final = model
        self._caches: list[PagedCache] = []
        """Open ones; those whose step was latest come last."""
        self._views: Final[dict[tuple[int, str], _Pages]] = {}
        for layer in self.layers:
            for role, dtype, shape in _list_buffers(layer, self.tokens_per_block):
                view = layer_view(self.manager, layer.layer_id, DataRole(role), dtype, shape)
                self._views[int(layer.layer_id), role] = _Pages(self.manager, view)
        self._hooks: Final[list[Any]] = []
        for module in {id(module): module for module in (model, wrapper)}.values():
            forward = ForwardArguments(module, self._forward.cache_name)
            self._hooks.append(module.register_forward_pre_hook(partial(self._before_pass, forward), with_kwargs=True))
            self._hooks.append(module.register_forward_hook(partial(self._after_pass, forward), with_kwargs=True, always_call=True))
        self._is_open = True

    def __enter__(self) -> PagedCachePool:
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close all caches, take the hooks off the model, and free the memory. Twice is fine."""
        if not self._is_open:
            return
        self._is_open = False
        for hook in self._hooks:
            hook.remove()
        for cache in list(self._caches):
            cache.close()
        self._views.clear()
        self.manager.shutdown()
        self._device.close()

    def open(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None, *, scope: ReuseScope | None = None) -> PagedCache:
        """A cache for prompts, which begins with what the pool has of them; the last token is always left to compute.

        ``input_ids``: ``[batch, tokens]``, as `model.generate` gets them. ``attention_mask``: needed where rows are padded on the left;
        such a row shares prefixes only with rows of as much padding. ``scope``: prompts of different scopes share nothing.
        """
        if not self._is_open:
            raise LogicError("the pool is closed")
        prompts = _to_prompts(input_ids)
        paddings = _list_paddings(prompts, attention_mask)
        switches, state = self._look("long" if self._watch.is_long(prompts.shape[1] - min(paddings)) else "")
        scopes = [_make_scope(state, padding, scope) for padding in paddings]
        num_tokens = prompts.shape[1] - 1
        while True:
            # All rows go on at one length, and with recurrent layers a row may be reusable at fewer lengths than the others.
            found = min(self.manager.probe_reuse(row_scope, prompt[:num_tokens]) for row_scope, prompt in zip(scopes, prompts, strict=True))
            if found == num_tokens:
                break
            num_tokens = found
        rows = self.open_rows(scopes, prompts[:, :-1], num_tokens, paddings)
        cache = PagedCache(self, rows, prompts, num_tokens, switches)
        self._caches.append(cache)
        try:
            self._prefill_to_snapshots(cache, prompts, attention_mask)
        except BaseException:
            cache.close()
            raise
        return cache

    def batching(self) -> Batching:
        """To be entered around `model.generate_batch`, or the life of a `ContinuousBatchingManager` of the model: requests are then in this
        pool, whose memory is the bound; prompts share prefixes, windowed layers too, between calls too.

        Of a `ContinuousBatchingConfig` the numbers of blocks and shares of memory are ignored. `ValueError` for layers other than full and
        sliding attention, and for rotary scaling that depends on the length.
        """
        if any(layer.kind not in ("full_attention", "sliding_attention") for layer in self.layers):
            raise ValueError("continuous batching is for full and sliding attention alone")
        if self._watch.is_long(sys.maxsize):
            raise ValueError("the model's rotary scaling depends on the length, and a batch has texts of many")
        return Batching(self, self._model.config.get_text_config())

    def weights_changed(self) -> None:
        """Nothing that was computed so far is found by caches that are opened from now on; open ones go on with what they have.

        Needed where weights are changed past torch's count of changes: through ``.data``, by kernels of one's own. What an optimiser, a
        context or `load_state_dict` changes, new modules, and PEFT's adapters are seen without it.
        """
        self._watch.begin_epoch()
        self.manager.clear_reusable_blocks()

    def _look(self, scaling: str = "") -> tuple[str, str]:
        """The model's adapters and settings as they are now, and with its weights as part of a scope."""
        if self._watch.look():
            self.weights_changed()
        switches = self._watch.look_at_switches()
        return switches, " ".join(part for part in (self._watch.epoch, switches, scaling) if part)

    # -- for caches ----------------------------------------------------------------------------------------------------

    def open_rows(
        self, scopes: Sequence[ReuseScope | None], prompts: npt.NDArray[np.int64], num_tokens: int, paddings: Sequence[int]
    ) -> list[Row]:
        """All of them, or none."""
        rows: list[Row] = []
        try:
            for scope, prompt, padding in zip(scopes, prompts, paddings, strict=True):
                rows.append(self._open_row(scope, prompt, num_tokens, padding))
        except BaseException:
            for row in rows:
                row.kv_cache.close()
            raise
        return rows

    def _open_row(self, scope: ReuseScope | None, prompt: npt.NDArray[np.int64], num_tokens: int, padding: int) -> Row:
        """A sequence for ``prompt`` whose first ``num_tokens`` are matched, where more could be too; ``padding`` of them are none."""
        kv_cache = self.manager.create_kv_cache(scope, prompt)
        if kv_cache.num_committed_tokens != num_tokens:
            kv_cache.close()
            kv_cache = self.manager.create_kv_cache(scope, prompt[:num_tokens], expected_prompt_length=len(prompt))
        if kv_cache.num_committed_tokens != num_tokens:
            kv_cache.close()
            raise LogicError(f"{num_tokens} tokens could be reused, now {kv_cache.num_committed_tokens}")
        return Row(kv_cache, prompt[:num_tokens].tolist(), padding)

    def pages(self, layer_id: int, role: str) -> _Pages:
        return self._views[layer_id, role]

    def reserve(self, cache: PagedCache, capacity: int) -> None:
        """Every row of the cache active and ``capacity`` tokens large; other caches are suspended for it, the longest idle first.

        `OutOfPagesError` says what is missing when there is none left to suspend; the cache may go on once others are closed.
        """
        self.activate(cache)
        for kv_cache in cache.kv_caches:
            while not kv_cache.resize(capacity):
                self.suspend_another(cache)

    def activate(self, cache: PagedCache) -> None:
        """Every row of the cache on level 0, in order with torch's current stream."""
        self._caches.remove(cache)
        self._caches.append(cache)
        for kv_cache in cache.kv_caches:
            while not self.resume(kv_cache):
                self.suspend_another(cache)

    def resume(self, kv_cache: KVCache) -> bool:
        return kv_cache.is_active or kv_cache.resume(_current_stream(self._device))

    def open_request(self, prompt: npt.NDArray[np.int32], length: int) -> KVCache:
        """A sequence for a request of ``length`` tokens in a batch, with what matches of ``prompt``."""
        kv_cache = self.manager.create_kv_cache(_make_scope(self._look()[1], 0, None), prompt, expected_prompt_length=length)
        kv_cache.enable_swa_scratch_reuse = False
        return kv_cache

    @property
    def mirror_bytes(self) -> int:
        """What the copies take now from which open caches read; at most ``max_mirror_bytes``."""
        return sum(cache.mirror_bytes for cache in self._caches)

    def reserve_mirror(self, cache: PagedCache, num_bytes: int) -> bool:
        """Whether so many bytes may be copied for a cache; copies of others are dropped for it, of the longest idle first."""
        others = [other for other in self._caches if other is not cache]
        while self.mirror_bytes + num_bytes > self._max_mirror_bytes and others:
            others.pop(0).drop_mirrors()
        return self.mirror_bytes + num_bytes <= self._max_mirror_bytes

    def fork(self, cache: PagedCache, kv_cache: KVCache) -> KVCache:
        """A row that is what another is; its recurrent state may need room."""
        while True:
            try:
                return kv_cache.fork()
            except OutOfPagesError:
                self.suspend_another(cache)

    def forget(self, cache: PagedCache) -> None:
        self._caches.remove(cache)

    def suspend_another(self, cache: PagedCache | None) -> None:
        refusal = self.manager.last_refusal
        for other in self._caches:
            if other is not cache:
                active = [kv_cache for kv_cache in other.kv_caches if kv_cache.is_active]
                if active:
                    other.drop_mirrors()
                    for kv_cache in active:
                        kv_cache.suspend()
                    return
        raise OutOfPagesError("no room" if refusal is None else refusal.text)

    # -- the model's passes --------------------------------------------------------------------------------------------

    def _before_pass(self, forward: ForwardArguments, _model: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        named = forward.named(arguments, keywords)
        cache = named.get(forward.cache_name)
        if not isinstance(cache, PagedCache) or cache.pool is not self or cache.is_in_step:
            return None
        input_ids = require_ids_alone(named, forward.cache_name)
        is_given_again = cache.is_given_again(input_ids, named.get("position_ids"))
        if is_given_again:
            for name in ("input_ids", "position_ids"):
                named[name] = named[name][..., cache.num_tokens :]
            input_ids = named["input_ids"]
        if self._watch.look_at_switches() != cache.switches:
            raise LogicError("the model's adapter or settings are others than when this cache was opened: open another one")
        begin, end = cache.num_tokens, cache.num_tokens + input_ids.shape[-1]
        paddings = cache.list_paddings(input_ids.shape[0])
        require_mask(named.get("attention_mask"), paddings, end)
        positions = require_positions(named.get("position_ids"), paddings, begin, end, input_ids.device)
        cache.begin_step(input_ids)
        if positions is not None and forward.takes_positions:
            # Some models count from 0 in each pass that is given none.
            named["position_ids"] = positions
        elif not is_given_again:
            return None
        return (), named

    def _after_pass(
        self, forward: ForwardArguments, _model: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], output: Any
    ) -> None:
        cache = forward.named(arguments, keywords).get(forward.cache_name)
        if isinstance(cache, PagedCache) and cache.pool is self and cache.is_in_step:
            if output is None:  # the pass raised
                cache.forget_step()
            else:
                longest = cache.num_tokens_in_step - min(cache.list_paddings(cache.batch_size))
                cache.end_step(self._watch.may_publish(cache.prompt_length, longest))

    def _prefill_to_snapshots(self, cache: PagedCache, prompts: npt.NDArray[np.int64], attention_mask: torch.Tensor | None) -> None:
        """Run the prompt up to where snapshots of recurrent state should be left, so that equal prompts can begin there."""
        while True:
            stops = [kv_cache.next_snapshot_position for kv_cache in cache.kv_caches]
            ends = [stop for stop in stops if stop is not None and cache.num_tokens < stop < prompts.shape[1]]
            if not ends:
                return
            end = min(ends)
            chunk = torch.from_numpy(prompts[:, cache.num_tokens : end]).to(self._model.device)
            keywords: dict[str, Any] = {}
            if attention_mask is not None:
                keywords["attention_mask"] = attention_mask[:, :end]
                positions = (attention_mask.cumsum(-1) - 1).clamp(min=0)
                keywords["position_ids"] = positions[:, cache.num_tokens : end]
            else:
                keywords["position_ids"] = torch.arange(cache.num_tokens, end, device=self._model.device)[None, :]
            with torch.no_grad():
                self._model(input_ids=chunk, use_cache=True, **{self._forward.cache_name: cache}, **keywords)


class _Pages:
    """The pages of a layer and role: `tensor` as they are, and `tokens` with a row a token, in which slot ``s`` begins at the row
    ``s * rows_per_slot``, so layers of a group have one table of rows. Scratch slots are in `rows` alone, layer by layer.
    """

    __slots__ = ("tensor", "tokens", "rows_per_slot", "layer_group_id", "_view")

    def __init__(self, manager: KVCacheManager, view: LayerView) -> None:
        self._view: Final = view
        converter = manager.get_page_index_converter(view.layer_id, view.data_role)
        self.tensor: Final = view.tensor
        self.tokens: Final = view.tensor[converter.layer_offset :].view(-1, *view.tensor.shape[2:])
        self.rows_per_slot: Final = converter.scale * manager.tokens_per_block
        self.layer_group_id: Final = view.layer_group_id

    def rows(self, kv_cache: Any) -> npt.NDArray[np.int32]:
        return self._view.rows(kv_cache)

    def token_rows(self, kv_cache: KVCache, positions: npt.NDArray[np.int64], has_scratch: bool = False) -> npt.NDArray[np.int64]:
        """Where tokens lie in `tokens`; with scratch slots in the layer's whole view, `tensor` with a row a token."""
        slots = self.rows(kv_cache) if has_scratch else np.asarray(kv_cache.get_base_page_indices(self.layer_group_id))
        num = self.tensor.shape[1]
        first_rows = slots[positions // num].astype(np.int64) * (num if has_scratch else self.rows_per_slot)
        rows: npt.NDArray[np.int64] = first_rows + positions % num
        return rows


def _make_device(device: Any) -> Device:
    if device.type == "cpu":
        return HostDevice()
    if device.type == "cuda":
        return CudaDevice(device.index or 0)
    raise ValueError(f"the model is on {device}; supported are cpu and cuda")


def _current_stream(device: Device) -> int | None:
    return None if device.is_software else int(torch.cuda.current_stream().cuda_stream)


def _list_buffers(layer: LayerDescription, tokens_per_block: int) -> list[tuple[str, Any, tuple[int, ...]]]:
    """Role, data type and shape of a page of each of the layer's buffers."""
    buffers: list[tuple[str, Any, tuple[int, ...]]] = []
    if layer.key_shape is not None and layer.value_shape is not None:
        buffers.append(("key", layer.dtype, (tokens_per_block, *layer.key_shape)))
        buffers.append(("value", layer.dtype, (tokens_per_block, *layer.value_shape)))
    for state in layer.states:
        buffers.append((state.role, state.dtype, state.shape))
    return buffers


def _to_prompts(input_ids: torch.Tensor) -> npt.NDArray[np.int64]:
    if not isinstance(input_ids, torch.Tensor) or input_ids.dim() != 2 or input_ids.dtype not in (torch.int32, torch.int64):
        raise TypeError("input_ids must be a torch tensor [batch, tokens] of int32 or int64")
    if input_ids.shape[0] == 0 or input_ids.shape[1] == 0:
        raise ValueError(f"input_ids has the shape {tuple(input_ids.shape)}; there must be a row and a token")
    prompts: npt.NDArray[np.int64] = input_ids.detach().cpu().numpy().astype(np.int64)
    return prompts


def _list_paddings(prompts: npt.NDArray[np.int64], attention_mask: torch.Tensor | None) -> list[int]:
    """How many tokens each row begins with that are padding."""
    if attention_mask is None:
        return [0] * len(prompts)
    mask = attention_mask.detach().cpu().numpy().astype(bool)
    if mask.shape != prompts.shape:
        raise ValueError(f"attention_mask has the shape {mask.shape}, input_ids {prompts.shape}")
    paddings = []
    for number, row in enumerate(mask):
        num_padding = int(np.argmax(row)) if row.any() else len(row)
        if not row[num_padding:].all() or num_padding == len(row):
            raise ValueError(f"row {number} of attention_mask must be padding first, and then at least one token")
        paddings.append(num_padding)
    return paddings


def _make_scope(state: str, padding: int, scope: ReuseScope | None) -> ReuseScope | None:
    """Of a row: of the model's state, and of its padding, which shifts positions and so makes other keys of the same tokens.

    A text that begins with "(" is always one of these three, so no caller's salt is another scope's.
    """
    lora_id, salt = (None, None) if scope is None else (scope.lora_id, scope.salt)
    if not state and padding == 0 and not (isinstance(salt, str) and salt.startswith("(")):
        return scope
    return ReuseScope(lora_id, repr((state, padding, salt)))
