"""Where a kernel finds a buffer: base addresses, strides, bounds and converters, from the layout and the pools.

For one (layer, role): its sub-pages in a slot are ``page_bytes`` apart and there are ``scale`` of this layer group's, each
made of ``expansion`` pages of the kernel's. In SHARED mode a page index counts from the layer's own first page
(``pool base + layer_offset * expansion * page_bytes``), in PER_LAYER mode from the pool's base.
"""

from typing import Final, final

from mypy_extensions import mypyc_attr

from ..base.checks import validate_index_mode
from ..base.ids import DataRole, LayerId, MemAddress, PageIndexMode
from ..layout.buffer_id import BufferId
from ..layout.buffer_placement import BufferPlacement
from ..layout.page_index import PageIndexConverter
from ..layout.slot_layout import SlotLayout
from ..storage.page_storage import PageStorage


@final
@mypyc_attr(native_class=True)
class KernelAddresses:
    __slots__ = ("_layout", "_storage", "_mode_required")

    _layout: Final[SlotLayout]
    _storage: Final[PageStorage]
    _mode_required: Final[bool]

    def __init__(self, storage: PageStorage, mode_required: bool) -> None:
        self._layout = storage.layout
        self._storage = storage
        self._mode_required = mode_required

    def placement(self, layer_id: LayerId, role: DataRole) -> BufferPlacement:
        return self._layout.buffer_placement(BufferId(layer_id, role))

    def base_address(self, layer_id: LayerId, role: DataRole, mode: PageIndexMode | None) -> MemAddress:
        placement = self.placement(layer_id, role)
        if mode is None:
            if self._mode_required:
                raise ValueError(
                    "with swa_scratch_reuse the base address depends on the page index mode: pass PageIndexMode.PER_LAYER "
                    "or PageIndexMode.SHARED"
                )
            mode = PageIndexMode.SHARED
        validate_index_mode(mode)
        group = self._storage.pool_groups[placement.pool_group_index]
        address = int(group.base_addresses[placement.pool_index])
        if mode is PageIndexMode.SHARED:
            address += placement.offset_bytes
        return MemAddress(address)

    def page_index_upper_bound(self, layer_id: LayerId, role: DataRole) -> int:
        """One past the largest index that the converter gives for this buffer in SHARED mode."""
        placement = self.placement(layer_id, role)
        allocator = self._storage.allocators[placement.pool_group_index]
        last_slot = int(allocator.first_slot + allocator.num_slots) - 1
        return (last_slot * placement.scale + 1) * placement.expansion

    def converter(self, layer_id: LayerId, role: DataRole) -> PageIndexConverter:
        placement = self.placement(layer_id, role)
        return PageIndexConverter(
            placement.scale, placement.expansion, placement.layer_offset, placement.scratch_pages_per_block
        )
