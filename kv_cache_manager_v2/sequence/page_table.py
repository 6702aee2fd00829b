"""The base page indices of one sequence, beam and layer group: one int32 per block.

The library's own array is the master. It has room for half as many blocks again, so that a prompt's answer seldom makes it
grow; entries past the last block are `BAD_PAGE_INDEX`. A caller's buffer, if one is set, gets every changed entry written
through; registered readers are told which entries changed.
"""

from typing import Any, Final, final

from librt.vecs import extend, vec
from mypy_extensions import i32, i64

from ..base.ids import BAD_PAGE_INDEX
from ..base.ranges import HalfOpenRange
from .changed_blocks import ChangedBlocks
from .index_changes import IndexChanges

_LEAST_SPARE: Final = 16
_INT32_FORMATS: Final = ("i", "l", "=i", "<i", "@i")


@final
class PageTable:
    __slots__ = ("entries", "num_blocks", "required", "buffer", "_reader", "_exact")

    def __init__(self) -> None:
        self.entries = vec[i32]()
        self.num_blocks: i64 = 0
        self.required = vec[i64]()
        """Ordinals of blocks behind a residency window that are locked until the next resize."""
        self.buffer: memoryview | None = None
        """The caller's."""
        self._reader: ChangedBlocks | None = None
        self._exact: IndexChanges | None = None
        """Changes that the user has not been told of yet; None before the user asks for the first time."""

    def set(self, ordinal: i64, slot: int) -> None:
        """The block has that slot, or `BAD_PAGE_INDEX`; who keeps a copy of the table hears of it."""
        self.entries[ordinal] = slot
        buffer = self.buffer
        if buffer is not None:
            buffer[ordinal] = slot
        reader = self._reader
        while reader is not None:
            reader.record(ordinal, slot)
            reader = reader.following

    def set_run(self, first: i64, slots: vec[i64]) -> None:
        """`set` for consecutive entries."""
        entries = self.entries
        ordinal = first
        for slot in slots:
            entries[ordinal] = i32(slot)
            ordinal += 1
        self._tell_of_run(first, ordinal)

    def set_bad_run(self, begin: i64, end: i64) -> None:
        """Mark consecutive entries as bad: they are needed no more."""
        entries = self.entries
        bad: i32 = BAD_PAGE_INDEX
        for ordinal in range(begin, end):
            entries[ordinal] = bad
        if begin < end:
            self._tell_of_run(begin, end)

    def _tell_of_run(self, begin: i64, end: i64) -> None:
        """Those entries have changed."""
        entries = self.entries
        buffer = self.buffer
        if buffer is not None:
            buffer[begin:end] = memoryview(entries)[begin:end]
        reader = self._reader
        while reader is not None:
            for ordinal in range(begin, end):
                reader.record(ordinal, entries[ordinal])
            reader = reader.following

    def add_reader(self, reader: ChangedBlocks) -> None:
        """``reader``, which is in no other table, is told of every entry that changes until `remove_reader`."""
        reader.following = self._reader
        self._reader = reader

    def remove_reader(self, reader: ChangedBlocks) -> None:
        previous: ChangedBlocks | None = None
        present = self._reader
        while present is not None and present is not reader:
            previous = present
            present = present.following
        assert present is not None, "a reader left a page table that it was not registered with"
        if previous is None:
            self._reader = present.following
        else:
            previous.following = present.following
        present.following = None

    def resize(self, num_blocks: i64) -> None:
        """New entries are bad until they are set; entries that are cut off become bad."""
        length: i64 = len(self.entries)
        if num_blocks > length:
            wanted = num_blocks + (num_blocks >> 1) + _LEAST_SPARE
            bad: i32 = BAD_PAGE_INDEX
            self.entries = extend(self.entries, vec[i32]([bad] * (wanted - length)))
        self.set_bad_run(num_blocks, self.num_blocks)
        self.num_blocks = num_blocks

    def clear(self) -> None:
        """Every entry is bad: the sequence is not on the device."""
        self.set_bad_run(0, self.num_blocks)

    def take_changes(self) -> list[HalfOpenRange]:
        """Ranges of blocks whose entry differs from what it was the last time; the first time, all of them."""
        exact = self._exact
        if exact is None:
            exact = IndexChanges()
            self._exact = exact
            reader = ChangedBlocks(vec[bool]([False]), 0)
            reader.exact = exact
            self.add_reader(reader)
        return exact.take(self.entries, self.num_blocks)

    def view(self) -> memoryview:
        """A read-only int32 view of the entries of the present blocks, no copy."""
        return memoryview(self.entries)[: self.num_blocks]

    def set_buffer(self, buffer: memoryview | None) -> None:
        """Write the present entries, fill the rest of the buffer, and write through from now on."""
        self.buffer = buffer
        if buffer is None:
            return
        end = int(self.num_blocks)
        buffer[:end] = self.view()
        bad: i32 = BAD_PAGE_INDEX
        buffer[end:] = memoryview(vec[i32]([bad] * (len(buffer) - end)))

    def find_shortage(self, num_blocks: i64) -> str | None:
        """Why the caller's buffer cannot take that many blocks; None if it can."""
        buffer = self.buffer
        if buffer is None or len(buffer) >= num_blocks:
            return None
        return f"the page index buffer has {len(buffer)} entries, {num_blocks} blocks need {num_blocks}"


def to_index_buffer(buffer: object, num_blocks: int) -> memoryview:
    """A writable view of the caller's int32 buffer; it must have room for the present blocks.

    ``TypeError`` if it is no buffer of int32, ``ValueError`` if it is read-only, not contiguous or too small.
    """
    anything: Any = buffer
    try:
        view = memoryview(anything)
    except TypeError:
        raise TypeError(f"buf must support the buffer protocol, {type(buffer).__name__} does not") from None
    if view.format not in _INT32_FORMATS or view.itemsize != 4:
        raise TypeError(f"buf must be int32, not {type(buffer).__name__} with items of format {view.format!r}")
    if view.readonly:
        raise ValueError("buf must be writable")
    if view.ndim != 1 or not view.c_contiguous:
        raise ValueError(f"buf must be one contiguous dimension, not {view.ndim} dimensions")
    if len(view) < num_blocks:
        raise ValueError(f"buf has the shape ({len(view)},), the sequence has {num_blocks} blocks")
    return view.cast("B").cast("i")
