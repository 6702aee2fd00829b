"""The folder of a durable level: one manager at a time, one layout, and an index that is read back as far as it is whole."""

import json
import os
import shutil
from pathlib import Path

import pytest
from librt.vecs import vec
from lossy_files import LossyDisk, LossyFiles

from mypy_extensions import i64

from kv_cache_manager_v2 import LogicError, StorageIOError
from kv_cache_manager_v2.device.os_files import OsFiles
from kv_cache_manager_v2.durable.cache_folder import CacheFolder
from kv_cache_manager_v2.durable.index_snapshot import IndexSnapshot
from kv_cache_manager_v2.durable.index_state import IndexState
from kv_cache_manager_v2.durable.record_format import PACKED, encode_node, encode_page, encode_root
from kv_cache_manager_v2.replay.stored_index import list_nodes, list_stored_pages

IDENTITY = json.dumps({"name": "a model"})
LAYOUT = json.dumps({"slots": [[64]]})


def one_path(path: object) -> list[str]:
    return [str(path)]


def open_folder(disk: LossyDisk, parent: str, layout: str = LAYOUT) -> CacheFolder:
    return CacheFolder(LossyFiles(disk), one_path(parent), IDENTITY, layout)


def snapshot_of(state: IndexState) -> IndexSnapshot:
    nodes, pages = vec[i64](range(int(state.num_nodes))), vec[i64](state.list_pages())
    return IndexSnapshot(state, nodes, state.parents, pages, state.page_nodes, state.next_generation)


def records_of(number: int) -> bytes:
    if number == 1:
        return encode_root(1, None, None)
    return encode_node(number, number - 1, bytes([number, 0, 0, 0]), PACKED) + encode_page(number, number, number, 0, 0, [number])


def test_what_was_appended_is_read_back(tmp_path: object) -> None:
    disk = LossyDisk()
    folder = open_folder(disk, str(tmp_path))
    for number in range(1, 5):
        folder.append(records_of(number))
    folder.close()
    again = open_folder(disk, str(tmp_path))
    assert sorted(list_nodes(again.state)) == [1, 2, 3, 4] and len(list_stored_pages(again.state)) == 3
    list(again.write_snapshot(snapshot_of(again.state)))
    again.append(records_of(5))
    again.close()
    left = [os.path.basename(path) for path in disk.paths("log-") + disk.paths("snapshot-")]
    assert left == ["log-2", "snapshot-2"], "older ones are gone"
    assert sorted(list_nodes(open_folder(disk, str(tmp_path)).state)) == [1, 2, 3, 4, 5]


def test_processes_that_end_early_lose_nothing(tmp_path: object) -> None:
    """A process that never got to its snapshot leaves the older files, and one log more."""
    disk = LossyDisk()
    for number in range(1, 6):
        folder = open_folder(disk, str(tmp_path))
        assert len(list_nodes(folder.state)) == number - 1
        folder.append(records_of(number))
        folder.close()
    assert len(disk.paths("log-")) == 5 and sorted(list_nodes(open_folder(disk, str(tmp_path)).state)) == [1, 2, 3, 4, 5]


def test_a_damaged_snapshot_is_not_used(tmp_path: object) -> None:
    disk = LossyDisk()
    folder = open_folder(disk, str(tmp_path))
    for number in range(1, 4):
        folder.append(records_of(number))
    folder.close()
    again = open_folder(disk, str(tmp_path))
    again.append(records_of(4))
    snapshot = again.path + "/snapshot-2"
    older = dict(disk.files)
    list(again.write_snapshot(snapshot_of(again.state)))
    again.close()
    length = len(disk.files[snapshot].content)
    for cut in range(0, length, 7):
        # As if the old files had not been removed yet.
        disk.files.update(older)
        whole = bytes(disk.files[snapshot].content)
        disk.files[snapshot].truncate(cut)
        third = open_folder(disk, str(tmp_path))
        third.close()
        assert sorted(list_nodes(third.state)) == [1, 2, 3, 4], "the older logs say all of it"
        disk.files[snapshot].content = bytearray(whole)
        for path in disk.paths("log-"):
            if path not in older:
                del disk.files[path]


def test_one_manager_at_a_time(tmp_path: object) -> None:
    """With the system's own locks: refused with the process that has the folder, and then let in."""
    first = CacheFolder(OsFiles(), one_path(tmp_path), IDENTITY, LAYOUT)
    with pytest.raises(LogicError, match=f"process {os.getpid()}"):
        CacheFolder(OsFiles(), one_path(tmp_path), IDENTITY, LAYOUT)
    first.close()
    first.close()
    CacheFolder(OsFiles(), one_path(tmp_path), IDENTITY, LAYOUT).close()


def test_other_models_have_folders_of_their_own(tmp_path: object) -> None:
    first = CacheFolder(OsFiles(), one_path(tmp_path), IDENTITY, LAYOUT)
    second = CacheFolder(OsFiles(), one_path(tmp_path), json.dumps({"name": "another model"}), LAYOUT)
    assert first.path != second.path
    first.close()
    second.close()


def test_another_layout_or_format_is_refused_and_kept(tmp_path: object) -> None:
    disk = LossyDisk()
    folder = open_folder(disk, str(tmp_path))
    folder.append(records_of(1))
    folder.close()
    before = {path: bytes(file.content) for path, file in disk.files.items()}
    with pytest.raises(ValueError, match="another layout.*Nothing there is changed"):
        open_folder(disk, str(tmp_path), json.dumps({"slots": [[128]]}))
    identity = disk.files[folder.path + "/identity.json"]
    refused = (
        (b'{"format": 99}', "format 99"),
        (b'{"format": 1}', "format 1, and this release reads format 2 only.*cache rm"),
        (b'{"format": 5, "parts": [["a"]]}', "format 5, and this release reads format 4 only; the release that made it"),
        (b"{", "cannot be read"),
        (b"[]", "cannot be read"),
    )
    for content, reason in refused:
        identity.content = bytearray(content)
        with pytest.raises(ValueError, match=reason):
            open_folder(disk, str(tmp_path))
    identity.content = bytearray()
    with pytest.raises(ValueError, match="no identity"):
        open_folder(disk, str(tmp_path))
    del disk.files[folder.path + "/identity.json"]
    with pytest.raises(ValueError, match="no identity.*Nothing there is changed"):
        open_folder(disk, str(tmp_path))
    assert folder.path + "/identity.json" not in disk.files
    disk.files[folder.path + "/identity.json"] = identity
    identity.content = bytearray(before[folder.path + "/identity.json"])
    assert {path: bytes(file.content) for path, file in disk.files.items()} == before
    assert len(list_nodes(open_folder(disk, str(tmp_path)).state)) == 1


@pytest.mark.parametrize("is_read_only", [False, True])
def test_a_file_where_its_folder_would_be_is_named(tmp_path: object, is_read_only: bool) -> None:
    folder = CacheFolder(OsFiles(), one_path(tmp_path), IDENTITY, LAYOUT)
    folder.close()
    shutil.rmtree(folder.path)
    Path(folder.path).touch()
    with pytest.raises(StorageIOError, match="Not a directory"):
        CacheFolder(OsFiles(), one_path(tmp_path), IDENTITY, LAYOUT, is_read_only)
    assert Path(folder.path).is_file()


def test_a_folder_that_is_not_there_is_named(tmp_path: object) -> None:
    with pytest.raises(ValueError, match="create it first"):
        CacheFolder(OsFiles(), one_path(f"{tmp_path}/nowhere"), IDENTITY, LAYOUT)
