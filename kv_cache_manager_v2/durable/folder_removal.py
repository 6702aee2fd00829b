"""Removing what a durable level has, while no manager has it: all of a folder, or reuse scopes."""

import json
import os
import re
from collections.abc import Sequence
from typing import Final

from ..base.errors import LogicError
from ..device.file_port import FilePort
from .cache_folder import IDENTITY_NAME, CacheFolder, folder_name
from .folder_contents import FolderContents, find_part_fault, list_part_folders, read_parts
from .folder_lock import LOCK_NAME, name_holder
from .folder_parts import PART_NAME, PathShares
from .index_files import number_of
from .record_format import encode_clear_scope

_DATA_NAME: Final = re.compile(r"data-[0-9]+-[0-9]+")


def remove_folder(files: FilePort, path: str, more_paths: Sequence[str] = ()) -> None:
    """Remove the folder, its parts that are found, and all that a manager has put there. ``more_paths``: where parts may be that have
    moved. `LogicError` while a manager has it; `OSError` if some of it stays.

    Interrupted anywhere, what is left is an older or a smaller state, and nothing that was cleared is found again.
    """
    lock_path = os.path.join(path, LOCK_NAME)
    try:
        lock = files.lock(lock_path)
    except BlockingIOError:
        raise LogicError(f"{path} is in use by {name_holder(files, path)}; shut that manager down first") from None
    try:
        names = files.names(path)
        # What clears a scope is in a log, and nothing that it clears is in a later one: so snapshots are removed first, then logs,
        # each from the oldest.
        index = sorted([name for name in names if number_of(name) >= 0], key=_removal_order)
        rest = [name for name in names if _DATA_NAME.fullmatch(name) is not None or name.endswith(".new")]
        parts = _list_parts(files, path, more_paths) if IDENTITY_NAME in names else []
        for name in index:
            files.remove(os.path.join(path, name))
        for part in parts:
            remove_folder(files, part)
        for name in [*rest, PART_NAME, IDENTITY_NAME, LOCK_NAME]:
            if name in names or name == LOCK_NAME:
                files.remove(os.path.join(path, name))
    finally:
        files.close_file(lock)
    files.remove_folder(path)


def _list_parts(files: FilePort, path: str, more_paths: Sequence[str]) -> list[str]:
    """The other parts of the level whose index the folder has, as far as they are found."""
    try:
        parts = read_parts(files, path)
    except ValueError:
        return []
    folders = list_part_folders(files, path, parts, more_paths)
    return [folders[number] for number in range(1, len(folders)) if find_part_fault(files, folders, parts, number) == ""]


def _removal_order(name: str) -> tuple[bool, int]:
    return name.startswith("log-"), number_of(name)


def remove_scopes(files: FilePort, contents: FolderContents, salts: list[int | str | None]) -> None:
    """Nothing of these scopes is found again; their slots are free for the next manager. `LogicError` while a manager has the folder."""
    identity = json.dumps(contents.identity, sort_keys=True)
    parent, name = os.path.split(os.path.abspath(contents.path))
    if folder_name(identity) != name:
        raise ValueError(
            f"the folder's name is not that of the identity in it, {folder_name(identity)}; rename it, or remove it as a whole"
        )
    paths = [parent, *[os.path.dirname(folder) for folder in contents.part_folders[1:]]]
    folder = CacheFolder(files, PathShares(paths, [], []), identity, json.dumps(contents.layout))
    try:
        folder.append(b"".join([encode_clear_scope(None, salt) for salt in salts]))
    finally:
        folder.close()
