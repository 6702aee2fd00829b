"""Transfers of watched files: each whole chunk of an extent is reported to the file's `SlotWatch`.

Extents of watched files begin and end at chunks (`disk_plan`), and a chunk is in one piece of memory. Called by worker threads.
"""

from ..base.errors import StorageIOError
from .checksum import hash_memory
from .disk_extent import DiskExtent
from .slot_watch import SlotWatch


def _list_chunks(extent: DiskExtent, watch: SlotWatch) -> list[tuple[int, int, int]]:
    """Offset in the file, memory address and size of each chunk."""
    chunks: list[tuple[int, int, int]] = []
    offset = extent.address - extent.file.address
    for index in range(len(extent.addresses)):
        memory: int = extent.addresses[index]
        left: int = extent.sizes[index]
        while left > 0:
            num_bytes = int(watch.chunk_end(offset)) - offset
            chunks.append((offset, memory, num_bytes))
            offset += num_bytes
            memory += num_bytes
            left -= num_bytes
    return chunks


def begin_write(extent: DiskExtent, watch: SlotWatch) -> None:
    """The bytes of the extent are about to be written."""
    for offset, _memory, _num_bytes in _list_chunks(extent, watch):
        watch.begin_write(offset // watch.slot_bytes)


def end_write(extent: DiskExtent, watch: SlotWatch) -> None:
    """They are written."""
    for offset, memory, num_bytes in _list_chunks(extent, watch):
        watch.end_write(watch.chunk_of(offset), hash_memory(memory, num_bytes), extent.ticket)


def fail_write(extent: DiskExtent, watch: SlotWatch) -> None:
    """They are not, or not all of them."""
    for offset, _memory, _num_bytes in _list_chunks(extent, watch):
        watch.fail_write(watch.chunk_of(offset), extent.ticket)


def find_mismatches(extent: DiskExtent, watch: SlotWatch) -> list[StorageIOError]:
    """The extent was read: an error for each chunk that is not what was written."""
    errors: list[StorageIOError] = []
    for offset, memory, num_bytes in _list_chunks(extent, watch):
        expected = watch.checksum_of(watch.chunk_of(offset))
        if expected != 0 and hash_memory(memory, num_bytes) != expected:
            watch.report_mismatch(offset // watch.slot_bytes)
            file = extent.file
            path = file.path_at(file.address + offset)
            errors.append(
                StorageIOError(
                    f"{num_bytes} bytes of the DISK tier in {path} at offset {offset} are not what was written there: their checksum"
                    " is another one",
                    path,
                    file.address + offset,
                    num_bytes,
                    False,
                    True,
                )
            )
    return errors
