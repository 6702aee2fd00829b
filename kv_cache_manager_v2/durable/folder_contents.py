"""The contents of a durable level's folder, read without changing it: whose it is, and its blocks and pages by scope.

For tools beside the managers. While a manager has the folder, what is read is the state of some moment.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from mypy_extensions import mypyc_attr

from ..base.value import Value
from ..device.file_bytes import read_named
from ..device.file_port import FilePort
from ..device.stripe import Stripe, make_stripe
from .cache_folder import FOLDER_PREFIX, FORMAT, FORMAT_OF_PARTS, IDENTITY_NAME
from .folder_lock import LOCK_NAME, name_holder
from .folder_parts import describe_part, read_object, read_part
from .index_files import load_present
from .index_state import IndexState, StoredNode
from .record_format import MIXED, BadRecordError, decode_mixed

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
@mypyc_attr(native_class=True)
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
        self.identity, self.layout, self.slot_bytes, self._parts = _read_identity(files, path)
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
        nodes = self.state.nodes
        for number, node in nodes.items():
            if node.parent == 0:
                scope_of[number] = node.salt
                blocks.setdefault(node.salt, set())
            elif node.parent in scope_of:
                scope_of[number] = scope_of[node.parent]
        pages: dict[int | str | None, int] = {}
        num_bytes: dict[int | str | None, int] = {}
        for (pool_group, _slot), page in self.state.pages.items():
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


def read_parts(files: FilePort, path: str) -> dict[str, Any]:
    """The parts, as identity.json says; empty for a level on one path. `ValueError` where it cannot be known."""
    return _read_identity(files, path)[3]


def list_part_folders(files: FilePort, path: str, parts: dict[str, Any], more_paths: Sequence[str] = ()) -> list[str]:
    """The folder that has the index, and those of the parts: where the last manager that wrote had them, or else in one of
    ``more_paths``."""
    name = os.path.basename(os.path.normpath(path))
    folders = [path, *[os.path.join(str(parent), name) for parent in parts.get("paths", [])[1:]]]
    for number in range(1, len(folders)):
        noted = folders[number]
        for folder in (noted, *[os.path.join(other, name) for other in more_paths], *more_paths):
            folders[number] = folder
            if find_part_fault(files, folders, parts, number) == "":
                break
            folders[number] = noted
    return folders


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


def _read_identity(files: FilePort, path: str) -> tuple[dict[str, Any], dict[str, Any], list[list[int]], dict[str, Any]]:
    name = os.path.join(path, IDENTITY_NAME)
    try:
        data = read_named(files, name)
    except FileNotFoundError:
        part = read_part(files, path)
        if part is not None:
            raise ValueError(describe_part(part)) from None
        raise ValueError("there is no identity.json, so what it has is unknown") from None
    described = read_object(data)
    if described is None:
        raise ValueError("identity.json there cannot be read, so what it has is unknown")
    parts = described.get("parts", {})
    if not isinstance(parts, dict) or (len(parts) > 0 and not _are_parts(parts)):
        raise ValueError("identity.json there does not say which parts it has, so what it has is unknown")
    if described.get("format") != (FORMAT if len(parts) == 0 else FORMAT_OF_PARTS):
        raise ValueError(f"it has format {described.get('format')}, and this release reads format {FORMAT}")
    identity = described.get("identity")
    layout = described.get("layout")
    if not isinstance(identity, dict) or not isinstance(layout, dict):
        raise ValueError("identity.json there has no identity or no layout, so what it has is unknown")
    slots = layout.get("slots")
    if not isinstance(slots, list) or not all([_are_sizes(sizes) for sizes in slots]):
        raise ValueError("identity.json there does not say how large the slots are, so what it has is unknown")
    return identity, layout, [list(sizes) for sizes in slots], parts


def _are_parts(parts: dict[str, Any]) -> bool:
    paths = parts.get("paths")
    return isinstance(paths, list) and all([isinstance(path, str) for path in paths]) and "set" in parts


def _are_sizes(sizes: object) -> bool:
    return isinstance(sizes, list) and all([isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes])


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
