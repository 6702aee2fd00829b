"""Pages between level 0 and the levels below, where a codec packs them: the codec is called once for each layer group.

A codec reaches memory only: between it and a disk pages pass through staging slots, a few for each disk level and direction. Each direction
has a stream, on which staging slots are free again in order.
"""

import json
from typing import Final, final

from librt.vecs import append, vec
from mypy_extensions import i64

from ..base.checks import shown, to_bool, to_int_within, to_list, to_text
from ..base.ids import CacheTier
from ..config.config_value import MAX_CONFIG_INT
from ..config.manager_config import KVCacheManagerConfig
from ..device.cold_page_codec import ColdPageCodec
from ..device.memory_range import MemoryRange
from ..device.port import CopyBatch, Device
from ..layout.slot_desc import SlotDescVariant
from ..layout.registry import LifeCycleRegistry
from ..layout.slot_layout import SlotLayout, compute_slot_layout
from ..pools.pool_group import PoolGroup
from .page_rows import PageRows

_NUM_STAGING_SLOTS: Final = 8
"""More pages than that pass in parts, each behind the disk's work on the part before it."""


def to_codec(codec: object, config: KVCacheManagerConfig) -> ColdPageCodec | None:
    """A codec that may serve this configuration; `ValueError` for one whose levels or buffers are not there."""
    if codec is None:
        return None
    if not isinstance(codec, ColdPageCodec):
        found = f"the class {codec.__name__}" if isinstance(codec, type) else type(codec).__name__
        raise TypeError(f"cold_page_codec must be a ColdPageCodec or None, not {found}; make one, or a subclass of your own")
    if config.is_external:
        raise ValueError(
            "cold_page_codec is given with an ExternalCacheTierConfig: the engine owns that memory and copies it as it is. Leave the codec "
            "out, or give a GpuCacheTierConfig and a HostCacheTierConfig"
        )
    name = f"{type(codec).__name__}.roles"
    known = sorted({buffer.role for layer in config.layers for buffer in layer.buffers})
    roles: object = codec.roles
    for role in [] if roles is None else to_list(roles, name):
        if to_text(role, f"one of {name}") not in known:
            raise ValueError(f"{name} has {shown(role)}, and no layer has such a buffer; the roles there are {shown(known)}")
    return codec


def describe_codec(codec: ColdPageCodec, layout: SlotLayout) -> bytes:
    """All that decisions depend on, as JSON: its name, whether it is lossless, and the packed bytes by layer group."""
    sizes = [int(codec.cold_bytes(page)) for page in layout.slot_variants()]
    return json.dumps({"identity": codec.identity, "is_lossless": codec.is_lossless, "cold_bytes": sizes}).encode()


def lay_out_slots(config: KVCacheManagerConfig, registry: LifeCycleRegistry, codec: ColdPageCodec | None) -> SlotLayout:
    """The slot layout; the codec is asked for the slots below level 0. `TypeError` or `ValueError` if it answers what none may."""
    layout = compute_slot_layout(config, registry)
    if codec is None:
        return layout
    name = type(codec).__name__
    to_text(codec.identity, f"{name}.identity")
    to_bool(codec.is_lossless, f"{name}.is_lossless")
    sizes: list[int] = []
    for page in layout.slot_variants():
        what = f"{name}.cold_bytes() of layer group {page.layer_group_id}"
        sizes.append(int(to_int_within(codec.cold_bytes(page), what, 1, MAX_CONFIG_INT)))
    layout.pack_cold_slots(sizes)
    return layout


@final
class PagePacker:
    """Owns its staging slots, from `open_staging` until `close`."""

    __slots__ = ("_codec", "_device", "_variants", "_sizes", "_rows", "_staging")

    def __init__(self, codec: ColdPageCodec, device: Device, layout: SlotLayout, rows: PageRows) -> None:
        self._codec: Final = codec
        self._device: Final = device
        self._variants: Final[list[SlotDescVariant]] = layout.slot_variants()
        """By life cycle."""
        self._sizes: Final = [int(codec.cold_bytes(page)) for page in self._variants]
        self._rows: Final = rows
        self._staging: Final[dict[int, MemoryRange]] = {}
        """By level, upwards as the number and downwards as its negative."""

    def move_down(
        self, stream: int, pages: vec[i64], high: PoolGroup, high_slots: vec[i64], low: PoolGroup, low_addresses: vec[i64], level: i64
    ) -> None:
        """Enqueue the packing of pages, from slots of level 0 to addresses of a pool group below."""
        if low.tier != CacheTier.DISK:
            self.pack(stream, pages, high, high_slots, low_addresses)
            return
        num_bytes = low.slot_bytes[0]
        for begin in range(0, len(low_addresses), _NUM_STAGING_SLOTS):
            addresses = low_addresses[begin : begin + _NUM_STAGING_SLOTS]
            staged = self._stage(-level, num_bytes, len(addresses))
            self.pack(stream, pages[begin : begin + _NUM_STAGING_SLOTS], high, high_slots[begin : begin + _NUM_STAGING_SLOTS], staged)
            self._copy(stream, low.tier, addresses, CacheTier.HOST_MEM, staged, num_bytes)

    def move_up(
        self, stream: int, pages: vec[i64], high: PoolGroup, high_slots: vec[i64], low: PoolGroup, low_addresses: vec[i64], level: i64
    ) -> None:
        """Enqueue the unpacking of pages, from addresses of a pool group below into slots of level 0."""
        if low.tier != CacheTier.DISK:
            self.unpack(stream, pages, high, high_slots, low_addresses)
            return
        num_bytes = low.slot_bytes[0]
        for begin in range(0, len(low_addresses), _NUM_STAGING_SLOTS):
            addresses = low_addresses[begin : begin + _NUM_STAGING_SLOTS]
            staged = self._stage(level, num_bytes, len(addresses))
            self._copy(stream, CacheTier.HOST_MEM, staged, low.tier, addresses, num_bytes)
            self.unpack(stream, pages[begin : begin + _NUM_STAGING_SLOTS], high, high_slots[begin : begin + _NUM_STAGING_SLOTS], staged)

    def _stage(self, way: i64, num_bytes: i64, count: i64) -> vec[i64]:
        """Addresses of so many staging slots."""
        memory = self._staging[int(way)]
        addresses = vec[i64](capacity=count)
        for position in range(count):
            addresses = append(addresses, memory.address + position * num_bytes)
        return addresses

    def _copy(
        self, stream: int, target_tier: CacheTier, targets: vec[i64], source_tier: CacheTier, sources: vec[i64], num_bytes: i64
    ) -> None:
        batch = CopyBatch(target_tier, source_tier, num_bytes)
        batch.dst_addresses = targets
        batch.src_addresses = sources
        batch.count = len(targets)
        self._device.copy_batch(stream, batch)

    def packed_bytes(self, page: i64) -> i64:
        """Bytes of that page as it is packed; a slot may have more."""
        size: i64 = self._sizes[(page - self._rows.first_page_of_blocks) % self._rows.num_life_cycles]
        return size

    def open_staging(self, level: int, slot_bytes: int) -> None:
        """Get the staging slots of a disk level, of which the largest slot has so many bytes. An error leaves what `close` releases."""
        for way in (level, -level):
            self._staging[way] = memory = MemoryRange(self._device, CacheTier.HOST_MEM, _NUM_STAGING_SLOTS * slot_bytes)
            memory.resize(_NUM_STAGING_SLOTS * slot_bytes)

    def close(self) -> None:
        """Release the staging slots. Nothing that was enqueued is running."""
        for memory in self._staging.values():
            memory.close()
        self._staging.clear()

    def pack(self, stream: int, pages: vec[i64], high: PoolGroup, high_slots: vec[i64], low_addresses: vec[i64]) -> None:
        """Enqueue the packing of pages, from slots of level 0."""
        for life_cycle, hot, cold in self._by_life_cycle(pages, high, high_slots, low_addresses):
            self._codec.encode(self._device, stream, self._variants[life_cycle], hot, cold)

    def unpack(self, stream: int, pages: vec[i64], high: PoolGroup, high_slots: vec[i64], low_addresses: vec[i64]) -> None:
        """Enqueue the unpacking of pages, into slots of level 0."""
        for life_cycle, hot, cold in self._by_life_cycle(pages, high, high_slots, low_addresses):
            self._codec.decode(self._device, stream, self._variants[life_cycle], hot, cold)

    def _by_life_cycle(
        self, pages: vec[i64], high: PoolGroup, high_slots: vec[i64], low_addresses: vec[i64]
    ) -> list[tuple[int, list[list[int]], list[int]]]:
        """As many pages as addresses: the life cycle, and where its pages are on level 0, by pool and page, and below."""
        rows = self._rows
        positions: dict[int, list[int]] = {}
        for position in range(len(low_addresses)):
            life_cycle = int((pages[position] - rows.first_page_of_blocks) % rows.num_life_cycles)
            positions.setdefault(life_cycle, []).append(int(position))
        found: list[tuple[int, list[list[int]], list[int]]] = []
        for life_cycle, chosen in positions.items():
            hot: list[list[int]] = []
            for pool in range(len(high.slot_bytes)):
                base, num_bytes = high.base_addresses[pool], high.slot_bytes[pool]
                hot.append([int(base + high_slots[position] * num_bytes) for position in chosen])
            found.append((life_cycle, hot, [int(low_addresses[position]) for position in chosen]))
        return found
