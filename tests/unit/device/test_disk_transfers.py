"""Bytes to and from disk files when the operating system does less than it was asked for."""

import ctypes
import errno
import os
from collections.abc import Iterator

import pytest

from kv_cache_manager_v2.device.disk_transfers import DiskTransfers

from .disk_bench import BASE, PAGE, FileBench

DATA = bytes(i * 7 % 251 for i in range(8 * PAGE))


class Bench(FileBench):
    """16 pages of memory with `DATA` at their front, and room for as much behind."""

    def __init__(self) -> None:
        super().__init__(16)
        self.transfers = DiskTransfers()
        self.source, self.target = self.memory, self.memory + 8 * PAGE
        ctypes.memmove(self.source, DATA, len(DATA))

    def target_bytes(self, num_bytes: int) -> bytes:
        return ctypes.string_at(self.target, num_bytes)


def short_by(step: int):
    return lambda is_write, offset, num_bytes: min(step, num_bytes)


@pytest.mark.parametrize("pieces", [1, 2, 8])
@pytest.mark.parametrize("step", [PAGE, 3 * PAGE, 1000, 1])
def test_short_transfers_go_on_to_the_last_byte(step: int, pieces: int) -> None:
    bench = Bench()
    bench.files.answer = short_by(step)
    num_pages = 1 if step == 1 else 8
    if step == 1:
        pieces = 1
    assert bench.transfers.write(bench.extent(3, bench.source, num_pages, pieces)) is None
    assert bench.on_disk(3, num_pages) == DATA[: num_pages * PAGE]
    assert bench.transfers.read(bench.extent(3, bench.target, num_pages, pieces)) is None
    assert bench.target_bytes(num_pages * PAGE) == DATA[: num_pages * PAGE]
    # A step that is no multiple of a page cannot go on past the page cache.
    assert bench.file.is_direct == (step % PAGE == 0)


def failing_times(count: int, number: int) -> Iterator[int]:
    for _ in range(count):
        yield number
    while True:
        yield 0


@pytest.mark.parametrize("number", [errno.EINTR, errno.EAGAIN])
def test_interrupted_transfers_are_tried_again(number: int) -> None:
    bench = Bench()
    numbers = failing_times(100, number)

    def answer(is_write: bool, offset: int, num_bytes: int) -> int:
        failure = next(numbers)
        if failure:
            raise OSError(failure, os.strerror(failure))
        return num_bytes

    bench.files.answer = answer
    assert bench.transfers.write(bench.extent(0, bench.source, 8)) is None
    assert bench.on_disk(0, 8) == DATA
    assert len(bench.files.transfers) == 101


def test_a_disk_that_is_always_busy_is_an_error_in_the_end() -> None:
    bench = Bench()
    bench.files.fail(errno.EAGAIN, reads=True)
    error = bench.transfers.read(bench.extent(0, bench.target, 1))
    assert error is not None and "EAGAIN" not in str(error) and str(errno.EAGAIN) in str(error)


def test_a_file_that_ends_early_is_an_error_that_says_where() -> None:
    bench = Bench()
    del bench.files.contents[bench.file.file][5 * PAGE :]
    error = bench.transfers.read(bench.extent(4, bench.target, 3))
    assert error is not None
    assert not error.is_write
    assert (error.path, error.address, error.num_bytes) == ("/nowhere", BASE + 4 * PAGE, 3 * PAGE)
    assert "DISK" in str(error) and "/nowhere" in str(error) and f"offset {4 * PAGE}" in str(error)


def test_a_disk_that_refuses_direct_transfers_gets_buffered_ones() -> None:
    bench = Bench()

    def answer(is_write: bool, offset: int, num_bytes: int) -> int:
        if bench.files.direct:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return num_bytes

    bench.files.answer = answer
    assert bench.file.is_direct
    assert bench.transfers.write(bench.extent(0, bench.source, 8)) is None
    assert not bench.file.is_direct and bench.files.direct == set()
    assert bench.on_disk(0, 8) == DATA


def test_a_direct_transfer_that_is_refused_while_another_thread_makes_the_file_buffered_is_tried_again() -> None:
    bench = Bench()
    refused: list[int] = []

    def answer(is_write: bool, offset: int, num_bytes: int) -> int:
        if not refused:
            refused.append(num_bytes)
            # What a second worker does whose own transfer was refused a moment before.
            bench.file.become_buffered()
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return num_bytes

    bench.files.answer = answer
    assert bench.transfers.write(bench.extent(0, bench.source, 8)) is None
    assert refused and bench.on_disk(0, 8) == DATA


def test_unaligned_memory_makes_the_file_buffered_before_anything_is_moved() -> None:
    bench = Bench()
    assert bench.transfers.write(bench.extent(0, bench.source + 8, 1)) is None
    assert not bench.file.is_direct
    assert bench.files.transfers == [(True, 0, PAGE, 1)]


@pytest.mark.parametrize("pieces", [1, 4])
def test_a_failed_write_loses_nothing(pieces: int) -> None:
    bench = Bench()
    moved = iter([3 * PAGE])

    def answer(is_write: bool, offset: int, num_bytes: int) -> int:
        if not is_write:
            return num_bytes
        try:
            return next(moved)
        except StopIteration:
            raise OSError(errno.EIO, os.strerror(errno.EIO)) from None

    bench.files.answer = answer
    error = bench.transfers.write(bench.extent(2, bench.source, 8, pieces))
    assert error is not None and error.is_write and os.strerror(errno.EIO) in str(error)
    # Three pages are on the disk, five in memory.
    assert bench.transfers.rescued.num_bytes() == 5 * PAGE
    ctypes.memset(bench.source, 0xEE, 8 * PAGE)
    assert bench.transfers.read(bench.extent(2, bench.target, 8, pieces)) is None
    assert bench.target_bytes(8 * PAGE) == DATA
    # Until they are overwritten by a write that works.
    bench.files.answer = lambda is_write, offset, num_bytes: num_bytes
    assert bench.transfers.write(bench.extent(6, bench.source, 2)) is None
    assert bench.transfers.rescued.num_bytes() == 3 * PAGE
    assert bench.transfers.read(bench.extent(2, bench.target, 8)) is None
    assert bench.target_bytes(8 * PAGE) == DATA[: 4 * PAGE] + b"\xee" * (2 * PAGE) + DATA[6 * PAGE :]


def test_what_is_in_memory_needs_no_disk() -> None:
    bench = Bench()
    bench.files.fail(errno.EIO, writes=True, reads=True)
    assert bench.transfers.write(bench.extent(0, bench.source, 4)) is not None
    num_transfers = len(bench.files.transfers)
    assert bench.transfers.read(bench.extent(0, bench.target, 4)) is None
    assert bench.target_bytes(4 * PAGE) == DATA[: 4 * PAGE]
    assert len(bench.files.transfers) == num_transfers
    assert bench.transfers.read(bench.extent(3, bench.target, 2)) is not None
