"""Staging slots: host memory between the pools and a store. No connection ever touches a page.

    state         guaranteed                                             ways out
    FREE          no thread and no copy touches it that is not known     take -> TAKEN
    TAKEN         one operation has it                                   free -> FREE; quarantine -> QUARANTINED
    QUARANTINED   abandoned, and a thread may still write into it         end_quarantine -> FREE

A slot that is FREE may still be read by a copy that is enqueued: `copies` has its event, and the next operation has it written to only
once that is done. So which slots are free depends on the calls alone.
"""

from typing import Any, Final

from ..base.ids import CacheTier
from ..device.host_array import host_words
from ..device.port import Device

FREE: Final = 0
TAKEN: Final = 1
QUARANTINED: Final = 2
_ALIGNMENT: Final = 4096


class EnqueuedCopy:
    """Copies that were enqueued on a stream; done when the event is."""

    def __init__(self, device: Device, stream: int) -> None:
        self._device: Final = device
        self._event = device.record_event(stream)
        self.is_done = False

    def poll(self) -> bool:
        """Whether it is done; waits for nothing."""
        if not self.is_done and self._device.is_event_done(self._event):
            self._device.release_event(self._event)
            self.is_done = True
        return self.is_done

    def wait(self) -> None:
        """Block the host until it is done."""
        if not self.is_done:
            self._device.synchronize_event(self._event)
            self._device.release_event(self._event)
            self.is_done = True


class StagingSlots:
    """``num_slots`` slots of ``slot_bytes`` each."""

    def __init__(self, device: Device, num_slots: int, slot_bytes: int) -> None:
        self.num_slots: Final = num_slots
        self.slot_bytes: Final = (slot_bytes + _ALIGNMENT - 1) // _ALIGNMENT * _ALIGNMENT
        self._device: Final = device
        granularity = device.granularity_bytes(CacheTier.HOST_MEM)
        self._num_bytes: Final = (self.slot_bytes * num_slots + granularity - 1) // granularity * granularity
        self._address: Final = device.reserve_range(CacheTier.HOST_MEM, self._num_bytes)
        try:
            device.map_memory(CacheTier.HOST_MEM, self._address, self._num_bytes)
        except BaseException:
            device.release_range(CacheTier.HOST_MEM, self._address, self._num_bytes)
            raise
        words: Any = host_words(self._address, self._num_bytes // 8)
        self._memory: Final = memoryview(words).cast("B")
        self._states: Final = [FREE] * num_slots
        self._free: Final = list(range(num_slots - 1, -1, -1))
        self._copies: Final[dict[int, EnqueuedCopy]] = {}

    @property
    def num_free(self) -> int:
        """Slots that may be taken."""
        return len(self._free)

    @property
    def num_quarantined(self) -> int:
        """Slots that were abandoned while a thread may write into them."""
        return self._states.count(QUARANTINED)

    def take(self, count: int) -> list[int]:
        """So many slots; the caller has made sure that they are free."""
        slots = self._free[len(self._free) - count :]
        del self._free[len(self._free) - count :]
        slots.reverse()
        for slot in slots:
            self._states[slot] = TAKEN
        return slots

    def free(self, slots: list[int], copy: EnqueuedCopy | None = None) -> None:
        """The slots are free, and may be written to once ``copy`` is done."""
        for slot in reversed(slots):
            assert self._states[slot] == TAKEN, f"staging slot {slot} is freed, and it is not taken"
            self._states[slot] = FREE
            self._free.append(slot)
            if copy is not None:
                self._copies[slot] = copy

    def quarantine(self, slots: list[int], copy: EnqueuedCopy | None = None) -> None:
        """No operation wants them any more, and a thread may still write into them."""
        for slot in slots:
            assert self._states[slot] == TAKEN, f"staging slot {slot} is abandoned, and it is not taken"
            self._states[slot] = QUARANTINED
            if copy is not None:
                self._copies[slot] = copy

    def end_quarantine(self, slots: list[int]) -> None:
        """No thread writes into them any more."""
        for slot in reversed(slots):
            assert self._states[slot] == QUARANTINED, f"staging slot {slot} is not in quarantine"
            self._states[slot] = FREE
            self._free.append(slot)

    def are_copies_done(self, slots: list[int]) -> bool:
        """Whether no copy that was enqueued before they were taken reads them any more."""
        for slot in slots:
            copy = self._copies.get(slot)
            if copy is not None:
                if not copy.poll():
                    return False
                del self._copies[slot]
        return True

    @property
    def begin(self) -> int:
        """The address of slot 0; the others follow it, ``slot_bytes`` apart."""
        return self._address

    def address(self, slot: int) -> int:
        return self._address + slot * self.slot_bytes

    def view(self, slot: int, num_bytes: int) -> memoryview:
        """The first bytes of a slot."""
        begin = slot * self.slot_bytes
        return self._memory[begin : begin + num_bytes]

    def check(self) -> None:
        """Evaluate the states from scratch; AssertionError where they do not hold."""
        assert len(set(self._free)) == len(self._free), "a staging slot is free twice"
        assert all([self._states[slot] == FREE for slot in self._free]), "a staging slot in the free list is in use"
        assert self._states.count(FREE) == len(self._free), "a free staging slot is not in the free list"

    def close(self, is_touched: bool) -> None:
        """Free the memory; ``is_touched``: not, as a thread may still write there. Copies are waited for."""
        for copy in self._copies.values():
            copy.wait()
        self._copies.clear()
        if not is_touched:
            self._memory.release()
            self._device.unmap_memory(CacheTier.HOST_MEM, self._address, self._num_bytes)
            self._device.release_range(CacheTier.HOST_MEM, self._address, self._num_bytes)


def make_staging(device: Device, load_bytes: int, store_bytes: int, slot_bytes: int) -> tuple[StagingSlots, StagingSlots]:
    """For loads and for stores."""
    loads = StagingSlots(device, load_bytes // round_up(slot_bytes), slot_bytes)
    try:
        return loads, StagingSlots(device, store_bytes // round_up(slot_bytes), slot_bytes)
    except BaseException:
        loads.close(False)
        raise


def round_up(num_bytes: int) -> int:
    """To whole pages of memory."""
    return (num_bytes + 4095) // 4096 * 4096
