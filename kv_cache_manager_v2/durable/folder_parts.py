"""The parts of a durable level that lies on several paths: one folder of the same name on each, of which the first has the index.

    <first path>/kvcm-<identity>/     all that `CacheFolder` says; identity.json names the parts and the set they are
    <other path>/kvcm-<identity>/     lock   part.json   data-<group>-<pool>

Pages go to the parts by slot (`Stripe`), so paths that are missing, foreign or in another order would give other bytes: all of them are
named and refused, and nothing is changed. A part is known by the number of its set, whatever its path is called now; a manager that
writes notes the present paths.
"""

import json
import os
from typing import Any, Final, final


from ..base.errors import LogicError
from ..device.file_bytes import read_named, write_file
from ..device.file_port import FilePort
from ..device.stripe import Stripe, make_stripe
from .folder_lock import LOCK_NAME, name_holder, take_lock

PART_NAME: Final = "part.json"


@final
class FolderParts:
    """The folders on all paths, the first one included; those of the other paths are locked until `close`, unless they
    are only read."""

    __slots__ = ("folders", "_files", "_paths", "_set", "_locks", "_is_read_only")

    def __init__(self, files: FilePort, name: str, paths: list[str], is_read_only: bool = False) -> None:
        """`ValueError` for a path that is not there; it opens nothing."""
        for path in paths:
            if not os.path.isdir(path):
                way_out = "it is a file: name a folder" if os.path.exists(path) else "create it first, or mount the disk that has it"
                raise ValueError(f"there is no folder {path!r} for the durable level; {way_out}")
        self.folders: Final[list[str]] = [os.path.join(path, name) for path in paths]
        self._files: Final = files
        self._paths: Final = paths
        self._set = ""
        self._locks: Final[list[int]] = []
        self._is_read_only: Final = is_read_only

    # -- opening; ValueError says why the paths do not fit --------------------------------------------------------------

    def require_no_part(self) -> None:
        """The first folder has no index: it must not be another path of a level either."""
        found = read_part(self._files, self.folders[0])
        if found is not None:
            raise ValueError(f"{describe_part(found)}; give all of them, in that order")

    def require_free(self) -> None:
        """Before the first folder is made: none of the others is another level's."""
        for folder in self.folders[1:]:
            self._require_free(folder)

    def _require_free(self, folder: str) -> None:
        taken = [name for name in list_names(self._files, folder) if name not in (LOCK_NAME, PART_NAME) and not name.endswith(".new")]
        if len(taken) > 0:
            raise ValueError(f"{folder} belongs to another durable level: it has {', '.join(sorted(taken)[:4])} already")

    def create(self) -> dict[str, Any]:
        """Make the parts of a new level; returns what identity.json says of them, nothing for a single path."""
        if len(self.folders) == 1:
            return {}
        for folder in self.folders[1:]:
            self._files.make_folder(folder)
            self._lock(folder)
            self._require_free(folder)
        self._set = os.urandom(8).hex()
        return self._write_parts()

    def note_paths(self, recorded: dict[str, Any]) -> dict[str, Any] | None:
        """After `join`: have the parts say where the level is now. What identity.json is to say then; None if it says so already."""
        if self._is_read_only or len(self.folders) == 1 or recorded["paths"] == self._paths:
            return None
        return self._write_parts()

    def _write_parts(self) -> dict[str, Any]:
        for number, folder in enumerate(self.folders):
            if number > 0:
                part = {"set": self._set, "part": number, "paths": self._paths}
                replace_file(self._files, folder, PART_NAME, json.dumps(part, indent=1).encode())
        return {"set": self._set, "paths": self._paths}

    def join(self, recorded: dict[str, Any]) -> None:
        """Open the parts of a level that is there. ``recorded``: what identity.json says of them."""
        if len(recorded) == 0:
            if len(self.folders) > 1:
                raise ValueError(f"it was made with one path, and {len(self.folders)} are given: give {self._paths[0]} alone")
            return
        recorded_paths: list[str] = recorded["paths"]
        if len(recorded_paths) != len(self.folders):
            raise ValueError(
                f"it was made with {len(recorded_paths)} paths, {', '.join(recorded_paths)}, and {len(self.folders)} "
                f"{'is' if len(self.folders) == 1 else 'are'} given: give all of them, in that order, and no other"
            )
        self._set = str(recorded["set"])
        for number in range(1, len(self.folders)):
            self._join_part(number, recorded_paths)

    def _join_part(self, number: int, recorded_paths: list[str]) -> None:
        folder = self.folders[number]
        found = read_part(self._files, folder)
        if found is None:
            raise ValueError(
                f"its part {number + 1} of {len(self.folders)} is not in {folder}, made as {recorded_paths[number]}: mount the disk that "
                "has it"
            )
        if found["set"] != self._set:
            raise ValueError(f"{folder} is a part of another durable level, on the paths {', '.join(found['paths'])}")
        if found["part"] != number:
            raise ValueError(
                f"{folder} is its part {found['part'] + 1}, and is given as path {number + 1}: give the paths in the order "
                f"{', '.join(recorded_paths)}"
            )
        self._lock(folder)

    def _lock(self, folder: str) -> None:
        if self._is_read_only:
            return
        try:
            self._locks.append(take_lock(self._files, folder))
        except BlockingIOError:
            raise LogicError(
                f"the part of a durable level in {folder} is in use by {name_holder(self._files, folder)}; shut that one down first"
            ) from None

    # -- in use ---------------------------------------------------------------------------------------------------------

    def stripe(self, slot_bytes: int) -> Stripe | None:
        """How the slots of a pool lie in the parts; None for a single path."""
        return make_stripe(self.folders, slot_bytes)

    def is_ours(self, number: int) -> bool:
        """Whether the folder on that path has its part of this level, as it had when it was opened. The first one has none."""
        return find_part_fault(self._files, self.folders, {"set": self._set}, number) == ""

    def close(self) -> None:
        """Unlock the parts. Twice is fine."""
        while self._locks:
            self._files.close_file(self._locks.pop())


def list_names(files: FilePort, folder: str) -> list[str]:
    """The names of the files there; none where there is no such folder."""
    try:
        return files.names(folder)
    except FileNotFoundError:
        return []


def find_part_fault(files: FilePort, folders: list[str], parts: dict[str, Any], number: int) -> str:
    """The fault of the folder on that path; empty if it is that part of the level."""
    if number == 0:
        return ""
    found = read_part(files, folders[number])
    if found is None:
        return f"part {number + 1} of {len(folders)} is not in {folders[number]}"
    if found["set"] != parts["set"] or found["part"] != number:
        return f"{folders[number]} is a part of another durable level"
    return ""


def read_part(files: FilePort, folder: str) -> dict[str, Any] | None:
    """The contents of part.json; None where there is none that can be read."""
    try:
        if PART_NAME not in list_names(files, folder):
            return None
    except NotADirectoryError:
        return None
    found = read_object(read_named(files, os.path.join(folder, PART_NAME)))
    if found is None or not isinstance(found.get("part"), int) or not isinstance(found.get("paths"), list) or len(found["paths"]) == 0:
        return None
    return {"set": str(found.get("set")), "part": found["part"], "paths": [str(path) for path in found["paths"]]}


def read_object(data: bytes) -> dict[str, Any] | None:
    """A JSON object; None where it is none."""
    try:
        found: object = json.loads(data)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def describe_part(part: dict[str, Any]) -> str:
    return f"it is part {part['part'] + 1} of a durable level on the paths {', '.join(part['paths'])}, whose index is in the first of them"


def replace_file(files: FilePort, folder: str, name: str, data: bytes) -> None:
    """Write a small file that is there as a whole, as it was or as it is now, whenever the process ends. Safe when it returns."""
    new_path = os.path.join(folder, name + ".new")
    file = files.open_named(new_path, False)
    try:
        files.discard(file, 0, files.length(file), True)
        write_file(files, file, data, 0)
        files.sync(file)
    finally:
        files.close_file(file)
    files.rename(new_path, os.path.join(folder, name))
    files.sync_folder(folder)
