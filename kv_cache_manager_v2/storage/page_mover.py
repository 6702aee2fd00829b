"""Copies pages from level to level, in stream order, on streams of the manager's own.

Moves bytes only: which page has which slot is the caller's business, before and after. Each pair of levels has a stream, so that
onboarding does not wait for offloading unless it reuses a slot that is being offloaded. One call is one batch for each pool: pages of
one pool group, from one level to another. The host waits for nothing in `move`. Where a codec packs pages, it moves those that come from
level 0 or go there.
"""

from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from ..base.errors import PageMoveError
from ..base.ids import CacheTier
from ..device.port import NO_TIMER, CopyBatch, Device
from ..device.stream_order import StreamOrder
from ..pools.pool_group import PoolGroup
from .bounce import BounceSlots
from .page_packer import PagePacker
from .transfer_times import TransferTimes

_NO_TIMELINE: Final = -1


@final
class PageMover:
    """Owns its streams, each from the first page that goes its way until `close`, and the bounce slots."""

    __slots__ = (
        "_device", "_order", "_pool_groups", "_num_pool_groups", "_num_levels", "_timelines", "_streams", "bounce",
        "packer", "_times",
    )  # fmt: skip

    def __init__(
        self,
        device: Device,
        order: StreamOrder,
        pool_groups: list[PoolGroup],
        num_pool_groups: i64,
        num_levels: i64,
        packer: PagePacker | None = None,
    ) -> None:
        self._device: Final = device
        self._order: Final = order
        self._pool_groups: Final = pool_groups
        self._num_pool_groups: Final = num_pool_groups
        self._num_levels: Final = num_levels
        self._timelines = vec[i64]([_NO_TIMELINE] * int(num_levels * num_levels))
        """By source level * number of levels + target level."""
        self._streams: Final[list[int]] = []
        self.bounce: Final = BounceSlots(device, packer)
        self.packer: Final = packer
        self._times: TransferTimes | None = None
        """None: transfers are not timed."""

    def time_transfers(self) -> TransferTimes:
        """From now on time what goes from one level to another; what goes through a bounce slot excepted."""
        if self._times is None:
            self._times = TransferTimes(self._device, self._num_levels)
        return self._times

    def move(
        self, pool_group: i64, source_level: i64, sources: vec[i64], target_level: i64, targets: vec[i64], count: i64, pages: vec[i64]
    ) -> i64:
        """Enqueue copies of the first ``count`` slots, of these ``pages``; returns the point after them.

        They wait for whatever any of these slots waits for. `PageMoveError`, naming the levels, if the device refuses;
        copies enqueued before may still write to some of the target slots, until the next mark of that `timeline`.
        """
        timeline = self.timeline(source_level, target_level)
        source = self._pool_groups[source_level * self._num_pool_groups + pool_group]
        target = self._pool_groups[target_level * self._num_pool_groups + pool_group]
        self._order.wait_all(timeline, source.allocator.ready, sources, count)
        self._order.wait_all(timeline, target.allocator.ready, targets, count)
        stream = self._order.stream_of(timeline)
        times = self._times if source_level != target_level else None
        timer = NO_TIMER if times is None else times.start(stream, source_level, target_level)
        try:
            packer = self.packer
            if packer is None or (source_level == 0) == (target_level == 0):
                for pool in range(len(source.slot_bytes)):
                    num_bytes = source.slot_bytes[pool]
                    batch = CopyBatch(target.tier, source.tier, num_bytes)
                    batch.dst_addresses = _list_addresses(target.base_addresses[pool], targets, num_bytes, count)
                    batch.src_addresses = _list_addresses(source.base_addresses[pool], sources, num_bytes, count)
                    batch.count = count
                    self._device.copy_batch(stream, batch)
            elif source_level == 0:
                addresses = _list_addresses(target.base_addresses[0], targets, target.slot_bytes[0], count)
                packer.move_down(stream, pages, source, sources, target, addresses, target_level)
            else:
                addresses = _list_addresses(source.base_addresses[0], sources, source.slot_bytes[0], count)
                packer.move_up(stream, pages, target, targets, source, addresses, source_level)
        except Exception as error:
            if times is not None and timer != NO_TIMER:
                times.cancel(timer)
            raise PageMoveError(
                f"moving {count} pages of pool group {pool_group} from level {source_level} ({source.tier.name}) to level "
                f"{target_level} ({target.tier.name}) failed: {error}"
            ) from error
        if times is not None and timer != NO_TIMER:
            times.stop(stream, timer, source_level, target_level)
        return self._order.mark(timeline)

    def timeline(self, source_level: i64, target_level: i64) -> i64:
        """The one on which pages go from one level to the other. `PageMoveError` if the device has no stream for it."""
        index = source_level * self._num_levels + target_level
        timeline = self._timelines[index]
        if timeline == _NO_TIMELINE:
            try:
                timeline = self._add_timeline()
            except AssertionError:
                raise
            except Exception as error:
                raise PageMoveError(
                    f"moving pages from level {source_level} to level {target_level} failed, for the device gave no stream: {error}"
                ) from error
            self._timelines[index] = timeline
        return timeline

    def _add_timeline(self) -> i64:
        stream = self._device.create_stream()
        try:
            timeline = self._order.enter_slow(stream)
        except BaseException:
            self._device.destroy_stream(stream)
            raise
        self._streams.append(stream)
        return timeline

    def has_timeline(self, source_level: i64, target_level: i64) -> bool:
        """Whether a page was ever to go from one level to the other."""
        return self._timelines[source_level * self._num_levels + target_level] != _NO_TIMELINE

    def swap(self, pool_group: i64, level: i64, low_slot: i64, high_slot: i64, verify: bool, rising: i64, sinking: i64) -> i64:
        """Enqueue the exchange of a slot of ``level`` with one of level 0, full of the pages ``rising`` and ``sinking``, through the bounce
        slots.

        Returns the point after it. `PageMoveError` if the device refuses; then the slots hold what they held, in stream
        order, from a mark of ``timeline(1, 0)`` on. ``verify``: wait for what is read from a disk before it is relied on.
        """
        high = self._pool_groups[pool_group]
        low = self._pool_groups[level * self._num_pool_groups + pool_group]
        # All swaps on one stream: the next one finds the bounce slots free.
        timeline = self.timeline(1, 0)
        self._order.wait(timeline, low.allocator.ready[low_slot])
        self._order.wait(timeline, high.allocator.ready[high_slot])
        stream = self._order.stream_of(timeline)
        try:
            waits = verify and low.tier == CacheTier.DISK
            self.bounce.swap(stream, pool_group, low, low_slot, high, high_slot, waits, rising, sinking)
        except AssertionError:
            raise
        except Exception as error:
            raise PageMoveError(
                f"swapping a page of pool group {pool_group} between level 0 and level {level} ({low.tier.name}) failed: {error}"
            ) from error
        try:
            return self._order.mark(timeline)
        except Exception as refused:
            # No stream could wait for it.
            self.bounce.undo_swap(stream, pool_group, low, low_slot, high, high_slot, True, refused)
            raise

    def close(self) -> None:
        """Release the streams and the bounce slots. Nothing that was enqueued is running. May be called again after an interruption."""
        if self._times is not None:
            self._times.close()
            self._times = None
        while len(self._streams) > 0:
            self._device.destroy_stream(self._streams.pop())
        self.bounce.close()
        if self.packer is not None:
            self.packer.close()


def _list_addresses(base: i64, slots: vec[i64], num_bytes: i64, count: i64) -> vec[i64]:
    addresses = slots[:count]
    for position in range(count):
        addresses[position] = base + addresses[position] * num_bytes
    return addresses


def describe_lost_copies(error: Exception) -> AssertionError:
    """What breaks the manager when a copy was refused, and the event after those that were not is refused as well."""
    return AssertionError(f"the device may still run copies of a move that it refused, and gave no event to wait for: {error!r}")
