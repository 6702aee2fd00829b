"""The compile-time facts of a buffer for a kernel: its layer and role, the size of its pages, the tokens that the layer reads."""

from typing import Final, final


from ..config.layer_config import AttentionLayerConfig
from ..config.manager_config import KVCacheManagerConfig
from .token_layout import TokenLayout
from .token_values import buffer_key


@final
class KernelBuffer:
    """One buffer of one layer. A recurrent state is a page with one token's value: that of the whole prefix."""

    __slots__ = (
        "layer_id", "role", "key", "is_state", "window_size", "num_sink_tokens", "layout", "pages_per_block", "num_state_slots"
    )  # fmt: skip

    def __init__(
        self,
        layer_id: int,
        role: str,
        is_state: bool,
        window_size: int | None,
        num_sink_tokens: int,
        layout: TokenLayout,
        pages_per_block: int,
        num_state_slots: int = 1,
    ) -> None:
        self.layer_id: Final = layer_id
        self.role: Final = role
        self.key: Final[int] = buffer_key(layer_id, role)
        self.is_state: Final = is_state
        self.window_size: Final = window_size
        self.num_sink_tokens: Final = num_sink_tokens
        self.layout: Final = layout
        self.pages_per_block: Final = pages_per_block
        """More than one if the kernel's blocks are smaller than the manager's."""
        self.num_state_slots: Final = num_state_slots
        """Of a recurrent state: the slots that the states of consecutive lengths use in turn."""


def kernel_buffers(config: KVCacheManagerConfig) -> list[list[KernelBuffer]]:
    """The buffers of each configured layer, in the order in which the model runs them."""
    layers: list[list[KernelBuffer]] = []
    for layer in config.layers:
        buffers: list[KernelBuffer] = []
        for buffer in layer.buffers:
            if isinstance(layer, AttentionLayerConfig):
                tokens_per_page = buffer.tokens_per_block_override or config.tokens_per_block
                layout = TokenLayout(buffer.size, tokens_per_page)
                num_sinks = layer.num_sink_tokens or 0
                expansion = buffer.expansion(config.tokens_per_block)
                buffers.append(KernelBuffer(layer.layer_id, buffer.role, False, layer.window_size, num_sinks, layout, expansion))
            else:
                layout = TokenLayout(buffer.size, 1)
                num_slots = config.state_checkpoints + 1
                buffers.append(KernelBuffer(layer.layer_id, buffer.role, True, None, 0, layout, 1, num_slots))
        layers.append(buffers)
    return layers
