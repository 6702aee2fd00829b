"""Attention layers divided into groups whose slots have equal bytes, so that all of them share one pool group. Pure.

Layers that read the same blocks and store the same bytes are a kind. Each kind is divided, in the order of the layers, into parts of as
many layers as fill a slot; the last part may leave some of its slot unused. All parts of a kind have pages for the same blocks, so the
kind's unused share is the same whatever sequences run, and the largest of the kinds' shares bounds that of any mix:

    8 full layers, 40 windowed     slots of  8 layers: 1 + 5 parts, nothing unused
    10 full layers, 52 windowed    slots of 11 layers: 1 + 5 parts, 1/11 unused in the first kind, 3/55 in the other
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias


from ..base.integer_math import ceil_div
from ..base.value import Value
from .layer_config import AttentionLayerConfig, LayerConfig

SMALL_PADDING: Final = 0.1
"""The unused share up to which equal slots are offered."""

_Kind: TypeAlias = tuple[tuple[tuple[int, int], ...], int | None, int]
"""By pool the bytes of one layer and of each of its buffers; window; sink blocks."""


@dataclass(frozen=True)
class EqualSlots(Value):
    """A division: of each attention layer its part, by pool the bytes of a slot, and the largest unused share of a kind."""

    part_of: dict[int, int]
    slot_bytes: tuple[int, ...]
    padding: float


def divide_layers(layers: Sequence[LayerConfig], tokens_per_block: int, max_padding: float) -> EqualSlots:
    """The division with the fewest parts, then the least padding. `ValueError` if none leaves at most ``max_padding`` of a kind unused."""
    kinds: dict[_Kind, list[int]] = {}
    for layer in layers:
        if isinstance(layer, AttentionLayerConfig):
            if layer.part != 0:
                raise ValueError(
                    f"max_slot_padding is {max_padding:g}, which divides layers into parts, and part of layer {layer.layer_id} is "
                    f"{layer.part}; leave one of them out"
                )
            kinds.setdefault(_kind_of(layer, tokens_per_block), []).append(layer.layer_id)
    if len(kinds) == 0:
        return EqualSlots({}, (), 0.0)
    largest = max([kind[0] for kind in kinds])
    most = max([len(ids) for kind, ids in kinds.items() if kind[0] == largest])
    best: tuple[int, float, list[int]] | None = None
    # More than twice as many layers as there are leave over half of a slot unused.
    for num_layers in range(1, 2 * most + 1):
        counts = [_count_layers(kind, [num_layers * size for size, _ in largest]) for kind in kinds]
        if all([count > 0 for count in counts]):
            num_parts = [int(ceil_div(len(ids), count)) for ids, count in zip(kinds.values(), counts)]
            padding = max([1 - len(ids) / (n * count) for ids, n, count in zip(kinds.values(), num_parts, counts)])
            if padding <= max_padding and (best is None or (sum(num_parts), padding) < best[:2]):
                best = (sum(num_parts), padding, counts)
    if best is None:
        found = ", ".join([f"{len(ids)} of {[size for size, _ in kind[0]]} bytes a block" for kind, ids in kinds.items()])
        raise ValueError(
            f"max_slot_padding is {max_padding:g}, and no division of these layers into equal slots leaves so little unused: {found}; "
            "raise max_slot_padding, or leave it out"
        )
    parts: dict[int, int] = {}
    next_parts: dict[object, int] = {}  # by window and sinks: kinds that differ in bytes alone have other parts
    for (kind, ids), count in zip(kinds.items(), best[2]):
        first = next_parts.get(kind[1:], 0)
        parts.update({layer_id: first + index // count for index, layer_id in enumerate(ids)})
        next_parts[kind[1:]] = parts[ids[-1]] + 1
    kind, count = next(iter(kinds)), best[2][0]
    return EqualSlots(parts, tuple([count * size for size, _ in kind[0]]), best[1])


def _kind_of(layer: AttentionLayerConfig, tokens_per_block: int) -> _Kind:
    totals: dict[int, int] = {}
    for buffer in layer.buffers:
        size = buffer.size * buffer.expansion(tokens_per_block)
        totals[size] = totals.get(size, 0) + size
    pools = sorted([(total, size) for size, total in totals.items()], reverse=True)
    return tuple(pools), layer.sliding_window_size, int(ceil_div(layer.num_sink_tokens or 0, tokens_per_block))


def _count_layers(kind: _Kind, slot_bytes: list[int]) -> int:
    """The layers of a kind that fill a slot in each pool; 0 if no number does."""
    count = slot_bytes[0] // kind[0][0][0]
    return count if [count * size for size, _ in kind[0]] == slot_bytes else 0
