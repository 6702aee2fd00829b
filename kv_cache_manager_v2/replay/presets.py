"""Model presets by public shapes: what the cache of each must hold, nothing about their weights.

A preset lists its layers in order: key/value heads, head size, window and sink tokens, or the bytes of a recurrent state;
layers that store nothing are left out. Sizes are those of one GPU that holds the whole model with 16-bit keys and values, 16-bit
convolution states and 32-bit recurrent ones.

Sources are the ``config.json`` of the models' repositories on Hugging Face; each preset names its own.
gpt-oss has *attention sinks* that are learned logits, which occupy no cache. This preset models the kind that does: the
windowed layers keep one sink token, hence the first block.
"""

from collections.abc import Sequence
from typing import Final, final


from .. import AttentionLayerConfig, BufferConfig, LayerConfig, LayerId, SsmLayerConfig
from ..base.value import Value
from .served_model import MIN_BYTES_PER_TOKEN, ServedModel, shrunk


@final
class LayerShape(Value):
    """One attention layer: the bytes that it stores for a token, and its window."""

    __slots__ = ("num_kv_heads", "head_dim", "sliding_window_size", "num_sink_tokens")

    def __init__(
        self, num_kv_heads: int, head_dim: int, sliding_window_size: int | None = None,
        num_sink_tokens: int | None = None,
    ) -> None:  # fmt: skip
        self.num_kv_heads: Final = num_kv_heads
        self.head_dim: Final = head_dim
        self.sliding_window_size: Final = sliding_window_size
        self.num_sink_tokens: Final = num_sink_tokens


@final
class StateShape(Value):
    """One recurrent layer: the bytes that it stores for a sequence."""

    __slots__ = ("conv_bytes", "ssm_bytes")

    def __init__(self, conv_bytes: int, ssm_bytes: int) -> None:
        self.conv_bytes: Final = conv_bytes
        self.ssm_bytes: Final = ssm_bytes


@final
class ModelPreset(ServedModel):
    """A model's layers, in order."""

    __slots__ = ("name", "source", "layers", "bytes_per_element")

    def __init__(self, name: str, source: str, layers: Sequence[LayerShape | StateShape], bytes_per_element: int = 2) -> None:
        self.name: Final = name
        self.source: Final = source
        self.layers: Final[tuple[LayerShape | StateShape, ...]] = tuple(layers)
        self.bytes_per_element: Final = bytes_per_element

    @property
    def title(self) -> str:
        return self.name

    def buffer_bytes_per_token(self, layer: LayerShape, shrink: int) -> int:
        """Of its keys, or of its values: a multiple of `MIN_BYTES_PER_TOKEN`."""
        return shrunk(layer.num_kv_heads * layer.head_dim * self.bytes_per_element, shrink)

    def bytes_per_token(self, shrink: int = 1) -> int:
        """Of a token that every layer keeps."""
        return sum([2 * self.buffer_bytes_per_token(layer, shrink) for layer in self._attention_layers])

    def bytes_per_state(self, shrink: int = 1) -> int:
        """Of the recurrent state of one sequence, all layers together; 0 where none is recurrent."""
        sizes = [shrunk(size, shrink) for layer in self._state_layers for size in (layer.conv_bytes, layer.ssm_bytes)]
        return sum(sizes)

    @property
    def _attention_layers(self) -> list[LayerShape]:
        return [layer for layer in self.layers if isinstance(layer, LayerShape)]

    @property
    def _state_layers(self) -> list[StateShape]:
        return [layer for layer in self.layers if isinstance(layer, StateShape)]

    @property
    def max_shrink(self) -> int:
        """A ``shrink`` at which every buffer is as small as it gets."""
        largest = max([self.buffer_bytes_per_token(layer, 1) for layer in self._attention_layers])
        for state in self._state_layers:
            largest = max(largest, state.conv_bytes, state.ssm_bytes)
        return largest // MIN_BYTES_PER_TOKEN

    def layer_configs(self, tokens_per_block: int, shrink: int = 1) -> list[LayerConfig]:
        if shrink < 1:
            raise ValueError(f"shrink is {shrink}; 1 is the full size, larger is smaller")
        configs: list[LayerConfig] = []
        for layer_id, layer in enumerate(self.layers):
            if isinstance(layer, StateShape):
                conv = BufferConfig(role="conv", size=shrunk(layer.conv_bytes, shrink))
                ssm = BufferConfig(role="ssm", size=shrunk(layer.ssm_bytes, shrink))
                configs.append(SsmLayerConfig(LayerId(layer_id), [conv, ssm]))
                continue
            size = self.buffer_bytes_per_token(layer, shrink) * tokens_per_block
            configs.append(
                AttentionLayerConfig(
                    layer_id=LayerId(layer_id),
                    buffers=[BufferConfig(role="key", size=size), BufferConfig(role="value", size=size)],
                    sliding_window_size=layer.sliding_window_size,
                    num_sink_tokens=layer.num_sink_tokens,
                )
            )
        return configs


def _periodic(num_layers: int, period: Sequence[LayerShape | StateShape]) -> tuple[LayerShape | StateShape, ...]:
    return tuple([period[ordinal % len(period)] for ordinal in range(num_layers)])


_GEMMA_WINDOWED: Final = LayerShape(num_kv_heads=8, head_dim=256, sliding_window_size=1024)
_GEMMA_FULL: Final = LayerShape(num_kv_heads=8, head_dim=256)
_GPT_OSS_WINDOWED: Final = LayerShape(num_kv_heads=8, head_dim=64, sliding_window_size=128, num_sink_tokens=1)
_GPT_OSS_FULL: Final = LayerShape(num_kv_heads=8, head_dim=64)
# Gated delta net: 16 key and 32 value heads of 128; the convolution keeps 3 inputs of 2 * 16 * 128 + 32 * 128 channels.
_QWEN_NEXT_LINEAR: Final = StateShape(conv_bytes=3 * 8192 * 2, ssm_bytes=32 * 128 * 128 * 4)
_QWEN_NEXT_FULL: Final = LayerShape(num_kv_heads=2, head_dim=256)
# Mamba 2: 128 heads of 64 with a state of 128; the convolution keeps 3 inputs of 128 * 64 + 2 * 8 * 128 channels.
_NEMOTRON_MAMBA: Final = StateShape(conv_bytes=3 * 10240 * 2, ssm_bytes=128 * 64 * 128 * 4)
_NEMOTRON_FULL: Final = LayerShape(num_kv_heads=8, head_dim=128)
_NEMOTRON_PATTERN: Final = "MMMM*MMMMM*MMMMM*MMMMM*MMMMM"
"""Of its 52 layers those that store something: the others are MLPs."""

PRESETS: Final[dict[str, ModelPreset]] = {
    preset.name: preset
    for preset in (
        ModelPreset(
            "llama-3-8b", "meta-llama/Meta-Llama-3-8B",
            _periodic(32, (LayerShape(num_kv_heads=8, head_dim=128),)),
        ),
        ModelPreset(
            "gemma-3-12b", "google/gemma-3-12b-it",
            _periodic(48, (*([_GEMMA_WINDOWED] * 5), _GEMMA_FULL)),
        ),
        ModelPreset(
            "gpt-oss-20b", "openai/gpt-oss-20b",
            _periodic(24, (_GPT_OSS_WINDOWED, _GPT_OSS_FULL)),
        ),
        ModelPreset(
            "qwen3-32b", "Qwen/Qwen3-32B",
            _periodic(64, (LayerShape(num_kv_heads=8, head_dim=128),)),
        ),
        ModelPreset(
            "qwen3-next", "Qwen/Qwen3-Next-80B-A3B-Instruct",
            _periodic(48, (*([_QWEN_NEXT_LINEAR] * 3), _QWEN_NEXT_FULL)),
        ),
        ModelPreset(
            "nemotron-h-8b", "nvidia/Nemotron-H-8B-Base-8K",
            [_NEMOTRON_MAMBA if kind == "M" else _NEMOTRON_FULL for kind in _NEMOTRON_PATTERN],
        ),
    )
}  # fmt: skip
DEFAULT_MODEL: Final = "gemma-3-12b"
