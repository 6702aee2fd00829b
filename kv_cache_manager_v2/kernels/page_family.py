"""The two ways in which attention kernels index pages.

    strided view   entry = base page index. One table for a layer group; each layer's cache tensor is a view of the pool
                   whose stride over pages is the slot, as `KVCacheManager.pool_view(..., by_slot=True)` gives it
    dense page     entry = base page index * scale (+ the layer's offset in PER_LAYER mode). A table for each layer, or
                   in SHARED mode for all layers of equal scale; the cache tensor is the pool as pages without gaps, as
                   `KVCacheManager.pool_view` gives it

Scratch blocks and buffers with a `tokens_per_block_override` can be addressed by dense pages only, scratch blocks in
PER_LAYER mode only.
"""

from dataclasses import dataclass
from typing import Final, SupportsIndex, final

from mypy_extensions import i64

from ..base.checks import to_index, to_index_mode, to_int, to_role
from ..base.given import Given
from ..base.ids import DataRole, LayerId, PageIndexMode
from ..base.value import Value
from ..manager.kv_cache_manager import KVCacheManager
from ..sequence.sequence_state import SequenceState


@final
class StridedPages(Value):
    """Entries are base page indices (slot ids) of one layer group."""

    __slots__ = ("layer_group_id",)

    def __init__(self, layer_group_id: SupportsIndex) -> None:
        self.layer_group_id: Final[int] = to_int(layer_group_id, "layer_group_id")


@final
class DensePages(Value):
    """Entries are page indices of one (layer, role), as `PageIndexConverter` computes them; SHARED serves equal
    layers too."""

    __slots__ = ("layer_id", "data_role", "index_mode")

    def __init__(
        self, layer_id: SupportsIndex, data_role: Given[DataRole], index_mode: Given[PageIndexMode] = PageIndexMode.SHARED
    ) -> None:
        self.layer_id: Final[LayerId] = LayerId(to_int(layer_id, "layer_id"))
        self.data_role: Final[DataRole] = to_role(data_role, "data_role")
        self.index_mode: Final[PageIndexMode] = to_index_mode(index_mode, "index_mode")

    def __repr__(self) -> str:
        return f"DensePages({self.layer_id}, {self.data_role!r}, {self.index_mode.name})"


PageFamily = StridedPages | DensePages


@final
@dataclass(frozen=True)
class PageRule(Value):
    """A page family resolved against a manager: plain numbers for loops. ``index = (slot * scale + offset) *
    expansion + j``."""

    layer_group: i64
    scale: i64
    offset: i64
    expansion: i64
    scratch_pages_per_block: i64
    addresses_scratch: bool
    page_tokens: i64
    text: str

    def moved_by(self, offset: i64) -> "PageRule":
        """This rule for a base address that is so many sub-pages earlier; without scratch blocks."""
        return PageRule(self.layer_group, self.scale, self.offset + offset, self.expansion, 1, False, self.page_tokens, self.text)

    def first_page(self, slot: i64) -> i64:
        """The first page index of a block in that slot."""
        return (slot * self.scale + self.offset) * self.expansion

    def first_scratch_page(self, position: i64, slots: list[int]) -> i64:
        """The first page index of the scratch block at that position of the scratch range."""
        blocks_per_slot = self.scale // self.scratch_pages_per_block
        slot: i64 = slots[position // blocks_per_slot]
        sub_page = (position % blocks_per_slot * self.scratch_pages_per_block + self.offset) % self.scale
        return (slot * self.scale + sub_page) * self.expansion


def resolve_family(manager: KVCacheManager, family: object) -> PageRule:
    """The rule of a page family; `ValueError` for an unknown layer group, layer or role."""
    tokens = manager.tokens_per_block
    if isinstance(family, StridedPages):
        to_index(family.layer_group_id, "layer_group_id", len(manager.layer_grouping), "layer groups")
        _require_pages_per_block(manager, family.layer_group_id)
        return PageRule(family.layer_group_id, 1, 0, 1, 1, False, tokens, repr(family))
    if not isinstance(family, DensePages):
        raise TypeError(f"pages must be StridedPages or DensePages, not {type(family).__name__}")
    converter = manager.get_page_index_converter(family.layer_id, family.data_role)
    group = manager.get_layer_group_id(family.layer_id)
    is_per_layer = family.index_mode is PageIndexMode.PER_LAYER
    _require_pages_per_block(manager, group)
    return PageRule(
        group,
        converter.scale,
        converter.layer_offset if is_per_layer else 0,
        converter.expansion,
        converter.scratch_pages_per_block,
        is_per_layer,
        tokens // converter.expansion,
        repr(family),
    )


def validate_scratch(rules: list[PageRule], state: SequenceState) -> None:
    """`ValueError` if the sequence has scratch blocks that one of the rules cannot address."""
    scratch = state.scratch
    for rule in rules:
        group = rule.layer_group
        if not rule.addresses_scratch and scratch.begins[group] < scratch.ends[group]:
            raise ValueError(
                f"sequence {state.id} has scratch blocks in layer group {group}, which {rule.text} cannot address: "
                f"use DensePages with PageIndexMode.PER_LAYER, or run such steps apart"
            )


def _require_pages_per_block(manager: KVCacheManager, layer_group_id: int) -> None:
    if not manager.life_cycle_of_group(layer_group_id).has_page_per_block:
        raise ValueError(
            f"layer group {layer_group_id} has recurrent state, one slot per sequence and no pages to list;"
            f" use KVCache.get_ssm_block_base_index"
        )
