"""Layers of a `PagedCache` as transformers asks for them: attention, recurrent, and both in one.

Pages are read and written through `StepPages`; of what outlives a forward pass they hold the rows' states, and while rows decode a
`Mirror` of the pages that attention reads.
"""

from collections.abc import Sequence
from typing import Any, Final, Protocol

import torch
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

from .transformers_model import LayerDescription


class StepPages(Protocol):
    """What a layer asks of its cache."""

    num_tokens: int
    """Of each row, the current step's not counted."""

    def write_and_read(self, layer: "PagedAttentionLayer", keys: torch.Tensor, values: torch.Tensor) -> list[torch.Tensor]: ...


class Mirror:
    """What one layer reads for all rows, in one piece: copies of the pages' keys and values, to which a step adds its tokens.

    ``begin`` and ``end``: the tokens that are there. Each tensor is ``[batch, heads, capacity, dim]``. A token's keys are the same
    wherever its page moves, so a mirror ends only with the rows that it is of, and where they are suspended or it has no more room.
    """

    __slots__ = ("begin", "end", "tensors")

    def __init__(self, begin: int, end: int, tensors: list[torch.Tensor]) -> None:
        self.begin: Final = begin
        self.end = end
        self.tensors = tensors

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def has_room(self, begin: int, num_tokens: int, end: int) -> bool:
        """The tokens from ``begin`` to ``num_tokens`` are there, and those up to ``end`` can be added."""
        return self.begin <= begin and num_tokens <= self.end and end <= self.begin + int(self.tensors[0].shape[2])

    def add(self, num_tokens: int, states: Sequence[torch.Tensor]) -> None:
        """A step's tokens, behind ``num_tokens``; what was there of an earlier step that is not counted is overwritten."""
        self.end = num_tokens + int(states[0].shape[2])
        for tensor, added in zip(self.tensors, states, strict=True):
            tensor.narrow(2, num_tokens - self.begin, self.end - num_tokens).copy_(added)

    def read(self, begin: int) -> list[torch.Tensor]:
        """All tokens from ``begin`` on, without a copy."""
        return [tensor.narrow(2, begin - self.begin, self.end - begin) for tensor in self.tensors]

    def select(self, rows: torch.Tensor) -> None:
        self.tensors = [tensor.index_select(0, rows.to(tensor.device)) for tensor in self.tensors]


class PagedAttentionLayer(CacheLayerMixin):
    """Keys and values of one layer in pages; in windowed layers those of the last tokens."""

    is_croppable = True
    mirror: Mirror | None = None

    def __init__(self, pages: StepPages, description: LayerDescription) -> None:
        super().__init__()
        self._pages: Final = pages
        self.layer_id: Final = int(description.layer_id)
        self.window: Final = description.window
        self.is_sliding = description.window is not None
        self.is_initialized = True
        self.record_past = False
        self.num_tokens_in_step = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Nothing to make: the pool has the memory."""

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes the step's tokens, ``[batch, heads, tokens, head_dim]``, and returns what the layer reads, these included."""
        keys, values = self._pages.write_and_read(self, key_states, value_states)
        self.num_tokens_in_step = int(key_states.shape[-2])
        return keys, values

    def get_seq_length(self) -> int:
        return self._pages.num_tokens + self.num_tokens_in_step

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """How many tokens the layer reads in a step of ``query_length``, and the position of the first of them."""
        begin = first_token_read(self.get_seq_length(), self.window)
        return self.get_seq_length() + query_length - begin, begin

    def get_max_length(self) -> int:
        return -1 if self.window is None else self.window

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
