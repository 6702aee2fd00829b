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
from .cache_folder import CacheFolder
from .index_files import IndexFile
from .index_snapshot import IndexSnapshot
from .index_state import IndexState
from .snapshot_choice import SnapshotChoice
from .snapshot_file import SnapshotFile

_logger: Final = PackageLog("kv_cache_manager_v2")

_STEP_BYTES: Final = 1 << 16
"""Read at once: how long other threads may have to wait for the interpreter."""


@final
@mypyc_attr(native_class=True)
class IndexCompaction:
    """Made right after `CacheFolder.begin_log`. ``live``: the numbers of the blocks in the tree."""

    __slots__ = ("_folder", "_live", "_names", "_state", "_file", "_choice", "_snapshot", "_target")

    _folder: Final[CacheFolder]
    _live: vec[i64]
    _names: Final[list[str]]
    """To be read, the next one last."""
    _state: IndexState
    _file: IndexFile | None
    """That is being read."""
    _choice: SnapshotChoice | None
    _snapshot: IndexSnapshot | None
    _target: SnapshotFile | None

    def __init__(self, folder: CacheFolder, live: vec[i64]) -> None:
        self._folder = folder
        self._live = live
        self._names = folder.list_older()
        self._names.reverse()
        self._state = IndexState()
        self._file = None
        self._choice = None
        self._snapshot = None
        self._target = None

    def step(self) -> bool:
        """Some of the work, a millisecond or so; False once all of it is done. `OSError`, `BadRecordError`: to be abandoned."""
        if self._file is not None:
            self._read(self._file)
        elif len(self._names) > 0:
            self._file = IndexFile(self._folder.files, os.path.join(self._folder.path, self._names.pop()))
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

    def _read(self, file: IndexFile) -> None:
        frames = file.read(_STEP_BYTES)
        if frames is None:
            self._close()
            return
        for records in frames:
            self._state.apply(records)

    def _close(self) -> None:
        file = self._file
        self._file = None
        if file is not None:
            file.close()

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
