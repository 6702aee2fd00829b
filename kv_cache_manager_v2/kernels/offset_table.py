"""Key and value block offsets of TensorRT-LLM's attention op, with their pool pointers and layer mapping."""

from typing import Final, final

import numpy as np
import numpy.typing as npt
from mypy_extensions import i64

from ..base.ids import DataRole, LayerId, PageIndexMode
from ..layout.buffer_id import BufferId
from ..manager.kv_cache_manager import KVCacheManager
from ..sequence.changed_blocks import ChangedBlocks
from ..sequence.sequence_state import SequenceState
from .batch_rows import BatchRows
from .index_limits import IndexLimits
from .output_array import INT32, INT64, to_output_array
from .page_family import DensePages, PageRule, resolve_family
from .row_writer import RowWriter
from .table_output import TableOutput

PER_LAYER: Final = PageIndexMode.PER_LAYER


@final
class VirtualPool:
    """Layers that share one row of offsets, and the address from which the offsets count."""

    __slots__ = ("address", "key", "value", "layers")

    def __init__(self, address: int, key: PageRule, value: PageRule, layer_id: LayerId) -> None:
        self.address: Final = address
        self.key: Final = key
        self.value: Final = value
        self.layers: Final[list[LayerId]] = [layer_id]


def plan_virtual_pools(
    manager: KVCacheManager, key_role: DataRole, value_role: DataRole | None, layer_ids: list[LayerId]
) -> list[VirtualPool]:
    """One virtual pool for the layers of a group whose buffers are adjacent; otherwise, and with scratch reuse, one per
    layer."""
    kv_factor = 1 if value_role is None else 2
    pools: list[VirtualPool] = []
    for layer_id in layer_ids:
        key = resolve_family(manager, DensePages(layer_id, key_role, PER_LAYER))
        value = key if value_role is None else resolve_family(manager, DensePages(layer_id, value_role, PER_LAYER))
        address = int(manager.get_mem_pool_base_address(layer_id, key_role, PER_LAYER))
        if value_role is not None:
            _validate_pair(manager, layer_id, key_role, value_role, key, value)
        previous = pools[-1] if len(pools) > 0 else None
        for pool in pools:
            if pool.address == address and pool.key.layer_group == key.layer_group:
                previous = pool
        if (
            previous is None
            or manager.init_config.enable_swa_scratch_reuse
            or not (
                previous.address == address
                and previous.key.layer_group == key.layer_group
                and previous.key.expansion == key.expansion == 1
                and key.offset == previous.key.offset + kv_factor * len(previous.layers)
                and value.offset - key.offset == previous.value.offset - previous.key.offset
            )
        ):
            pools.append(VirtualPool(address, key, value, layer_id))
        else:
            previous.layers.append(layer_id)
    return pools


def _validate_pair(
    manager: KVCacheManager, layer_id: LayerId, key_role: DataRole, value_role: DataRole, key: PageRule, value: PageRule
) -> None:
    same_pool = manager.get_mem_pool_base_address(layer_id, key_role, PER_LAYER) == manager.get_mem_pool_base_address(
        layer_id, value_role, PER_LAYER
    )
    same_page = manager.get_page_stride(layer_id, key_role) == manager.get_page_stride(layer_id, value_role)
    if not same_pool or not same_page or key.layer_group != value.layer_group:
        raise ValueError(
            f"layer {layer_id}: {key_role!r} and {value_role!r} must have the same size and lie in one pool, both are "
            f"counted from one address"
        )


@final
class OffsetTable(TableOutput):
    """Page table for TensorRT-LLM's attention op (``cpp/tensorrt_llm/thop/attentionOp.cpp``, ``KVBlockArray`` in
    ``cpp/tensorrt_llm/kernels/kvCacheUtils.h``):

    - `offsets` ``[pools, max_num_sequences * beams, 2, max_blocks]`` int32, ``kv_cache_block_offsets``: plane 0 the
      keys', plane 1 the values'; the byte address is ``pool pointer + layer in pool * kv_factor * page bytes + offset *
      page bytes``. A beam is a row: add a
      sequence's beams one after another;
    - `pool_pointers` ``[pools, 2]`` int64, ``host_kv_cache_pool_pointers``: the address, and 0 for the host's pool.
      With ``scale_role`` ``[pools, 2, 2]``, the last axis (data, scales), for NVFP4;
    - `pool_mapping` ``[layers, 2]`` int32, ``host_kv_cache_pool_mapping``: pool, and layer in the pool, in the order of
      `layer_ids`.

    A pool is the adjacent keys and values of a layer group. If they are not adjacent (a layer of another size is in
    between), and with scratch reuse, each layer is a *virtual pool* of its own and counts from the same address.
    Blocks without a page, and the entries behind the last block, are 0, the null slot.
    """

    __slots__ = ("offsets", "pool_pointers", "pool_mapping", "layer_ids", "page_bytes", "kv_factor", "_writers", "_rows")

    def __init__(
        self,
        manager: KVCacheManager,
        rows: BatchRows,
        limits: IndexLimits,
        key_role: DataRole,
        value_role: DataRole | None,
        scale_role: DataRole | None,
        out: object,
    ) -> None:
        known = set(manager.all_buffer_ids)
        self.layer_ids: Final[list[LayerId]] = [layer for layer in manager.layer_ids if BufferId(layer, key_role) in known]
        if len(self.layer_ids) == 0:
            raise ValueError(f"no layer has a buffer with the role {key_role!r}")
        pools = plan_virtual_pools(manager, key_role, value_role, self.layer_ids)
        for pool in pools:
            limits.require(pool.key)
        width = rows.max_num_blocks * max([int(pool.key.expansion) for pool in pools])
        shape = (len(pools), rows.max_num_rows, 2, width)
        self.offsets: npt.NDArray[np.int32] = to_output_array(out, "out", shape, INT32)
        self._own = [self.offsets]
        self.offsets.fill(0)
        self.pool_pointers: Final[npt.NDArray[np.int64]] = np.zeros((len(pools), 2) if scale_role is None else (len(pools), 2, 2), INT64)
        self.pool_mapping: Final[npt.NDArray[np.int32]] = np.zeros((len(self.layer_ids), 2), INT32)
        self.page_bytes: Final[npt.NDArray[np.int64]] = np.zeros(len(pools), INT64)
        """``[pools]``: bytes per page index."""
        self.kv_factor: Final[int] = 1 if value_role is None else 2
        """2, or 1 without values (then both planes are the keys')."""
        self._rows: Final = rows
        places: list[tuple[PageRule, int]] = []
        for index, pool in enumerate(pools):
            # The layer's offset is in its index in the pool; a layer that is its own virtual pool may have scratch blocks.
            is_per_layer = manager.init_config.enable_swa_scratch_reuse
            first_offset: i64 = 0
            if not is_per_layer:
                first_offset = pool.key.offset if pool.key.offset < pool.value.offset else pool.value.offset
            num_first_pages = int(first_offset * pool.key.expansion)
            page_bytes = manager.get_page_stride(pool.layers[0], key_role)
            self.page_bytes[index] = page_bytes
            pointer = pool.address + num_first_pages * page_bytes
            if scale_role is None:
                self.pool_pointers[index, 0] = pointer
            else:
                self.pool_pointers[index, 0, 0] = pointer
                self.pool_pointers[index, 0, 1] = _scale_pointer(manager, pool, key_role, scale_role, num_first_pages)
            for position, layer_id in enumerate(pool.layers):
                self.pool_mapping[self.layer_ids.index(layer_id)] = (index, position)
            for plane, rule in ((0, pool.key), (1, pool.value)):
                used = rule if is_per_layer else rule.moved_by(-first_offset)
                first = (index * rows.max_num_rows * 2 + plane) * width
                places.append((used, first))
        # Rows track no layer group for a table that could not be made.
        self._writers: Final[list[RowWriter]] = []
        for used, first in places:
            self._writers.append(RowWriter(used, 0, self.offsets, first, 2 * width, rows.use_layer_group(used.layer_group)))

    @property
    def rows(self) -> npt.NDArray[np.int32]:
        """``[pools, num_seqs, 2, max_blocks]``: a view of the rows that are taken."""
        return self.offsets[:, : len(self._rows)]

    def rules(self) -> list[PageRule]:
        return [writer.rule for writer in self._writers]

    def update_row(self, row: i64, state: SequenceState, layer_group: i64, changed: ChangedBlocks) -> None:
        for writer in self._writers:
            if writer.rule.layer_group == layer_group:
                writer.update(row, state.tables[layer_group], changed, state.scratch)

    def _show(self, written: TableOutput) -> None:
        self.offsets = written._own[0]

    def clear_row(self, row: i64) -> None:
        for writer in self._writers:
            writer.clear_row(row)


def _lies_at(manager: KVCacheManager, layer_id: LayerId, role: DataRole, offset: int) -> bool:
    """Whether the layer's buffer is at that offset of the coalesced buffer of the role."""
    wanted = BufferId(layer_id, role)
    for group in manager.pool_group_descs:
        for variant in group.slot_desc.variants:
            for coalesced in variant.coalesced_buffers:
                if wanted in coalesced.buffer_ids:
                    return offset < coalesced.num_buffers and coalesced.buffer_ids[offset].layer_id == layer_id
    return False


def _scale_pointer(manager: KVCacheManager, pool: VirtualPool, key_role: DataRole, scale_role: DataRole, num_first_pages: int) -> int:
    """The address of the pool's scales. The same offsets apply to them, so each layer's scales must be placed as its keys are."""
    address = int(manager.get_mem_pool_base_address(pool.layers[0], scale_role, PER_LAYER))
    for layer_id in pool.layers:
        keys = resolve_family(manager, DensePages(layer_id, key_role, PER_LAYER))
        scales = resolve_family(manager, DensePages(layer_id, scale_role, PER_LAYER))
        if (
            scales.scale != keys.scale
            or scales.offset != keys.offset
            or scales.expansion != keys.expansion
            or scales.layer_group != keys.layer_group
            or int(manager.get_mem_pool_base_address(layer_id, scale_role, PER_LAYER)) != address
        ):
            raise ValueError(f"layer {layer_id}: {scale_role!r} does not lie in its pool as the keys do in theirs")
        value_offset = int(scales.offset + pool.value.offset - pool.key.offset)
        if value_offset < 0 or not _lies_at(manager, layer_id, scale_role, value_offset):
            raise ValueError(
                f"layer {layer_id}: no buffer of the layer lies beside {scale_role!r} as the values lie beside the keys; the "
                f"values' scales are looked for there"
            )
    layer_id = pool.layers[0]
    return address + num_first_pages * manager.get_page_stride(layer_id, scale_role)
