"""The files of a durable level's index, read: the newest whole snapshot, and then all logs from its number on."""

import os
from typing import Final

from ..base.package_log import PackageLog
from ..device.file_bytes import read_file
from ..device.file_port import FilePort
from .index_state import IndexState
from .record_format import MAGIC, BadRecordError, split_frames

_logger: Final = PackageLog("kv_cache_manager_v2")


def number_of(name: str) -> int:
    """Number of a log or a snapshot; -1 for other files."""
    for kind in ("log-", "snapshot-"):
        if name.startswith(kind) and name[len(kind) :].isdecimal():
            return int(name[len(kind) :])
    return -1


def load_state(files: FilePort, folder: str, names: list[str]) -> tuple[IndexState, list[int]]:
    """The state that the files describe, and their numbers."""
    numbers = sorted({number_of(name) for name in names if number_of(name) >= 0})
    state = IndexState()
    first = 0
    for number in reversed([number for number in numbers if f"snapshot-{number}" in names]):
        found = IndexState()
        _read_into(files, os.path.join(folder, f"snapshot-{number}"), found)
        if found.is_whole:
            state = found
            first = number
            break
        _logger.warning("%s is cut or damaged; the durable level goes back to what is older", os.path.join(folder, f"snapshot-{number}"))
    for number in numbers:
        if number >= first and f"log-{number}" in names:
            _read_into(files, os.path.join(folder, f"log-{number}"), state)
    return state, numbers


def _read_into(files: FilePort, path: str, state: IndexState) -> None:
    file = files.open_named(path, False)
    try:
        data = read_file(files, file)
    finally:
        files.close_file(file)
    if data[: len(MAGIC)] != MAGIC:
        if len(data) > 0:
            _logger.warning("%s does not begin like an index: nothing of it is used", path)
        return
    frames, num_bytes_left = split_frames(data[len(MAGIC) :])
    for records in frames:
        try:
            state.apply(records)
        except BadRecordError as error:
            _logger.warning("%s: %s; what comes after that is not used", path, error)
            return
    if num_bytes_left > 0:
        _logger.warning("%s ends inside a record, or is damaged: its last %d bytes are not used", path, num_bytes_left)

