"""The model's layers: which buffers each one stores, and which tokens it reads.

A layer is attention (one page per block, all blocks or a sliding window of them) or recurrent (one state per sequence
and beam). A layer that is both is configured twice under the same id, once as each kind, with different roles.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from mypy_extensions import mypyc_attr

from ..base.checks import to_int
from ..base.given import Given
from ..base.ids import DataRole, LayerId
from .config_value import ConfigValue, take_int, take_optional_int, take_text, to_objects


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class BufferConfig(ConfigValue):
    """The bytes that one layer stores for one block under one role: ``size`` bytes.

    Where the layer's kernel uses smaller blocks than the manager, ``tokens_per_block_override`` is their length and
    ``size`` counts one of those; it must divide the manager's ``tokens_per_block``.
    """

    role: DataRole
    size: int
    tokens_per_block_override: int | None = None

    def __post_init__(self) -> None:
        take_text(self, "role", "BufferConfig.role")
        take_int(self, "size", f"size of buffer {self.role!r}", 1)
        take_optional_int(self, "tokens_per_block_override", f"tokens_per_block_override of buffer {self.role!r}", 1)

    def expansion(self, tokens_per_block: Given[int]) -> int:
        """The number of the kernel's blocks in one block of the manager; `KVCacheManagerConfig` checks that it divides."""
        tokens_per_block = to_int(tokens_per_block, "tokens_per_block")
        return 1 if self.tokens_per_block_override is None else tokens_per_block // self.tokens_per_block_override


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class AttentionLayerConfig(ConfigValue):
    """A layer that attends to all earlier tokens, or to a sliding window and the first ``num_sink_tokens``.

    ``sliding_window_size`` includes the token that is being computed and excludes the sinks. Sinks without a window have no effect,
    as every token is read: a `ValueError`. Layers with equal windows and sinks form one layer group for each ``part``: numbers that
    the caller chooses, so that groups get slots of equal size or the shape of an engine's own groups.
    """

    layer_id: LayerId
    buffers: Sequence[BufferConfig]
    sliding_window_size: int | None = None
    num_sink_tokens: int | None = None
    part: int = 0

    def __post_init__(self) -> None:
        take_int(self, "layer_id", "layer_id", -MAX_LAYER_ID, MAX_LAYER_ID)
        object.__setattr__(self, "buffers", _to_buffers(self.layer_id, self.buffers))
        take_optional_int(self, "sliding_window_size", f"sliding_window_size of layer {self.layer_id}", 1)
        take_optional_int(self, "num_sink_tokens", f"num_sink_tokens of layer {self.layer_id}", 0)
        take_int(self, "part", f"part of layer {self.layer_id}", 0, MAX_LAYER_ID)
        if self.num_sink_tokens is not None and self.num_sink_tokens > 0 and self.sliding_window_size is None:
            raise ValueError(
                f"layer {self.layer_id} has num_sink_tokens={self.num_sink_tokens} but a sliding_window_size of None:"
                f" without a window every token is read, so leave the sinks out"
            )

    @property
    def window_size(self) -> int | None:
        """The window in tokens, the one that is being computed included; None: all tokens are read."""
        return self.sliding_window_size


@dataclass(frozen=True)
@mypyc_attr(native_class=False)
class SsmLayerConfig(ConfigValue):
    """A layer with recurrent state (SSM, linear attention): each buffer's ``size`` is bytes per sequence and beam."""

    layer_id: LayerId
    buffers: Sequence[BufferConfig]

    def __post_init__(self) -> None:
        take_int(self, "layer_id", "layer_id", -MAX_LAYER_ID, MAX_LAYER_ID)
        object.__setattr__(self, "buffers", _to_buffers(self.layer_id, self.buffers))
        for buffer in self.buffers:
            if buffer.tokens_per_block_override is not None:
                raise ValueError(
                    f"buffer {buffer.role!r} of layer {self.layer_id} has"
                    f" tokens_per_block_override={buffer.tokens_per_block_override}, but recurrent state has no blocks"
                )


LayerConfig: TypeAlias = AttentionLayerConfig | SsmLayerConfig

MAX_LAYER_ID: Final = 2**31 - 1


def _to_buffers(layer_id: int, buffers: Sequence[BufferConfig]) -> tuple[BufferConfig, ...]:
    items = to_objects(buffers, BufferConfig, f"buffers of layer {layer_id}")
    roles: set[str] = set()
    for item in items:
        if item.role in roles:
            raise ValueError(f"layer {layer_id} has two buffers with the role {item.role!r}")
        roles.add(item.role)
    if not items:
        raise ValueError(f"layer {layer_id} has no buffers; leave out layers that store nothing")
    return items
