"""The contents of a durable level's folder, read without changing it: whose it is, and its blocks and pages by scope.

While a manager has the folder, what is read is the state of some moment. `remove_scopes` needs it free.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final


from ..base.value import Value
from ..device.file_port import FilePort
from ..device.stripe import Stripe, make_stripe
from ..durable.cache_folder import FOLDER_PREFIX, CacheFolder, folder_name
from ..durable.folder_identity import IDENTITY_NAME, list_part_folders, read_identity, read_parts
from ..durable.folder_lock import LOCK_NAME, name_holder
from ..durable.folder_parts import describe_part, find_part_fault, read_part
from ..durable.index_files import load_present
from ..durable.index_state import IndexState
from ..durable.record_format import MIXED, BadRecordError, decode_mixed, encode_clear_scope
from .stored_index import StoredNode, list_nodes, list_stored_pages

_TOKEN_BYTES: Final = 4


@dataclass(frozen=True)
class ScopeFigures(Value):
    """One reuse scope in one folder. ``blocks``: those with a page; ``bytes``: of their slots."""

    salt: int | str | None
    blocks: int
    tokens: int
    pages: int
    bytes: int


@final
class FolderContents:
    """``identity`` and ``layout``: as the manager wrote them that made the folder. ``file_bytes``: of all files there."""

    __slots__ = ("path", "identity", "layout", "state", "file_bytes", "holder", "slot_bytes", "part_folders", "_parts")

    identity: Final[dict[str, Any]]
    layout: Final[dict[str, Any]]
    slot_bytes: Final[list[list[int]]]
    """By pool group, and pool."""
    _parts: Final[dict[str, Any]]

    def __init__(self, files: FilePort, path: str, more_paths: Sequence[str] = ()) -> None:
        """``more_paths``: where parts may be that have moved.

        `ValueError` where it cannot be known what is there, `OSError` where it cannot be read.
        """
        self.path: Final = path
        self.identity, self.layout, self.slot_bytes, self._parts = read_identity(files, path)
        self.part_folders: Final[list[str]] = list_part_folders(files, path, self._parts, more_paths)
        """This folder, and those on the other paths, see `list_part_folders`."""
        self.holder: Final[str | None] = find_holder(files, path)
        """The process that has the folder now."""
        self.state: Final[IndexState] = load_present(files, path)
        self.file_bytes: Final[int] = sum([_count_file_bytes(files, folder) for folder in self.part_folders if os.path.isdir(folder)])

    def find_part_fault(self, files: FilePort, number: int) -> str:
        """The fault of the folder on that path; empty if it is that part of this level."""
        return find_part_fault(files, self.part_folders, self._parts, number)

    def stripe(self, slot_bytes: int) -> Stripe | None:
        """How the slots of a pool lie in the parts; None for a single path."""
        return make_stripe(self.part_folders, slot_bytes)

    def list_scopes(self) -> list[ScopeFigures]:
        """The scopes that have pages, in the order in which they came."""
        scope_of: dict[int, int | str | None] = {}
        blocks: dict[int | str | None, set[int]] = {}
        nodes = list_nodes(self.state)
        for number, node in nodes.items():
            if node.parent == 0:
                scope_of[number] = node.salt
                blocks.setdefault(node.salt, set())
            elif node.parent in scope_of:
                scope_of[number] = scope_of[node.parent]
        pages: dict[int | str | None, int] = {}
        num_bytes: dict[int | str | None, int] = {}
        for (pool_group, _slot), page in list_stored_pages(self.state).items():
            if page.node not in scope_of:
                continue
            salt = scope_of[page.node]
            blocks[salt].add(page.node)
            pages[salt] = pages.get(salt, 0) + 1
            sizes = self.slot_bytes[pool_group] if pool_group < len(self.slot_bytes) else []
            num_bytes[salt] = num_bytes.get(salt, 0) + sum(sizes)
        return [
            ScopeFigures(salt, len(found), sum([count_tokens(nodes[node]) for node in found]), pages[salt], num_bytes[salt])
            for salt, found in blocks.items()
            if len(found) > 0
        ]


def find_level_of_part(files: FilePort, path: str) -> str:
    """Which durable level has that folder as a part; empty if it is none, or its level is not where it was made."""
    part = read_part(files, path)
    if part is None or IDENTITY_NAME in files.names(path):
        return ""
    try:
        parts = read_parts(files, os.path.join(part["paths"][0], os.path.basename(os.path.normpath(path))))
    except (ValueError, OSError):
        return ""
    return describe_part(part) if parts.get("set") == part["set"] else ""


def count_tokens(node: StoredNode) -> int:
    if node.form == MIXED:
        try:
            return len(decode_mixed(node.tokens))
        except BadRecordError:
            return 0
    return len(node.tokens) // _TOKEN_BYTES


def find_folders(files: FilePort, path: str) -> list[str]:
    """The folders of durable levels in ``path``, or ``path`` itself if it is one."""
    if os.path.basename(os.path.normpath(path)).startswith(FOLDER_PREFIX) and IDENTITY_NAME in files.names(path):
        return [os.path.normpath(path)]
    names = [name for name in files.names(path) if name.startswith(FOLDER_PREFIX)]
    return [os.path.join(path, name) for name in sorted(names) if os.path.isdir(os.path.join(path, name))]


def find_holder(files: FilePort, path: str) -> str | None:
    """Which process has the folder now; None if it is free."""
    lock_path = os.path.join(path, LOCK_NAME)
    try:
        lock = files.lock(lock_path)
    except BlockingIOError:
        return name_holder(files, path)
    except FileNotFoundError:
        return None
    files.close_file(lock)
    return None


def _count_file_bytes(files: FilePort, path: str) -> int:
    num_bytes = 0
    for name in files.names(path):
        try:
            file = files.open_named(os.path.join(path, name), False)
        except OSError:
            # Removed since: a manager has a new snapshot.
            continue
        try:
            num_bytes += files.length(file)
        finally:
            files.close_file(file)
    return num_bytes


def remove_scopes(files: FilePort, contents: FolderContents, salts: list[int | str | None]) -> None:
    """Nothing of these scopes is found again; their slots are free for the next manager. `LogicError` while a manager has the folder;
    `StorageIOError` or `OSError` where the disk refuses: then the index is as it was."""
    identity = json.dumps(contents.identity, sort_keys=True)
    parent, name = os.path.split(os.path.abspath(contents.path))
    if folder_name(identity) != name:
        raise ValueError(
            f"the folder's name is not that of the identity in it, {folder_name(identity)}; rename it, or remove it as a whole"
        )
    paths = [parent, *[os.path.dirname(folder) for folder in contents.part_folders[1:]]]
    folder = CacheFolder(files, paths, identity, json.dumps(contents.layout))
    try:
        folder.append(b"".join([encode_clear_scope(None, salt) for salt in salts]))
    except OSError:
        folder.remove_log()
        raise
    finally:
        folder.close()
