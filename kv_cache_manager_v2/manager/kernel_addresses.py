"""Kernel addresses of each buffer: base addresses, strides, bounds and converters.

For one (layer, role): its sub-pages in a slot are ``page_bytes`` apart and there are ``scale`` of this layer group's, each
made of ``expansion`` pages of the kernel's. In SHARED mode a page index counts from the layer's own first page
(``pool base + layer_offset * expansion * page_bytes``), in PER_LAYER mode from the pool's base.
"""

from collections.abc import Iterable
from typing import Final, final


from ..base.checks import to_index_mode, to_list, to_role
from ..base.errors import LogicError
from ..base.ids import LayerId, MemAddress, PageIndexMode, PoolGroupIndex, PoolIndex
from ..device.cuda_device import CudaDevice
from ..layout.buffer_id import BufferId
from ..layout.buffer_placement import BufferPlacement
from ..layout.page_index import PageIndexConverter, compute_page_index_converter
from ..layout.page_run import compute_page_runs
from ..layout.pool_desc import AggregatedPageDesc, PoolDesc, PoolGroupDesc
from ..layout.slot_layout import SlotLayout
from ..storage.page_storage import PageStorage
from .memory_lease import MemoryLease
from .pool_view import PoolView


@final
class KernelAddresses:
    __slots__ = ("_layout", "_storage", "_mode_required")

    def __init__(self, storage: PageStorage, mode_required: bool) -> None:
        self._layout: Final[SlotLayout] = storage.layout
        self._storage: Final = storage
        self._mode_required: Final = mode_required

    def placement(self, layer_id: LayerId, role: object) -> BufferPlacement:
        return self._layout.buffer_placement(BufferId(layer_id, to_role(role, "data_role")))

    def base_address(self, layer_id: LayerId, role: object, mode: PageIndexMode | None) -> MemAddress:
        placement = self.placement(layer_id, role)
        self.require_memory("get_mem_pool_base_address()")
        if mode is None:
            if self._mode_required:
                raise ValueError(
                    "with swa_scratch_reuse the base address depends on the page index mode: pass PageIndexMode.PER_LAYER "
                    "or PageIndexMode.SHARED"
                )
            mode = PageIndexMode.SHARED
        to_index_mode(mode, "index_mode")
        group = self._storage.pool_groups[placement.pool_group_index]
        address = int(group.base_addresses[placement.pool_index])
        if mode is PageIndexMode.SHARED:
            address += placement.offset_bytes
        return MemAddress(address)

    def require_memory(self, call: str) -> None:
        """`LogicError` where the device has no memory: there is no address."""
        device = self._storage.device
        if not device.has_memory:
            raise LogicError(f"{call}: the device ({device.name}) has no memory; base page indices number the slots of the engine's own")

    def page_index_upper_bound(self, layer_id: LayerId, role: object) -> int:
        """One past the largest index that the converter gives for this buffer in SHARED mode."""
        placement = self.placement(layer_id, role)
        allocator = self._storage.allocators[placement.pool_group_index]
        last_slot = int(allocator.first_slot + allocator.num_slots) - 1
        return (last_slot * placement.scale + 1) * placement.expansion

    def converter(self, layer_id: LayerId, role: object) -> PageIndexConverter:
        return compute_page_index_converter(self.placement(layer_id, role))

    def pool_group_descs(self, level: int) -> tuple[PoolGroupDesc, ...]:
        descs: list[PoolGroupDesc] = []
        has_memory = self._storage.device.has_memory
        count = int(self._storage.num_pool_groups)
        for index, group in enumerate(self._storage.pool_groups[level * count : (level + 1) * count]):
            pools = [
                PoolDesc(PoolIndex(pool), MemAddress(int(address) if has_memory else 0), int(group.slot_bytes[pool]))
                for pool, address in enumerate(group.base_addresses)
            ]
            num_slots = int(group.allocator.first_slot + group.allocator.num_slots)
            descs.append(PoolGroupDesc(PoolGroupIndex(index), num_slots, self._layout.slot_descs[index], tuple(pools)))
        return tuple(descs)

    def aggregated_pages(self, buffer_ids: Iterable[BufferId]) -> list[AggregatedPageDesc]:
        descs: list[AggregatedPageDesc] = []
        self.require_memory("get_aggregated_pages()")
        for run in compute_page_runs(self._layout, [_to_buffer_id(item) for item in to_list(buffer_ids, "buffer_ids")]):
            group = self._storage.pool_groups[run.pool_group_index]
            descs.append(run.at_address(int(group.base_addresses[run.pool_index])))
        return descs

    def pool_view(
        self, lease: MemoryLease, layer_id: LayerId, role: object, dtype: str, mode: PageIndexMode | None, by_slot: bool
    ) -> PoolView:
        placement = self.placement(layer_id, role)
        self.require_memory("pool_view()")
        if mode is None:
            mode = PageIndexMode.PER_LAYER if self._mode_required else PageIndexMode.SHARED
        allocator = self._storage.allocators[placement.pool_group_index]
        num_slots = int(allocator.first_slot + allocator.num_slots)
        device = self._storage.device
        ordinal = -1 if device.is_software else 0
        if isinstance(device, CudaDevice):
            ordinal = device.ordinal
        if by_slot:
            # The buffer's place in a slot is the same in both modes.
            address = int(self.base_address(layer_id, role, PageIndexMode.SHARED))
            slot_bytes = self._layout.slot_bytes(placement.pool_group_index)[placement.pool_index]
            return PoolView(lease, address, num_slots, placement.num_bytes, slot_bytes, dtype, ordinal)
        address = int(self.base_address(layer_id, role, mode))
        if mode is PageIndexMode.SHARED:
            num_pages = self.page_index_upper_bound(layer_id, role)
        else:
            num_pages = num_slots * placement.scale * placement.expansion
        return PoolView(lease, address, num_pages, placement.page_bytes, placement.page_bytes, dtype, ordinal)


def _to_buffer_id(value: object) -> BufferId:
    if not isinstance(value, BufferId):
        raise TypeError(f"buffer_ids must be of BufferId(layer_id, role), not {type(value).__name__}")
    to_role(value.role, "the role of each of buffer_ids")
    return value
