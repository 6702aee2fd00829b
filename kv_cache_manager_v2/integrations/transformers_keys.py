"""What a model's keys depend on besides token ids; a `PagedCachePool` asks before it finds pages, and before each pass that makes some.

weights, adapters, settings     part of the scope: pages of others are not found
rotary scaling by length        part of the scope: "long" is a prompt beyond the length at which the model switches
padding, positions              those that the cache was opened with, or the pass is refused
inputs that are no token ids    refused by name
"""

import hashlib
import uuid
from collections.abc import Sequence
from typing import Any, Final

import torch

from ..base.errors import LogicError
from .transformers_model import list_windows

_HARMLESS: Final = {
    "input_ids", "attention_mask", "position_ids", "use_cache", "labels", "return_dict", "logits_to_keep", "num_logits_to_keep",
    "cache_position", "output_attentions", "output_hidden_states", "output_router_logits",
}  # fmt: skip
"""Arguments of a pass that change no key, and those that are checked on their own."""
_NO_SETTINGS: Final = ("_experts_implementation", "use_cache", "output_", "return_dict", "_output_attentions")
"""Beginnings of names in a configuration that change no key, or that `generate` changes between prompt and answer."""


class KeyWatch:
    """A model's weights, adapters and settings, looked at for changes."""

    __slots__ = (
        "_model", "_config", "_weights", "_dtype", "_epoch", "_tuners", "_first_settings", "_last_settings", "_windows", "_rope_limit",
        "_is_dynamic",
    )  # fmt: skip

    def __init__(self, model: Any) -> None:
        self._model: Final = model
        self._config: Final = model.config.get_text_config(decoder=True)
        self._weights = _list_weights(model)
        self._dtype: Final = model.dtype
        self._epoch = ""
        self._tuners = _list_tuners(model)
        self._first_settings: Final = self._read_settings()
        self._last_settings = self._first_settings
        self._windows: Final = list_windows(self._config)
        self._rope_limit, self._is_dynamic = _find_rope_limit(self._config)

    @property
    def epoch(self) -> str:
        """The weights, as part of a scope: empty as long as none has changed."""
        return self._epoch

    def begin_epoch(self) -> None:
        # Not a count: scopes are known to other processes too, through what they share.
        self._epoch = f"weights {uuid.uuid4().hex}"

    def look(self) -> bool:
        """Whether weights have changed since the last look. `LogicError` in another data type."""
        if self._model.dtype != self._dtype:
            raise LogicError(f"the model computes in {self._model.dtype}, and its pool keeps {self._dtype}: make another pool")
        weights = _list_weights(self._model)
        has_changed = weights != self._weights
        self._weights = weights
        self._tuners = _list_tuners(self._model)
        return has_changed

    def look_at_switches(self) -> str:
        """What is changed to and fro, adapters and settings, as part of a scope. `LogicError` where windows are others."""
        states = [_adapter_text(tuner) for tuner in self._tuners]
        adapters = "" if not any(states) else states[0] if len(set(states)) == 1 else f"adapters {_digest(repr(states))}"
        settings = self._read_settings()
        if settings != self._last_settings and list_windows(self._config) != self._windows:
            raise LogicError("layers of the model have other windows than when its pool was made: make another pool")
        self._last_settings = settings
        return adapters if settings == self._first_settings else f"{adapters} settings {_digest(settings)}"

    def is_long(self, length: int) -> bool:
        """A pass that ends at this length computes keys of another rotary scaling than shorter ones."""
        return self._rope_limit is not None and length > self._rope_limit

    def may_publish(self, prompt_length: int, length: int) -> bool:
        """The keys of a pass that ends at ``length`` are those of the scope of a prompt of that length."""
        is_long = self.is_long(length)
        return is_long == self.is_long(prompt_length) and not (is_long and self._is_dynamic)

    def _read_settings(self) -> str:
        return repr([item for item in vars(self._config).items() if not item[0].startswith(_NO_SETTINGS)])


def require_ids_alone(named: dict[str, Any], cache_name: str) -> torch.Tensor:
    """The token ids of a pass; `ValueError` names an input beside them that keys depend on."""
    for name, value in named.items():
        is_empty = value is None or value is False or (isinstance(value, dict) and not value)
        if not is_empty and name not in _HARMLESS and name != cache_name:
            # Text alone: zeros, as of every tokenizer that has such ids.
            if not name.endswith("token_type_ids") or bool(value.any()):
                raise ValueError(f"a pass with a PagedCache got {name}: its pages are found again by token ids alone")
    input_ids = named.get("input_ids")
    if not isinstance(input_ids, torch.Tensor):
        raise ValueError("a PagedCache needs input_ids: its pages are found again by their tokens, not by inputs_embeds")
    return input_ids


def require_mask(mask: Any, paddings: Sequence[int], end: int) -> None:
    """`ValueError` unless the mask of a pass that ends at ``end`` hides each row's padding, and no other token."""
    if mask is None:
        if any(paddings):
            raise ValueError("the cache was opened with padding, and the pass has no attention_mask: give it the same")
        return
    if not isinstance(mask, torch.Tensor) or tuple(mask.shape) != (len(paddings), end):
        shape = tuple(mask.shape) if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise ValueError(f"attention_mask of a pass with a PagedCache must have the shape ({len(paddings)}, {end}), not {shape}")
    expected = torch.arange(end, device=mask.device) >= torch.tensor(paddings, device=mask.device)[:, None]
    if not torch.equal(mask.bool(), expected):
        row = int((mask.bool() != expected).any(dim=1).nonzero()[0])
        raise ValueError(
            f"attention_mask hides other tokens of row {row} than the {paddings[row]} of padding that the cache was opened with: "
            f"pool.open(input_ids, attention_mask)"
        )


def require_positions(positions: Any, paddings: Sequence[int], begin: int, end: int, device: Any) -> torch.Tensor | None:
    """`ValueError` unless the positions of a pass count each row's tokens behind its padding; those to give, if it has none."""
    expected = torch.arange(begin, end, device=device) - torch.tensor(paddings, device=device)[:, None]
    if positions is None:
        return expected.clamp(min=0)
    found = positions.to(device)
    if found.shape[-1] != end - begin or not bool(((found == expected) | (expected < 0)).all()):
        raise ValueError(f"position_ids must count tokens from {begin}, less each row's padding: keys depend on them")
    return None


def _list_weights(model: Any) -> list[tuple[Any, ...]]:
    """What changes when weights do: by an optimiser, `load_state_dict`, `to`, or other modules in their place."""
    weights: list[tuple[Any, ...]] = []
    for parameter in model.parameters():
        # Made in inference mode a tensor has no version; some classes of quantised ones have no address.
        version = 0 if parameter.is_inference() else parameter._version
        address = parameter.data_ptr() if type(parameter) is torch.nn.Parameter else 0
        weights.append((id(parameter), version, address))
    return weights


def _list_tuners(model: Any) -> list[Any]:
    """The layers that PEFT has put into the model."""
    return [module for module in model.modules() if hasattr(module, "active_adapters") and hasattr(module, "merged_adapters")]


def _adapter_text(tuner: Any) -> str:
    merged = list(tuner.merged_adapters)
    names = [] if tuner.disable_adapters else list(tuner.active_adapters)
    scaling = getattr(tuner, "scaling", {})
    return f"adapter {[(name, scaling.get(name)) for name in names]} merged {merged}" if names or merged else ""


def _find_rope_limit(config: Any) -> tuple[int | None, bool]:
    """The greatest length of which all keys have the scaling of short texts, or None; and whether beyond it every length has its own."""
    parameters = getattr(config, "rope_parameters", None) or {}
    parts = [parameters] if "rope_type" in parameters else [part for part in parameters.values() if isinstance(part, dict)]
    # At exactly its limit the dynamic kind keeps what a longer text before has left.
    dynamic = [int(config.max_position_embeddings) - 1 for part in parts if "dynamic" in str(part.get("rope_type"))]
    switching = [int(part["original_max_position_embeddings"]) for part in parts if part.get("rope_type") == "longrope"]
    return min([*dynamic, *switching], default=None), bool(dynamic)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
