"""Where the bytes of a file in several folders lie: every byte once, in the folder that its slot says, and back again."""

import ctypes
import errno
import os
from pathlib import Path

import pytest

from kv_cache_manager_v2.device.file_bytes import read_range, write_file
from kv_cache_manager_v2.device.os_files import OsFiles
from kv_cache_manager_v2.device.stripe import Stripe
from kv_cache_manager_v2.device.striped_files import StripedFiles

UNIT = 8
NUM_BYTES = 30 * UNIT + 3


@pytest.mark.parametrize("num_folders", [2, 3, 4])
def test_every_byte_is_in_one_place(num_folders: int) -> None:
    stripe = Stripe([str(number) for number in range(num_folders)], UNIT)
    places = [stripe.find(offset) for offset in range(NUM_BYTES)]
    assert len({(part, there) for part, there, _room in places}) == NUM_BYTES
    for length in range(NUM_BYTES):
        # By brute force: the bytes of each folder among the first so many are its first ones, without a gap.
        for part in range(num_folders):
            offsets = sorted(there for where, there, _room in places[:length] if where == part)
            assert offsets == list(range(stripe.count_bytes(part, length)))
            missing = stripe.first_missing(part, len(offsets))
            assert stripe.find(missing)[:2] == (part, len(offsets)) and missing >= length
    assert [part for part, _there, _room in places[::UNIT]] == [slot % num_folders for slot in range(31)]


def test_room_ends_with_the_unit() -> None:
    stripe = Stripe(["a", "b"], UNIT)
    assert stripe.find(3) == (0, 3, 5)
    assert stripe.find(UNIT) == (1, 0, UNIT)
    assert stripe.path_at("data", UNIT) == "b/data"


def open_striped(tmp_path: Path, num_folders: int) -> tuple[StripedFiles, int]:
    folders = [str(tmp_path / str(number)) for number in range(num_folders)]
    for folder in folders:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    files = StripedFiles(OsFiles(), Stripe(folders, UNIT))
    return files, files.open_named(f"{folders[0]}/data", False)


def test_bytes_come_back_and_lengths_follow(tmp_path: Path) -> None:
    files, file = open_striped(tmp_path, 2)
    data = bytes(range(NUM_BYTES))
    assert files.length(file) == 0
    files.grow(file, 0, NUM_BYTES)
    assert files.length(file) >= NUM_BYTES
    write_file(files, file, data, 0)
    assert read_range(files, file, 5, 100) == data[5:105]
    on_disk = [(tmp_path / str(number) / "data").stat().st_size for number in range(2)]
    assert sum(on_disk) == NUM_BYTES and on_disk == [15 * UNIT + 3, 15 * UNIT]
    files.discard(file, 11 * UNIT, NUM_BYTES - 11 * UNIT, True)
    assert sum((tmp_path / str(number) / "data").stat().st_size for number in range(2)) == 11 * UNIT
    assert read_range(files, file, 0, 11 * UNIT) == data[: 11 * UNIT]
    files.close_file(file)
    again, file = open_striped(tmp_path, 2)
    assert read_range(again, file, 3, 40) == data[3:43]
    again.close_file(file)


def test_a_transfer_of_pieces_ends_with_its_unit(tmp_path: Path) -> None:
    files, file = open_striped(tmp_path, 2)
    files.grow(file, 0, 4 * UNIT)
    memory = (ctypes.c_char * 12).from_buffer_copy(b"abcdefghijkl")
    address = ctypes.addressof(memory)
    assert files.transfer(file, True, [address, address + 6], [6, 6], 0) == UNIT
    assert files.transfer(file, True, [address + 8], [4], UNIT) == 4
    assert read_range(files, file, 0, 12) == b"abcdefghijkl"
    files.close_file(file)


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    stripe = Stripe([str(tmp_path), f"{tmp_path}/gone"], UNIT)
    with pytest.raises(OSError) as caught:
        StripedFiles(OsFiles(), stripe).open_named(f"{tmp_path}/data", False)
    assert caught.value.errno == errno.ENOENT and caught.value.filename == f"{tmp_path}/gone"
