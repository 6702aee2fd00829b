"""The bytes that one GPU stores for each layer: data types with their scales, heads divided between the ranks of tensor parallelism.

- Key/value heads are divided; where there are more ranks than heads, a head is on several ranks. A latent of MLA is on every rank.
- The heads or channels of a recurrent state are divided too. Its groups (Mamba 2) are on several ranks where they are too few.
- `nvfp4`: half a byte for each item, and one byte of scale for each 16 items, in a buffer of its own (`key_scale`).

Sizes are those of one token; a state's of one sequence. Recurrent states keep their own data types: for convolutions the model's, 16 bits
unless ``dtype`` is fp32, and for the other states what the configuration says, else 32 bits.
"""

from typing import Final, final


from ..base.ids import DataRole, LayerId
from ..config.layer_config import AttentionLayerConfig, BufferConfig, LayerConfig, SsmLayerConfig
from .model_fields import ModelFields

DTYPES: Final = ("bf16", "fp16", "fp8", "nvfp4", "fp32")
_BITS: Final = {"bf16": 16, "fp16": 16, "fp8": 8, "nvfp4": 4, "fp32": 32}
_ITEMS_PER_SCALE: Final = 16
_INDEX_ITEMS_PER_SCALE: Final = 128
_INDEX_SCALE_BYTES: Final = 4


@final
class LayerMaker:
    """Collects the layers of one rank in ``layers``: with blocks of one token, in the order of their ids."""

    __slots__ = ("fields", "layers", "_dtype", "_ranks", "_num_sink_tokens")

    def __init__(self, fields: ModelFields, dtype: str, tensor_parallel: int, num_sink_tokens: int) -> None:
        self.fields: Final = fields
        self.layers: Final[list[LayerConfig]] = []
        self._dtype: Final = dtype
        self._ranks: Final = tensor_parallel
        self._num_sink_tokens: Final = num_sink_tokens

    def add_heads(
        self, layer_id: int, num_kv_heads: int, key_dim: int, value_dim: int, window: int | None, extra: BufferConfig | None = None
    ) -> None:  # fmt: skip
        """Keys and values of the heads that this rank has. ``extra``: one buffer more, on every rank."""
        heads = self._share_heads(layer_id, num_kv_heads)
        buffers = self._buffers("key", heads * key_dim, key_dim, layer_id)
        buffers += self._buffers("value", heads * value_dim, value_dim, layer_id)
        if extra is not None:
            buffers.append(extra)
        self._add_attention(layer_id, buffers, window)

    def add_latent(self, layer_id: int, num_items: int, window: int | None, extra: BufferConfig | None = None) -> None:
        """MLA's buffers: one vector for all heads."""
        buffers = self._buffers("latent", num_items, num_items, layer_id)
        if extra is not None:
            buffers.append(extra)
        self._add_attention(layer_id, buffers, window)

    def add_state(self, layer_id: int, conv_items: int, state_items: int, state_bytes: int) -> None:
        """A convolution's last inputs and a recurrent state; either may be absent (0). Already divided between the ranks."""
        buffers: list[BufferConfig] = []
        if conv_items > 0:
            buffers.append(BufferConfig(DataRole("conv_0"), conv_items * (4 if self._dtype == "fp32" else 2)))
        if state_items > 0:
            buffers.append(BufferConfig(DataRole("recurrent_0"), state_items * state_bytes))
        if len(buffers) == 0:
            raise self.fields.fail("the recurrent state has no items", layer_id)
        self.layers.append(SsmLayerConfig(LayerId(layer_id), buffers))

    def share(self, layer_id: int, count: int, name: str) -> int:
        """The part of one rank of so many heads or channels, which must be a whole number."""
        if count % self._ranks != 0:
            raise self.fields.fail(f"{name} {count} cannot be divided between {self._ranks} ranks of tensor parallelism", layer_id)
        return count // self._ranks

    def share_groups(self, groups: int) -> int:
        """The part of one rank of so many groups, which several ranks may have."""
        return max(groups // self._ranks, 1)

    def index_key(self, num_items: int) -> BufferConfig:
        """The keys of a sparse attention's indexer: 8 bits an item, and 4 bytes of scale for each 128, whatever the data type is."""
        num_scales = -(-num_items // _INDEX_ITEMS_PER_SCALE)
        return BufferConfig(DataRole("index_key"), num_items + num_scales * _INDEX_SCALE_BYTES)

    def _add_attention(self, layer_id: int, buffers: list[BufferConfig], window: int | None) -> None:
        sinks = self._num_sink_tokens if window is not None and self._num_sink_tokens > 0 else None
        self.layers.append(AttentionLayerConfig(LayerId(layer_id), buffers, window, sinks))

    def _share_heads(self, layer_id: int, num_kv_heads: int) -> int:
        if self._ranks % num_kv_heads == 0:
            return 1
        if num_kv_heads % self._ranks != 0:
            raise self.fields.fail(
                f"num_key_value_heads is {num_kv_heads}, which tensor_parallel={self._ranks} can neither divide nor repeat", layer_id
            )
        return num_kv_heads // self._ranks

    def _buffers(self, role: str, num_items: int, head_dim: int, layer_id: int) -> list[BufferConfig]:
        bits = _BITS[self._dtype]
        if num_items * bits % 8 != 0 or (bits == 4 and head_dim % _ITEMS_PER_SCALE != 0):
            raise self.fields.fail(f"{role}s of {head_dim} items cannot be stored as {self._dtype}, which takes multiples of 16", layer_id)
        buffers = [BufferConfig(DataRole(role), num_items * bits // 8)]
        if bits == 4:
            buffers.append(BufferConfig(DataRole(f"{role}_scale"), num_items // _ITEMS_PER_SCALE))
        return buffers
