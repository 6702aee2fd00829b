"""What never changes once a manager is made: the model as it sees it, where kernels find each buffer, how much fits.

The calm half of `KVCacheManager`; nothing here changes anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import SupportsIndex

from mypy_extensions import mypyc_attr

from ..base.checks import to_bool, to_count, to_index_mode, to_int, to_text
from ..base.errors import LogicError
from ..base.given import Given
from ..base.handle import Handle
from ..base.ids import CacheTier, DataRole, LayerGroupId, LayerId, LifeCycleId, MemAddress, PageIndexMode
from ..config.manager_config import KVCacheManagerConfig
from ..device.port import Device
from ..layout.buffer_id import BufferId
from ..layout.life_cycle import LifeCycle
from ..layout.page_index import PageIndexConverter
from ..layout.pool_desc import AggregatedPageDesc, PoolGroupDesc
from ..layout.registry import LifeCycleRegistry
from ..layout.slot_layout import SlotLayout
from ..sequence.shared_state import SharedState
from .capacity import clamp_sequence_length
from .kernel_addresses import KernelAddresses
from .memory_lease import MemoryLease
from .pool_view import PoolView


@mypyc_attr(native_class=True)
class ModelQueries(Handle):
    """Base of `KVCacheManager`, which sets the attributes."""

    __slots__ = ("_config", "_device", "_layout", "_life_cycles", "_shared", "_addresses", "_lease", "_is_open")

    _config: KVCacheManagerConfig
    _device: Device
    _layout: SlotLayout
    _life_cycles: LifeCycleRegistry
    _shared: SharedState
    _addresses: KernelAddresses
    _lease: MemoryLease
    _is_open: bool

    def _require_open(self) -> None:
        if not self._is_open:
            raise LogicError("the manager is shut down")

    # -- the model as the manager sees it -----------------------------------------------------------------------------

    @property
    def layer_ids(self) -> list[LayerId]:
        """All layers, in the order of the configuration."""
        ids: list[LayerId] = []
        for layer in self._config.layers:
            if layer.layer_id not in ids:
                ids.append(layer.layer_id)
        return ids

    @property
    def num_layers(self) -> int:
        """A layer that has attention and state counts once."""
        return len(self.layer_ids)

    @property
    def layer_grouping(self) -> tuple[tuple[LayerId, ...], ...]:
        """The layers of each layer group, by `LayerGroupId`."""
        return self._life_cycles.layer_grouping

    def get_layer_group_id(self, layer_id: SupportsIndex) -> LayerGroupId:
        """The group of the layer's attention, or of its state if it has no attention. `ValueError` for an unknown layer."""
        return self._life_cycles.get_layer_group_id(LayerId(to_int(layer_id, "layer_id")))

    def life_cycle_of_group(self, layer_group_id: SupportsIndex) -> LifeCycle:
        """How long the layers of that group need a block. `ValueError` for an unknown group."""
        group = to_int(layer_group_id, "layer_group_id")
        if not 0 <= group < len(self._life_cycles):
            raise ValueError(f"layer_group_id is {group}; there are {len(self._life_cycles)} layer groups")
        return self._life_cycles[LifeCycleId(group)]

    @property
    def all_buffer_ids(self) -> list[BufferId]:
        """Every buffer of every layer, in the order of the configuration."""
        return [
            BufferId(layer.layer_id, buffer.role) for layer in self._config.layers for buffer in layer.buffers
        ]

    @property
    def tokens_per_block(self) -> int:
        """As configured."""
        return self._config.tokens_per_block

    @property
    def init_config(self) -> KVCacheManagerConfig:
        """The configuration that it was made with; `resize` and `adjust` do not change it."""
        return self._config

    @property
    def cache_tier_list(self) -> tuple[CacheTier, ...]:
        """The kind of each cache level, warmest first."""
        return tuple([tier.tier for tier in self._config.cache_tiers])

    @property
    def enable_partial_match(self) -> bool:
        """Whether the leading tokens of a block that differs later are reused."""
        return self._config.enable_partial_reuse

    @property
    def allow_seq_rebasing(self) -> bool:
        """Whether a commit swaps a private page for an equal published one. Always."""
        return True

    @property
    def device(self) -> Device:
        """Where level 0 lives: the one that was given, or `default_device()`."""
        return self._device

    # -- what kernels need --------------------------------------------------------------------------------------------

    def get_mem_pool_base_address(
        self, layer_id: SupportsIndex, data_role: Given[DataRole], index_mode: Given[PageIndexMode | None] = None
    ) -> MemAddress:
        """Address that a page index of that mode counts from; default SHARED. `ValueError` without a mode if
        `swa_scratch_reuse` is configured; for an unknown buffer one that is a `KeyError` too."""
        self._require_open()
        return self._addresses.base_address(
            LayerId(to_int(layer_id, "layer_id")),
            data_role,
            None if index_mode is None else to_index_mode(index_mode, "index_mode"),
        )

    def get_page_stride(self, layer_id: SupportsIndex, data_role: Given[DataRole]) -> int:
        """Bytes from one page index to the next."""
        return self._addresses.placement(LayerId(to_int(layer_id, "layer_id")), data_role).page_bytes

    def get_page_index_scale(self, layer_id: SupportsIndex, data_role: Given[DataRole]) -> int:
        """Sub-pages of the layer's group in one slot of the buffer's pool."""
        return self._addresses.placement(LayerId(to_int(layer_id, "layer_id")), data_role).scale

    def get_page_index_upper_bound(self, layer_id: SupportsIndex, data_role: Given[DataRole]) -> int:
        """One past the largest valid page index, counted from the SHARED base address."""
        return self._addresses.page_index_upper_bound(LayerId(to_int(layer_id, "layer_id")), data_role)

    def get_page_index_converter(self, layer_id: SupportsIndex, data_role: Given[DataRole]) -> PageIndexConverter:
        """From base page indices to the kernel's; constant for the manager's life."""
        return self._addresses.converter(LayerId(to_int(layer_id, "layer_id")), data_role)

    def supports_index_mode(self, mode: Given[PageIndexMode]) -> bool | None:
        """PER_LAYER always; SHARED always without scratch reuse, else None: ask the sequence."""
        to_index_mode(mode, "mode")
        if mode is PageIndexMode.SHARED and self._config.enable_swa_scratch_reuse:
            return None
        return True

    @property
    def pool_group_descs(self) -> tuple[PoolGroupDesc, ...]:
        """The pools of level 0: their addresses, how many slots each pool group has, and what a slot is made of."""
        self._require_open()
        return self._addresses.pool_group_descs()

    def get_aggregated_pages(self, buffer_ids: Iterable[BufferId]) -> list[AggregatedPageDesc]:
        """The buffers as the fewest contiguous byte ranges, for transfers.

        Slot ``i`` of a range is ``base + stride * i + [0, size)``.

        Ordered by layer group, pool and place. A buffer named twice counts once; an unknown one is a `ValueError`, what is no
        `BufferId` a `TypeError`.
        """
        self._require_open()
        return self._addresses.aggregated_pages(buffer_ids)

    def pool_view(
        self,
        layer_id: SupportsIndex,
        data_role: Given[DataRole],
        dtype: Given[str] = "uint8",
        *,
        index_mode: Given[PageIndexMode | None] = None,
        by_slot: Given[bool] = False,
    ) -> PoolView:
        """``[num_pages, page_bytes]`` over the buffer's pool without a copy, for torch, numpy and CuPy; see `PoolView`.

        Row ``i`` is what the page index ``i`` of that mode stands for; default SHARED, or PER_LAYER with
        `swa_scratch_reuse`. With ``by_slot`` row ``i`` is the buffer in slot ``i``, so base page indices index it.
        ``dtype``: a name, also "bfloat16", "float8_e4m3fn" and "float8_e5m2"; rows have ``page_bytes / item size`` items.
        """
        self._require_open()
        return self._addresses.pool_view(
            self._lease,
            LayerId(to_int(layer_id, "layer_id")),
            data_role,
            to_text(dtype, "dtype"),
            None if index_mode is None else to_index_mode(index_mode, "index_mode"),
            to_bool(by_slot, "by_slot"),
        )

    # -- planning -----------------------------------------------------------------------------------------------------

    def clamp_max_seq_len_for_mem(self, batch_size: SupportsIndex, token_num_upper_bound: SupportsIndex) -> int:
        """The longest sequence, up to the bound, that level 0 holds beside ``batch_size - 1`` sequences of one token.

        Grown by decoding, or by prefill in steps; 0 if there is not even room for one token.
        """
        self._require_open()
        size = to_count(batch_size, "batch_size")
        if size < 1:
            raise ValueError("batch_size is 0; it must be at least 1")
        bound = to_count(token_num_upper_bound, "token_num_upper_bound")
        slots = tuple([int(allocator.num_slots) for allocator in self._shared.storage.allocators[: self._layout.num_pool_groups]])
        return clamp_sequence_length(self._layout, self._config, slots, int(size), int(bound))
