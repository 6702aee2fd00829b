"""The model that a replay serves, as it is asked about: bytes, and the layers of the manager's configuration.

`shrink` scales the bytes down for a small machine, never below `MIN_BYTES_PER_TOKEN` per buffer (which the fake engine needs to identify
tokens); which blocks a layer needs and when does not change. With a shrink of 1 the sizes are exact.
"""

from abc import ABCMeta, abstractmethod
from collections.abc import Sequence
from typing import Final, final


from .. import AttentionLayerConfig, BufferConfig, KVCacheManagerConfig, LayerConfig, SsmLayerConfig
from ..base.value import Value

MIN_BYTES_PER_TOKEN: Final = 8
"""Per buffer."""


class ServedModel(Value, metaclass=ABCMeta):
    """A named model."""

    __slots__ = ()

    @property
    @abstractmethod
    def title(self) -> str:
        """Its name, for reports."""
        raise NotImplementedError("ServedModel.title is for subclasses to define")

    @property
    def notes(self) -> tuple[str, ...]:
        """What a report must say of it: what its file declares, what is not known."""
        return ()

    def bytes_that_grow(self) -> int:
        """Of each further token of a long sequence: in layers without a window."""
        return sum([num_bytes for num_bytes, window in self._attention_bytes() if window == 0])

    def bytes_in_windows(self) -> int:
        """The most that windowed layers keep of a sequence, sinks included, in whole tokens."""
        return sum([num_bytes * window for num_bytes, window in self._attention_bytes()])

    @property
    def block_tokens(self) -> int:
        """A length of blocks that `layer_configs` takes."""
        return 1

    def _attention_bytes(self) -> list[tuple[int, int]]:
        """Of each layer: the bytes of a token, and the tokens that its window and its sinks have; 0 without a window."""
        return [
            (
                sum([buffer.size for buffer in layer.buffers]) // self.block_tokens,
                layer.window_size + (layer.num_sink_tokens or 0) if layer.window_size else 0,
            )
            for layer in self.layer_configs(self.block_tokens) if isinstance(layer, AttentionLayerConfig)
        ]  # fmt: skip

    @abstractmethod
    def bytes_per_token(self, shrink: int = 1) -> int:
        """Of a token that every layer keeps."""
        raise NotImplementedError("ServedModel.bytes_per_token is for subclasses to define")

    @abstractmethod
    def bytes_per_state(self, shrink: int = 1) -> int:
        """Of the recurrent state of one sequence, all layers together; 0 where none is recurrent."""
        raise NotImplementedError("ServedModel.bytes_per_state is for subclasses to define")

    @property
    @abstractmethod
    def max_shrink(self) -> int:
        """A ``shrink`` at which every buffer is as small as it gets."""
        raise NotImplementedError("ServedModel.max_shrink is for subclasses to define")

    @abstractmethod
    def layer_configs(self, tokens_per_block: int, shrink: int = 1) -> list[LayerConfig]:
        raise NotImplementedError("ServedModel.layer_configs is for subclasses to define")


@final
class ConfiguredModel(ServedModel):
    """A model given by its layers, whose blocks are ``base_tokens`` long. ``config``: the whole configuration, where a file has one."""

    __slots__ = ("name", "layers", "base_tokens", "config", "_notes")

    def __init__(
        self, name: str, layers: Sequence[LayerConfig], base_tokens: int = 1, config: KVCacheManagerConfig | None = None,
        notes: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.name: Final = name
        self.layers: Final[tuple[LayerConfig, ...]] = tuple(layers)
        self.base_tokens: Final = base_tokens
        self.config: Final = config
        self._notes: Final = tuple(notes)

    def _arguments(self) -> tuple[object, ...]:
        return (self.name, self.layers, self.base_tokens, self.config, self._notes)

    @property
    def title(self) -> str:
        return self.name

    @property
    def notes(self) -> tuple[str, ...]:
        return self._notes

    @property
    def block_tokens(self) -> int:
        return self.base_tokens

    def bytes_per_token(self, shrink: int = 1) -> int:
        return sum([self._bytes_per_block(buffer, self.base_tokens, shrink) // self.base_tokens for buffer in self._attention_buffers])

    def bytes_per_state(self, shrink: int = 1) -> int:
        return sum([shrunk(buffer.size, shrink) for buffer in self._state_buffers])

    @property
    def max_shrink(self) -> int:
        largest = MIN_BYTES_PER_TOKEN
        for buffer in self._attention_buffers:
            largest = max(largest, self._bytes_per_block(buffer, self.base_tokens, 1) // self.base_tokens)
        for buffer in self._state_buffers:
            largest = max(largest, buffer.size)
        return largest // MIN_BYTES_PER_TOKEN

    def layer_configs(self, tokens_per_block: int, shrink: int = 1) -> list[LayerConfig]:
        if shrink < 1:
            raise ValueError(f"shrink is {shrink}; 1 is the full size, larger is smaller")
        if (self.base_tokens > 1 or self.config is not None) and tokens_per_block != self.base_tokens:
            raise ValueError(f"{self.name} has blocks of {self.base_tokens} tokens, not of {tokens_per_block}; leave tokens_per_block out")
        configs: list[LayerConfig] = []
        for layer in self.layers:
            if isinstance(layer, SsmLayerConfig):
                states = [BufferConfig(buffer.role, shrunk(buffer.size, shrink)) for buffer in layer.buffers]
                configs.append(SsmLayerConfig(layer.layer_id, states))
                continue
            buffers: list[BufferConfig] = []
            for buffer in layer.buffers:
                override = buffer.tokens_per_block_override
                size = self._bytes_per_block(buffer, tokens_per_block, shrink)
                if override is None:
                    buffers.append(BufferConfig(buffer.role, size))
                else:
                    buffers.append(BufferConfig(buffer.role, size * override // tokens_per_block, override))
            configs.append(AttentionLayerConfig(layer.layer_id, buffers, layer.sliding_window_size, layer.num_sink_tokens, layer.part))
        return configs

    def _bytes_per_block(self, buffer: BufferConfig, tokens_per_block: int, shrink: int) -> int:
        """Bytes of one buffer for a block: exact, or with a shrink a multiple of `MIN_BYTES_PER_TOKEN` for each token."""
        override = buffer.tokens_per_block_override
        size = buffer.size if override is None else buffer.size * (self.base_tokens // override)
        if shrink == 1:
            return size * tokens_per_block // self.base_tokens
        return shrunk(size // self.base_tokens, shrink) * tokens_per_block

    @property
    def _attention_buffers(self) -> list[BufferConfig]:
        return [buffer for layer in self.layers if isinstance(layer, AttentionLayerConfig) for buffer in layer.buffers]

    @property
    def _state_buffers(self) -> list[BufferConfig]:
        return [buffer for layer in self.layers if isinstance(layer, SsmLayerConfig) for buffer in layer.buffers]


def shrunk(num_bytes: int, shrink: int) -> int:
    """So many bytes divided by ``shrink``, as a multiple of `MIN_BYTES_PER_TOKEN`; unchanged with a shrink of 1."""
    if shrink == 1:
        return num_bytes
    return max(num_bytes // shrink // MIN_BYTES_PER_TOKEN, 1) * MIN_BYTES_PER_TOKEN
