"""Layers of a `PagedCache` as transformers asks for them: attention, recurrent, and both in one.

They hold no tensor that outlives a forward pass but the states of the rows; pages are read and written through `StepPages`.
"""

from typing import Any, Final, Protocol

import torch
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

from .transformers_model import LayerDescription


class StepPages(Protocol):
    """What a layer asks of its cache."""

    num_tokens: int
    """Of each row, the current step's not counted."""

    def write_and_read(self, layer_id: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]: ...


class PagedAttentionLayer(CacheLayerMixin):
    """Keys and values of one layer in pages; in windowed layers those of the last tokens."""

    is_croppable = True

    def __init__(self, pages: StepPages, description: LayerDescription) -> None:
        super().__init__()
        self._pages: Final = pages
        self._layer_id: Final = int(description.layer_id)
        self._window: Final = description.window
        self.is_sliding = description.window is not None
        self.is_initialized = True
        self.record_past = False
        self.num_tokens_in_step = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to make: the pool has the memory."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the step's tokens, ``[batch, heads, tokens, head_dim]``, and returns what the layer reads, these included."""
        read = self._pages.write_and_read(self._layer_id, key_states, value_states)
        self.num_tokens_in_step = int(key_states.shape[-2])
        return read

    def get_seq_length(self) -> int:
        return self._pages.num_tokens + self.num_tokens_in_step

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many tokens the layer reads in a step of ``query_length``, and the position of the first of them."""
        begin = first_token_read(self.get_seq_length(), self._window)
        return self.get_seq_length() + query_length - begin, begin

    def get_max_length(self) -> int:
        return -1 if self._window is None else self._window

    def activate_past_recording(self) -> None:
        self.record_past = True

    def crop(self, tokens_to_remove: int) -> None:
        """The cache takes tokens back for all layers at once."""

    def offload(self) -> None:
        """Nothing: lower tiers are the manager's."""

    def prefetch(self) -> None:
        """Nothing: lower tiers are the manager's."""


class PagedStateLayer(LinearAttentionLayer):
    """Recurrent states of one layer: a batch of them, gathered from their slots before a step and written back after it."""

    is_compileable = False

    def __init__(self, description: LayerDescription) -> None:
        super().__init__(number_of_states=1 + max(state.index for state in description.states))
        self.description: Final = description

    def take_states(self, states: list[torch.Tensor], has_previous: bool) -> None:
        """``states``: one tensor ``[batch, ...]`` for each of `LayerDescription.states`, which the model updates in place."""
        for state, tensor in zip(self.description.states, states, strict=True):
            if state.is_conv:
                self.conv_states[state.index] = tensor
                self.conv_kernel_size[state.index] = int(tensor.shape[-1])
                self.is_conv_states_initialized[state.index] = True
                self.dtype, self.device = tensor.dtype, tensor.device
            else:
                self.recurrent_states[state.index] = tensor
                self.is_recurrent_states_initialized[state.index] = True
        for index in range(self.number_of_states):
            self.has_previous_state[index] = has_previous

    def list_states(self) -> list[torch.Tensor]:
        states = []
        for state in self.description.states:
            states.append(self.conv_states[state.index] if state.is_conv else self.recurrent_states[state.index])
        return states

    def crop(self, tokens_to_remove: int) -> None:
        """The cache refuses before it comes to this: a state of earlier tokens is not kept."""


class PagedHybridLayer(PagedStateLayer, PagedAttentionLayer):
    """A layer with attention and a recurrent state."""

    def __init__(self, pages: StepPages, description: LayerDescription) -> None:
        PagedAttentionLayer.__init__(self, pages, description)
        PagedStateLayer.__init__(self, description)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        if kwargs:
            LinearAttentionLayer.lazy_initialization(self, **kwargs)

    def get_max_length(self) -> int:
        return PagedAttentionLayer.get_max_length(self)

    def activate_past_recording(self) -> None:
        PagedStateLayer.activate_past_recording(self)

    def crop(self, tokens_to_remove: int) -> None:
        """The cache refuses before it comes to this."""


def first_token_read(num_tokens: int, window: int | None) -> int:
    """The first token that the next one's attention reads, after ``num_tokens``; a window counts the token that is computed."""
    return 0 if window is None else max(0, num_tokens - window + 1)
