"""A new snapshot while the manager serves, made step by step by the thread that writes the index, from the files before the present log.

    state     what a step does                                                        way out
    reading   apply some of the newest snapshot and of the logs after it              all are read: choosing
    choosing  find some of what the new snapshot says (`SnapshotChoice`)              all is found: writing
    writing   append a piece of the new snapshot                                      all is written: done
    done      -; the snapshot has its name, and what it replaces is removed

The present log is new when it begins (`CacheFolder.begin_log`), so that until the end the older files and the present log say all there is,
as they do while a manager starts. A step reads nothing of the manager but the numbers of the blocks in the tree, copied at the beginning.

Law: a start finds the same pages with the new snapshot as with the files that it replaces, and each block in the tree keeps its node. Nodes
without either, of blocks that have left the tree and whose pages were overwritten, are left out.
"""

import os
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64, mypyc_attr

from ..base.package_log import PackageLog
from ..device.file_bytes import read_range
from .cache_folder import CacheFolder
from .index_state import IndexSnapshot, IndexState
from .record_format import MAGIC, BadRecordError, split_frames
from .snapshot_choice import SnapshotChoice
from .snapshot_file import SnapshotFile

_logger: Final = PackageLog("kv_cache_manager_v2")

_STEP_BYTES: Final = 1 << 16
"""Read at once: how long other threads may have to wait for the interpreter."""


@final
@mypyc_attr(native_class=True)
class IndexCompaction:
    """Made right after `CacheFolder.begin_log`. ``live``: the numbers of the blocks in the tree."""

    __slots__ = ("_folder", "_live", "_names", "_state", "_file", "_file_bytes", "_offset", "_unread", "_choice", "_snapshot", "_target")

    _folder: Final[CacheFolder]
    _live: vec[i64]
    _names: Final[list[str]]
    """To be read, the next one last."""
    _state: IndexState
    _file: int
    """That is being read, or -1."""
    _file_bytes: int
    _offset: int
    _unread: bytes
    """The beginning of a frame whose end was not read yet."""
    _choice: SnapshotChoice | None
    _snapshot: IndexSnapshot | None
    _target: SnapshotFile | None

    def __init__(self, folder: CacheFolder, live: vec[i64]) -> None:
        self._folder = folder
        self._live = live
        self._names = folder.list_older()
        self._names.reverse()
        self._state = IndexState()
        self._file = -1
        self._file_bytes = 0
        self._offset = 0
        self._unread = b""
        self._choice = None
        self._snapshot = None
        self._target = None

    def step(self) -> bool:
        """Some of the work, a millisecond or so; False once all of it is done. `OSError`, `BadRecordError`: to be abandoned."""
        if self._file >= 0:
            self._read()
        elif len(self._names) > 0:
            self._open(self._names.pop())
        elif self._snapshot is None:
            self._choose()
        else:
            return self._write(self._snapshot)
        return True

    def abandon(self) -> None:
        """The older files stay."""
        try:
            self._close()
        except OSError as error:
            _logger.warning("closing a file in %s: %s", self._folder.path, error)
        if self._target is not None:
            self._target.abandon()
            self._target = None

    # -- reading ------------------------------------------------------------------------------------------------------

    def _open(self, name: str) -> None:
        files = self._folder.files
        self._file = files.open_named(os.path.join(self._folder.path, name), False)
        self._file_bytes = files.length(self._file)
        self._offset = len(MAGIC)
        self._unread = b""
        if read_range(files, self._file, 0, len(MAGIC)) != MAGIC:
            raise BadRecordError(f"{name} does not begin like an index")

    def _read(self) -> None:
        if self._offset >= self._file_bytes:
            if len(self._unread) > 0:
                raise BadRecordError("a file of the index ends inside a record, or is damaged")
            self._close()
            return
        data = read_range(self._folder.files, self._file, self._offset, min(_STEP_BYTES, self._file_bytes - self._offset))
        if len(data) == 0:
            raise BadRecordError("a file of the index became shorter")
        self._offset += len(data)
        data = self._unread + data
        frames, num_bytes_left = split_frames(data)
        for records in frames:
            self._state.apply(records)
        self._unread = data[len(data) - num_bytes_left :]

    def _close(self) -> None:
        file = self._file
        self._file = -1
        if file >= 0:
            self._folder.files.close_file(file)

    # -- writing ------------------------------------------------------------------------------------------------------

    def _choose(self) -> None:
        state = self._state
        choice = self._choice
        if choice is None:
            choice = SnapshotChoice(state, self._live)
            self._choice = choice
        if choice.step():
            return
        self._choice = None
        self._live = vec[i64]()
        self._snapshot = IndexSnapshot(state, choice.nodes, state.parents, choice.pages, state.page_nodes, state.next_generation)
        self._target = self._folder.open_snapshot()

    def _write(self, snapshot: IndexSnapshot) -> bool:
        target = self._target
        assert target is not None, "a snapshot is written that was not opened"
        piece = snapshot.take_piece()
        if piece is not None:
            target.write(piece)
            return True
        self._folder.adopt_snapshot(target)
        self._target = None
        return False
