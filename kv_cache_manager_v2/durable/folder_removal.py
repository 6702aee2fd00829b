"""Removing the folder of a durable level, and its parts, while no manager has it."""

import os
import re
from collections.abc import Sequence
from typing import Final

from ..base.errors import LogicError
from ..device.file_port import FilePort
from .folder_identity import IDENTITY_NAME, list_part_folders, read_parts
from .folder_lock import LOCK_NAME, name_holder
from .folder_parts import PART_NAME, find_part_fault
from .index_files import number_of

_DATA_NAME: Final = re.compile(r"data-[0-9]+-[0-9]+")
_OWN_NAMES: Final = (PART_NAME, IDENTITY_NAME, LOCK_NAME)
_NAMES_SHOWN: Final = 4


def remove_folder(files: FilePort, path: str, more_paths: Sequence[str] = ()) -> None:
    """Remove the folder, its parts that are found, and all that a manager has put there. ``more_paths``: where parts may be that have
    moved. `LogicError` while a manager has one of these folders, `ValueError` where one of them cannot be removed as a whole: then all of
    them are as they were. `OSError` if the disk refuses.

    Interrupted anywhere, what is left is an older or a smaller state, and nothing that was cleared is found again.
    """
    require_removable(files, path)
    parts = _list_parts(files, path, more_paths) if IDENTITY_NAME in files.names(path) else []
    for part in parts:
        try:
            require_removable(files, part)
        except ValueError as error:
            raise ValueError(f"{path}: its part in {part}: {error}") from None
    locks: list[int] = []
    try:
        for folder in (path, *parts):
            locks.append(_lock(files, folder))
            # Another process may have written meanwhile.
            require_removable(files, folder)
        names = files.names(path)
        # What clears a scope is in a log, and nothing that it clears is in a later one: so snapshots are removed first, then logs,
        # each from the oldest.
        for name in sorted([name for name in names if number_of(name) >= 0], key=_removal_order):
            files.remove(os.path.join(path, name))
        for part in parts:
            _remove_rest(files, part)
        _remove_rest(files, path)
    finally:
        for lock in locks:
            files.close_file(lock)


def require_removable(files: FilePort, path: str) -> None:
    """`ValueError`, with the way out, where the folder could not be removed as a whole. Nothing is changed."""
    if os.path.islink(path):
        target = os.path.realpath(path)
        raise ValueError(f"it is a symbolic link to {target}; nothing of it is removed. Remove that folder, and then the link, by hand")
    for folder in (path, os.path.dirname(os.path.abspath(path))):
        if not os.access(folder, os.W_OK | os.X_OK):
            which = "it" if folder == path else f"the folder that it is in, {folder},"
            raise ValueError(f"{which} cannot be written; nothing of it is removed. Run as the user who may, or mount its disk for writing")
    foreign = [name for name in sorted(files.names(path)) if not _is_removable(path, name)]
    if len(foreign) > 0:
        more = "" if len(foreign) <= _NAMES_SHOWN else f" and {len(foreign) - _NAMES_SHOWN} more"
        raise ValueError(
            f"it has {', '.join(foreign[:_NAMES_SHOWN])}{more}, which no manager has made; nothing of it is removed. Move that elsewhere, "
            "or remove the folder by hand"
        )


def _is_removable(path: str, name: str) -> bool:
    """Whether it is a file that a manager may have made."""
    if number_of(name) < 0 and name not in _OWN_NAMES and _DATA_NAME.fullmatch(name) is None and not name.endswith(".new"):
        return False
    whole = os.path.join(path, name)
    return os.path.islink(whole) or not os.path.isdir(whole)


def _lock(files: FilePort, path: str) -> int:
    try:
        return files.lock(os.path.join(path, LOCK_NAME))
    except BlockingIOError:
        raise LogicError(f"{path} is in use by {name_holder(files, path)}; shut that manager down first") from None


def _remove_rest(files: FilePort, path: str) -> None:
    """All but the index, and the folder."""
    names = files.names(path)
    rest = [name for name in names if name not in _OWN_NAMES]
    for name in [*rest, PART_NAME, IDENTITY_NAME, LOCK_NAME]:
        if name in names:
            files.remove(os.path.join(path, name))
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
