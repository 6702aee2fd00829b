"""The folder of one durable level: whose it is, its lock, and the files of its index.

    <path>/kvcm-<identity>/     one for each model identity and rectangle of layers and heads, so that ranks share a path
        lock                    locked while a manager has the folder; the process id of the latest one
        identity.json           the format's version, the identity and the layout in plain words
        data-<group>-<pool>     the slots of one pool
        snapshot-<number>       the state at the beginning of the log of that number
        log-<number>            what came after that

A level on several paths has parts on the others (`FolderParts`). The state is the newest whole snapshot, and then all logs from its
number on. A process begins with a log of its own and writes the snapshot for it, and does so again whenever the log has become large
(`index_compaction`); older files are removed once the snapshot is on the disk. A folder with another layout or format is refused, never
changed.
"""

import errno
import json
import os
from collections.abc import Generator
from typing import Any, Final, final


from ..base.errors import LogicError, StorageIOError
from ..base.package_log import PackageLog
from ..device.checksum import hash_bytes
from ..device.file_bytes import read_named, write_file
from ..device.file_port import FilePort
from .folder_identity import IDENTITY_NAME, encode_identity, parse_identity
from .folder_lock import name_holder, take_lock
from .folder_parts import PART_NAME, FolderParts, list_names, replace_file
from .index_files import load_present, load_state, number_of
from .index_snapshot import IndexSnapshot
from .index_state import IndexState
from .record_format import MAGIC, frame
from .snapshot_file import SnapshotFile

FOLDER_PREFIX: Final = "kvcm-"

_logger: Final = PackageLog("kv_cache_manager_v2")


@final
class CacheFolder:
    """Opened and locked by the constructor; `close` unlocks it. ``layout``: what must be equal for the slots to be read."""

    __slots__ = (
        "path", "files", "parts", "is_read_only", "is_new", "state", "log_bytes", "snapshot_bytes", "_lock", "_log", "_number",
        "_old_names",
    )  # fmt: skip

    state: IndexState
    """The records that the last process has left; empty once that is restored."""

    def __init__(self, files: FilePort, paths: list[str], identity: str, layout: str, is_read_only: bool = False) -> None:
        """`ValueError` for a folder of another layout or format, `LogicError` while another manager has it, `StorageIOError` where the
        disk refuses."""
        self.files: Final = files
        self.parts: Final = FolderParts(files, folder_name(identity), paths, is_read_only)
        self.path: Final[str] = self.parts.folders[0]
        self._lock: int = -1
        self._log: int = -1
        self.log_bytes = 0
        """Bytes of the present log."""
        self.snapshot_bytes = 0
        """Bytes of the newest snapshot of this process; 0 before the first one."""
        self.is_read_only: Final = is_read_only
        """Nothing is locked or written; another process may be writing."""
        self.is_new = False
        """No process has had it before."""
        self._number = 0
        """Number of the present log."""
        self._old_names: list[str] = []
        """Names of files that the next snapshot replaces."""
        if is_read_only:
            self.state = self._read(identity, layout)
            return
        try:
            self.is_new = IDENTITY_NAME not in list_names(files, self.path)
            if self.is_new:
                try:
                    self.parts.require_no_part()
                    self.parts.require_free()
                except ValueError as taken:
                    raise self._foreign(str(taken)) from taken
            files.make_folder(self.path)
            self._take_lock()
            try:
                self._require_identity(identity, layout)
                names = files.names(self.path)
                self.state, numbers = load_state(files, self.path, names)
                self._number = max(numbers, default=0)
                self._begin_log(names)
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise StorageIOError(
                f"the durable level cannot use {self.path}: {error}; check the folder's permissions and free space, or give another path",
                self.path,
            ) from error

    def _read(self, identity: str, layout: str) -> IndexState:
        """Read the state of this moment, while another process may be writing."""
        try:
            if IDENTITY_NAME not in list_names(self.files, self.path):
                raise ValueError(
                    f"the durable level in {self.path} is read_only, and no process has made it yet: start the manager that writes it first"
                )
            self._require_identity(identity, layout)
            return load_present(self.files, self.path)
        except OSError as error:
            reason = f"the durable level cannot read {self.path}: {error}; check the folder's permissions"
            raise StorageIOError(reason, self.path) from error

    def _take_lock(self) -> None:
        try:
            self._lock = take_lock(self.files, self.path)
        except BlockingIOError:
            raise LogicError(
                f"the durable level in {self.path} is in use by {name_holder(self.files, self.path)}: two managers cannot write one "
                "folder. Shut that one down, give another path, or, for ranks of one model, say in model_id which heads each rank has"
            ) from None

    def _require_identity(self, identity: str, layout: str) -> None:
        """Join the level that is there, or make it."""
        try:
            self.parts.require_no_part()
            # To open a file is to make it, and what is refused is left as it is.
            is_there = IDENTITY_NAME in self.files.names(self.path)
            data = read_named(self.files, os.path.join(self.path, IDENTITY_NAME)) if is_there else b""
            parts = self._join(data, json.loads(identity), json.loads(layout)) if len(data) > 0 else self._make()
        except ValueError as error:
            raise self._foreign(str(error)) from error
        if parts is not None:
            replace_file(self.files, self.path, IDENTITY_NAME, encode_identity(json.loads(identity), json.loads(layout), parts))

    def _join(self, data: bytes, identity: dict[str, Any], layout: dict[str, Any]) -> dict[str, Any] | None:
        """What identity.json is to say of the parts; None if it says so already. `ValueError` if it is another level's."""
        found = parse_identity(data)
        for what, theirs, ours in (("identity", found[0], identity), ("layout", found[1], layout)):
            if theirs != ours:
                raise ValueError(f"it has another {what}: {json.dumps(theirs)}, not {json.dumps(ours)}")
        self.parts.join(found[3])
        return self.parts.note_paths(found[3])

    def _make(self) -> dict[str, Any]:
        """What identity.json is to say of the parts. `ValueError` if something is there."""
        if self.is_read_only:
            raise ValueError("identity.json there is empty, so what it has is unknown")
        if len([name for name in self.files.names(self.path) if number_of(name) >= 0]) > 0:
            raise ValueError("it has an index and no identity.json, so what it has is unknown")
        return self.parts.create()

    def _foreign(self, reason: str) -> ValueError:
        return ValueError(
            f"the durable level cannot use {self.path}: {reason}. Nothing there is changed; give another path, or remove that folder (kvcm "
            "cache rm)"
        )

    def _begin_log(self, names: list[str]) -> None:
        """``names``: of the files there."""
        path = os.path.join(self.path, f"log-{self._number + 1}")
        log = self.files.open_named(path, False)
        try:
            write_file(self.files, log, MAGIC, 0)
            self.files.sync(log)
            self.files.sync_folder(self.path)
        except BaseException:
            self.files.close_file(log)
            self._remove_log(self._number + 1)
            raise
        older = self._log
        self._log = log
        self.log_bytes = len(MAGIC)
        self._number += 1
        # Also snapshots that were not finished, and not a log whose beginning was refused: that has the number of the present one.
        self._old_names = [name for name in names if 0 <= number_of(name.removesuffix(".new")) < self._number]
        if older >= 0:
            self._close_file(older)

    # -- writing; by one thread at a time -----------------------------------------------------------------------------

    def append(self, records: bytes) -> None:
        """Add records to the log, and return once they are safe. `OSError`: they may not be there, nor whatever comes after them."""
        data = frame(records)
        write_file(self.files, self._log, data, self.log_bytes)
        self.log_bytes += len(data)
        self.files.sync(self._log)
        self._require_log()

    def remove_log(self) -> None:
        """After an `OSError`: the index is what it was before this process."""
        self._remove_log(self._number)

    def _remove_log(self, number: int) -> None:
        try:
            self.files.remove(os.path.join(self.path, f"log-{number}"))
        except OSError as error:
            _logger.warning("removing log-%d in %s: %s", number, self.path, error)

    def _require_log(self) -> None:
        """`FileNotFoundError` where what is written has no name any more: then no process will find it."""
        name = f"log-{self._number}"
        path = os.path.join(self.path, name)
        is_there = name in list_names(self.files, self.path)
        if is_there:
            file = self.files.open_named(path, False)
            try:
                # Another manager may have begun anew in its place.
                is_there = self.files.length(file) == self.log_bytes
            finally:
                self.files.close_file(file)
        if not is_there:
            raise _vanished(path)

    def require_files(self, names: list[str]) -> None:
        """`FileNotFoundError` where one of these files has no name any more on any of the paths, or a path's part is another level's."""
        for number, folder in enumerate(self.parts.folders):
            there = list_names(self.files, folder)
            for name in names:
                if name not in there:
                    raise _vanished(os.path.join(folder, name))
            if not self.parts.is_ours(number):
                raise _vanished(os.path.join(folder, PART_NAME))

    def write_snapshot(self, snapshot: IndexSnapshot) -> Generator[None, None, None]:
        """Step by step: the state at the beginning of the present log. After the last step it counts, and what is older is removed."""
        target = SnapshotFile(self.files, self.path, self._number)
        try:
            for piece in snapshot.pieces():
                target.write(piece)
                yield
            target.finish()
        except BaseException:
            target.abandon()
            raise
        self.snapshot_bytes = target.num_bytes
        while self._old_names:
            try:
                self.files.remove(os.path.join(self.path, self._old_names[-1]))
            except FileNotFoundError:
                pass
            self._old_names.pop()

    def begin_log(self) -> None:
        """Append to a new log from now on; the older files wait for the snapshot that replaces them. `OSError`: all is as before."""
        self._require_log()
        self._begin_log(self.files.names(self.path))

    def list_older(self) -> list[str]:
        """The files that say what was there when the present log began, in the order in which they are to be read."""
        snapshots = [number_of(name) for name in self._old_names if name.startswith("snapshot-")]
        first = max(snapshots, default=-1)
        logs = sorted([number_of(name) for name in self._old_names if name.startswith("log-")])
        names = [f"log-{number}" for number in logs if number >= first]
        return names if first < 0 else [f"snapshot-{first}", *names]

    def close(self) -> None:
        """Unlock the folder and its parts. Twice is fine."""
        self.parts.close()
        for file in (self._log, self._lock):
            if file >= 0:
                self._close_file(file)
        self._log = -1
        self._lock = -1

    def _close_file(self, file: int) -> None:
        try:
            self.files.close_file(file)
        except OSError as error:
            _logger.warning("closing a file in %s: %s", self.path, error)


_MASK: Final = (1 << 64) - 1


def _vanished(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "its files have vanished while they were in use", path)


def folder_name(identity: str) -> str:
    return f"{FOLDER_PREFIX}{hash_bytes(identity.encode()) & _MASK:016x}"
