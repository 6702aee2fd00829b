"""What the folder of a durable level has, read without changing it: whose it is, and its blocks and pages by scope.

For tools beside the managers. While a manager has the folder, what is read is the state of some moment.
"""

import json
import os
from dataclasses import dataclass
from typing import Any, Final, final

from mypy_extensions import mypyc_attr

from ..base.value import Value
from ..device.file_bytes import read_file
from ..device.file_port import FilePort
from .cache_folder import FOLDER_PREFIX, FORMAT, IDENTITY_NAME, LOCK_NAME, name_holder
from .index_files import load_state
from .index_state import IndexState, StoredNode
from .record_format import MIXED, BadRecordError, decode_mixed

_TOKEN_BYTES: Final = 4
_MAX_ATTEMPTS: Final = 4


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

    __slots__ = ("path", "identity", "layout", "state", "file_bytes", "holder", "slot_bytes")

    path: Final[str]
    identity: Final[dict[str, Any]]
    layout: Final[dict[str, Any]]
    state: Final[IndexState]
    file_bytes: Final[int]
    holder: Final[str | None]
    """The process that has the folder now."""
    slot_bytes: Final[list[list[int]]]
    """By pool group, and pool."""

    def __init__(self, files: FilePort, path: str) -> None:
        """`ValueError` where it cannot be known what is there, `OSError` where it cannot be read."""
        self.path = path
        described = _read_identity(files, path)
        self.identity = described[0]
        self.layout = described[1]
        self.slot_bytes = described[2]
        self.holder = find_holder(files, path)
        self.state = _load_present(files, path)
        self.file_bytes = _count_file_bytes(files, path)

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
        return name_holder(files, lock_path)
    except FileNotFoundError:
        return None
    files.close_file(lock)
    return None


def _read_identity(files: FilePort, path: str) -> tuple[dict[str, Any], dict[str, Any], list[list[int]]]:
    name = os.path.join(path, IDENTITY_NAME)
    try:
        file = files.open_named(name, False)
    except FileNotFoundError:
        raise ValueError("there is no identity.json, so what it has is unknown") from None
    try:
        data = read_file(files, file)
    finally:
        files.close_file(file)
    try:
        described = json.loads(data)
    except ValueError:
        described = None
    if not isinstance(described, dict):
        raise ValueError("identity.json there cannot be read, so what it has is unknown")
    if described.get("format") != FORMAT:
        raise ValueError(f"it has format {described.get('format')}, and this release reads format {FORMAT}")
    identity = described.get("identity")
    layout = described.get("layout")
    if not isinstance(identity, dict) or not isinstance(layout, dict):
        raise ValueError("identity.json there has no identity or no layout, so what it has is unknown")
    slots = layout.get("slots")
    if not isinstance(slots, list) or not all([_are_sizes(sizes) for sizes in slots]):
        raise ValueError("identity.json there does not say how large the slots are, so what it has is unknown")
    return identity, layout, [list(sizes) for sizes in slots]


def _are_sizes(sizes: object) -> bool:
    return isinstance(sizes, list) and all([isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes])


def _load_present(files: FilePort, path: str) -> IndexState:
    """The state, while a manager may be removing what its new snapshot replaces."""
    for _attempt in range(_MAX_ATTEMPTS):
        try:
            return load_state(files, path, files.names(path))[0]
        except FileNotFoundError:
            pass
    return load_state(files, path, files.names(path))[0]


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
