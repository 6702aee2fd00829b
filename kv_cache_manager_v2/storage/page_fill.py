"""Filling slots with known bytes: zeros at the start, and the debug pattern whenever a slot changes hands.

Zeros: the null slots are read by kernels, and pages are handed to an engine before it has written all of them;
left-over bytes of some other program could be NaN there. Memory of a software device begins as zeros by itself.

Debug pattern (`DebugFill`): a page is filled as it is handed out, on its sequence's stream, and a slot as it is given
back, on a stream of the filler's own, after all that used it; the next owner then waits for that.
"""

from typing import Final, final

from mypy_extensions import i64

from ..base.ids import CacheTier
from ..base.package_log import PackageLog
from ..device.port import Device
from ..device.stream_order import StreamOrder
from ..pools.pool_group import PoolGroup
from enum import IntEnum


class DebugFill(IntEnum):
    """The byte that freed pages, and pages as they are handed out, are filled with.

    NAN: every common type reads it as NaN, so a token that was never written, or a page that was freed, spreads into
    the results at once. FINITE: about 1 or less in every common type, for kernels that multiply masked rows by zero,
    where NaN would spread as well (fp16 1.06, bf16 and fp32 0.0115, fp8 e4m3 1.5, e5m2 1.0).
    """

    NAN = 0xFF
    FINITE = 0x3C


_NO_TIMELINE: Final = -1
_logger: Final = PackageLog("kv_cache_manager_v2")


def fill_slots(device: Device, stream: int, group: PoolGroup, first: i64, count: i64, value: int) -> None:
    """Enqueue that each byte of so many slots, from the slot ``first`` on, gets that value."""
    for pool in range(len(group.slot_bytes)):
        num_bytes = group.slot_bytes[pool]
        device.fill(stream, group.base_addresses[pool] + first * num_bytes, int(count * num_bytes), value)


def clear_at_start(device: Device, pool_groups: list[PoolGroup]) -> None:
    """Zeros in every null slot, and in all slots where the device's memory does not begin as zeros. Waits for it."""
    if not device.has_memory:
        return
    stream = device.default_stream()
    is_enqueued = False
    for group in pool_groups:
        num_slots = group.allocator.first_slot
        if not device.is_software:
            num_slots += group.allocator.num_slots
        if num_slots > 0:
            fill_slots(device, stream, group, 0, num_slots, 0)
            is_enqueued = True
    if is_enqueued:
        device.synchronize_stream(stream)


@final
class PageFiller:
    """Owns its stream, from the first freed slot until `close`."""

    __slots__ = ("_device", "_order", "_pool_groups", "_value", "_stream", "_timeline")

    def __init__(self, device: Device, order: StreamOrder, pool_groups: list[PoolGroup], pattern: DebugFill) -> None:
        assert pool_groups[0].tier == CacheTier.GPU_MEM, "only level 0 can be filled"
        self._device: Final = device
        self._order: Final = order
        self._pool_groups: Final = pool_groups
        self._value: Final = int(pattern)
        self._stream = 0
        self._timeline: i64 = _NO_TIMELINE

    def fill_fresh(self, pool_group: i64, slot: i64, timeline: i64) -> None:
        """A slot that is handed out, and may be touched on that timeline."""
        self._fill(self._order.stream_of(timeline), pool_group, slot)

    def fill_freed(self, pool_group: i64, slot: i64, point: i64) -> i64:
        """A freed slot, which may be touched after ``point``; returns the point after the fill."""
        if self._timeline == _NO_TIMELINE and not self._open_stream():
            return point
        self._order.wait(self._timeline, point)
        self._fill(self._stream, pool_group, slot)
        return self._order.mark(self._timeline)

    def _open_stream(self) -> bool:
        try:
            stream = self._device.create_stream()
        except Exception as error:
            _record_refusal(error)
            return False
        try:
            self._timeline = self._order.enter(stream, True)
        except Exception as error:
            self._device.destroy_stream(stream)
            _record_refusal(error)
            return False
        self._stream = stream
        return True

    def _fill(self, stream: int, pool_group: i64, slot: i64) -> None:
        """As far as the device does it: a pattern for debugging stops nothing."""
        try:
            fill_slots(self._device, stream, self._pool_groups[pool_group], slot, 1, self._value)
        except Exception as error:
            _record_refusal(error)

    def close(self) -> None:
        """Nothing that was enqueued is running."""
        if self._timeline != _NO_TIMELINE:
            self._timeline = _NO_TIMELINE
            self._device.destroy_stream(self._stream)


def _record_refusal(error: Exception) -> None:
    if isinstance(error, AssertionError):
        raise error
    _logger.warning("a slot is not filled with the debug pattern: %s", str(error))
