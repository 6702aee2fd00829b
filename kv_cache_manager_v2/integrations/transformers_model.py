"""What a transformers model caches, layer by layer, asked of the model itself: one forward pass of two tokens.

transformers says which kind of cache each layer has; the shapes and data types of keys, values and recurrent states are those that
the pass leaves in a `DynamicCache`. So no family of models has to be known here, and no field of a `config.json`: `models` reads those,
for models that are not loaded. What both say of one model is compared in `tests/integrations/test_descriptions_agree.py`.
"""

import inspect
import warnings
from collections.abc import Sequence
from typing import Any, Final

import torch
import transformers
from transformers import DynamicCache
from transformers.cache_utils import get_layer_types_and_kwargs

from ..base.ids import DataRole, LayerId
from ..config.cache_tier_config import CacheTierConfig
from ..config.layer_config import AttentionLayerConfig, BufferConfig, LayerConfig, SsmLayerConfig
from ..config.manager_config import KVCacheManagerConfig

ATTENTION_KINDS: Final = ("full_attention", "sliding_attention", "chunked_attention", "hybrid", "hybrid_sliding")
STATE_KINDS: Final = ("conv", "linear_attention", "hybrid", "hybrid_sliding")
NO_CACHE: Final = "dummy"
"""Layers without a cache of their own: they read another layer's, or have no attention."""
TESTED: Final = ((5, 23), (5, 24))
"""Releases of transformers, from the first to the last that the caches were tried with."""
_RANGE: Final = "transformers>=5.23,<5.25"


class ForwardArguments:
    """The arguments of a model's forward by name, as hooks get them: the cache's name differs between releases and models."""

    __slots__ = ("cache_name", "takes_positions", "_names")

    def __init__(self, model: Any, cache_name: str | None = None) -> None:
        """``cache_name``: for a wrapper that takes any argument."""
        self._names: Final = list(inspect.signature(model.forward).parameters)
        self.takes_positions: Final = "position_ids" in self._names
        if cache_name is None:
            cache_name = next((name for name in ("cache", "past_key_values", "cache_params") if name in self._names), None)
        if cache_name is None:
            raise ValueError(f"{type(model).__name__}.forward takes no cache: it has {', '.join(self._names)}")
        self.cache_name: Final[str] = cache_name

    def named(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
        """All of a call; a cache under a name that the release still takes is under this one's."""
        named = {**dict(zip(self._names, arguments, strict=False)), **keywords}
        for name in ("past_key_values", "cache_params"):
            if name != self.cache_name and named.get(name) is not None:
                named.setdefault(self.cache_name, named.pop(name))
        return named


def unwrap(model: Any) -> Any:
    """The model inside PEFT's wrapper, or the model itself."""
    if not hasattr(model, "get_base_model"):
        return model
    if getattr(model.active_peft_config, "is_prompt_learning", False):
        raise ValueError(f"the model's adapter {model.active_adapter!r} puts learned vectors before the prompt, which have no token ids")
    return model.get_base_model()


def require_release(model: Any, version: str = transformers.__version__) -> None:
    """`ValueError` unless the caches work with this release of transformers; a warning if it was never tried and they do.

    Of a release that was never tried one token is generated: hooks before and after the pass must see the cache, which must get keys.
    """
    numbers = tuple(int(number) for number in version.split(".")[:2])
    if TESTED[0] <= numbers <= TESTED[1]:
        return
    if numbers[0] != TESTED[0][0] or numbers < TESTED[0]:
        raise ValueError(f"transformers is {version}; tested are 5.23 and 5.24: pip install '{_RANGE}'")
    forward, cache = ForwardArguments(model), DynamicCache(config=model.config)
    seen: list[bool] = []

    def see(_model: Any, arguments: tuple[Any, ...], keywords: dict[str, Any], *_output: Any) -> None:
        seen.append(forward.named(arguments, keywords).get(forward.cache_name) is cache)

    hooks = [model.register_forward_pre_hook(see, with_kwargs=True), model.register_forward_hook(see, with_kwargs=True)]
    prompt = torch.zeros((1, 2), dtype=torch.long, device=model.device)
    try:
        model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=1, do_sample=False, **{forward.cache_name: cache})
        failure = "" if seen == [True, True] and cache.get_seq_length() == 2 else "hooks on the model do not see its cache"
    except Exception as error:  # whatever another release does
        failure = str(error)
    finally:
        for hook in hooks:
            hook.remove()
    if failure:
        raise ValueError(f"transformers {version} is newer than 5.24, the last one tested, and fails: {failure}; pip install '{_RANGE}'")
    warnings.warn(f"transformers {version} is newer than 5.24, the last one that this library was tested with", stacklevel=3)


class StateDescription:
    """One tensor of recurrent state of one layer: the buffer's role, its shape without the batch, its data type."""

    __slots__ = ("role", "shape", "dtype", "index", "is_conv", "_order")

    def __init__(self, role: str, index: int, is_conv: bool, tensor: Any) -> None:
        self.role: Final = DataRole(role)
        self.index: Final = index
        self.is_conv: Final = is_conv
        self.shape: Final = tuple(tensor.shape[1:])
        self.dtype: Final = tensor.dtype
        self._order: Final = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))

    def make_batch(self, num_rows: int, device: Any) -> Any:
        """Zeros for so many rows, laid out in memory as transformers does: the order in which torch adds up depends on it."""
        sizes = (num_rows, *self.shape)
        batch = torch.zeros([sizes[axis] for axis in self._order], dtype=self.dtype, device=device)
        return batch.permute([self._order.index(axis) for axis in range(len(sizes))])

    @property
    def num_bytes(self) -> int:
        """Of one sequence."""
        return _count_items(self.shape) * int(self.dtype.itemsize)


class LayerDescription:
    """What one layer caches: keys and values per token, or recurrent states, or both, or nothing."""

    __slots__ = ("layer_id", "kind", "window", "key_shape", "value_shape", "dtype", "states")

    def __init__(self, layer_id: int, kind: str, window: int | None, layer: Any) -> None:
        self.layer_id: Final = LayerId(layer_id)
        self.kind: Final = kind
        self.window: Final = window
        self.key_shape: tuple[int, int] | None = None
        """Heads and items per head of one token's keys."""
        self.value_shape: tuple[int, int] | None = None
        self.dtype: Any = None
        self.states: list[StateDescription] = []
        if kind in ATTENTION_KINDS:
            self.key_shape = (int(layer.keys.shape[1]), int(layer.keys.shape[3]))
            self.value_shape = (int(layer.values.shape[1]), int(layer.values.shape[3]))
            self.dtype = layer.keys.dtype
        if kind in STATE_KINDS:
            for index in range(layer.number_of_states):
                if layer.is_conv_states_initialized[index]:
                    self.states.append(StateDescription(f"conv_{index}", index, True, layer.conv_states[index]))
                if layer.is_recurrent_states_initialized[index]:
                    self.states.append(StateDescription(f"recurrent_{index}", index, False, layer.recurrent_states[index]))

    def make_configs(self, tokens_per_block: int) -> list[LayerConfig]:
        """None, one, or two configurations: attention, then the recurrent state."""
        configs: list[LayerConfig] = []
        if self.key_shape is not None and self.value_shape is not None:
            token_bytes = int(self.dtype.itemsize) * tokens_per_block
            buffers = [
                BufferConfig(DataRole("key"), _count_items(self.key_shape) * token_bytes),
                BufferConfig(DataRole("value"), _count_items(self.value_shape) * token_bytes),
            ]
            configs.append(AttentionLayerConfig(self.layer_id, buffers, self.window))
        if self.states:
            configs.append(SsmLayerConfig(self.layer_id, [BufferConfig(state.role, state.num_bytes) for state in self.states]))
        return configs


def describe_layers(model: Any) -> list[LayerDescription]:
    """All layers of a model. Runs one forward pass of two tokens, without gradients. `ValueError` names what is not supported."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(config, "get_text_config"):
        raise TypeError(f"model must be a transformers model, not {type(model).__name__}")
    if getattr(config, "is_encoder_decoder", False):
        raise ValueError(f"{type(model).__name__} is an encoder-decoder model; only decoders are supported")
    windows = list_windows(config.get_text_config(decoder=True))
    supported = dict.fromkeys((*ATTENTION_KINDS, *STATE_KINDS, NO_CACHE))
    for layer_id, (kind, _) in enumerate(windows):
        if kind not in supported:
            raise ValueError(f"layer {layer_id} of {type(model).__name__} is {kind!r}; supported are {', '.join(supported)}")
    cache = DynamicCache(config=config)
    prompt = torch.zeros((1, 2), dtype=torch.long, device=model.device)
    given = {"input_ids": prompt, "use_cache": True, ForwardArguments(model).cache_name: cache}
    try:
        with torch.no_grad():
            model(**given)
    except Exception as error:  # whatever a model says
        raise ValueError(f"{type(model).__name__} makes no pass with transformers' DynamicCache: {error}") from error
    layers: list[LayerDescription] = []
    for layer_id, (kind, window) in enumerate(windows):
        layer = cache.layers[layer_id]
        if kind in ATTENTION_KINDS and layer.keys is None:
            raise ValueError(f"layer {layer_id} of {type(model).__name__} is {kind!r}, but one forward pass left no keys in it")
        description = LayerDescription(layer_id, kind, window, layer)
        if kind in STATE_KINDS and not description.states:
            raise ValueError(f"layer {layer_id} of {type(model).__name__} is {kind!r}, but one forward pass left no state in it")
        layers.append(description)
    return layers


def list_windows(config: Any) -> list[tuple[str, int | None]]:
    """Kind and window of each layer, as a text model's configuration says."""
    return [(kind, given.get("sliding_window")) for kind, given in zip(*get_layer_types_and_kwargs(config), strict=True)]


def make_config(
    layers: Sequence[LayerDescription], cache_tiers: Sequence[CacheTierConfig], tokens_per_block: int, options: dict[str, Any]
) -> KVCacheManagerConfig:
    configs: list[LayerConfig] = []
    for layer in layers:
        configs.extend(layer.make_configs(tokens_per_block))
    return KVCacheManagerConfig(tokens_per_block, cache_tiers, configs, **options)


def describe(model: Any, cache_tiers: Sequence[CacheTierConfig], tokens_per_block: int = 32, **options: Any) -> KVCacheManagerConfig:
    """The manager's configuration for a transformers model: attention, sliding, chunked, recurrent and hybrid layers.

    ``cache_tiers``, ``tokens_per_block`` and ``options`` are those of `KVCacheManagerConfig`. Layer ids are transformers' layer
    indices; the roles are "key" and "value", and "conv_0", "recurrent_0" and so on for recurrent states. Runs one forward pass of
    two tokens. `ValueError` for an encoder-decoder model and for a layer of a kind that is not supported, which it names.
    """
    return make_config(describe_layers(model), cache_tiers, tokens_per_block, options)


def _count_items(shape: Sequence[int]) -> int:
    items = 1
    for size in shape:
        items *= int(size)
    return items
